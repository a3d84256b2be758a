"""Each token's own gradient, G_k = ∇_θ log p_θ(v_k | x, v_<k), with respect to one weight.

A linear layer computes y_s = W·a_s at each position s, so G_k = Σ_s g_s a_sᵀ with g_s = ∂ log p(v_k | …)/∂y_s. If log p(v_k | …) depends on W through the
position that predicts v_k only, one term is left: G_k = g_k a_kᵀ, and one backward pass from the sum of all log-probabilities gives all g_k,
since no other token's passes through that position. Otherwise it takes a backward pass a token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import models, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidModelError, InvalidTextError


def is_local(model: PreTrainedModel, linear: models.Linear) -> bool:
    """Whether a position's prediction depends on the layer's output at that position alone, by the derivative on a probe of four tokens.

    Then, too, nothing that a cache holds of earlier positions depends on the layer.
    """
    with _tracing(model):
        logits, _, output = _run(model, linear, torch.arange(1, 5, device=model.device) % model.config.vocab_size)
        [g] = torch.autograd.grad(logits[-1].float().square().sum(), output)
    return not g[:-1].any()


def factors(
    model: PreTrainedModel, linear: models.Linear, prompt: Sequence[int], response: Sequence[int]
) -> tuple[Float[Tensor, "k d_in"], Float[Tensor, "k d_out"]]:
    """a_k and g_k of each response token, for a weight that is local: G_k = g_k a_kᵀ."""
    with _tracing(model):
        log_p, a, output = _log_p(model, linear, prompt, response)
        [g] = torch.autograd.grad(log_p.sum(), output)
    predicting = slice(len(prompt) - 1, -1)
    return a[predicting], g[predicting].to(a)


def each(model: PreTrainedModel, linear: models.Linear, prompt: Sequence[int], response: Sequence[int]) -> Iterator[Float[Tensor, "d_out d_in"]]:
    """G_k of each response token in turn, for any weight: one forward pass, and a backward pass a token."""
    with _tracing(model):
        log_p, a, output = _log_p(model, linear, prompt, response)
    for one in log_p:
        [g] = torch.autograd.grad(one, output, retain_graph=True)
        yield g.to(a).T @ a


def checked_pairs(model: PreTrainedModel, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int]]]:
    """Prompts and responses as lists of ids, checked as ``score.score`` checks them."""
    if isinstance(responses, str) or len(prompts) != len(responses):
        raise InvalidTextError(f"expected one prompt a response, got {len(prompts)} prompts and {len(responses)} responses")
    pairs = []
    for i, (prompt, response) in enumerate(zip(tokens.checked_prompts(model, prompts), responses, strict=True)):
        response = tokens.checked(model, response, f"response {i}")
        if not response:
            raise InvalidTextError(f"response {i}: expected at least one token to score, got none")
        tokens.check_fits(model, len(prompt), len(response), f"text {i}")
        pairs.append((prompt, response))
    return pairs


def _log_p(model, linear, prompt, response) -> tuple[Tensor, Tensor, Tensor]:
    """log p of each response token, and the layer's input and output at every position; float32 at least."""
    ids = torch.tensor([*prompt, *response], device=model.device)
    logits, a, output = _run(model, linear, ids)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    log_p = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, ids[len(prompt) :, None])[:, 0]
    return log_p, a.to(torch.promote_types(a.dtype, torch.float32)), output


def _run(model, linear, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_, inputs, output):
        output = output if output.requires_grad else output.detach().requires_grad_()
        calls.append((inputs[0].detach(), output))
        return output

    handle = linear.module.register_forward_hook(keep)
    try:
        logits = model(input_ids=ids[None], use_cache=False).logits
    finally:
        handle.remove()
    if len(calls) != 1:
        raise InvalidModelError(f"expected a layer that is used once a pass, but {linear.name} is used {len(calls)} times; choose another weight")
    if not logits.requires_grad:
        raise DegenerateScoreError(f"expected a model that depends on {linear.name}, but it computes its predictions without it; choose another weight")
    [(a, output)] = calls
    return logits[0], a[0], output if output.ndim == 2 else _first(output)


def _first(output: Tensor) -> Tensor:
    return output


@contextmanager
def _tracing(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and a graph that begins at the hooked layer, since no parameter asks for a gradient; all is put back."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with models.evaluating(model), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for p in wanted:
            p.requires_grad_(True)
