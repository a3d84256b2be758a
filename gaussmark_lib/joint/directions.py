"""Directions u = G/‖G‖ as they are kept: whole, as d = d_out·d_in float32 numbers, or by their
terms where these take far less room.

A text of n positions has u = Σ_s g_s a_sᵀ, with n (d_out + d_in) numbers: in an 8-billion-parameter
model's widest matrix, a text of 200 tokens takes a sixteenth of d. Inner products need no u as a
whole:

    ⟨u_i, u_j⟩ = Σ_st (g_s·g_t)(a_s·a_t)

The numbers that are kept *are* the direction, whichever they are: every inner product, with another
direction or with a noise, is a float64 sum over them. Otherwise K and ψ would be of different
vectors, and the law not exact (``law``).
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.rank_reduce import Factors

Direction = Float[Tensor, " d"] | Factors

# terms are kept where they are at most a quarter of d: two texts' inner product takes n_i n_j
# (d_out + d_in) products, and not d
SAVING = 4
SMALL = (
    1 << 20
    # numbers: up to here all are whole, since 500 of them fit in 2 GiB and one product of matrices
    # serves them all
)
# texts whose u are formed side by side from their terms, so that a noise is widened to float64 once
# for all of them
TOGETHER = 4
FORMED = 1 << 22  # numbers of u that are formed at a time
_ON_CPU, _ON_GPU = (
    1 << 13,
    1 << 18,
)  # columns at a time, in float64: what a cache holds, and what keeps a GPU busy


def smaller(terms: Factors) -> Float[Tensor, "d_out d_in"] | Factors:
    """G in the form that is to be kept: its terms, without those that are zero, or itself."""
    d_out, d_in = terms.g.shape[1], terms.a.shape[1]
    if d_out * d_in <= SMALL:
        return terms.matrix()
    nonzero = terms.g.any(1)
    few = Factors(*(_where_float64_is(part[nonzero]) for part in terms))
    return few if SAVING * len(few.g) * (d_out + d_in) <= d_out * d_in else terms.matrix()


def least(d: int) -> int:
    """Bytes that any direction takes at least."""
    return 4 * (d if d <= SMALL else 2 * math.isqrt(d))  # d_out + d_in ≥ 2√d


def unit(found: TextGradient) -> Float[Tensor, " d"]:
    """u = G/‖G‖ as it is stored: float32, on the model's device where that has float64."""
    return _where_float64_is(found.unit().float())


def kept(found: TextGradient) -> Direction:
    """u as it is stored, whole or by its terms. DegenerateScoreError if G is zero or not finite."""
    if not isinstance(found.given, Factors):
        return unit(found)
    found.check()
    return Factors((found.given.g / found.norm).float(), found.given.a.float())


def _where_float64_is(numbers: Tensor) -> Tensor:
    return numbers.cpu() if numbers.device.type == "mps" else numbers


def n_bytes(u: Direction) -> int:
    return 4 * sum(part.numel() for part in (u if isinstance(u, Factors) else [u]))


def device(u: Direction) -> torch.device:
    return (u.g if isinstance(u, Factors) else u).device


def inner(rows: Float[Tensor, "n d"], others: Float[Tensor, "b d"]) -> Float[np.ndarray, "n b"]:
    """⟨row, other⟩ of all pairs, in float64."""
    total = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    others, width = others.to(rows.device), _ON_CPU if rows.device.type == "cpu" else _ON_GPU
    for start in range(0, rows.shape[1], width):
        part = slice(start, start + width)
        total += rows[:, part].double() @ others[:, part].double().T
    return total.cpu().numpy()


def inner_of_terms(
    terms: Sequence[Factors], others: Float[Tensor, "b d"]
) -> Float[np.ndarray, "n b"]:
    """⟨Σ_s g_s a_sᵀ, other⟩ of all pairs, in float64."""
    groups = [terms[i : i + TOGETHER] for i in range(0, len(terms), TOGETHER)]
    found = [sum(inner(u, others[:, columns]) for columns, u in _formed(group)) for group in groups]
    return np.concatenate([np.empty((0, len(others))), *found])


def inner_with(u: Direction, others: Float[Tensor, "b d"]) -> Float[np.ndarray, " b"]:
    """⟨u, other⟩ of each, in float64."""
    return (inner_of_terms([u], others) if isinstance(u, Factors) else inner(u[None], others))[0]


def square(u: Direction) -> float:
    """⟨u, u⟩ in float64: 1 but for rounding."""
    return u.inner(u) if isinstance(u, Factors) else float(inner(u[None], u[None])[0, 0])


def add(total: Float[Tensor, " d"], u: Direction, weight: float) -> None:
    """Adds weight·u to a sum, in place."""
    for columns, part in _formed([u]) if isinstance(u, Factors) else [(slice(None), u[None])]:
        total[columns] += (part[0] * weight).float()


def _formed(terms: Sequence[Factors]) -> Iterator[tuple[slice, Float[Tensor, "n width"]]]:
    """Σ_s g_s a_sᵀ of each in float64, some columns of the vectors at a time, and which ones these
    are.
    """
    wide, (d_out, d_in) = (
        [(g.double(), a.double()) for g, a in terms],
        (each.shape[1] for each in terms[0]),
    )
    step = max(1, FORMED // (d_in * len(terms)))
    for start in range(0, d_out, step):
        end = min(start + step, d_out)
        yield (
            slice(start * d_in, end * d_in),
            torch.stack([(g[:, start:end].T @ a).flatten() for g, a in wide]),
        )


class Directions:
    """The directions of some texts, in their order: whole ones as rows of matrices, the others by
    their terms.

    Args:
        rows: of a matrix, for which memory is asked together.

    Attributes:
        terms: of each text that is kept by them, by its place.
    """

    def __init__(self, d: int, rows: int):
        self.d, self.rows, self.n = d, max(1, rows), 0
        self.terms: dict[int, Factors] = {}
        self._blocks: list[Float[Tensor, "rows d"]] = []

    def __iter__(self) -> Iterator[Direction]:
        whole = (row for block in self.blocks() for row in block)
        return (self.terms[i] if i in self.terms else next(whole) for i in range(self.n))

    @property
    def n_bytes(self) -> int:
        return 4 * self.d * (self.n - len(self.terms)) + sum(map(n_bytes, self.terms.values()))

    def blocks(self) -> list[Float[Tensor, "rows d"]]:
        """The whole ones."""
        n = self.n - len(self.terms)
        return [
            block[: n - start]
            for start, block in zip(range(0, n, self.rows), self._blocks, strict=False)
        ]

    def add(self, u: Direction) -> None:
        if isinstance(u, Factors):
            self.terms[self.n] = u
        else:
            block, row = divmod(self.n - len(self.terms), self.rows)
            if block == len(self._blocks):
                self._blocks.append(
                    torch.empty(self.rows, self.d, dtype=torch.float32, device=u.device)
                )
            self._blocks[block][row] = u
        self.n += 1

    def clear(self) -> None:
        """Begins anew, in the same matrices."""
        self.n, self.terms = 0, {}

    def to(self, device: torch.device) -> None:
        self._blocks = [block.to(device) for block in self._blocks]
        self.terms = {i: Factors(g.to(device), a.to(device)) for i, (g, a) in self.terms.items()}

    def inner(self, u: Direction) -> Float[np.ndarray, " n"]:
        """⟨u_i, u⟩ of each."""
        if not isinstance(u, Factors):
            return self.along(u[None])[:, 0]
        found = np.array(
            [self.terms[i].inner(u) if i in self.terms else np.nan for i in range(self.n)]
        )
        found[self._whole()] = np.concatenate(
            [np.empty(0), *(inner_with(u, block) for block in self.blocks())]
        )
        return found

    def along(self, others: Float[Tensor, "b d"]) -> Float[np.ndarray, "n b"]:
        """⟨u_i, other⟩ of all pairs, for noises and for whole directions."""
        found = np.empty((self.n, len(others)))
        found[self._whole()] = np.concatenate(
            [np.empty((0, len(others))), *(inner(block, others) for block in self.blocks())]
        )
        found[list(self.terms)] = inner_of_terms(list(self.terms.values()), others)
        return found

    def gram(self) -> Float[np.ndarray, "n n"]:
        """⟨u_i, u_j⟩ of all pairs."""
        K, whole = np.empty((self.n, self.n)), self._whole()
        K[:, whole] = np.hstack(
            [np.empty((self.n, 0)), *(self.along(block) for block in self.blocks())]
        )
        for i, u in self.terms.items():
            K[:, i] = self.inner(u)
        return K

    def _whole(self) -> list[int]:
        return [i for i in range(self.n) if i not in self.terms]

    def tensors(self) -> dict[str, Tensor]:
        """For a file: ``directions 0`` and so on, each some rows of whole ones, and ``g 7`` and ``a
        7``, the terms of text 7.
        """
        terms = {
            f"{name} {i}": part for i, u in self.terms.items() for name, part in u._asdict().items()
        }
        return {
            name: part.contiguous()
            for name, part in (
                {f"directions {i}": block for i, block in enumerate(self.blocks())} | terms
            ).items()
        }

    def refill(self, n: int, shape: Sequence[int], tensors: dict[str, Tensor]) -> bool:
        """Puts back what ``tensors`` gave of n texts; whether it can have given all of it, for a
        weight of this shape.
        """
        self.n = n
        self.terms = {
            i: Factors(tensors[f"g {i}"], tensors[f"a {i}"])
            for i in range(n)
            if f"g {i}" in tensors
        }
        blocks = [
            tensors[f"directions {i}"]
            for i in range(sum(name.startswith("directions") for name in tensors))
        ]
        for block in blocks:
            self._blocks.append(torch.empty(self.rows, self.d, dtype=torch.float32, device="cpu"))
            self._blocks[-1][: len(block)] = block
        sizes = [
            min(self.rows, n - len(self.terms) - start)
            for start in range(0, n - len(self.terms), self.rows)
        ]
        fitting = all(
            len(u.g) and [tuple(part.shape) for part in u] == [(len(u.g), width) for width in shape]
            for u in self.terms.values()
        )
        return (
            fitting
            and [tuple(block.shape) for block in blocks] == [(size, self.d) for size in sizes]
            and self.tensors().keys() == tensors.keys()
        )
