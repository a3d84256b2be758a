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

from gaussmark_lib import divergence, perturb, tokens
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.engine import hooks
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.keys import Key
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
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    wm = token_keys.ready(model, wm, keys, len(pairs))
    inputs, is_token = divergence.laid_out(model, pairs)
    shape, n_tokens = inputs["input_ids"].shape, is_token.shape[1]
    seen: list[Float[Tensor, "texts positions d_in"]] = []
    with evaluating(model):
        with wm.linear.module.register_forward_hook(lambda _, given, output: seen.append(given[0])):
            base = divergence.logits(model, inputs, n_tokens)
        a = hooks.by_text(seen[0], shape, wm.weight)
        extra = a.new_zeros(*a.shape[:-1], wm.linear.shape[0])
        for k in range(n_tokens):
            predicts = k - n_tokens - 1  # from the end: a head may see the last positions alone
            texts = [i for i, (_, y) in enumerate(pairs) if k < len(y)]
            few = token_keys.added(wm, [keys[i] for i in texts], k, a[texts, predicts])
            extra[texts, predicts] = few
        with (
            perturb.marked(model, f"{len(set(keys))} keys"),
            wm.linear.module.register_forward_hook(
                lambda _, given, output: output + extra.view(output.shape)
            ),
        ):
            marked = divergence.logits(model, inputs, n_tokens)
    return np.array(divergence.summed(marked, base, is_token))
