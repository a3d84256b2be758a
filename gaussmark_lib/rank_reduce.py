"""Rank reduction: keep the noise out of the directions that the weight itself uses most.

P = I − U_k U_kᵀ with U_k the top-k left singular vectors of θ multiplies noise and gradient from
the left (paper, Sec. "rank-reduction"). ⟨Pξ, PG⟩ / (σ‖PG‖) is N(0, 1) under the null for the same
reason as without P.

The left singular vectors span what the layer *writes*; the right ones, V_k, what it *reads*. As an
ablation, Q = I − V_k V_kᵀ can be applied from the right, or both: M → PM, MQ or PMQ. Each is an
orthogonal projection of the space of matrices: the level stays exact, and the norm of the projected
G times σ predicts the power.

A matrix that is known by its terms, G = Σ_s g_s a_sᵀ, is projected term by term: PGQ = Σ_s (P
g_s)(Q a_s)ᵀ.
"""

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib import checks
from gaussmark_lib.errors import InvalidWatermarkError

SIDES = ("left", "right", "both")
CACHE_BYTES = 1 << 30  # of singular vectors, in main memory
WIDE = 1 << 18  # numbers; the sum of fewer is right to six digits


def norm(matrix: Float[Tensor, "d_out d_in"]) -> float:
    """‖M‖ (Frobenius). A wide one is summed by rows: of 58.7 million float32 numbers, torch's sum
    on a processor is 0.5% too small.
    """
    return (
        (
            matrix
            if matrix.numel() <= WIDE
            else torch.linalg.vector_norm(matrix, dim=1).cpu().double()
        )
        .norm()
        .item()
    )


class Factors(NamedTuple):
    """G = Σ_s g_s a_sᵀ by its terms; sums are formed in float32 at least, since G has many more
    terms than bfloat16 has digits.
    """

    g: Float[Tensor, "n d_out"]
    a: Float[Tensor, "n d_in"]

    @property
    def dtype(self) -> torch.dtype:
        """What its sums are formed in."""
        return torch.promote_types(self.g.dtype, torch.float32)

    def matrix(self) -> Float[Tensor, "d_out d_in"]:
        return self.g.to(self.dtype).T @ self.a.to(self.dtype)

    def inner(self, other: "Factors") -> float:
        """⟨G, H⟩ = Σ_st ⟨g_s, h_t⟩⟨a_s, b_t⟩, in float64, for H = Σ_t h_t b_tᵀ."""
        return (
            ((self.g.double() @ other.g.double().T) * (self.a.double() @ other.a.double().T))
            .sum()
            .item()
        )

    def norm(self) -> float:
        """‖G‖ = √⟨G, G⟩, in float64 where its terms cancel; by G itself where that is less work."""
        (n, d_out), (_, d_in) = self.g.shape, self.a.shape
        return (
            norm(self.matrix())
            if n * (d_out + d_in) >= d_out * d_in
            else math.sqrt(max(self.inner(self), 0.0))
        )


@dataclass(frozen=True)
class Projector:
    """M → PMQ with P = I − LLᵀ and Q = I − RRᵀ, L and R of orthonormal columns; without columns, P
    or Q is the identity.
    """

    left: Float[Tensor, "d_out kl"]
    right: Float[Tensor, "d_in kr"]

    def __call__(
        self, matrix: Float[Tensor, "d_out d_in"] | Factors
    ) -> Float[Tensor, "d_out d_in"] | Factors:
        if isinstance(matrix, Factors):
            return Factors(
                _each_projected(matrix.g, self.left), _each_projected(matrix.a, self.right)
            )
        matrix = project_out(matrix, self.left)
        return project_out(matrix.T, self.right).T if self.right.shape[1] else matrix


def projector(theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left") -> Projector:
    """The projector off the top-k singular directions of a weight. InvalidWatermarkError for a side
    or a k that it does not have.
    """
    checks.chosen(side, "side", SIDES, InvalidWatermarkError)
    left, right = (k if side in (this, "both") else 0 for this in ("left", "right"))
    return Projector(singular_vectors(theta, left, "left"), singular_vectors(theta, right, "right"))


def project_out(
    matrix: Float[Tensor, "d_out d_in"], directions: Float[Tensor, "d_out k"]
) -> Float[Tensor, "d_out d_in"]:
    """P·M = M − U(UᵀM), without forming P."""
    if directions.shape[1] == 0:
        return matrix
    directions = directions.to(matrix)
    return matrix - directions @ (directions.T @ matrix)


def _each_projected(
    rows: Float[Tensor, "n d"], directions: Float[Tensor, "d k"]
) -> Float[Tensor, "n d"]:
    """P·row of each, in float64: of a sum of many terms may be left far less than of each."""
    return project_out(rows.double().T, directions).T if directions.shape[1] else rows


def singular_vectors(
    theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left"
) -> Float[Tensor, "d k"]:
    """The top-k left or right singular vectors in float32, orthonormal columns, ordered by singular
    value; k = 0 gives no columns.

    They are computed once for each weight, known by the SHA-256 of its exact values, and kept in
    main memory. The longest unused are dropped where all together exceed ``CACHE_BYTES``.
    """
    checks.chosen(side, "side", ("left", "right"), InvalidWatermarkError)
    if checks.whole(k, "k", InvalidWatermarkError, least=0) > min(theta.shape):
        raise InvalidWatermarkError(
            f"k: expected at most min{tuple(theta.shape)} singular directions, got {k}"
        )
    if k == 0:
        return torch.empty(
            theta.shape[0 if side == "left" else 1], 0, dtype=torch.float32, device=theta.device
        )
    return (
        _cache.vectors(theta, side)[:, :k]
        .clone(memory_format=torch.contiguous_format)
        .to(theta.device)
    )


class _Cache:
    def __init__(self):
        self.kept: OrderedDict[tuple[str, str], Tensor] = OrderedDict()
        self.lock = Lock()

    def vectors(self, theta: Tensor, side: str) -> Tensor:
        name = (_sha256(theta), side)
        with self.lock:
            if name not in self.kept:
                with torch.inference_mode(False), torch.no_grad():  # to be of use in any mode later
                    u, _, vh = torch.linalg.svd(theta.float(), full_matrices=False)
                self.kept[name] = (u if side == "left" else vh.T).contiguous().cpu()
            self.kept.move_to_end(name)
            while (
                len(self.kept) > 1
                and sum(vectors.nbytes for vectors in self.kept.values()) > CACHE_BYTES
            ):
                self.kept.popitem(last=False)
            return self.kept[name]


_cache = _Cache()


def _sha256(theta: Tensor) -> str:
    """Of the shape and every bit: ``Linear.sha256`` rounds, and two models that it takes for one
    have different singular vectors.
    """
    digest = hashlib.sha256(str(tuple(theta.shape)).encode())
    digest.update(theta.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
