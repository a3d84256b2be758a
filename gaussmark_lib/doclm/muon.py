"""Muon in float32: momentum whose update is replaced by its nearest orthogonal matrix.

``torch.optim.Muon`` runs its Newton–Schulz iteration in bfloat16, which a CPU without bfloat16
units emulates about a hundred times slower than float32. This one keeps the parameter's dtype, and
handles all matrices of one shape in one batched product.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), whose
quintic coefficients are torch's too.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Pushes the singular values of each matrix of a batch (n, rows, cols) towards 1 (they land in
    about 0.7–1.2).
    """
    a, b, c = _QUINTIC
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrices else x.mT


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; the step's root mean square is 0.2·lr, which makes AdamW's
    learning rates carry over.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for p in group["params"]:
                by_shape[p.shape].append(p)
            for (rows, cols), params in by_shape.items():
                lookahead = torch.stack([self._momentum(p, group["momentum"]) for p in params])
                scale = 0.2 * max(rows, cols) ** 0.5 * group["lr"]
                for p, update in zip(params, orthogonalise(lookahead), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        buffer = state["momentum"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)
