"""What bounds the memory of many texts and many keys: blocks of both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from jaxtyping import Float
from torch import Tensor

HELD = 1 << 30  # bytes of noises that are held at a time; and of gradients


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
