"""Muon in float32: momentum whose update is replaced by its nearest orthogonal matrix.

``torch.optim.Muon`` iterates in bfloat16, which a CPU without bfloat16 units emulates about a
hundred times slower than float32. This one keeps the parameter's dtype.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), whose
quintic coefficients are torch's too.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315  # of the quintic


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Pushes the singular values of a matrix towards 1 (they land in about 0.7–1.2)."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised. A step's root mean square is 0.2·lr, so AdamW's learning
    rates carry over.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]))
                scale = 0.2 * max(p.shape) ** 0.5 * group["lr"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)
