"""The numbers of ``engine.stream`` made on a GPU: there the processor's would take longer than the
text, to draw and to move (an 8-billion-parameter model on an H100: half a second per key).

The same counters, uniforms and rational functions, so the same normal numbers but for the tails'
logarithm, whose last bit is each device's own: one float32 in a billion differs, by its last bit.
"""

from collections.abc import Iterator
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gaussmark_lib.engine.stream import CENTRE, FAR_TAIL, TAIL, polynomial

SPAN = 1 << 20  # counters at a time
FACTORS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # from a round's key to the next one's
LOW = (1 << 32) - 1


def standard_normal(seed: int, n: int, scale: float, device: torch.device) -> Float[Tensor, " n"]:
    """``engine.stream.standard_normal``, float32 on a device."""
    out, rounds = torch.empty(n, device=device), _round_keys(seed)
    del seed  # which no traceback of what follows shows
    for part in out.split(4 * SPAN):  # a counter gives four numbers
        first = part.storage_offset() // 4 + 1
        counters = torch.arange(first, first + -(-len(part) // 4), device=device)
        part.copy_(_normals(_bits(copy(rounds), counters).flatten()[: len(part)]) * scale)
    return out


def _round_keys(seed: int) -> Iterator[int]:
    """Two per round."""
    rounds = range(10)
    return iter([_signed((seed >> 64 * j) + i * STEPS[j]) for i in rounds for j in (0, 1)])


def _bits(rounds: Iterator[int], counters: Int[Tensor, " m"]) -> Int[Tensor, "m 4"]:
    """Philox4x64-10: ten rounds of two products of 64-bit numbers."""
    a, zero = counters, torch.zeros_like(counters)
    b, c, d = zero, zero, zero
    for _ in range(10):
        (high_a, low_a), (high_c, low_c) = _product(a, FACTORS[0]), _product(c, FACTORS[1])
        a, b, c, d = high_c ^ b ^ next(rounds), low_c, high_a ^ d ^ next(rounds), low_a
    return torch.stack([a, b, c, d], dim=1)


def _product(x: Int[Tensor, " m"], factor: int) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """The upper and the lower 64 bits of a product, of its halves' products."""
    high, low, x_high, x_low = factor >> 32, factor & LOW, x >> 32 & LOW, x & LOW
    right = x_low * high + (x_low * low >> 32 & LOW)
    left = x_high * low + (right & LOW)
    return x_high * high + (right >> 32 & LOW) + (left >> 32 & LOW), x * _signed(factor)


def _signed(number: int) -> int:
    """Its lowest 64 bits, as a number of int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _normals(bits: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    q = ((bits >> 12 & (1 << 52) - 1).double() + 0.5) * 2.0**-52 - 0.5  # u − ½
    z = _ratio(CENTRE, 0.180625 - q * q) * q
    [tails] = torch.nonzero(q.abs() > 0.425, as_tuple=True)
    ends = q[tails]
    r = (0.5 - ends.abs()).log_().neg_().sqrt_()
    sizes = torch.where(r > 5.0, _ratio(FAR_TAIL, r - 5.0), _ratio(TAIL, r - 1.6))
    z[tails] = sizes.copysign_(ends)
    return z


def _ratio(tables: tuple, x: Tensor) -> Tensor:
    numerator, denominator = (polynomial.py_func(table, x) for table in tables)
    return numerator / denominator
