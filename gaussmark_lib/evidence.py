"""Which tokens are evidence for a key: ψ as a sum of one number per token.

    e_t = ⟨ξ, ∇_θ log p_θ(y_t | x, y_<t)⟩ / (σ‖G‖),     Σ_t e_t = ψ,
    G = Σ_t ∇_θ log p_θ(y_t | x, y_<t)

e_t > 0 means that the noise of this key makes token t more likely, so the token is evidence for the
key; e_t < 0 is evidence against it. Only the sum ψ is a test. A single e_t is not N(0, 1): its
scale depends on the token, and it has no p-value.

For several weights the inner product is the sum over weights, and σ‖G‖ is √(Σ_s σ_s²‖G_s‖²), as in
``score``.

How it is computed. ⟨ξ, ∇_θ log p_t⟩ is the derivative of log p_t along ξ. One backward pass per
token would give them, one by one. *Two* backward passes give them all. The first takes the gradient
of Σ_t v_t log p_t, which is linear in the T dummy variables v_t. Its inner product with ξ is
Σ_t v_t ⟨ξ, ∇_θ log p_t⟩, and the second pass differentiates that by v.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from gaussmark_lib import gradients, likelihood, perturb, tokens
from gaussmark_lib.engine import hooks
from gaussmark_lib.engine.arithmetic import eager_experts, frozen
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark, Weight

COLUMNS = ["position", "token_id", "evidence", "log_p"]


def per_token(
    model: PreTrainedModel,
    prompt: tokens.Ids,
    response: tokens.Ids,
    wm: Watermark,
    key: Key,
    *,
    token_weights: gradients.Weigh | None = None,
) -> pd.DataFrame:
    """Return one row per response token, with its evidence for the key.

    Args:
        model: the base model p_θ.
        prompt, response: token ids of one text. An empty prompt stands for the start token.
        token_weights: one function, as in :func:`score.score`, or None for w_t = 1. Then e_t has
            the factor w_t, and G is the weighted gradient.

    Returns:
        Columns ``position`` (from 0), ``token_id``, ``evidence`` (e_t, float64, in units of ψ) and
        ``log_p`` (log p_θ(y_t | x, y_<t), nats). The evidence adds up to the ψ of
        :func:`score.score` except for rounding: 5e-6 in float32, up to .03 in bfloat16.

    Raises:
        GaussMarkError: as :func:`score.score` raises it.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> text = lm.encode("Return the mean.")
    >>> tokens_of_text = per_token(lm.model, [], text, wm, Key.from_seed(1))
    >>> len(tokens_of_text) == len(text)
    True
    """
    placed, keys = perturb.ready(model, wm, [key])
    pairs = placed.reader.pairs([prompt], [response])
    weigh = gradients.require_one(token_weights)
    [gradient] = gradients.of_pairs(placed, pairs, token_weights=weigh)
    prompt_ids, response_ids = pairs[0]
    xis = [xi[0] for xi in perturb.drawn(placed, keys)]  # of the only key, for each weight
    scale = placed.sigmas[0] * gradient.norm  # raises if the gradient has no direction
    log_p, slope = _along(model, placed.linears, xis, (prompt_ids, response_ids))
    log_p = log_p.double().cpu().numpy()
    evidence = slope.double().cpu().numpy() / scale
    if weigh is not None:
        evidence *= weigh(response_ids, log_p)
    table = {
        "position": range(len(response_ids)),
        "token_id": response_ids,
        "evidence": evidence,
        "log_p": log_p,
    }
    return pd.DataFrame(table, columns=COLUMNS)


def _along(
    model: PreTrainedModel,
    linears: Sequence[Weight],
    xis: Sequence[Float[Tensor, "d_out d_in"]],
    pair: tokens.Pair,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return log p of each response token, nats, and its derivative along ξ."""
    # Fused attention has no second derivative, so the plain one is used.
    with frozen(model), eager_experts(model), sdpa_kernel(SDPBackend.MATH):
        with hooks.traced(model, linears) as calls:
            log_p, number = likelihood.token_log_p(model, [pair])
            log_p = log_p[number > 0]  # (n,)
        # g of Σ_t v_t log p_t, which is linear in v; so its value at v = 0 does not matter
        v = torch.zeros_like(log_p, requires_grad=True)
        gs = torch.autograd.grad(
            outputs=log_p,
            inputs=[call.y for call in calls],
            grad_outputs=v,
            create_graph=True,
            materialize_grads=True,
        )
        products = [  # Σ_i ⟨g_i, ξ·a_i⟩ over positions i, at each use of a layer
            (g * (call.a @ xis[call.layer].to(call.a).T)).sum()
            for call, g in zip(calls, gs, strict=True)
        ]
        [slope] = torch.autograd.grad(sum(products), v, materialize_grads=True)
    return log_p.detach(), slope
