"""Rank reduction: keep the noise out of the directions that the weight itself uses most.

P = I − U_k U_kᵀ, with U_k the top-k left singular vectors of θ, multiplies noise and gradient from
the left (paper, Sec. "rank-reduction"). The left singular vectors span what the layer *writes*; the
right ones, V_k, what it *reads*. As an ablation, Q = I − V_k V_kᵀ can be applied from the right, or
both: M → PM, MQ or PMQ. Each is an orthogonal projection of the space of matrices, so ⟨PξQ, PGQ⟩ =
⟨ξ, PGQ⟩, and ⟨PξQ, PGQ⟩ / (σ‖PGQ‖) is N(0, 1) under the null as without.
"""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SIDES = ("left", "right", "both")
_kept: dict[tuple, Tensor] = {}  # all vectors: a map over ranks asks for a matrix again and again


@dataclass(frozen=True)
class Projector:
    """M → PMQ; without columns, P or Q is the identity."""

    left: Float[Tensor, "d_out kl"]
    right: Float[Tensor, "d_in kr"]

    def __call__(self, matrix: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        return project_out(project_out(matrix, self.left).T, self.right).T


def projector(theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left") -> Projector:
    """The projector off the top-k singular directions of a weight, k < min(d_out, d_in)."""
    left, right = (k if side in (this, "both") else 0 for this in ("left", "right"))
    return Projector(singular_vectors(theta, left, "left"), singular_vectors(theta, right, "right"))


def project_out(matrix: Float[Tensor, "d n"], basis: Float[Tensor, "d k"]) -> Float[Tensor, "d n"]:
    """P·M = M − U(UᵀM), without forming P."""
    U = basis.to(matrix)
    return matrix - U @ (U.T @ matrix)


@torch.inference_mode(False)
@torch.no_grad()
def singular_vectors(
    theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left"
) -> Float[Tensor, "d k"]:
    """The top-k left or right singular vectors, float32; kept of the last eight (matrix, side)."""
    if k == 0:
        return theta.new_empty(theta.shape[0 if side == "left" else 1], 0, dtype=torch.float32)
    bits = theta.detach().cpu().contiguous().view(torch.uint8).numpy()
    matrix = side, theta.shape, theta.dtype, hashlib.sha256(bits).digest()
    if matrix not in _kept:
        # On a GPU the vectors are others, and orthogonal to 1e-4 only.
        U, _, Vh = torch.linalg.svd(theta.float().cpu(), full_matrices=False)
        _kept[matrix] = (U if side == "left" else Vh.T).contiguous()
        for oldest in [*_kept][:-8]:
            _kept.pop(oldest, None)  # another thread may have
    return _kept[matrix][:, :k].clone().to(theta.device)
