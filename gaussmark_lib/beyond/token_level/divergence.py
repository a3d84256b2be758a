"""The price of token-level keys: the divergence of the models p_{θ+ξ_1}, p_{θ+ξ_2}, … from p_θ,
each at the token that it wrote.

    Σ_k KL(p_{θ+ξ_k}(· | x, y_<k) ‖ p_θ(· | x, y_<k))

With F_k the Fisher information of token k, it is ½σ² Σ_k tr F_k to second order. This is the price
of a single key (``divergence``) at the same σ and weight.
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
    """Return the price in nats per text, as ``divergence.per_text`` does.

    It is the sum over the response's positions, and exact over the next token. All texts form one
    batch. The layer's input at a position does not depend on any noise, and its output changes the
    prediction of that position alone: ξ_k·a_k is added there.
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    wm = token_keys.ready(model, wm, keys, len(pairs))
    inputs, is_token = divergence.laid_out(model, pairs)
    shape = inputs["input_ids"].shape
    n_tokens = is_token.shape[1]
    module = wm.linear.module
    layer_inputs: list[Float[Tensor, "texts positions d_in"]] = []

    def record(_, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        layer_inputs.append(arguments[0])

    def add_noise(_, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + noise_of_output.view(output.shape)

    with evaluating(model):
        with module.register_forward_hook(record):
            base = divergence.logits(model, inputs, n_tokens)
        a = hooks.by_text(layer_inputs[0], shape, wm.weight)
        noise_of_output = a.new_zeros(*a.shape[:-1], wm.linear.shape[0])
        for k in range(n_tokens):
            predicts = k - n_tokens - 1  # from the end: a head may see the last positions alone
            texts = [i for i, (_, y) in enumerate(pairs) if k < len(y)]
            keys_of_texts = [keys[i] for i in texts]
            noise_of_output[texts, predicts] = token_keys.added(
                wm, keys_of_texts, k, a[texts, predicts]
            )
        with (
            perturb.flagged_as_perturbed(model, f"{len(set(keys))} keys"),
            module.register_forward_hook(add_noise),
        ):
            marked = divergence.logits(model, inputs, n_tokens)
    return np.array(divergence.summed(marked, base, is_token))
