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


def reserved_cache(model: PreTrainedModel, n_positions: int) -> DynamicCache:
    """The model's own kind of cache, its plain layers with reserved memory."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _Reserved(n_positions) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


@torch.no_grad()
def by_transformers(
    model: PreTrainedModel,
    prompts: list[list[int]],
    shape: tuple[float, float],
    process: Processor | None,
    advance: Callable[[], None] | None,
    n_tokens: int,
    seed: list[int],
    is_compiled: bool,
) -> list[list[int]]:
    """Prompts of one batch, continued by ``model.generate`` with (top_p, temperature); the caller's
    random numbers stay as they are.
    """
    ids, mask = blocks.padded(prompts, "left", model.device)
    top_p, temperature = shape
    sampling = {"do_sample": True, "top_k": 0, "top_p": top_p, "temperature": temperature}
    config = GenerationConfig(  # no end token, which is sampled through
        max_new_tokens=n_tokens,
        pad_token_id=0,
        cache_implementation="static",
        disable_compile=not is_compiled,
        **(sampling if temperature else {"do_sample": False}),
    )

    def finite(before: Tensor, logits: Tensor) -> Tensor:
        check_finite(logits)
        return process(before, logits) if process else logits

    def never(before: Tensor, _) -> Tensor:
        if advance:
            advance()
        return before.new_zeros(len(before), dtype=torch.bool)

    # the model's own config may forbid tokens, and fills what ``config`` leaves open
    original, model.generation_config = model.generation_config, config
    gpus = {p.device for p in model.parameters() if p.is_cuda}
    try:
        with evaluating(model), torch.random.fork_rng(gpus):
            torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
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
    if not torch.isfinite(logits.amax(-1)).all():  # −inf for some tokens is fine
        raise InvalidModelError(
            "expected finite logits, got NaN or infinity: is the noise far too strong, or the model"
            " damaged?"
        )
