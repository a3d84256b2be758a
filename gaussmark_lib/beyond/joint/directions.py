"""Directions u = G/‖G‖ as they are kept: the d = d_out·d_in float32 numbers of u, or for a wide
weight its terms.

A text of n positions has u = Σ_s g_s a_sᵀ, with n (d_out + d_in) numbers: in an 8-billion-parameter
model's widest matrix, a text of 200 tokens takes a sixteenth of d. Inner products need no u:

    ⟨u_i, u_j⟩ = Σ_st (g_s·g_t)(a_s·a_t)

The size of the weight decides which of both is kept, for all its texts. Inner products of
directions are float64 sums over the numbers that are kept.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.gradients import TextGradient

Direction = Float[Tensor, " d"] | Factors

SMALL = 1 << 20  # numbers of a weight: up to here u itself is kept, of which 2 GiB hold 500
BLOCK = 64  # directions for which memory is asked together
WIDTH = 1 << 14  # columns that are widened to float64 at a time


def form(G: Factors) -> Float[Tensor, "d_out d_in"] | Factors:
    """G as the gradients' readers are to give it: its terms in a wide weight, or itself."""
    if G.g.shape[1] * G.a.shape[1] <= SMALL:
        return G.matrix()
    nonzero = G.g.any(1)  # the prompt's first positions have no slope
    return Factors(G.g[nonzero], G.a[nonzero])


def kept(gradient: TextGradient) -> Direction:
    """u = G/‖G‖ as it is stored: float32, on the model's device where that has float64.
    DegenerateScoreError if G is zero or not finite.
    """
    if not isinstance(gradient.parts[0], Factors):
        return _where_float64_is(gradient.unit().float())
    g, a = gradient.parts[0]
    return Factors(*(_where_float64_is(part.float()) for part in (g / gradient.norm, a)))


def n_bytes(u: Direction) -> int:
    return 4 * sum(part.numel() for part in parts(u))


def parts(u: Direction) -> list[Tensor]:
    """The tensors that make up a direction."""
    return list(u) if isinstance(u, Factors) else [u]


def inner(rows: Float[Tensor, "n d"], others: Float[Tensor, "b d"]) -> Float[np.ndarray, "n b"]:
    """⟨row, other⟩ of all pairs, in float64."""
    total = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    others = others.to(rows.device)
    for start in range(0, rows.shape[1], WIDTH):
        part = slice(start, start + WIDTH)
        total += rows[:, part].double() @ others[:, part].double().T
    return total.cpu().numpy()


def square(u: Direction) -> float:
    """⟨u, u⟩ in float64: 1 but for rounding."""
    return u.inner(u) if isinstance(u, Factors) else inner(u[None], u[None]).item()


class Directions:
    """The directions of texts, in their order."""

    def __init__(self) -> None:
        self.n = self.n_bytes = 0
        self._terms: list[Factors] = []
        self._blocks: list[Float[Tensor, "block d"]] = []

    def __iter__(self) -> Iterator[Direction]:
        rows = (row for block in self._blocks for row in block)
        return (u for u, _ in zip(self._terms or rows, range(self.n), strict=False))

    def add(self, u: Direction) -> None:
        if isinstance(u, Factors):
            self._terms.append(u)
        else:
            block, row = divmod(self.n, BLOCK)
            if block == len(self._blocks):
                self._blocks.append(u.new_empty(BLOCK, len(u)))
            self._blocks[block][row] = u
        self.n, self.n_bytes = self.n + 1, self.n_bytes + n_bytes(u)

    def inner(self, u: Direction) -> Float[np.ndarray, " n"]:
        """⟨u_i, u⟩ of each."""
        if isinstance(u, Factors):
            return np.array([term.inner(u) for term in self._terms], dtype=float)
        products = [inner(block, u[None])[:, 0] for block in self._blocks]
        return np.concatenate([np.zeros(0), *products])[: self.n]

    def to(self, device: torch.device) -> None:
        self._blocks = [block.to(device) for block in self._blocks]
        self._terms = [Factors(g.to(device), a.to(device)) for g, a in self._terms]


def _where_float64_is(numbers: Tensor) -> Tensor:
    return numbers.cpu() if numbers.device.type == "mps" else numbers
