"""Which tokens are evidence for a key: ψ as a sum of one number per token.

    e_t = ⟨ξ, ∇_θ log p_θ(v_t | x, v_<t)⟩ / (σ‖G‖),     Σ_t e_t = ψ,
    G = Σ_t ∇_θ log p_θ(v_t | x, v_<t)

The inner product is the derivative of one token's log-probability along ξ: how fast the token would
become likelier if the watermark were turned up from zero. With J the derivatives of all T
log-probabilities by θ, these are Jξ, and a backward pass gives vJ for any v. So *two* give all of
them, the second of vJ·ξ by v, where one after the other would need a backward pass per token.

A token with e_t > 0 leans to the key, one with e_t < 0 away from it. Only ψ is a test: the terms
themselves are not N(0, 1).
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from gaussmark_lib import gradients, perturb, tokens, weights
from gaussmark_lib.engine.arithmetic import eager_experts, frozen
from gaussmark_lib.likelihood import log_softmax

COLUMNS = ["position", "token_id", "evidence", "log_p"]


def per_token(
    model: PreTrainedModel,
    prompt: tokens.Ids,
    response: tokens.Ids,
    wm: perturb.Watermark,
    key: perturb.Key,
) -> pd.DataFrame:
    """One row per response token: ``position`` (from 0), ``token_id``, ``evidence`` (e_t, in units
    of ψ), ``log_p`` (nats). Arguments and errors are those of :func:`score.score`, whose ψ is the
    sum but for rounding: 5e-6 in float32, up to .03 in bfloat16.
    """
    wm = weights.checked(wm).on(model)
    [gradient] = gradients.gradients(model, [prompt], [response], wm)  # checks, and gives ‖G‖
    gradient.check()
    prompt, response = tokens.checked_pairs(model, [prompt], [response])[0]
    xis = perturb.noise(model, wm, key)
    xis = xis if isinstance(xis, list) else [xis]
    log_p, slope = _along(model, wm.linears, xis, prompt + response, len(response))
    evidence = slope.double() / (wm.sigmas[0] * gradient.norm)
    columns = range(len(response)), response, evidence.tolist(), log_p.double().tolist()
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def _along(
    model: PreTrainedModel,
    linears: Sequence[weights.Weight],
    xis: Sequence[Float[Tensor, "d_out d_in"]],
    ids: list[int],
    n: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """log p of the last n tokens given what is before each, nats, and its derivative along ξ: d/dε
    log p_{θ+εξ} at ε = 0.
    """
    row = torch.tensor([ids], device=model.device)
    thetas = {linear.name: linear.parameter.detach().requires_grad_() for linear in linears}
    inputs = {"input_ids": row, "use_cache": False}
    # fused attention has no second derivative
    with frozen(model), eager_experts(model), sdpa_kernel(SDPBackend.MATH):
        logits = torch.func.functional_call(model, thetas, kwargs=inputs).logits[0, -n - 1 : -1]
        log_p = log_softmax(logits).gather(-1, row[0, -n:, None])[:, 0]
        v = torch.zeros_like(log_p, requires_grad=True)
        pulled = torch.autograd.grad(  # vJ of each weight, which is linear in v
            log_p, list(thetas.values()), v, create_graph=True, materialize_grads=True
        )
        product = sum(
            (part * linear.oriented(xi).to(part)).sum()
            for part, linear, xi in zip(pulled, linears, xis, strict=True)
        )
        [slope] = torch.autograd.grad(product, v, materialize_grads=True)
    return log_p.detach(), slope


def pieces(table: pd.DataFrame, decode: Callable[[list[int]], str]) -> pd.DataFrame:
    """The table of :func:`per_token` by readable pieces, whose tokens only together are whole
    characters: ``text``, ``evidence`` and ``log_p`` (sums), ``n_tokens``. ``decode`` is that of the
    tokenizer; the pieces joined are the whole text.

    >>> table = pd.DataFrame({"token_id": [104, 195, 169], "evidence": [0.5, 0.25, 0.25]})
    >>> joined = pieces(table.assign(log_p=-1.0), lambda ids: bytes(ids).decode(errors="replace"))
    >>> joined[["text", "evidence", "n_tokens"]].values.tolist()
    [['h', 0.5, 1], ['é', 0.5, 2]]
    """
    ids, texts, starts = table["token_id"].tolist(), [], []
    before = start = 0  # of the last piece and of the next one
    for end in range(1, len(ids) + 1):
        # with the piece before it, since some tokenizers drop a leading space
        known, now = decode(ids[before:start]), decode(ids[before:end])
        if end == len(ids) or not now.endswith("\ufffd"):  # not in the middle of a character
            texts.append(now[len(known) :])
            starts.append(start)
            before, start = start, end
    sums = {name: np.add.reduceat(table[name].to_numpy(), starts) for name in ("evidence", "log_p")}
    return pd.DataFrame({"text": texts, **sums, "n_tokens": np.diff([*starts, len(ids)])})
