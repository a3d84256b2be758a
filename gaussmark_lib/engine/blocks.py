"""Many texts and many keys at a time: batches and blocks that memory has room for, and padding."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gaussmark_lib.errors import require_int
from gaussmark_lib.tokens import Texts

LOGITS = 1 << 26  # numbers of logits that one pass makes at most, where it has several texts
HELD = 1 << 30  # bytes of noises that are held at a time; and of gradients


def batches(vocabulary: int, lengths: dict[int, int], batch_size: int) -> Iterator[list[int]]:
    """Texts of like length, shortest first, as many at a time as ``batch_size`` and ``LOGITS``
    allow; ``lengths`` has the tokens of each text by its number.
    """
    require_int(batch_size, "batch_size")
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


def padded(rows: Texts, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both (rows, longest row), int64; shorter rows have 0 in both on one side."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    return (
        pad_sequence(ids, batch_first=True, padding_side=side).to(device),
        pad_sequence(mask, batch_first=True, padding_side=side).to(device),
    )
