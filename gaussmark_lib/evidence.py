"""Which tokens are evidence for a key: ψ as a sum of one number per token.

    e_t = ⟨ξ, ∇_θ log p_θ(v_t | x, v_<t)⟩ / (σ‖G‖),     Σ_t e_t = ψ,
    G = Σ_t ∇_θ log p_θ(v_t | x, v_<t)

The inner product is the derivative of one token's log-probability along ξ. With J the derivatives
of all T log-probabilities by θ, these are Jξ, and a backward pass gives vJ for any v. So *two* give
all of them, the second of vJ·ξ by v, instead of a backward pass per token.

A token with e_t > 0 leans to the key. Only ψ is a test: the terms themselves are not N(0, 1).
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
    """One row per response token: ``position`` (from 0), ``token_id``, ``evidence`` (e_t, in units
    of ψ), ``log_p`` (nats). Arguments and errors are those of :func:`score.score`, with one
    function as ``token_weights``. Its ψ is the sum but for rounding: 5e-6 in float32, up to .03 in
    bfloat16.
    """
    wm, keys = perturb.ready(model, wm, [key])
    pairs = wm.reader.pairs([prompt], [response])
    weigh = gradients.require_one(token_weights)
    [gradient] = gradients.of_pairs(wm, pairs, token_weights=weigh)
    prompt, response = pairs[0]
    xis = [xi[0] for xi in perturb.drawn(wm, keys)]
    scale = wm.sigmas[0] * gradient.norm  # refuses a gradient without a direction
    log_p, slope = _along(model, wm.linears, xis, (prompt, response))
    log_p = log_p.double().cpu().numpy()
    evidence = slope.double().cpu().numpy() / scale
    if weigh is not None:
        evidence *= weigh(response, log_p)
    columns = range(len(response)), response, evidence, log_p
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def _along(
    model: PreTrainedModel,
    linears: Sequence[Weight],
    xis: Sequence[Float[Tensor, "d_out d_in"]],
    pair: tokens.Pair,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """log p of each response token, nats, and its derivative along ξ."""
    # fused attention has no second derivative
    with frozen(model), eager_experts(model), sdpa_kernel(SDPBackend.MATH):
        with hooks.traced(model, linears) as calls:
            log_p, number = likelihood.token_log_p(model, [pair])
            log_p = log_p[number > 0]
        v = torch.zeros_like(log_p, requires_grad=True)
        slopes = torch.autograd.grad(  # g_s of Σ_t v_t log p_t, which is linear in v
            log_p, [call.y for call in calls], v, create_graph=True, materialize_grads=True
        )
        product = sum(  # Σ_s ⟨g_s, ξ·a_s⟩
            (g * (call.a @ xis[call.layer].to(call.a).T)).sum()
            for call, g in zip(calls, slopes, strict=True)
        )
        [slope] = torch.autograd.grad(product, v, materialize_grads=True)
    return log_p.detach(), slope
