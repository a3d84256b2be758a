"""The gradient of a text, block by block: G_b = ∇_θ Σ_{t∈b} log p_θ(y_t | x, y_<t), with Σ_b G_b =
G: differences of the gradients of its beginnings.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmark_lib.gradients import of_pairs
from gaussmark_lib.tokens import Pair
from gaussmark_lib.weights import PlacedWatermark


def gradients(
    pair: Pair, wm: PlacedWatermark, ends: Sequence[int], *, dtype: str | torch.dtype | None = None
) -> Float[Tensor, "blocks d"]:
    """G_b (or PG_b where rank_dropped > 0) of the blocks of one response that end after these
    tokens, each in row order.
    """
    blocks, before = [], 0.0
    for beginning in of_pairs(wm.model, {0: pair}, wm, lengths=ends, dtype=dtype):
        blocks.append((beginning.G - before).flatten())
        before = beginning.G
    return torch.stack(blocks)
