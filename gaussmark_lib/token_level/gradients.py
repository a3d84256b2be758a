"""Each token's own gradient, G_k = ∇_θ log p_θ(v_k | x, v_<k), with respect to one weight.

A linear layer computes y_s = W·a_s at each position s, so G_k = Σ_s g_s a_sᵀ with g_s = ∂ log p(v_k | …)/∂y_s. If log p(v_k | …) depends
on W through the position that predicts v_k only, one term is left: G_k = g_k a_kᵀ, and one backward pass from the sum of all
log-probabilities gives all g_k, since no other token's passes through that position. Otherwise it takes a backward pass a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import gradients, likelihood, models
from gaussmark_lib.errors import DegenerateScoreError, InvalidModelError

PROBE = [1, 2, 3, 4]


@dataclass(frozen=True, eq=False)
class _Trace:
    """One text's forward pass: ``log_p`` of each response token, and the layer's input ``a`` and output ``y`` at every position.

    Positions are counted from the end, since the head may not see positions that predict nothing of interest.
    """

    log_p: tuple[Tensor, ...]
    a: Float[Tensor, "n d_in"]
    y: Float[Tensor, "1 n d_out"]

    @classmethod
    def of(cls, model: PreTrainedModel, linear: models.Linear, prompt: Sequence[int], response: Sequence[int]) -> "_Trace":
        with gradients.frozen(model), gradients.traced([linear]) as calls:
            log_p = likelihood.token_log_p(model, [(prompt, response)])[0][0].unbind()
        if len(calls) != 1:
            raise InvalidModelError(f"expected a layer that is used once a pass, but {linear.name} is used {len(calls)} times; choose another weight")
        if not log_p[0].requires_grad:
            raise DegenerateScoreError(f"expected texts that depend on {linear.name}, but the model computes them without it; choose another weight")
        [call] = calls
        return cls(log_p, call.a[0].to(torch.promote_types(call.a.dtype, torch.float32)), call.y)


def is_local(model: PreTrainedModel, linear: models.Linear) -> bool:
    """Whether a position's prediction depends on the layer's output at that position alone, by the derivative on a few tokens.

    Then, too, nothing that a cache holds of earlier positions depends on the layer.
    """
    *prompt, token = (v % model.config.vocab_size for v in PROBE)
    trace = _Trace.of(model, linear, prompt, [token])
    [g] = torch.autograd.grad(trace.log_p, trace.y)
    return not g[0, :-2].any()  # the last position predicts nothing, the one before it the token


def factors(
    model: PreTrainedModel, linear: models.Linear, prompt: Sequence[int], response: Sequence[int]
) -> tuple[Float[Tensor, "k d_in"], Float[Tensor, "k d_out"]]:
    """a_k and g_k of each response token, for a weight that is local: G_k = g_k a_kᵀ; float32 at least."""
    trace = _Trace.of(model, linear, prompt, response)
    [g] = torch.autograd.grad(trace.log_p, trace.y)  # of their sum
    predicting = slice(-len(response) - 1, -1)
    return trace.a[predicting], g[0, predicting].to(trace.a)


def each(model: PreTrainedModel, linear: models.Linear, prompt: Sequence[int], response: Sequence[int]) -> Iterator[Float[Tensor, "d_out d_in"]]:
    """G_k of each response token in turn, for any weight: one forward pass, and a backward pass a token."""
    trace = _Trace.of(model, linear, prompt, response)
    for log_p in trace.log_p:
        [g] = torch.autograd.grad(log_p, trace.y, retain_graph=True)
        yield g[0].to(trace.a).T @ trace.a
