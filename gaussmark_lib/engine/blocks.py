"""Many texts and many keys at a time: batches and blocks that fit in memory, and padding."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gaussmark_lib.errors import require_int
from gaussmark_lib.tokens import Texts

# The most logits of a pass that has several texts. Ctrl-C takes effect after a pass, so passes are
# shorter where torch has no GPU to compute them.
LOGITS = 1 << 25 if torch.version.cuda is None else 1 << 26
HELD = 1 << 30  # bytes of noises that are held at a time; and of gradients
FLOAT32 = 4  # bytes


def batches(vocabulary: int, lengths: dict[int, int], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, shortest first.

    A batch has as many texts as ``batch_size`` and ``LOGITS`` allow. ``lengths`` has the number of
    tokens of each text, by the text's number.

    >>> list(batches(100, {0: 30, 1: 10, 2: 20}, batch_size=2))
    [[1, 2], [0]]
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


class AtOnce(NamedTuple):
    """How many texts, and how many keys, memory has room for at a time."""

    texts: int
    keys: int


def at_once(n_keys: int, d: int) -> AtOnce:
    """Return how many texts, and how many of the keys, to hold at a time, with d numbers each.

    If not all noises fit in ``HELD`` bytes, each block of texts draws them again.
    """
    n_held = max(4, HELD // (FLOAT32 * d))
    if n_keys > n_held:
        # Many texts per block: the noises are drawn again for each block.
        return AtOnce(texts=max(8, n_held), keys=n_held)
    n_texts = (n_held - n_keys) // 2  # a text has a gradient and a copy of it
    return AtOnce(texts=min(max(1, n_texts), 32), keys=n_keys)


def in_lists(items: Iterable, n: int) -> Iterator[list]:
    """Yield the items in lists of n; the last list may be shorter.

    >>> list(in_lists(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    remaining = iter(items)
    while part := list(islice(remaining, n)):
        yield part


def padded(rows: Texts, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (ids, mask), both (rows, longest row) and int64.

    Shorter rows have 0 in both on the given side, ``"left"`` or ``"right"``.

    >>> ids, mask = padded([[5, 6], [7]], "left", torch.device("cpu"))
    >>> ids.tolist(), mask.tolist()
    ([[5, 6], [0, 7]], [[1, 1], [0, 1]])
    """
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    padded_ids = pad_sequence(ids, batch_first=True, padding_side=side)
    padded_mask = pad_sequence(mask, batch_first=True, padding_side=side)
    return padded_ids.to(device), padded_mask.to(device)
