"""Stored directions u = G/‖G‖: the d = d_out·d_in float32 numbers of u, or its terms if the weight
is wide.

A text of n positions has u = Σ_s g_s a_sᵀ, and its terms g_s and a_s are n (d_out + d_in) numbers.
In the widest matrix of an 8-billion-parameter model, a text of 200 tokens takes a sixteenth of d.
Inner products do not need u itself:

    ⟨u_i, u_j⟩ = Σ_st (g_s·g_t)(a_s·a_t)

The size of the weight decides which form is stored, for all texts of the weight. Inner products of
directions are float64 sums over the stored numbers.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.gradients import TextGradient

Direction = Float[Tensor, " d"] | Factors

SMALL = 1 << 20  # numbers of a weight: up to here u itself is stored, and 2 GiB hold 500 of them
BLOCK = 64  # directions per allocation of memory
WIDTH = 1 << 14  # columns that are widened to float64 at a time


def form(G: Factors) -> Float[Tensor, "d_out d_in"] | Factors:
    """Return G in the form that is stored: its terms if the weight is wide, else the matrix."""
    d_out = G.g.shape[1]
    d_in = G.a.shape[1]
    if d_out * d_in <= SMALL:
        return G.matrix()
    nonzero = G.g.any(1)  # the prompt's first positions have no slope
    return Factors(G.g[nonzero], G.a[nonzero])


def kept(gradient: TextGradient) -> Direction:
    """Return u = G/‖G‖ in float32, on the model's device if the device has float64.

    For several weights it is :meth:`TextGradient.unit`, all d numbers, however wide they are.

    Raises:
        DegenerateScoreError: if G is zero or not finite.
    """
    if len(gradient.parts) > 1 or not isinstance(gradient.parts[0], Factors):
        unit = gradient.unit().float()
        return _where_float64_is(unit)
    g, a = gradient.parts[0]
    unit_g = g / gradient.norm  # the length stands in g alone
    return Factors(
        g=_where_float64_is(unit_g.float()),
        a=_where_float64_is(a.float()),
    )


def n_bytes(u: Direction) -> int:
    """Return the size of a stored direction."""
    n_numbers = sum(part.numel() for part in parts(u))
    return 4 * n_numbers  # float32


def parts(u: Direction) -> list[Tensor]:
    """Return the tensors that make up a direction."""
    return list(u) if isinstance(u, Factors) else [u]


def inner(rows: Float[Tensor, "n d"], others: Float[Tensor, "b d"]) -> Float[np.ndarray, "n b"]:
    """Return ⟨row, other⟩ of all pairs, in float64."""
    total = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    others = others.to(rows.device)
    for start in range(0, rows.shape[1], WIDTH):
        part = slice(start, start + WIDTH)
        total += rows[:, part].double() @ others[:, part].double().T
    return total.cpu().numpy()


def square(u: Direction) -> float:
    """Return ⟨u, u⟩ in float64, which is 1 up to rounding."""
    if isinstance(u, Factors):
        return u.inner(u)
    row = u[None]  # (1, d)
    return inner(row, row).item()


class Directions:
    """The directions of texts, in their order."""

    def __init__(self) -> None:
        self.n = 0
        self.n_bytes = 0
        # One of the two lists stays empty, as the weight's size says.
        self._terms: list[Factors] = []
        self._blocks: list[Float[Tensor, "block d"]] = []

    def __iter__(self) -> Iterator[Direction]:
        if self._terms:
            return iter(self._terms)
        rows = (row for block in self._blocks for row in block)
        return islice(rows, self.n)  # the last block may have free rows

    def add(self, u: Direction) -> None:
        """Append a direction."""
        if isinstance(u, Factors):
            self._terms.append(u)
        else:
            block, row = divmod(self.n, BLOCK)
            if block == len(self._blocks):
                self._blocks.append(u.new_empty(BLOCK, len(u)))
            self._blocks[block][row] = u
        self.n += 1
        self.n_bytes += n_bytes(u)

    def inner(self, u: Direction) -> Float[np.ndarray, " n"]:
        """Return ⟨u_i, u⟩ for all stored u_i."""
        if isinstance(u, Factors):
            return np.array([term.inner(u) for term in self._terms], dtype=float)
        products = [np.zeros(0)]  # NumPy cannot concatenate an empty list
        for block in self._blocks:
            products.append(inner(block, u[None])[:, 0])
        return np.concatenate(products)[: self.n]

    def to(self, device: torch.device) -> None:
        """Move all directions to a device."""
        self._blocks = [block.to(device) for block in self._blocks]
        self._terms = [Factors(g.to(device), a.to(device)) for g, a in self._terms]


def _where_float64_is(numbers: Tensor) -> Tensor:
    has_float64 = numbers.device.type != "mps"
    return numbers if has_float64 else numbers.cpu()
