"""Each token's own gradient, G_k = ∇_θ log p_θ(v_k | x, v_<k), with respect to one weight.

A linear layer computes y_s = W·a_s at each position s, so G_k = Σ_s g_s a_sᵀ with g_s = ∂ log p(v_k
| …)/∂y_s. A weight is *local* if log p(v_k | …) depends on it only through the position that
predicts v_k. Then one term is left, G_k = g_k a_kᵀ, and one backward pass from the sum of all
log-probabilities gives every g_k.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, tokens
from gaussmark_lib.engine import arithmetic, hooks
from gaussmark_lib.errors import InvalidModelError
from gaussmark_lib.weights import Weight

Factors = tuple[Float[Tensor, "k d_in"], Float[Tensor, "k d_out"]]  # a_k and g_k of each token


def is_local(model: PreTrainedModel, linear: Weight) -> bool:
    """Whether a prediction depends on the layer's output at its own position alone, by the
    derivative on a few tokens.

    Then nothing that a cache holds of earlier positions depends on the layer either.
    """
    *prompt, token = (v % tokens.config(model).vocab_size for v in (1, 2, 3, 4))
    log_p, call = _traced(model, linear, prompt, [token])
    [g] = torch.autograd.grad(log_p, call.y, torch.ones_like(log_p))
    return not g[0, :-2].any()  # the last position predicts nothing, the one before it the token


def factors(
    model: PreTrainedModel, linear: Weight, prompt: Sequence[int], response: Sequence[int]
) -> Factors:
    """a_k and g_k of each response token, for a local weight; float32 at least. g_k is 0 where it
    is no more than rounding beside the largest of the text.
    """
    log_p, call = _traced(model, linear, prompt, response)
    [g] = torch.autograd.grad(log_p, call.y, torch.ones_like(log_p))
    predicting = slice(-len(response) - 1, -1)
    a, g = call.a[0, predicting], g.view(1, -1, g.shape[-1])[0, predicting]
    a, g = arithmetic.wide(a), arithmetic.wide(g)
    size = g.norm(dim=-1, keepdim=True)
    return a, g.masked_fill(size <= 16 * torch.finfo(call.y.dtype).eps * size.max(), 0.0)


def _traced(
    model: PreTrainedModel, linear: Weight, prompt: Sequence[int], response: Sequence[int]
) -> tuple[Float[Tensor, " k"], hooks.Call]:
    """One text's forward pass: log p of each response token, and the layer's call.

    Count positions from the end: the head may not see positions that predict nothing of interest.
    """
    with arithmetic.frozen(model), hooks.traced(model, [linear]) as calls:
        log_p, number = likelihood.token_log_p(model, [(prompt, response)])
        log_p = log_p[number > 0]
    if len(calls) != 1 or not log_p.requires_grad:
        raise InvalidModelError(
            f"expected a layer that a pass uses once and depends on, but {linear.name} is used"
            f" {len(calls)} times; choose another weight"
        )
    return log_p, calls[0]
