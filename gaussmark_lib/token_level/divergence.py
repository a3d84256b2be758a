"""What token-level keys cost: how far the models p_{θ+ξ_1}, p_{θ+ξ_2}, … are from p_θ, each at the
one token that it wrote.

    Σ_k KL(p_{θ+ξ_k}(· | x, y_<k) ‖ p_θ(· | x, y_<k)),      mean over y: the divergence of Algorithm
    3's texts from plain ones

To second order it is ½σ² Σ_k tr F_k, F_k being the Fisher information of token k: the one-key price
(``divergence``) at the same σ and weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import binding, divergence, models, perturb, tokens
from gaussmark_lib.keys import Key, checked
from gaussmark_lib.token_level import gradients, keys
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import PlacedWatermark, Watermark

LogP = Float[Tensor, "texts positions vocabulary"]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Padded texts with the base model's log p at every position, and where token k is predicted:
    for each k, rows and positions.
    """

    ids: Int[Tensor, "texts positions"]
    mask: Int[Tensor, "texts positions"]
    base: LogP
    predicting: list[tuple[list[int], list[int]]]


@torch.no_grad()
def per_text(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, key: Key
) -> Float[np.ndarray, " texts"]:
    """Nats a text, as ``divergence.per_text``: the sum over the response's positions, exact over
    the next token.

    All texts are one batch, so that each noise is drawn once. A local weight takes three forward
    passes, any other one a token.
    """
    perturb.refuse_perturbed(model)
    wm = perturb.placed(model, wm)
    checked(key).check(binding.Use(wm))
    pairs = list(tokens.checked_pairs(model, prompts, responses).values())
    ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
    with models.evaluating(model):
        batch = _Batch(
            ids,
            mask,
            divergence.log_p(model, ids, mask),
            [_predicting(pairs, k) for k in range(max(len(y) for _, y in pairs))],
        )
        marked = _in_one_pass if gradients.is_local(model, wm.linear) else _token_by_token
        log_p = marked(model, wm, key, batch)
    per_position = (log_p.exp() * (log_p - batch.base)).sum(-1).double()
    return np.array(
        [
            per_position[i, len(x) - 1 : len(x) + len(y) - 1].sum().item()
            for i, (x, y) in enumerate(pairs)
        ]
    )


def _predicting(pairs: Sequence[Pair], k: int) -> tuple[list[int], list[int]]:
    """The texts that have a token k, and in each the position that predicts it."""
    rows = [i for i, (_, y) in enumerate(pairs) if k < len(y)]
    return rows, [len(pairs[i][0]) - 1 + k for i in rows]


def _in_one_pass(model: PreTrainedModel, wm: PlacedWatermark, key: Key, batch: _Batch) -> LogP:
    """The layer's input at a position does not depend on any noise, and its output moves that
    position alone: add ξ_k·a_k there.
    """
    seen: list[Float[Tensor, "texts positions d_in"]] = []
    with wm.linear.hooked(lambda _, inputs, output: seen.append(inputs[0])):
        model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False)
    [a] = [tokens.by_text(one, batch.ids.shape, wm.weight) for one in seen]
    extra = a.new_zeros(*a.shape[:-1], wm.linear.shape[0])
    for k, where in enumerate(batch.predicting):
        extra[where] = a[where] @ wm.project(keys.noise(wm, key, k)).to(a).T
    with (
        perturb.marked(model, key.key_id),
        wm.linear.hooked(lambda _, inputs, output: output + extra.view(output.shape)),
    ):
        return divergence.log_p(model, batch.ids, batch.mask)


def _token_by_token(model: PreTrainedModel, wm: PlacedWatermark, key: Key, batch: _Batch) -> LogP:
    """A whole forward pass under θ + ξ_k for each k, of which one position a row is kept."""
    log_p = batch.base.clone()
    for k, where in enumerate(batch.predicting):
        with perturb.moved(model, wm, wm.project(keys.noise(wm, key, k)), by=key.key_id):
            log_p[where] = divergence.log_p(model, batch.ids, batch.mask)[where]
    return log_p
