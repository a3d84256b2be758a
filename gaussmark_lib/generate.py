"""Sampling. The watermark changes the weights, not the sampler (paper, Alg. 1).

Each row draws from its own stream of uniform numbers, a function of (seed, row) alone, and turns
them into tokens by inverting the cumulative distribution. So the same seed gives base and
watermarked model the same random numbers, and a row's text depends on the rows beside it by
rounding alone. That changes less than one token in 300 in float32 and one in 20 in bfloat16 for a
vocabulary of a few thousand (tests/core/test_batch_invariance.py), and more for a larger one: about
one in 200 and one in 8 for SmolLM2's 49,152 tokens. Either text is a sample of the same model.

Every row of a batch can be written under a key of its own: a hook adds the second term of

    y = (θ + σ z_k)·x = θ·x + σ (z_k·x),      z_k ~ N(0, I)

to the row of key k (``engine.hooks``). The text is sampled from exactly p_{θ+ξ}; a bfloat16 weight
θ + ξ rounds a part of ξ away, which the hook does not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import keys, perturb, tokens, weights
from gaussmark_lib.engine import blocks, decoding, hooks
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.engine.decoding import Processor
from gaussmark_lib.errors import (
    InvalidTextError,
    InvalidWatermarkError,
    is_number,
    kind,
    require_int,
    require_list,
    require_one_of,
    shown,
)

NOISE_BYTES = 1 << 30  # of noises that are held while a batch is written
Mark = tuple[weights.Watermark, keys.Key] | None  # None is the base model


def sample(
    model: PreTrainedModel,
    prompts: tokens.Texts,
    n_tokens: int,
    *,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    until_end: bool = False,
    batch_size: int = 64,
    marks: Sequence[Mark] | None = None,
    on_step: Callable[[int, int], None] | None = None,
    processor: Callable[[slice], Processor] | None = None,
    engine: str = "exact",
) -> list[list[int]]:
    """Continues each prompt by ancestral sampling, v_t ~ p(· | x, v_<t).

    Args:
        prompts: lists of token ids; an empty one stands for the model's start token.
        n_tokens: length of every response; end tokens do not stop it, unless ``until_end``, which
            stops a response before its first end token (the second if it would be empty).
        top_p: keep the smallest set of tokens with this probability; the paper's proofs are for 1.
        temperature: > 0, or 0 for the most likely token.
        rows: numbers of the rows, 0, 1, … by default: prompt i draws from (seed, rows[i]).
        marks: a (watermark, key) or None per prompt. Batches become smaller where their noises
            would take more than ``NOISE_BYTES``.
        on_step: called after each step with (steps done, most steps in all).
        processor: slice of prompts → what changes that batch's logits before each draw, after
            temperature and top_p: token ids so far (rows, n), padded on the left, and logits (rows,
            vocabulary) → logits.
        engine: ``exact`` is this file; ``transformers``, or ``compiled`` on a GPU, that library's
            ``generate``: other texts, the same distribution.

    Raises:
        InvalidTextError: no prompts, ids outside the vocabulary, or prompt and response beyond the
            context.
        InvalidModelError: logits that are not finite.
        InvalidWatermarkError: marks of several weights; PerturbedModelError: marks on a model that
            carries one already.
    """
    expected = "expected a list of at least one prompt, each a list of token ids"
    prompts = require_list(prompts, expected, least=1)
    require_int(n_tokens, "n_tokens")
    require_int(batch_size, "batch_size")
    require_int(seed, "seed", least=0)
    require_one_of(engine, "engine", ("exact", "transformers", "compiled"), InvalidTextError)
    numbers = is_number(top_p) and is_number(temperature)
    if not numbers or not 0 < top_p <= 1 or not 0 <= temperature < float("inf"):
        got = f"top_p={shown(top_p)} and temperature={shown(temperature)}"
        raise InvalidTextError(f"expected 0 < top_p ≤ 1 and a finite temperature ≥ 0, got {got}")
    reader = tokens.Reader(model)
    prompts = [reader.prompt(ids, i, n_tokens) for i, ids in enumerate(prompts)]
    rows = range(len(prompts)) if rows is None else rows
    if len(rows) != len(prompts):
        raise InvalidTextError(f"rows: expected one per prompt, {len(prompts)}, got {len(rows)}")
    if marks is not None and engine != "exact":
        raise InvalidTextError("marks: expected engine 'exact', whose rows have own noises")
    batches = in_batches(model, len(prompts), batch_size, marks)
    shape = asked = float(top_p), float(temperature)
    if processor and temperature and shape != (1, 1):
        shape = 1.0, 1.0  # the processor gets logits of that shape, and all it gives is drawn from
    steps, n_steps = count(1), len(batches) * n_tokens

    def advance() -> None:
        on_step(next(steps), n_steps)

    responses = []
    for batch, marked in batches:
        process = processor(batch) if processor else None
        if shape != asked:
            process = partial(_after, asked, process)
        common = model, prompts[batch], shape, process, on_step and advance
        if engine != "exact":
            first = [seed, rows[batch.start]]
            responses += decoding.by_transformers(*common, n_tokens, first, engine == "compiled")
            continue
        with marked:
            uniforms = uniform(seed, rows[batch], n_tokens)
            responses += _continued(*common, uniforms, end_tokens(model) if until_end else set())
    return cut(model, responses) if until_end else responses


@torch.no_grad()
def _continued(
    model: PreTrainedModel,
    prompts: list[list[int]],
    shape: tuple[float, float],
    process: Processor | None,
    advance: Callable[[], None] | None,
    uniforms: Float[np.ndarray, "rows steps"],
    ends: set[int | None],
) -> list[list[int]]:
    """One batch. Prompts are padded on the left, so that all rows end together: after as many steps
    as there are uniform numbers, or where every row has had one of ``ends``.
    """
    ids, mask = blocks.padded(prompts, "left", model.device)  # (rows, positions)
    n_before = ids.shape[1]
    end_ids = torch.tensor([end for end in ends if end is not None], device=ids.device)
    has_ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    text, position = ids, (mask.cumsum(-1) - 1).clamp_min(0)
    n_tokens = uniforms.shape[1]
    cache = decoding.reserved_cache(model, ids.shape[1] + n_tokens)
    settings = {"past_key_values": cache, "use_cache": True}
    if model._supports_logits_to_keep():
        settings["logits_to_keep"] = 1
    with evaluating(model):
        for u in torch.from_numpy(uniforms).to(model.device).T:  # (rows,) of each step
            out = model(input_ids=ids, attention_mask=mask, position_ids=position, **settings)
            logits = out.logits[:, -1]  # (rows, vocabulary)
            if process:
                logits = process(text, logits)
            ids = pick(logits, u, *shape)[:, None]
            text = torch.cat([text, ids], dim=1)
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            position = position[:, -1:] + 1
            if advance:
                advance()
            is_first = text.shape[1] == n_before + 1  # which does not end a text
            if len(end_ids) and not is_first:
                has_ended |= torch.isin(ids[:, 0], end_ids)
                if has_ended.all():
                    break
    return text[:, n_before:].tolist()


def pick(logits: Tensor, u: Tensor, top_p: float, temperature: float) -> Tensor:
    """The ids (rows,) at which the cumulative probability passes u (rows,) in [0, 1)."""
    decoding.check_finite(logits)
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = probabilities(logits, top_p, temperature).cumsum(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))  # u·total may round up to the total
    target = torch.minimum(u * total, below)
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def probabilities(logits: Tensor, top_p: float, temperature: float) -> Tensor:
    """What a token is drawn from, up to a factor per row: (rows, vocabulary), float64."""
    logits = logits.double()
    if temperature != 1:
        logits = logits - logits.amax(-1, keepdim=True)  # so that no temperature overflows
        logits /= temperature
    p = logits.softmax(-1)
    if top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        beyond = ranked.cumsum(-1) - ranked >= top_p  # what the tokens before it already hold
        p = p.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), 0.0)
    return p


def _after(shape: tuple[float, float], process: Processor, ids: Tensor, logits: Tensor) -> Tensor:
    return process(ids, probabilities(logits, *shape).log())


def uniform(seed: int, rows: Iterable[int], n_tokens: int) -> Float[np.ndarray, "rows tokens"]:
    """The uniform numbers that these rows draw from, each a function of (seed, row) alone."""
    return np.stack([np.random.default_rng([seed, row]).random(n_tokens) for row in rows])


def end_tokens(model: PreTrainedModel) -> set[int | None]:
    """The ids that end a text, of which a model may have several; None alone where it has none."""
    end = getattr(model.generation_config, "eos_token_id", None)
    end = model.config.eos_token_id if end is None else end
    return set(end if isinstance(end, list) else [end])


def cut(model: PreTrainedModel, responses: list[list[int]]) -> list[list[int]]:
    """Each response up to its first end token, at the second if it would be empty."""
    ends = end_tokens(model)
    ended = [[i for i, token in enumerate(ids) if i and token in ends] for ids in responses]
    return [ids[: min(at, default=len(ids))] for ids, at in zip(responses, ended, strict=True)]


def in_batches(
    model: PreTrainedModel, n: int, batch_size: int, marks: Sequence[Mark] | None
) -> list[tuple[slice, AbstractContextManager]]:
    """The batches of n rows, each with the ``with`` that puts its rows under their marks."""
    placed, noises = [] if marks is None else _placed(model, marks, n), {}
    d = max((mark[0].d for mark in placed if mark), default=1)
    most = max(4, NOISE_BYTES // (4 * d))  # noises that are held at a time
    n_noises = len({_noise(*mark) for mark in placed if mark})
    batch_size = min(batch_size, most) if n_noises > most else batch_size
    batches = [slice(start, start + batch_size) for start in range(0, n, batch_size)]
    if not placed:
        return [(rows, nullcontext()) for rows in batches]
    return [(rows, _marked(model, placed[rows], noises)) for rows in batches]


def _placed(model: PreTrainedModel, marks: Sequence[Mark], n: int) -> list[Mark]:
    """The door: n marks, their watermarks on the model."""
    marks = require_list(marks, "marks: expected a list of (watermark, key) pairs or None")
    if len(marks) != n:
        raise InvalidTextError(f"marks: expected one per prompt, got {len(marks)} for {n} prompts")
    perturb.refuse_perturbed(model)
    placed: dict[weights.Watermark, weights.PlacedWatermark] = {}
    for i, mark in enumerate(marks):
        if mark is None:
            continue
        if not isinstance(mark, tuple | list) or len(mark) != 2:
            expected = f"marks, number {i}: expected a pair of watermark and key, or None"
            raise InvalidWatermarkError(f"{expected}, got {kind(mark)}")
        wm, key = mark
        if not isinstance(wm, weights.Watermark) or wm not in placed:
            placed[wm] = weights.PlacedWatermark(model, wm)
        marks[i] = placed[wm], *keys.listed([key], placed[wm])
    return marks


def _noise(wm: weights.PlacedWatermark, key: keys.Key) -> tuple:
    """What the noise of a mark depends on, apart from its σ."""
    return wm.weights, wm.rank_dropped, wm.side, key


@contextmanager
def _marked(model: PreTrainedModel, marks: list[Mark], noises: dict) -> Iterator[None]:
    """Inside the ``with``, row i is written under mark i; ``noises`` holds the z of a batch."""
    needed = {_noise(*mark): mark for mark in marks if mark}
    for noise in noises.keys() - needed.keys():
        del noises[noise]
    for noise, (wm, key) in needed.items():
        if noise not in noises:
            xis = perturb.drawn(wm, [key])
            noises[noise] = [xi[0] / s for xi, s in zip(xis, wm.sigmas, strict=True)]
    layers = {linear.name: linear for mark in marks if mark for linear in mark[0].linears}
    of_rows = [_of_row(*mark, noises) if mark else None for mark in marks]
    with (
        perturb.marked(model, "a key per row"),
        hooks.row_noise(model, list(layers.values()), of_rows),
    ):
        yield


def _of_row(wm: weights.PlacedWatermark, key: keys.Key, noises: dict) -> hooks.RowNoise:
    zs = noises[_noise(wm, key)]
    return dict(zip(wm.weights, zip(wm.sigmas, zs, strict=True), strict=True))
