"""G = ∇_θ log p_θ(y | x) of many texts at once: all that a text contributes to its test, before any key is looked at.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

A hook keeps a_s and makes the layer's output the start of the graph; one backward pass down to it gives g_s for all texts of a batch. Nothing
below the layer is differentiated, and no gradient of another weight is ever formed. Several weights, and several lengths of one text,
share a forward pass.

====================  ==========================================
paper                 here
====================  ==========================================
x, y                  prompt, response (token ids)
∇_θ log p_θ(y | x)    ``G``: gradient of the *sum* over response tokens, at the base θ
====================  ==========================================
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, models, perturb, tokens
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError, InvalidTextError
from gaussmark_lib.likelihood import Pair


@dataclass(frozen=True, eq=False)
class TextGradient:
    """What one text says about one weight: ``G`` (d_out, d_in), ``log_lik`` = log p_θ(y | x) in nats, summed over ``n_tokens``."""

    text: int
    G: Float[Tensor, "d_out d_in"]
    log_lik: float
    n_tokens: int

    @cached_property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight."""
        return self.G.norm().item()

    def unit(self) -> Float[Tensor, " d"]:
        """G/‖G‖ in row order, d = d_out·d_in: its inner product with ξ/σ is ψ.

        Raises:
            DegenerateScoreError: if G is zero or not finite.
        """
        if not math.isfinite(self.norm) or not math.isfinite(self.log_lik) or self.norm == 0:
            raise DegenerateScoreError(
                f"text {self.text}: expected a finite, non-zero gradient, got ‖G‖ = {self.norm} and log-likelihood {self.log_lik};"
                " a weight that the text does not depend on, or an overflow in this dtype (try float32)"
            )
        return self.G.flatten() / self.norm


def gradients(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    wm: perturb.Watermark,
    *,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    failed: dict[int, str] | None = None,
    progress: bool = False,
) -> Iterator[TextGradient]:
    """G (or PG where rank_dropped > 0) of each text, one at a time, shortest first.

    Args:
        lengths: where given, the G of each response's first n tokens, for each of these n that the response has. The forward pass is shared.
        dtype: as for ``score.score``.
        failed: where given, a text that cannot be scored is noted there (index → reason) instead of raising.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, UnknownWeightError.
    """
    linear = wm.find(model)
    project = wm.projector(linear)
    for i, n, log_lik, [matrix] in _each(model, prompts, responses, [linear], lengths, dtype, batch_size, failed, progress):
        yield TextGradient(i, project(matrix), log_lik, n)


def norms(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    weights: Sequence[str],
    *,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    progress: bool = False,
) -> pd.DataFrame:
    """‖G‖ of each text for each of several weights, from one forward and one backward pass: what predicts power, for a whole model at once.

    Args:
        weights: full names; their order does not matter.
        lengths: as for :func:`gradients`.

    Returns:
        One row a text × length × weight: ``text, weight, n_tokens, grad_norm`` (nats per unit of weight), ``log_lik`` (nats, sum over the tokens).
    """
    linears = [models.linear(model, weight) for weight in weights]
    rows = [
        {"text": i, "weight": linear.name, "n_tokens": n, "grad_norm": matrix.norm().item(), "log_lik": log_lik}
        for i, n, log_lik, matrices in _each(model, prompts, responses, linears, lengths, dtype, batch_size, None, progress)
        for linear, matrix in zip(linears, matrices, strict=True)
    ]
    return pd.DataFrame(rows).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def _each(
    model, prompts, responses, linears: Sequence[models.Linear], lengths, dtype, batch_size, failed, progress
) -> Iterator[tuple[int, int, float, list[Tensor]]]:
    """(text, number of its tokens, log-likelihood, G for each layer), in batches of texts of like length."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidTextError(f"batch_size: expected a whole number ≥ 1, got {batch_size!r}")
    perturb.refuse_perturbed(model)
    lengths = _checked_lengths(lengths)
    dtype = models.arithmetic(model, dtype)
    pairs = checked_pairs(model, prompts, responses, failed)
    order = sorted(pairs, key=lambda i: sum(map(len, pairs[i])))
    with tqdm(total=len(order), desc="scoring", unit="text", disable=not progress) as bar:
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            perturb.refuse_perturbed(model)  # again: what runs between two yields may have watermarked it
            with models.computing_in(model, dtype), frozen(model):
                found = _batch(model, linears, [pairs[i] for i in batch], lengths)
            for i, n, log_lik, matrices in found:
                yield batch[i], n, log_lik, matrices
            bar.update(len(batch))


def _checked_lengths(lengths: Sequence[int] | None) -> list[int] | None:
    if lengths is None:
        return None
    if not lengths or not all(isinstance(n, int) and n >= 1 for n in lengths):
        raise InvalidTextError(f"lengths: expected whole numbers ≥ 1, got {lengths!r}")
    return sorted(set(lengths))


def checked_pairs(model, prompts, responses, failed) -> dict[int, Pair]:
    if isinstance(responses, str) or len(prompts) != len(responses):
        raise InvalidTextError(f"expected one prompt a response, got {len(prompts)} prompts and {len(responses)} responses")
    if len(prompts) == 0:
        raise InvalidTextError("expected at least one prompt with its response, got none")
    pairs = {}
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        try:
            prompt = tokens.checked_prompt(model, prompt, f"prompt {i}")
            response = tokens.checked(model, response, f"response {i}")
            if not response:
                raise InvalidTextError(f"response {i}: expected at least one token to score, got none")
            tokens.check_fits(model, len(prompt), len(response), f"text {i}")
            pairs[i] = (prompt, response)
        except GaussMarkError as error:
            if failed is None:
                raise
            failed[i] = str(error)
    return pairs


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and a graph that begins at the hooked layer, since no parameter asks for a gradient; all is put back."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with models.evaluating(model), torch.inference_mode(False), torch.enable_grad():  # whatever the caller is in
            yield
    finally:
        for p in wanted:
            p.requires_grad_(True)


def _batch(
    model: PreTrainedModel, linears: Sequence[models.Linear], pairs: Sequence[Pair], lengths: list[int] | None
) -> Iterator[tuple[int, int, float, list[Tensor]]]:
    """(row, tokens, log-likelihood, G of each layer) from one forward pass and a backward pass a length; each G is formed when it is asked for.

    Padding is on the right, where a causal model cannot see it, and carries no loss: a text's G does not depend on its batch.
    """
    calls: list[tuple[int, Tensor, Tensor]] = []  # (which layer, its input, its output), in the order of the forward pass

    def keeper(layer: int):
        def keep(_, inputs, output):
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            calls.append((layer, inputs[0].detach(), output))
            return output

        return keep

    handles = [linear.module.register_forward_hook(keeper(layer)) for layer, linear in enumerate(linears)]
    try:
        log_p, number = likelihood.token_log_p(model, pairs)
    finally:
        for handle in handles:
            handle.remove()
    for layer, linear in enumerate(linears):
        if not log_p.requires_grad or layer not in [called for called, _, _ in calls]:
            raise DegenerateScoreError(f"expected texts that depend on {linear.name}, but the model computes them without it; choose another weight")
    ends = lengths or [max(len(y) for _, y in pairs)]
    parts = [(number > start) & (number <= end) for start, end in pairwise([0, *ends])]
    outputs = [output for _, _, output in calls]
    grads = [torch.autograd.grad((log_p * part).sum(), outputs, retain_graph=part is not parts[-1], materialize_grads=True) for part in parts]
    log_liks = torch.stack([(log_p.detach().double() * part).sum(-1) for part in parts]).cumsum(0).tolist()
    return _formed([(layer, a) for layer, a, _ in calls], grads, log_liks, pairs, lengths)


def _formed(inputs, grads, log_liks, pairs, lengths) -> Iterator[tuple[int, int, float, list[Tensor]]]:
    """G = Σ_s g_s a_sᵀ of each row and length; that of a longer prefix is the one before plus what its further tokens add."""
    for row, (x, y) in enumerate(pairs):
        matrices: dict[int, Tensor | float] = defaultdict(float)
        for part, end in enumerate(lengths or [len(y)]):
            if end > len(y):
                break
            n = len(x) + end
            for (layer, a), g in zip(inputs, grads[part], strict=True):
                matrices[layer] = matrices[layer] + _outer(g[row, :n], a[row, :n])
            yield row, end, log_liks[part][row], [matrices[layer] for layer in sorted(matrices)]


def _outer(g: Float[Tensor, "n d_out"], a: Float[Tensor, "n d_in"]) -> Float[Tensor, "d_out d_in"]:
    dtype = torch.promote_types(g.dtype, torch.float32)  # G has many more terms than bfloat16 has digits
    return g.to(dtype).T @ a.to(dtype)
