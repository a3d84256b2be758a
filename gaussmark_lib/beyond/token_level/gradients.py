"""The gradient of each token, G_k = ∇_θ log p_θ(v_k | x, v_<k), with respect to one weight.

A linear layer computes y_s = W·a_s at each position s, so G_k = Σ_s g_s a_sᵀ with g_s = ∂ log p(v_k
| …)/∂y_s. A weight is *local* if log p(v_k | …) depends on it only through the position that
predicts v_k. Then G_k = g_k a_kᵀ has a single term, and one backward pass from the sum of all
log-probabilities gives every g_k.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, tokens
from gaussmark_lib.engine import arithmetic, hooks
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.errors import InvalidModelError
from gaussmark_lib.weights import Weight


def is_local(model: PreTrainedModel, linear: Weight) -> bool:
    """Return whether a prediction depends on the layer's output at its own position alone.

    The derivative on four tokens decides. If a layer is local, a cache of earlier positions does
    not depend on it either.
    """
    size = tokens.config(model).vocab_size
    *prompt, token = (number % size for number in (1, 2, 3, 4))
    log_p, call = _traced(model, linear, prompt, [token])
    [g] = torch.autograd.grad(log_p, call.y, torch.ones_like(log_p))
    return not g[0, :-2].any()  # the last position predicts nothing; the one before, the token


def factors(
    model: PreTrainedModel, linear: Weight, prompt: Sequence[int], response: Sequence[int]
) -> Factors:
    """Return g_k and a_k of each response token for a local weight, in float32 or wider.

    A g_k that is only rounding error, compared with the largest g_k of the text, is set to 0.
    """
    log_p, call = _traced(model, linear, prompt, response)
    [g] = torch.autograd.grad(log_p, call.y, torch.ones_like(log_p))
    predicting = slice(-len(response) - 1, -1)
    of_positions = g.view(-1, g.shape[-1])  # (positions, d_out)
    a = arithmetic.wide(call.a[0, predicting])
    g = arithmetic.wide(of_positions[predicting])
    size = g.norm(dim=-1, keepdim=True)
    rounding = 16 * torch.finfo(call.y.dtype).eps * size.max()
    return Factors(g=g.masked_fill(size <= rounding, 0.0), a=a)


def _traced(
    model: PreTrainedModel, linear: Weight, prompt: Sequence[int], response: Sequence[int]
) -> tuple[Float[Tensor, " k"], hooks.Call]:
    """Run the forward pass of a text; return log p of each response token, and the layer's call.

    Count positions from the end: the head may not see positions whose predictions are not used.
    """
    with arithmetic.frozen(model), hooks.traced(model, [linear]) as calls:
        log_p, number = likelihood.token_log_p(model, [(prompt, response)])
        log_p = log_p[number > 0]  # (k,)
    if len(calls) != 1 or not log_p.requires_grad:
        raise InvalidModelError(
            f"expected a layer that a forward pass uses once and depends on, but {linear.name} is"
            f" used {len(calls)} times; choose another weight"
        )
    return log_p, calls[0]
