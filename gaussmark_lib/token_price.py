"""What token-level keys cost: how far the models p_{θ+ξ_1}, p_{θ+ξ_2}, … are from p_θ, each at the one token that it wrote.

    Σ_k KL(p_{θ+ξ_k}(· | x, y_<k) ‖ p_θ(· | x, y_<k)),      mean over y: the divergence of Algorithm 3's texts from plain ones

To second order ½σ² Σ_k tr F_k, F_k being the Fisher information of token k: a sum over tokens, and so the one-key price at the same σ on the same
weight (``price``), where the noise of all tokens is one. Power differs: one noise's leanings add up along the text's own gradient.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, price, token_gradients, token_keys, tokens
from gaussmark_lib.schemes import Texts

Layer = Float[Tensor, "texts positions d"]


@torch.no_grad()
def divergences(model: PreTrainedModel, prompts: Texts, responses: Texts, wm: perturb.Watermark, key: perturb.Key) -> Float[np.ndarray, " texts"]:
    """Nats a text, as ``price.divergences``: the sum over the response's positions, exact over the next token.

    All texts are one batch, so that each noise is drawn once. In the last block that takes three forward passes, elsewhere one a token.
    """
    perturb.refuse_perturbed(model)
    linear = wm.find(model)
    pairs = list(zip(tokens.checked_prompts(model, prompts), responses, strict=True))
    ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
    with models.evaluating(model):
        base = price._log_p(model, ids, mask)
        marked = _in_one_pass if token_gradients.is_local(model, linear) else _token_by_token
        log_p = marked(model, linear, ids, mask, pairs, wm, key, base)
    per_position = (log_p.exp() * (log_p - base)).sum(-1).double()
    return np.array([per_position[i, len(x) - 1 : len(x) + len(y) - 1].sum().item() for i, (x, y) in enumerate(pairs)])


def _places(pairs: Sequence, k: int) -> tuple[list[int], list[int]]:
    """Rows that have a token k, and the position that predicts it in each."""
    rows = [i for i, (_, y) in enumerate(pairs) if k < len(y)]
    return rows, [len(pairs[i][0]) - 1 + k for i in rows]


def _in_one_pass(model, linear, ids, mask, pairs, wm, key, base) -> Tensor:
    """The layer's input at a position does not depend on any noise, and its output moves that position alone: add ξ_k·a_k there."""
    project = wm.projector(linear)
    seen: list[Layer] = []
    handle = linear.module.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    try:
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        handle.remove()
    [a] = seen
    extra = a.new_zeros(*a.shape[:-1], linear.shape[0])
    for k in range(max(len(y) for _, y in pairs)):
        where = _places(pairs, k)
        extra[where] = a[where] @ project(token_keys.noise(key, k, wm, linear)).to(a).T
    handle = linear.module.register_forward_hook(lambda _, inputs, output: output + extra)
    try:
        return price._log_p(model, ids, mask)
    finally:
        handle.remove()


def _token_by_token(model, linear, ids, mask, pairs, wm, key, base) -> Tensor:
    """A whole forward pass under θ + ξ_k for each k, of which one position a row is kept."""
    log_p = base.clone()
    for k in range(max(len(y) for _, y in pairs)):
        where = _places(pairs, k)
        with perturb.watermarked(model, wm, token_keys.key_of(key, k)):
            log_p[where] = price._log_p(model, ids, mask)[where]
    return log_p
