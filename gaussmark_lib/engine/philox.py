"""The numbers of ``engine.stream`` made on a GPU: there the processor's would take longer than the
text, to draw and to move (an 8-billion-parameter model on an H100: 0.4 s per key).

The same counters and uniforms, and torch's Φ⁻¹, which agrees to some 1e-16: one float32 in a
hundred million differs, by its last bit.
"""

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

SPAN = 1 << 20  # counters at a time
FACTORS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # from a round's key to the next one's
LOW = (1 << 32) - 1


def standard_normal(seed: int, n: int, scale: float, device: torch.device) -> Float[Tensor, " n"]:
    """``engine.stream.standard_normal``, float32 on a device."""
    rounds = _round_keys(seed)
    del seed  # which no traceback of what follows shows, where the GPU has no room for instance
    out = torch.empty(n, device=device)
    for part in out.split(4 * SPAN):  # a counter gives four numbers
        first = part.storage_offset() // 4 + 1
        counters = torch.arange(first, first + -(-len(part) // 4), device=device)
        numbers = _bits(copy(rounds), counters).flatten()[: len(part)] >> 12 & (1 << 52) - 1
        part.copy_(torch.special.ndtri((numbers.double() + 0.5) * 2.0**-52) * scale)
    return out


def bits(seeds: Sequence[int], n: int, device: torch.device) -> Int[Tensor, "seeds n"]:
    """The first n raw numbers of each seed's stream, 64 bits as a number of int64."""
    keys = [list(_round_keys(seed)) for seed in seeds]
    rounds = torch.tensor(keys, device=device).T[..., None]  # (20, seeds, 1)
    counters = torch.arange(1, -(-n // 4) + 1, device=device).expand(len(seeds), -1)
    return _bits(iter(rounds), counters).flatten(1)[:, :n]


def _round_keys(seed: int) -> Iterator[int]:
    """Two per round."""
    return iter([_signed((seed >> 64 * j) + i * STEPS[j]) for i in range(10) for j in (0, 1)])


def _bits(
    rounds: Iterator[int | Tensor], counters: Int[Tensor, "*seeds m"]
) -> Int[Tensor, "*seeds m 4"]:
    """Philox4x64-10: ten rounds of two products of 64-bit numbers."""
    a, zero = counters, torch.zeros_like(counters)
    b, c, d = zero, zero, zero
    for _ in range(10):
        (high_a, low_a), (high_c, low_c) = _product(a, FACTORS[0]), _product(c, FACTORS[1])
        a, b, c, d = high_c ^ b ^ next(rounds), low_c, high_a ^ d ^ next(rounds), low_a
    return torch.stack([a, b, c, d], dim=-1)


def _product(
    x: Int[Tensor, "*seeds m"], factor: int
) -> tuple[Int[Tensor, "*seeds m"], Int[Tensor, "*seeds m"]]:
    """The upper and the lower 64 bits of a product, of its halves' products."""
    high, low, x_high, x_low = factor >> 32, factor & LOW, x >> 32 & LOW, x & LOW
    right = x_low * high + (x_low * low >> 32 & LOW)
    left = x_high * low + (right & LOW)
    return x_high * high + (right >> 32 & LOW) + (left >> 32 & LOW), x * _signed(factor)


def _signed(number: int) -> int:
    """Its lowest 64 bits, as a number of int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
