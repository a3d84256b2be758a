"""Rank reduction: keep the noise out of the directions that the weight itself uses most.

P = I − U_k U_kᵀ, with U_k the top-k left singular vectors of θ, multiplies noise and gradient from
the left (paper, Sec. "rank-reduction"). The left singular vectors span what the layer *writes*; the
right ones, V_k, what it *reads*. As an ablation, Q = I − V_k V_kᵀ can be applied from the right, or
both: M → PM, MQ or PMQ. Each is an orthogonal projection of the space of matrices, so ⟨PξQ, PGQ⟩ =
⟨ξ, PGQ⟩, and ⟨PξQ, PGQ⟩ / (σ‖PGQ‖) is N(0, 1) under the null, as it is without P and Q.
"""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SIDES = ("left", "right", "both")
MOST_CACHED = 8  # matrices whose vectors are cached

# (side, shape, dtype, hash of a matrix) → all of its singular vectors: a map over ranks asks for
# the same matrix again and again.
_cache: dict[tuple, Tensor] = {}


@dataclass(frozen=True)
class Projector:
    """The map M → PMQ. If ``left`` or ``right`` has no columns, P or Q is the identity.

    >>> theta = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> projector(theta, k=1)(torch.ones(3, 3))[0]  # row 0 is what θ writes most
    tensor([0., 0., 0.])
    """

    left: Float[Tensor, "d_out kl"]
    right: Float[Tensor, "d_in kr"]

    def __call__(self, matrix: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """Return PMQ."""
        left_removed = project_out(matrix, self.left)  # PM
        return project_out(left_removed.T, self.right).T


def projector(theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left") -> Projector:
    """Return the projector off the top-k singular directions of θ (d_out, d_in).

    k is from 0 to less than min(d_out, d_in). ``side`` says of which: ``"left"`` removes what θ
    writes (PM), ``"right"`` what it reads (MQ), ``"both"`` both (PMQ).

    >>> theta = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> projector(theta, k=1, side="right")(torch.ones(3, 3))[:, 0]  # column 0 is what θ reads most
    tensor([0., 0., 0.])
    """
    k_left = 0 if side == "right" else k
    k_right = 0 if side == "left" else k
    return Projector(
        left=singular_vectors(theta, k_left, "left"),
        right=singular_vectors(theta, k_right, "right"),
    )


def project_out(matrix: Float[Tensor, "d n"], basis: Float[Tensor, "d k"]) -> Float[Tensor, "d n"]:
    """Return P·M = M − U(UᵀM), without forming P. The columns of U (``basis``) are orthonormal.

    >>> project_out(torch.ones(2, 3), basis=torch.tensor([[1.0], [0.0]]))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    U = basis.to(matrix)
    return matrix - U @ (U.T @ matrix)


@torch.inference_mode(False)
@torch.no_grad()
def singular_vectors(
    theta: Float[Tensor, "d_out d_in"], k: int, side: str = "left"
) -> Float[Tensor, "d k"]:
    """Return the top-k left (d_out, k) or right (d_in, k) singular vectors of θ, float32.

    Those of the last eight pairs of matrix and side are cached.

    >>> singular_vectors(torch.diag(torch.tensor([1.0, 2.0])), k=1).abs()
    tensor([[0.],
            [1.]])
    """
    is_left = side == "left"
    if k == 0:
        d_out, d_in = theta.shape
        d = d_out if is_left else d_in
        return theta.new_empty(d, 0, dtype=torch.float32)
    bits = theta.detach().cpu().contiguous().view(torch.uint8).numpy()
    name = (side, theta.shape, theta.dtype, hashlib.sha256(bits).digest())
    if name not in _cache:
        # On a GPU the vectors are different, and orthogonal only to 1e-4.
        U, _, Vh = torch.linalg.svd(theta.float().cpu(), full_matrices=False)
        vectors = U if is_left else Vh.T
        _cache[name] = vectors.contiguous()
        for oldest in list(_cache)[:-MOST_CACHED]:
            _cache.pop(oldest, None)  # another thread may have dropped it already
    return _cache[name][:, :k].clone().to(theta.device)
