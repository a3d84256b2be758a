"""The numbers of ``engine.stream`` made on a GPU. To draw them on the processor and move them would
take longer than to score a text (an 8-billion-parameter model on an H100: 0.4 s per key).

Counters and uniforms are the same. Φ⁻¹ is torch's, which agrees to some 1e-16: about one float32 in
a hundred million differs, in its last bit.
"""

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

SPAN = 1 << 20  # counters at a time
N_ROUNDS = 10
FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # from the keys of a round to the next round's
LOW = (1 << 32) - 1  # a mask of the lower 32 bits
MANTISSA = (1 << 52) - 1  # a mask of the 52 bits that make a uniform number


def standard_normal(seed: int, n: int, scale: float, device: torch.device) -> Float[Tensor, " n"]:
    """Return ``engine.stream.standard_normal`` in float32 on a device."""
    round_keys = _round_keys(seed)
    del seed  # so that no traceback shows it, for instance if the GPU's memory is full
    out = torch.empty(n, device=device)
    for part in out.split(4 * SPAN):  # a counter gives four numbers
        n_counters = -(-len(part) // 4)  # rounded up
        first = part.storage_offset() // 4 + 1
        counters = torch.arange(first, first + n_counters, device=device)
        bits = _bits(copy(round_keys), counters).flatten()[: len(part)]
        top_bits = bits >> 12 & MANTISSA
        u = (top_bits.double() + 0.5) * 2.0**-52
        part.copy_(torch.special.ndtri(u) * scale)
    return out


def bits(seeds: Sequence[int], n: int, device: torch.device) -> Int[Tensor, "seeds n"]:
    """Return the first n raw numbers of each seed's stream, 64 bits as a number of int64."""
    keys = [list(_round_keys(seed)) for seed in seeds]
    rounds = torch.tensor(keys, device=device).T[..., None]  # (20, seeds, 1)
    counters = torch.arange(1, -(-n // 4) + 1, device=device).expand(len(seeds), -1)
    return _bits(iter(rounds), counters).flatten(1)[:, :n]


def _round_keys(seed: int) -> Iterator[int]:
    """Return the two keys of each round, in an iterator, which tracebacks do not print."""
    round_keys = []
    for i in range(N_ROUNDS):
        for half in (0, 1):  # of the seed's 128 bits
            round_keys.append(_signed((seed >> 64 * half) + i * STEPS[half]))
    return iter(round_keys)


def _bits(
    round_keys: Iterator[int | Tensor], counters: Int[Tensor, "*seeds m"]
) -> Int[Tensor, "*seeds m 4"]:
    """Return the raw bits of Philox4x64-10: ten rounds of two products of 64-bit numbers."""
    a = counters
    b = c = d = torch.zeros_like(counters)
    for _ in range(N_ROUNDS):
        high_a, low_a = _product(a, FACTORS[0])
        high_c, low_c = _product(c, FACTORS[1])
        a = high_c ^ b ^ next(round_keys)
        b = low_c
        c = high_a ^ d ^ next(round_keys)
        d = low_a
    return torch.stack([a, b, c, d], dim=-1)


def _product(
    x: Int[Tensor, "*seeds m"], factor: int
) -> tuple[Int[Tensor, "*seeds m"], Int[Tensor, "*seeds m"]]:
    """Return the upper and the lower 64 bits of a product of 64-bit numbers.

    torch has no 128-bit integers, so the upper bits come from the products of the 32-bit halves.
    """
    high = factor >> 32
    low = factor & LOW
    x_high = x >> 32 & LOW
    x_low = x & LOW
    right = x_low * high + (x_low * low >> 32 & LOW)
    left = x_high * low + (right & LOW)
    upper = x_high * high + (right >> 32 & LOW) + (left >> 32 & LOW)
    lower = x * _signed(factor)  # modulo 2⁶⁴
    return upper, lower


def _signed(number: int) -> int:
    """Return the lowest 64 bits as a number of int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
