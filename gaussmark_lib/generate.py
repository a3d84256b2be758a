"""Sampling. The watermark changes the weights, not the sampler (paper, Alg. 1).

Each row draws from its own stream of uniform numbers, a function of (seed, row) alone, and turns
them into tokens by inverting the cumulative distribution. So a row's text depends on the rows
beside it and on the batch size by rounding alone, and the same seed gives base and watermarked
model the same random numbers. A token changes where its uniform number lies within the rounding
error of a boundary between two tokens: less than one token in 300 in float32, one in 20 in
bfloat16 (tests/oracle/test_batch_invariance.py).

Every row of a batch can be written by a model of its own. A linear layer's row that belongs to key
k and to σ needs

    y = (θ + σ z_k)·x = θ·x + σ (z_k·x),      z_k ~ N(0, I)

and a hook adds the second term row by row. The text is sampled from exactly p_{θ+ξ}; a bfloat16
weight θ + ξ rounds a part of ξ away, which the hook does not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import keys, models, perturb, tokens, weights
from gaussmark_lib.engine import decoding, row_noise
from gaussmark_lib.engine.decoding import Processor
from gaussmark_lib.errors import (
    InvalidTextError,
    InvalidWatermarkError,
    is_number,
    kind,
    require_int,
    require_one_of,
    shown,
)
from gaussmark_lib.weights import PlacedWatermark, Watermark

NOISE_BYTES = 1 << 30  # of noises that are held while a block of rows is written
Mark = tuple[Watermark, keys.Key] | None  # None is the base model


def sample(
    model: PreTrainedModel,
    prompts: tokens.Texts,
    n_tokens: int,
    *,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    until_end: bool = False,
    batch_size: int = 64,
    marks: Sequence[Mark] | None = None,
    on_step: Callable[[int, int], None] | None = None,
    processor: Callable[[slice], Processor] | None = None,
    engine: str = "exact",
) -> list[list[int]]:
    """Continues each prompt by ancestral sampling, v_t ~ p(· | x, v_<t); one list of token ids per
    prompt.

    Args:
        prompts: lists of token ids; an empty one stands for the model's start token.
        n_tokens: length of every response, as an end token is sampled through.
        until_end: stop a response before its first end token instead (at the second if it would be
            empty).
        top_p: keep the smallest set of tokens that holds this probability, 0 < top_p ≤ 1. The
            paper's proofs are for 1.
        temperature: > 0, or 0 for the most likely token.
        marks: a (watermark, key) or None per prompt, all of the same weights: row i is written by
            p_{θ+ξ} of its own key. Rows whose noises take more than ``NOISE_BYTES`` are written in
            several blocks.
        on_step: called after each step with (steps done, steps in all). What it raises ends the
            sampling.
        processor: slice of prompts that make a batch → what changes that batch's logits before each
            pick, as transformers' logits processors do: token ids so far (rows, n), padded on the
            left, and logits (rows, vocabulary) → logits.
        engine: ``exact`` is this file; ``transformers``, or ``compiled`` on a GPU, that library's
            ``generate``: other texts, the same distribution.

    Raises:
        InvalidTextError: no prompts, ids outside the vocabulary, or prompt and response beyond the
            context.
        InvalidModelError: logits that are not finite.
        InvalidWatermarkError: marks of several weights; PerturbedModelError: marks on a model that
            carries one already.
    """
    prompts = checked(model, prompts, n_tokens, top_p, temperature, batch_size)
    require_one_of(engine, "engine", ("exact", "transformers", "compiled"), InvalidTextError)
    shape = {"top_p": float(top_p), "temperature": float(temperature)}
    if engine != "exact":
        require_int(seed, "seed", least=0)
        if marks is not None:
            raise InvalidTextError(
                "marks: expected engine 'exact', whose rows have their own noise"
            )
        config = decoding.config_of(n_tokens, **shape, is_compiled=engine == "compiled")
        responses = []
        for rows, advance in _batches(len(prompts), batch_size, n_tokens, on_step):
            process = processor(rows) if processor else None
            responses += decoding.by_transformers(
                model, prompts[rows], config, [seed, rows.start], advance, process
            )
    else:
        uniforms = uniform(seed, len(prompts), n_tokens)
        around = nullcontext
        if marks is not None:
            around, at_most = _marked(model, marks, len(prompts))
            batch_size = min(batch_size, at_most)
        responses = continued(
            model,
            prompts,
            uniforms,
            batch_size=batch_size,
            on_step=on_step,
            around=around,
            processor=processor,
            **shape,
        )
    return cut(model, responses) if until_end else responses


def checked(
    model: PreTrainedModel,
    prompts: tokens.Texts,
    n_tokens: int,
    top_p: float,
    temperature: float,
    batch_size: int,
) -> list[list[int]]:
    """The prompts as lists of ids; refuses arguments of :func:`sample` that are out of range."""
    prompts = tokens.checked_prompts(model, prompts)
    require_int(n_tokens, "n_tokens")
    require_int(batch_size, "batch_size")
    numbers = all(map(is_number, (top_p, temperature)))
    if not numbers or not 0 < top_p <= 1 or not 0 <= temperature < float("inf"):
        got = f"top_p={shown(top_p)} and temperature={shown(temperature)}"
        raise InvalidTextError(f"expected 0 < top_p ≤ 1 and a finite temperature ≥ 0, got {got}")
    for i, prompt in enumerate(prompts):
        tokens.check_fits(model, len(prompt), n_tokens, f"prompt {i}")
    return prompts


def uniform(
    seed: int, n_rows: int, n_tokens: int, *, first: int = 0
) -> Float[np.ndarray, "rows tokens"]:
    """The uniform numbers that rows are sampled with, from row ``first`` on: each row's are a
    function of (seed, row) alone.
    """
    require_int(seed, "seed", least=0)
    rows = range(first, first + n_rows)
    return np.stack([np.random.default_rng([seed, row]).random(n_tokens) for row in rows])


def continued(
    model: PreTrainedModel,
    prompts: list[list[int]],
    uniforms: Float[np.ndarray, "rows tokens"],
    top_p: float,
    temperature: float,
    batch_size: int,
    *,
    on_step: Callable[[int, int], None] | None = None,
    around: Callable[[slice], AbstractContextManager] = nullcontext,
    processor: Callable[[slice], Processor] | None = None,
) -> list[list[int]]:
    """Checked prompts, continued by given uniform numbers. ``around(rows)`` is entered for each
    batch; ``processor`` as for :func:`sample`.
    """
    responses: list[list[int]] = []
    for rows, advance in _batches(len(prompts), batch_size, uniforms.shape[1], on_step):
        pick_of = partial(pick, top_p=top_p, temperature=temperature)
        process = processor(rows) if processor else None
        with around(rows):
            batch = torch.from_numpy(uniforms[rows])
            responses += _sample_batch(
                model, prompts[rows], batch, pick_of, advance, process
            ).tolist()
    return responses


def _batches(
    n: int, batch_size: int, n_tokens: int, on_step: Callable[[int, int], None] | None
) -> Iterator[tuple[slice, Callable[[], None]]]:
    """Of each batch: its rows, and what to call after each of its steps."""
    batches, steps = range(0, n, batch_size), count(1)

    def advance() -> None:
        if on_step:
            on_step(next(steps), len(batches) * n_tokens)

    for start in batches:
        yield slice(start, start + batch_size), advance


@torch.no_grad()
def _sample_batch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    uniforms: Tensor,
    pick_of: Callable[[Tensor, Tensor], Tensor],
    advance: Callable[[], None],
    process: Processor | None,
) -> Tensor:
    """Token ids (rows, steps) for uniform numbers (rows, steps). Prompts are padded on the left, so
    that all rows end together.
    """
    ids, mask = tokens.pad(prompts, "left", model.device)
    uniforms = uniforms.to(model.device)
    position = (mask.cumsum(-1) - 1).clamp_min(0)
    last_only = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}
    cache = decoding.reserved_cache(model, position.shape[1] + uniforms.shape[1])
    chosen, before = [], ids
    with models.evaluating(model):
        for step in range(uniforms.shape[1]):
            out = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                **last_only,
            )
            logits = out.logits[:, -1]  # (rows, vocabulary)
            if process:
                logits = process(torch.cat([before, *chosen], dim=1), logits)
            ids = pick_of(logits, uniforms[:, step])[:, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            position = position[:, -1:] + 1
            chosen.append(ids)
            advance()
    return torch.cat(chosen, dim=1)


def _marked(
    model: PreTrainedModel, marks: Sequence[Mark], n: int
) -> tuple[Callable[[slice], AbstractContextManager], int]:
    """For :func:`continued`: a batch's rows, each under its own mark; and how many rows a batch may
    have, so that its noises fit.
    """
    marks = tokens.listed(marks, "marks: expected a list of (watermark, key) pairs or None")
    if len(marks) != n:
        raise InvalidTextError(f"marks: expected one per prompt, got {len(marks)} for {n} prompts")
    perturb.refuse_perturbed(model)
    placed: dict[Watermark, PlacedWatermark] = {}
    names: list[tuple | None] = []  # of each row's noise
    for i, mark in enumerate(marks):
        if mark is None:
            names.append(None)
            continue
        if not isinstance(mark, tuple | list) or len(mark) != 2:
            raise InvalidWatermarkError(
                f"marks, number {i}: expected a pair of watermark and key, or None, got"
                f" {kind(mark)}"
            )
        wm, key = weights.checked(mark[0]), keys.checked(mark[1])
        placed[wm] = placed.get(wm) or wm.on(model)
        perturb.check_key(placed[wm], key)
        names.append((key.fingerprint, wm.rank_dropped, wm.side))
    if len({wm.weight for wm in placed}) > 1:
        raise InvalidWatermarkError(
            "marks: expected watermarks of the same weights, got"
            f" {shown(sorted(str(wm.weight) for wm in placed))}"
        )
    noises: dict[tuple, list[Tensor]] = {}  # ξ/σ of each weight

    @contextmanager
    def around(rows: slice) -> Iterator[None]:
        for name in set(noises) - set(names[rows]):
            del noises[name]
        of_rows: list[row_noise.RowNoise | None] = []
        for mark, name in zip(marks[rows], names[rows], strict=True):
            if mark is None:
                of_rows.append(None)
                continue
            wm = placed[mark[0]]
            if name not in noises:
                xis = perturb.noise(model, wm, mark[1])
                xis = xis if isinstance(xis, list) else [xis]
                noises[name] = [xi / s for xi, s in zip(xis, wm.sigmas, strict=True)]
            layers = tuple((weight.name, weight.module) for weight in wm.linears)
            of_rows.append(row_noise.RowNoise(layers, wm.sigmas, noises[name]))
        with perturb.marked(model, "a key per row"), row_noise.row_noise(model, of_rows):
            yield

    n_held = max(4, NOISE_BYTES // (4 * max((wm.d for wm in placed.values()), default=1)))
    return around, n if len(set(names)) <= n_held else n_held


def pick(logits: Tensor, u: Tensor, top_p: float, temperature: float) -> Tensor:
    """The token at which the cumulative probability passes u: logits (rows, vocabulary), u (rows,)
    in [0, 1) → ids (rows,).
    """
    decoding.check_finite(logits)
    if temperature == 0:
        return logits.argmax(-1)
    p = probabilities(logits, top_p, temperature)
    cumulative = p.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(
        u * total, torch.nextafter(total, torch.zeros_like(total))
    )  # below the total even where the product rounds up to it
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def probabilities(logits: Tensor, top_p: float, temperature: float) -> Tensor:
    """What a token is drawn from, up to a factor a row: (rows, vocabulary), float64;
    ``temperature`` > 0.
    """
    logits = logits.double()
    p = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(
        -1
    )  # the largest is 0 first, so that no temperature overflows
    if top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        beyond = ranked.cumsum(-1) - ranked >= top_p  # what the tokens before it already hold
        p = p.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), 0.0)
    return p


def end_tokens(model: PreTrainedModel) -> set[int | None]:
    """The ids that end a text, of which a model may have several; None alone where it has none."""
    end = getattr(model.generation_config, "eos_token_id", None)
    end = model.config.eos_token_id if end is None else end
    return set(end if isinstance(end, list) else [end])


def cut(model: PreTrainedModel, responses: list[list[int]]) -> list[list[int]]:
    """Each response up to its first end token, at the second if it would be empty."""
    ends = end_tokens(model)
    stops = [
        next((i for i, token in enumerate(response) if token in ends and i > 0), len(response))
        for response in responses
    ]
    return [response[:stop] for response, stop in zip(responses, stops, strict=True)]
