"""Sampling. The watermark changes the weights, not the sampler (paper, Alg. 1).

Each row draws from a stream of uniform numbers that depends on (seed, row) alone, and turns them
into tokens by inverting the cumulative distribution. So the same seed gives the base and the
watermarked model the same random numbers, and a row's text depends on the rest of its batch only
through rounding. Rounding changes less than one token in 300 in float32 and one in 20 in bfloat16
for a vocabulary of a few thousand (tests/core/test_batch_invariance.py), and more for a larger
vocabulary: about one in 200 and one in 8 for SmolLM2's 49,152 tokens. With or without the change,
the text is a sample of the same model.

Every row of a batch can be written under a different key: a hook adds the second term of

    y = (θ + σ z_k)·x = θ·x + σ (z_k·x),      z_k ~ N(0, I)

to the row of key k (``engine.hooks``). The text is sampled from exactly p_{θ+ξ}; a bfloat16 weight
θ + ξ rounds a part of ξ away, which the hook does not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import NamedTuple

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
Noises = dict[tuple, list[Tensor]]  # z = ξ/σ in each weight, by ``_noise_id`` of a mark


class Warp(NamedTuple):
    """How the model's distribution is warped before a draw. The default leaves it unchanged.

    >>> Warp(top_p=0.9)
    Warp(top_p=0.9, temperature=1.0)
    """

    top_p: float = 1.0
    temperature: float = 1.0


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
    """Sample a continuation of each prompt, y_t ~ p(· | x, y_<t), and return its token ids.

    Args:
        prompts: lists of token ids; an empty one stands for the model's start token.
        n_tokens: length of every response, unless ``until_end``.
        until_end: whether an end token ends a response. By default it does not: each response has
            exactly ``n_tokens`` tokens, end tokens among them, so that all texts of an experiment
            have the same length. If True, a response is what stands before its first end token, and
            has at most ``n_tokens`` tokens. An end token in the very first place does not count, so
            no response is empty (:func:`cut`).
        top_p: keep the smallest set of tokens with this probability; the paper's proofs are for 1.
        temperature: > 0, or 0 for the most likely token.
        seed: of the random numbers; it has nothing to do with the key.
        rows: numbers of the rows, 0, 1, … by default: prompt i draws from (seed, rows[i]).
        marks: a (watermark, key) or None per prompt. Batches become smaller if their noises would
            take more than ``NOISE_BYTES``.
        on_step: called after each step with the steps so far and the most steps that there can be.
        processor: a function of a slice of prompts. It returns the function that changes the logits
            of these prompts before each draw, after temperature and top_p, from the token ids so
            far (rows, n), padded on the left, and the logits (rows, vocabulary).
        engine: ``exact`` is this file. ``transformers``, or ``compiled`` on a GPU, is the
            ``generate`` of that library: different texts from the same distribution.

    Raises:
        InvalidTextError: there are no prompts, ids are outside the vocabulary, or prompt and
            response are longer than the context.
        InvalidModelError: the logits are not finite.
        InvalidWatermarkError: a mark is not a pair of a watermark and a key.
        PerturbedModelError: the model carries a watermark already.

    Example:
        >>> from gaussmark_lib import models
        >>> lm = models.load("doclm")
        >>> [response] = sample(lm.model, [lm.encode("The function returns")], n_tokens=8)
        >>> len(response)
        8
    """
    expected = "expected a list of at least one prompt, each a list of token ids"
    prompts = require_list(prompts, expected, least=1)
    require_int(n_tokens, "n_tokens")
    require_int(batch_size, "batch_size")
    require_int(seed, "seed", least=0)
    require_one_of(engine, "engine", ("exact", "transformers", "compiled"), InvalidTextError)
    are_numbers = is_number(top_p) and is_number(temperature)
    if not are_numbers or not 0 < top_p <= 1 or not 0 <= temperature < float("inf"):
        got = f"top_p={shown(top_p)} and temperature={shown(temperature)}"
        raise InvalidTextError(f"expected 0 < top_p ≤ 1 and a finite temperature ≥ 0, got {got}")
    warp = Warp(float(top_p), float(temperature))
    reader = tokens.Reader(model)
    prompts = [reader.prompt(ids, i, n_tokens) for i, ids in enumerate(prompts)]
    rows = range(len(prompts)) if rows is None else rows
    if len(rows) != len(prompts):
        raise InvalidTextError(f"rows: expected one per prompt, {len(prompts)}, got {len(rows)}")
    if marks is not None and engine != "exact":
        raise InvalidTextError(
            "marks: expected engine 'exact', the only engine in which each row has its noise"
        )
    batches = in_batches(model, len(prompts), batch_size, marks)
    # Temperature and top_p come before a processor; its output is then drawn from unchanged.
    is_warped_before = bool(processor) and warp.temperature > 0 and warp != Warp()
    warp_of_draw = Warp() if is_warped_before else warp
    advance = _counter(on_step, len(batches) * n_tokens) if on_step else None
    ends = end_tokens(model) if until_end else set()
    responses = []
    for batch, under_marks in batches:
        process = processor(batch) if processor else None
        if is_warped_before:
            process = partial(_warped_before, process, warp)
        if engine == "exact":
            uniforms = uniform(seed, rows[batch], n_tokens)
            with under_marks:
                responses += _continued(
                    model, prompts[batch], warp_of_draw, process, advance, uniforms, ends
                )
        else:
            responses += decoding.by_transformers(
                model,
                prompts[batch],
                warp_of_draw,
                process,
                advance,
                n_tokens,
                seed=[seed, rows[batch.start]],
                is_compiled=engine == "compiled",
            )
    return cut(model, responses) if until_end else responses


def _counter(on_step: Callable[[int, int], None], n_steps: int) -> Callable[[], None]:
    """Return a function that counts its calls, which are steps, and passes the count on."""
    steps = count(1)

    def advance() -> None:
        on_step(next(steps), n_steps)

    return advance


@torch.no_grad()
def _continued(
    model: PreTrainedModel,
    prompts: list[list[int]],
    warp: Warp,
    process: Processor | None,
    advance: Callable[[], None] | None,
    uniforms: Float[np.ndarray, "rows steps"],
    ends: set[int | None],
) -> list[list[int]]:
    """Continue the prompts of one batch.

    Prompts are padded on the left, so that all rows end together: after as many steps as there are
    uniform numbers, or once every row has had an end token.
    """
    ids, mask = blocks.padded(prompts, "left", model.device)  # (rows, positions)
    text = ids
    position = (mask.cumsum(-1) - 1).clamp_min(0)  # padding does not count
    n_before = ids.shape[1]
    n_tokens = uniforms.shape[1]
    end_ids = torch.tensor([end for end in ends if end is not None], device=ids.device)
    has_ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    cache = decoding.reserved_cache(model, n_before + n_tokens)
    settings = {"past_key_values": cache, "use_cache": True}
    if model._supports_logits_to_keep():
        settings["logits_to_keep"] = 1
    with evaluating(model):
        for u in torch.from_numpy(uniforms).to(model.device).T:  # (rows,) of each step
            out = model(input_ids=ids, attention_mask=mask, position_ids=position, **settings)
            logits = out.logits[:, -1]  # (rows, vocabulary)
            if process:
                logits = process(text, logits)
            ids = pick(logits, u, warp.top_p, warp.temperature)[:, None]  # (rows, 1)
            text = torch.cat([text, ids], dim=1)
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            position = position[:, -1:] + 1
            if advance:
                advance()
            is_first = text.shape[1] == n_before + 1  # the first token does not end a text
            if len(end_ids) and not is_first:
                has_ended |= torch.isin(ids[:, 0], end_ids)
                if has_ended.all():
                    break
    return text[:, n_before:].tolist()


def pick(logits: Tensor, u: Tensor, top_p: float, temperature: float) -> Tensor:
    """Return the ids (rows,) at which the cumulative probability passes u (rows,) in [0, 1).

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])  # two rows, both a fair coin
    >>> pick(logits, torch.tensor([0.3, 0.7]), top_p=1.0, temperature=1.0)
    tensor([0, 1])
    """
    decoding.check_finite(logits)
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = probabilities(logits, top_p, temperature).cumsum(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))  # u·total may round up to the total
    target = torch.minimum(u * total, below)
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def probabilities(logits: Tensor, top_p: float, temperature: float) -> Tensor:
    """Return what a token is drawn from, up to a factor per row: (rows, vocabulary), float64.

    >>> p = torch.tensor([[0.5, 0.3, 0.2]])
    >>> probabilities(p.log(), top_p=0.6, temperature=1.0).round(decimals=2)
    tensor([[0.5000, 0.3000, 0.0000]], dtype=torch.float64)
    """
    logits = logits.double()
    if temperature != 1:
        logits = logits - logits.amax(-1, keepdim=True)  # so that a low temperature cannot overflow
        logits /= temperature
    p = logits.softmax(-1)
    if top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        more_likely = ranked.cumsum(-1) - ranked  # probability of all tokens that rank higher
        is_excluded_by_rank = more_likely >= top_p
        is_excluded = torch.zeros_like(is_excluded_by_rank)
        is_excluded.scatter_(-1, order, is_excluded_by_rank)  # from ranks back to token ids
        p = p.masked_fill(is_excluded, 0.0)
    return p


def _warped_before(process: Processor, warp: Warp, ids: Tensor, logits: Tensor) -> Tensor:
    """Apply top_p and temperature, then the processor."""
    warped = probabilities(logits, warp.top_p, warp.temperature).log()
    return process(ids, warped)


def uniform(seed: int, rows: Iterable[int], n_tokens: int) -> Float[np.ndarray, "rows tokens"]:
    """Return the uniform numbers of these rows. Those of a row depend on (seed, row) alone.

    >>> np.array_equal(uniform(0, [3, 7], 5)[1], uniform(0, [7], 5)[0])
    True
    """
    return np.stack([np.random.default_rng([seed, row]).random(n_tokens) for row in rows])


def end_tokens(model: PreTrainedModel) -> set[int | None]:
    """Return the ids that end a text; a model may have several. If it has none, return {None}.

    >>> from gaussmark_lib import models
    >>> end_tokens(models.load("doclm").model)
    {0}
    """
    end = getattr(model.generation_config, "eos_token_id", None)
    if end is None:
        end = model.config.eos_token_id
    return set(end) if isinstance(end, list) else {end}


def cut(model: PreTrainedModel, responses: list[list[int]]) -> list[list[int]]:
    """Return what stands before the first end token of each response. The first token always stays,
    even if it is an end token, so that no response becomes empty.

    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model  # its end token is 0
    >>> cut(model, [[5, 6, 0, 7], [0, 5, 0, 7], [5, 6]])
    [[5, 6], [0, 5], [5, 6]]
    """
    ends = end_tokens(model)
    shortened = []
    for ids in responses:
        places = (i for i, token in enumerate(ids) if i > 0 and token in ends)
        shortened.append(ids[: next(places, len(ids))])
    return shortened


def in_batches(
    model: PreTrainedModel, n: int, batch_size: int, marks: Sequence[Mark] | None
) -> list[tuple[slice, AbstractContextManager]]:
    """Return the batches of n rows: the slice of each, and the ``with`` that puts its rows under
    their marks.

    ``marks`` has a (watermark, key) or None for each row; None for all rows is the base model. A
    batch has at most ``batch_size`` rows, and fewer if the noises of its keys would take more than
    ``NOISE_BYTES``.

    >>> from gaussmark_lib import models
    >>> [rows for rows, _ in in_batches(models.load("doclm").model, 5, batch_size=3, marks=None)]
    [slice(0, 3, None), slice(3, 6, None)]
    """
    placed = [] if marks is None else _placed(model, marks, n)
    sizes = [mark[0].d for mark in placed if mark]  # numbers of each mark's noise, float32
    n_held = max(4, NOISE_BYTES // (4 * max(sizes, default=1)))  # noises that are held at a time
    n_noises = len({_noise_id(*mark) for mark in placed if mark})
    if n_noises > n_held:
        batch_size = min(batch_size, n_held)
    batches = [slice(start, start + batch_size) for start in range(0, n, batch_size)]
    if not placed:
        return [(rows, nullcontext()) for rows in batches]
    noises: Noises = {}  # shared by the batches: what the next one needs again is not drawn again
    return [(rows, _under_marks(model, placed[rows], noises)) for rows in batches]


def _placed(model: PreTrainedModel, marks: Sequence[Mark], n: int) -> list[Mark]:
    """Check n marks, and place their watermarks on the model."""
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
            placed[wm] = weights.PlacedWatermark(model, wm)  # raises if it is not a watermark
        [key] = keys.listed([key], placed[wm])
        marks[i] = (placed[wm], key)
    return marks


def _noise_id(wm: weights.PlacedWatermark, key: keys.Key) -> tuple:
    """Return what tells the z of two marks apart: everything that z = ξ/σ depends on."""
    return wm.weights, wm.rank_dropped, wm.side, key


@contextmanager
def _under_marks(model: PreTrainedModel, marks: list[Mark], noises: Noises) -> Iterator[None]:
    """Let row i be written under mark i inside the ``with``.

    ``noises`` has the z of the batch before, and afterwards those of this batch.
    """
    needed = {_noise_id(*mark): mark for mark in marks if mark}
    for noise_id in noises.keys() - needed.keys():
        del noises[noise_id]
    for noise_id, (wm, key) in needed.items():
        if noise_id not in noises:
            xis = perturb.drawn(wm, [key])
            # z = ξ/σ, with the rank's projection: the hook multiplies by σ after z·x
            noises[noise_id] = [xi[0] / sigma for xi, sigma in zip(xis, wm.sigmas, strict=True)]
    layers = {linear.name: linear for mark in marks if mark for linear in mark[0].linears}
    row_noises = [_of_row(*mark, noises) if mark else None for mark in marks]
    with (
        perturb.flagged_as_perturbed(model, "a key per row"),
        hooks.row_noise(model, list(layers.values()), row_noises),
    ):
        yield


def _of_row(wm: weights.PlacedWatermark, key: keys.Key, noises: Noises) -> hooks.RowNoise:
    """Return the (σ, z) of a mark by the name of its weight."""
    zs = noises[_noise_id(wm, key)]
    return dict(zip(wm.weights, zip(wm.sigmas, zs, strict=True), strict=True))
