"""What makes decoding fast: a cache whose memory is reserved at the start, and transformers' own
``generate``.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.errors import InvalidModelError

Processor = Callable[[Tensor, Tensor], Tensor]


class _Reserved(DynamicLayer):
    """A block's keys and values, in memory reserved for ``n_positions`` at the start.

    The stock layer copies all keys and values at each step.
    """

    def __init__(self, n_positions: int):
        super().__init__()
        self.n_positions = n_positions

    def update(self, keys: Tensor, values: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, and return those of all positions so far."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self.reserved_keys = self._reserved(keys)
            self.reserved_values = self._reserved(values)
        start = self.get_seq_length()
        end = start + keys.shape[-2]
        self.reserved_keys[..., start:end, :] = keys
        self.reserved_values[..., start:end, :] = values
        self.keys = self.reserved_keys[..., :end, :]
        self.values = self.reserved_values[..., :end, :]
        return self.keys, self.values

    def _reserved(self, new: Tensor) -> Tensor:
        """Return memory for the tensors like ``new`` (…, steps, size) of all positions."""
        *shape, _, size = new.shape
        return new.new_empty(*shape, self.n_positions, size)


def reserved_cache(model: PreTrainedModel, n_positions: int) -> DynamicCache:
    """Return a cache of the model's kind, with reserved memory in its plain layers."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _Reserved(n_positions) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


@torch.no_grad()
def by_transformers(
    model: PreTrainedModel,
    prompts: list[list[int]],
    warp: tuple[float, float],
    process: Processor | None,
    advance: Callable[[], None] | None,
    n_tokens: int,
    seed: list[int],
    is_compiled: bool,
) -> list[list[int]]:
    """Continue the prompts of a batch by ``model.generate``, with ``warp`` (top_p, temperature).

    The state of the caller's random numbers does not change.
    """
    ids, mask = blocks.padded(prompts, "left", model.device)
    top_p, temperature = warp
    is_sampling = temperature > 0
    config = GenerationConfig(  # without an end token, so that none ends a text
        max_new_tokens=n_tokens,
        pad_token_id=0,
        cache_implementation="static",
        disable_compile=not is_compiled,
        do_sample=is_sampling,
        top_k=0 if is_sampling else None,  # no limit
        top_p=top_p if is_sampling else None,
        temperature=temperature if is_sampling else None,
    )

    def finite(before: Tensor, logits: Tensor) -> Tensor:
        check_finite(logits)
        return process(before, logits) if process else logits

    def never(before: Tensor, _) -> Tensor:
        if advance:
            advance()
        return before.new_zeros(len(before), dtype=torch.bool)

    # The model's config may forbid tokens, and fills what ``config`` leaves open.
    original = model.generation_config
    model.generation_config = config
    gpus = {p.device for p in model.parameters() if p.is_cuda}
    try:
        with evaluating(model), torch.random.fork_rng(gpus):
            [state] = np.random.SeedSequence(seed).generate_state(1)
            torch.manual_seed(int(state))
            texts = model.generate(
                ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=[finite],
                stopping_criteria=[never],
            )
    finally:
        model.generation_config = original
    return texts[:, ids.shape[1] :].tolist()


def check_finite(logits: Tensor) -> None:
    """Raise InvalidModelError if the logits of a row have NaN or +∞, or −∞ only."""
    if not torch.isfinite(logits.amax(-1)).all():  # −inf for some tokens is fine
        raise InvalidModelError(
            "expected finite logits, got NaN or infinity: is the noise far too strong, or the model"
            " damaged?"
        )
