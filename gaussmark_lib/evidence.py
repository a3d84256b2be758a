"""Which tokens are evidence for a key: ψ as a sum of one number per token.

    e_t = ⟨ξ, ∇_θ log p_θ(v_t | x, v_<t)⟩ / (σ‖G‖),     Σ_t e_t = ψ,
    G = Σ_t ∇_θ log p_θ(v_t | x, v_<t)

The inner product is the derivative of one token's log-probability along ξ. With J the derivatives
of all T log-probabilities by θ, these derivatives are Jξ, and a backward pass gives vJ for any v.
So *two* backward passes give all T of them, the second of vJ·ξ by v, instead of one per token.

A token with e_t > 0 is evidence for the key. Only ψ is a test: the terms are not N(0, 1).
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

    The columns are ``position`` (from 0), ``token_id``, ``evidence`` (e_t, in units of ψ) and
    ``log_p`` (nats). Arguments and errors are those of :func:`score.score`, except that
    ``token_weights`` is a single function. The evidence adds up to ψ except for rounding: 5e-6 in
    float32, up to .03 in bfloat16.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> text = lm.encode("Return the mean.")
    >>> tokens_of_text = per_token(lm.model, [], text, wm, Key.from_seed(1))
    >>> len(tokens_of_text) == len(text)
    True
    """
    wm, keys = perturb.ready(model, wm, [key])
    pairs = wm.reader.pairs([prompt], [response])
    weigh = gradients.require_one(token_weights)
    [gradient] = gradients.of_pairs(wm, pairs, token_weights=weigh)
    prompt_ids, response_ids = pairs[0]
    xis = [xi[0] for xi in perturb.drawn(wm, keys)]  # of the only key, for each weight
    scale = wm.sigmas[0] * gradient.norm  # raises if the gradient has no direction
    log_p, slope = _along(model, wm.linears, xis, (prompt_ids, response_ids))
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
        # g_s of Σ_t v_t log p_t, which is linear in v; so its value at v = 0 does not matter
        v = torch.zeros_like(log_p, requires_grad=True)
        gs = torch.autograd.grad(
            outputs=log_p,
            inputs=[call.y for call in calls],
            grad_outputs=v,
            create_graph=True,
            materialize_grads=True,
        )
        products = [  # ⟨g_s, ξ·a_s⟩ at each use of a layer
            (g * (call.a @ xis[call.layer].to(call.a).T)).sum()
            for call, g in zip(calls, gs, strict=True)
        ]
        [slope] = torch.autograd.grad(sum(products), v, materialize_grads=True)
    return log_p.detach(), slope
