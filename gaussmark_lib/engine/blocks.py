"""What bounds the memory of many texts and many keys: batches and blocks of both."""

from collections.abc import Iterable, Iterator
from itertools import islice

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


def at_once(n_keys: int, d: int) -> tuple[int, int]:
    """How many texts, and how many keys, to hold at a time, with d numbers each. Where not all
    noises fit in ``HELD`` bytes, each block of texts draws them again.
    """
    n_held = max(4, HELD // (4 * d))
    if n_keys > n_held:
        return max(8, n_held), n_held
    return min(max(1, (n_held - n_keys) // 2), 32), n_keys  # a text's gradient, and a copy


def in_lists(items: Iterable, n: int) -> Iterator[list]:
    """The items in lists of n; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, n)), [])
