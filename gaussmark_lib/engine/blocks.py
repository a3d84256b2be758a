"""What bounds the memory of many texts and many keys: batches and blocks of both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import tokens
from gaussmark_lib.errors import require_int

LOGITS = 1 << 26  # numbers of logits that one pass makes at most, where it has several texts
HELD = 1 << 30  # bytes of noises that are held at a time; and of gradients


def batches(
    model: PreTrainedModel, lengths: dict[int, int], batch_size: int
) -> Iterator[list[int]]:
    """Texts of like length, shortest first, as many at a time as ``batch_size`` and ``LOGITS``
    allow; ``lengths`` has the tokens of each text by its number.
    """
    require_int(batch_size, "batch_size")
    vocabulary = tokens.config(model).vocab_size
    batch: list[int] = []
    for text in sorted(lengths, key=lengths.__getitem__):
        too_large = (len(batch) + 1) * lengths[text] * vocabulary > LOGITS
        if batch and (len(batch) == batch_size or too_large):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def noises(
    draw: Callable[[Sequence[Any]], Float[Tensor, "k d"]], keys: Sequence[Any], d: int
) -> tuple[Callable[[], Iterable[Float[Tensor, "k d"]]], int]:
    """The noises that ``draw`` gives of these keys, in blocks, as often as they are asked for, and
    how many texts to hold at a time. Where not all noises fit in ``HELD`` bytes, each block of
    texts draws them again.
    """
    n_held = max(4, HELD // (4 * d))
    if len(keys) > n_held:
        return lambda: map(draw, in_lists(keys, n_held)), max(8, n_held)
    return cache(lambda: [draw(keys)]), min(max(1, (n_held - len(keys)) // 2), 32)  # u, and a copy


def in_lists(items: Iterable, n: int) -> Iterator[list]:
    """The items in lists of n; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, n)), [])
