"""The gradient of a text, block by block: G_b = ∇_θ Σ_{t∈b} log p_θ(y_t | x, y_<t), with Σ_b G_b =
G.

A token's log-probability depends on the head's input h at its own position alone. So one backward
pass through the head gives ∂ log p_t/∂h_t of all tokens, and each block needs one more from there
down to the weight's layer, with the other tokens' rows set to zero.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib import likelihood, models
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.gradients import Call, Factors, backward, is_rounding, traced
from gaussmark_lib.tokens import Pair
from gaussmark_lib.watermark import PlacedWatermark


def gradients(
    pair: Pair, wm: PlacedWatermark, ends: Sequence[int], *, dtype: str | torch.dtype | None = None
) -> Float[Tensor, "blocks d"]:
    """G_b (or PG_b where rank_dropped > 0) of the blocks of one response that end after these
    tokens, each in row order.

    Raises:
        DegenerateScoreError: the text does not depend on the weight.
    """
    model = wm.model
    with models.computing_in(model, models.arithmetic(model, dtype)), likelihood.frozen(model):
        with traced([wm.linear], (1, sum(map(len, pair)))) as calls:
            read = likelihood.states(model, [pair])
        log_p, h, found = read.log_p(), read.h, []
        if not log_p.requires_grad:
            raise DegenerateScoreError(
                f"expected a text that depends on {wm.weight}, but the model computes it without"
                " it; choose another weight"
            )
        *slopes, of_tokens = backward(log_p, [*calls, Call(-1, h, h)], retain_graph=True)
        if is_rounding(sum(each.felt[:, 0].sum(-1) for each in slopes)):
            raise DegenerateScoreError(
                "expected a gradient that is not zero, but the text does not depend on"
                f" {wm.weight}; choose another weight"
            )
        for start, end in pairwise([0, *ends]):
            of_block = torch.zeros_like(h)
            of_block[:, start:end] = of_tokens.g[:, start:end]
            gs = torch.autograd.grad(
                h, [call.y for call in calls], of_block, retain_graph=True, materialize_grads=True
            )
            found.append(
                wm.project(
                    sum(
                        Factors(g[0], call.a[0]).matrix() for g, call in zip(gs, calls, strict=True)
                    )
                ).flatten()
            )
    return torch.stack(found)
