"""What token-level keys cost: how far the models p_{θ+ξ_1}, p_{θ+ξ_2}, … are from p_θ, each at the
one token that it wrote.

    Σ_k KL(p_{θ+ξ_k}(· | x, y_<k) ‖ p_θ(· | x, y_<k))

To second order it is ½σ² Σ_k tr F_k, F_k being the Fisher information of token k: the one-key price
(``divergence``) at the same σ and weight.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, models, perturb, tokens
from gaussmark_lib.engine import hooks
from gaussmark_lib.keys import Key
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark


@torch.no_grad()
def per_text(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]
) -> Float[np.ndarray, " texts"]:
    """Nats per text, as ``divergence.per_text``: the sum over the response's positions, exact over
    the next token.

    All texts are one batch. The layer's input at a position does not depend on any noise, and its
    output changes the prediction of that position alone: ξ_k·a_k is added there.
    """
    pairs = list(tokens.checked_pairs(model, prompts, responses).values())
    wm = token_keys.ready(model, wm, keys, len(pairs))
    ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
    inputs: list[Float[Tensor, "texts positions d_in"]] = []
    with models.evaluating(model):
        with wm.linear.module.register_forward_hook(
            lambda _, given, output: inputs.append(given[0])
        ):
            base = divergence.log_p(model, ids, mask)
        a = hooks.by_text(inputs[0], ids.shape, wm.weight)
        extra = a.new_zeros(*a.shape[:-1], wm.linear.shape[0])
        for k in range(max(len(y) for _, y in pairs)):
            texts = [i for i, (_, y) in enumerate(pairs) if k < len(y)]
            where = texts, [len(pairs[i][0]) - 1 + k for i in texts]
            extra[where] = token_keys.added(wm, [keys[i] for i in texts], k, a[where])
        with (
            perturb.marked(model, f"{len(set(keys))} keys"),
            wm.linear.module.register_forward_hook(
                lambda _, given, output: output + extra.view(output.shape)
            ),
        ):
            log_p = divergence.log_p(model, ids, mask)
    return np.array(divergence.over_responses(log_p, base, pairs))
