"""Sampling. The watermark changes the weights, not the sampler, so this file knows nothing of keys
(paper, Alg. 1).

Each row draws from its own stream of uniform numbers, a function of (seed, row) alone, and turns
them into tokens by inverting the cumulative distribution. So a row's text depends on the rows
beside it and on the batch size by rounding alone, and the same seed gives base and watermarked
model the same random numbers.

Rounding: a token changes where its uniform number lies within the rounding error of a boundary
between two tokens, and then the rest of the text is another one, of the same distribution: less
than one token in 300 in float32 and one in 20 in bfloat16 (the embedded model, batches of 1, 5 and
16: 0 of 3,200, and 1 of 70); never so far in float64 (tests/oracle/test_batch_invariance.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from gaussmark_lib import checks, models, tokens
from gaussmark_lib.errors import InvalidModelError, InvalidTextError

Processor = Callable[[Tensor, Tensor], Tensor]


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
    on_step: Callable[[int, int], None] | None = None,
    processor: Callable[[slice], Processor] | None = None,
    engine: str = "exact",
    marks: Sequence[tuple | None] | None = None,
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
        on_step: called after each step with (steps done, steps in all). What it raises ends the
            sampling.
        processor: slice of prompts that make a batch → what changes that batch's logits before each
            pick, as transformers' logits processors do: token ids so far (rows, n), padded on the
            left, and logits (rows, vocabulary) → logits.
        engine: ``exact`` is this file; ``transformers``, or ``compiled`` on a GPU, that library's
            ``generate``: other texts, the same distribution.
        marks: a (watermark, key) or None per prompt, all of one weight: row i is written by
            p_{θ+ξ} of its own key, on the base model; engine ``exact``, no processor.

    Raises:
        InvalidTextError: no prompts, ids outside the vocabulary, or prompt and response beyond the
            context.
        InvalidModelError: logits that are not finite.
    """
    prompts = checked(model, prompts, n_tokens, top_p, temperature, batch_size)
    if (
        checks.chosen(engine, "engine", ("exact", "transformers", "compiled"), InvalidTextError)
        == "exact"
    ):
        uniforms = uniform(seed, len(prompts), n_tokens)
        if marks is not None:
            from gaussmark_lib import generate_many

            if len(marks := list(marks)) != len(prompts):
                raise InvalidTextError(
                    f"marks: expected one per prompt, got {len(marks)} for {len(prompts)} prompts"
                )
            chosen = generate_many.sample_marked(
                model, prompts, marks, uniforms, top_p, temperature, batch_size, on_step
            )
        else:
            chosen = continued(
                model,
                prompts,
                uniforms,
                top_p,
                temperature,
                batch_size,
                on_step=on_step,
                processor=processor,
            )
    else:
        chosen, seed = [], checks.whole(seed, "seed", least=0)
        how = (
            {
                "do_sample": True,
                "temperature": float(temperature),
                "top_p": float(top_p),
                "top_k": 0,
            }
            if temperature
            else {"do_sample": False}
        )
        how |= {
            "cache_implementation": "static",
            "disable_compile": engine != "compiled",
            "pad_token_id": 0,
        }  # and no end token: sampled through
        config = GenerationConfig(max_new_tokens=n_tokens, **how)
        for rows, advance, process in _batches(
            len(prompts), batch_size, n_tokens, on_step, processor
        ):
            chosen += _by_transformers(
                model, prompts[rows], config, [seed, rows.start], advance, process
            )
    return cut(model, chosen) if until_end else chosen


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
    checks.whole(n_tokens, "n_tokens")
    checks.whole(batch_size, "batch_size")
    if (
        not all(map(checks.is_number, (top_p, temperature)))
        or not 0 < top_p <= 1
        or not 0 <= temperature < float("inf")
    ):
        got = f"top_p={checks.shown(top_p)} and temperature={checks.shown(temperature)}"
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
    for value, name, least in (
        (seed, "seed", 0),
        (n_rows, "n_rows", 1),
        (n_tokens, "n_tokens", 1),
        (first, "first", 0),
    ):
        checks.whole(value, name, least=least)
    return np.stack(
        [
            np.random.default_rng([seed, row]).random(n_tokens)
            for row in range(first, first + n_rows)
        ]
    )


def continued(
    model: PreTrainedModel,
    prompts: list[list[int]],
    uniforms: Float[np.ndarray, "rows tokens"],
    top_p: float,
    temperature: float,
    batch_size: int,
    *,
    on_step: Callable[[int, int], None] | None = None,
    around: Callable[[slice], AbstractContextManager] = lambda rows: nullcontext(),
    processor: Callable[[slice], Processor] | None = None,
) -> list[list[int]]:
    """Checked prompts, continued by given uniform numbers. ``around(rows)`` is entered for each
    batch; ``processor`` as for :func:`sample`.
    """
    responses: list[list[int]] = []
    for rows, advance, process in _batches(
        len(prompts), batch_size, uniforms.shape[1], on_step, processor
    ):
        with around(rows):
            responses += _sample_batch(
                model,
                prompts[rows],
                torch.from_numpy(uniforms[rows]),
                top_p,
                temperature,
                advance,
                process,
            ).tolist()
    return responses


def _batches(
    n: int,
    batch_size: int,
    n_tokens: int,
    on_step: Callable[[int, int], None] | None,
    processor: Callable[[slice], Processor] | None,
) -> Iterator[tuple[slice, Callable[[], None], Processor | None]]:
    """Of each batch: its rows, what to call after each of its steps, and what changes its
    logits.
    """
    batches, steps = range(0, n, batch_size), count(1)

    def advance() -> None:
        if on_step:
            on_step(next(steps), len(batches) * n_tokens)

    for start in batches:
        rows = slice(start, start + batch_size)
        yield rows, advance, processor(rows) if processor else None


@torch.no_grad()
def _sample_batch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    uniforms: Tensor,
    top_p: float,
    temperature: float,
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
    cache, chosen, before = _cache(model, position.shape[1] + uniforms.shape[1]), [], ids
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
            logits = out.logits[:, -1]
            if process:
                logits = process(torch.cat([before, *chosen], dim=1), logits)
            ids = pick(logits, uniforms[:, step], top_p, temperature)[:, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            position = position[:, -1:] + 1
            chosen.append(ids)
            advance()
    return torch.cat(chosen, dim=1)


@torch.no_grad()
def _by_transformers(
    model: PreTrainedModel,
    prompts: tokens.Texts,
    config: GenerationConfig,
    seed: list[int],
    advance: Callable[[], None],
    process: Processor | None,
) -> list[list[int]]:
    """Prompts of one batch, continued by ``model.generate``; the caller's random numbers stay as
    they are.
    """
    ids, mask = tokens.pad(prompts, "left", model.device)

    def finite(before: Tensor, logits: Tensor) -> Tensor:
        _check_finite(logits)
        return process(before, logits) if process else logits

    def never(before: Tensor, _) -> Tensor:
        advance()
        return before.new_zeros(len(before), dtype=torch.bool)

    own, model.generation_config = (
        model.generation_config,
        config,
    )  # it may forbid tokens, and fills what ``config`` leaves open
    try:
        with (
            models.evaluating(model),
            torch.random.fork_rng({p.device for p in model.parameters() if p.is_cuda}),
        ):
            torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
            texts = model.generate(
                ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=[finite],
                stopping_criteria=[never],
            )
    finally:
        model.generation_config = own
    return texts[:, ids.shape[1] :].tolist()


class _Reserved(DynamicLayer):
    """A block's keys and values, in memory reserved for ``n_positions`` at the start: the stock
    layer copies all of them at each step.
    """

    def __init__(self, n_positions: int):
        super().__init__()
        self.n_positions = n_positions

    def update(self, keys: Tensor, values: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self.reserved = [
                new.new_empty(*new.shape[:-2], self.n_positions, new.shape[-1])
                for new in (keys, values)
            ]
        start = self.get_seq_length()
        end = start + keys.shape[-2]
        for reserved, new in zip(self.reserved, (keys, values), strict=True):
            reserved[..., start:end, :] = new
        self.keys, self.values = (reserved[..., :end, :] for reserved in self.reserved)
        return self.keys, self.values


def _cache(model: PreTrainedModel, n_positions: int) -> DynamicCache:
    """The model's own kind of cache, its plain layers with reserved memory."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _Reserved(n_positions) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def pick(logits: Tensor, u: Tensor, top_p: float, temperature: float) -> Tensor:
    """The token at which the cumulative probability passes u: logits (rows, vocabulary), u (rows,)
    in [0, 1) → ids (rows,).
    """
    _check_finite(logits)
    if temperature == 0:
        return logits.argmax(-1)
    p = probabilities(logits, top_p, temperature)
    cumulative = p.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(
        u * total, torch.nextafter(total, torch.zeros_like(total))
    )  # below the total even where the product rounds up to it
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _check_finite(logits: Tensor) -> None:
    if not torch.isfinite(logits.amax(-1)).all():  # −inf for some tokens is fine
        raise InvalidModelError(
            "expected finite logits, got NaN or infinity: is the noise far too strong, or the model"
            " damaged?"
        )


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
