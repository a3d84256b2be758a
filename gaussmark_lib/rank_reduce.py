"""Rank reduction: keep the noise out of the directions that the weight itself uses most.

P = I − U_k U_kᵀ with U_k the top-k left singular vectors of θ multiplies noise and gradient from the left
(paper, Sec. "rank-reduction"). ⟨Pξ, PG⟩ / (σ‖PG‖) is N(0, 1) under the null for the same reason as without P.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def top_left_singular_vectors(theta: Float[Tensor, "d_out d_in"], k: int) -> Float[Tensor, "d_out k"]:
    """U_k in float32, orthonormal columns, ordered by singular value; k = 0 gives no columns."""
    if k == 0:
        return torch.empty(theta.shape[0], 0, dtype=torch.float32, device=theta.device)
    return torch.linalg.svd(theta.float(), full_matrices=False).U[:, :k].contiguous()


def project_out(matrix: Float[Tensor, "d_out d_in"], directions: Float[Tensor, "d_out k"]) -> Float[Tensor, "d_out d_in"]:
    """P·M = M − U(UᵀM), without forming P. With no directions, the matrix itself."""
    if directions.shape[1] == 0:
        return matrix
    directions = directions.to(matrix)
    return matrix - directions @ (directions.T @ matrix)
