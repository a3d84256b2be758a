"""A gradient by its terms, which take less memory than its matrix if the matrix is wide."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib.engine.arithmetic import wide


class Factors(NamedTuple):
    """G = Σ_i g_i a_iᵀ over positions i, by its terms, float32 at least."""

    g: Float[Tensor, "n d_out"]
    a: Float[Tensor, "n d_in"]

    def matrix(self) -> Float[Tensor, "d_out d_in"]:
        """Return G."""
        return self.g.T @ self.a

    def flatten(self) -> Float[Tensor, " d"]:
        """Return the entries of G in row order."""
        return self.matrix().flatten()

    def inner(self, other: "Factors") -> float:
        """Return ⟨G, H⟩ = Σ_ij ⟨g_i, h_j⟩⟨a_i, b_j⟩, in float64, for H = Σ_j h_j b_jᵀ.

        >>> G = Factors(g=torch.tensor([[1.0, 2.0]]), a=torch.tensor([[3.0, 0.0]]))
        >>> G.inner(G), (G.matrix() ** 2).sum().item()
        (45.0, 45.0)
        """
        gh = self.g.double() @ other.g.double().T  # ⟨g_i, h_j⟩, (n, m)
        ab = self.a.double() @ other.a.double().T  # ⟨a_i, b_j⟩, (n, m)
        products = gh * ab
        return products.sum().item()

    def norm(self) -> float:
        """Return ‖G‖ = √⟨G, G⟩, from the matrix G if that is less work."""
        n, d_out = self.g.shape
        _, d_in = self.a.shape
        if n * (d_out + d_in) >= d_out * d_in:
            return norm(self.matrix())
        square = self.inner(self)
        return math.sqrt(max(square, 0.0))  # rounding may take it below 0

    def bound(self) -> float:
        """Return Σ_i ‖g_i‖‖a_i‖ ≥ ‖G‖, the scale of rounding errors in G."""
        return (self.g.norm(dim=1) * self.a.norm(dim=1)).sum().item()

    def projected(self, project) -> "Factors":
        """Return PGQ = Σ_i (P g_i)(Q a_i)ᵀ, in float64.

        Float64, because the terms may nearly cancel: the sum can be much smaller than each of them.
        """
        g = self.g.double()
        a = self.a.double()
        left = project.left.to(g)  # (d_out, k)
        right = project.right.to(a)  # (d_in, k)
        return Factors(
            g=g - g @ left @ left.T,
            a=a - a @ right @ right.T,
        )


def norm(matrix: Float[Tensor, "d_out d_in"] | Factors) -> float:
    """Return ‖M‖ (Frobenius), summed in float64.

    On a processor torch's float32 sum is off by 2e-5 for 200,000 numbers, and by .5% for 58.7
    million.
    """
    if isinstance(matrix, Factors):
        return matrix.norm()
    if matrix.device.type == "mps":  # has no float64
        matrix = matrix.cpu()
    return torch.linalg.vector_norm(matrix, dtype=torch.float64).item()


def inner(G: Tensor | Factors, H: Tensor | Factors) -> float:
    """Return ⟨G, H⟩ (Frobenius) of two matrices, or of two sets of terms.

    The sum over rows is in float64.
    """
    if isinstance(G, Factors):
        return G.inner(H)
    of_rows = (G * H).sum(dim=1)
    return of_rows.double().sum().item()


def of_text(
    inputs: list[tuple[int, Tensor]], slopes: Sequence[Tensor], row: int, n: int, n_layers: int
) -> list[Factors]:
    """Return G of each layer for the text of a row, float32 at least.

    The text ends before position n. A layer that the model uses several times has the terms of all
    its uses.
    """
    g_of_layers: list[list[Tensor]] = [[] for _ in range(n_layers)]
    a_of_layers: list[list[Tensor]] = [[] for _ in range(n_layers)]
    for (layer, a), g in zip(inputs, slopes, strict=True):
        g_of_layers[layer].append(g[row, :n])
        a_of_layers[layer].append(wide(a[row, :n]))
    return [
        Factors(g=torch.cat(g), a=torch.cat(a))
        for g, a in zip(g_of_layers, a_of_layers, strict=True)
    ]
