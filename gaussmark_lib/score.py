"""Detection: how much a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text that does not depend on
the key: the test is exact over keys, and nothing needs to be true of the text or of the model.

====================  ==========================================
paper                 here
====================  ==========================================
x, y                  prompt, response (token ids)
∇_θ log p_θ(y | x)    ``G``: gradient of the *sum* over response tokens, at the base θ
ψ                     ``psi``: higher means more watermarked
1 − Φ(ψ)              ``p_value``; ``log10_p`` stays exact where that underflows
====================  ==========================================

How G is computed. One layer computes y_s = W·a_s at each position s, so G = Σ_s g_s a_sᵀ with g_s the gradient at the layer's
output. A hook keeps a_s, makes the output the start of the graph, and one backward pass down to it gives g_s for all texts of
a batch: nothing below the layer is differentiated, and no gradient of another weight is ever formed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, tokens
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError, InvalidTextError

COLUMNS = ["text", "key_id", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"]


@dataclass(frozen=True)
class TextGradient:
    """What one text says about one weight: ``G`` (d_out, d_in), ``log_lik`` = log p_θ(y | x) in nats, summed over ``n_tokens``."""

    text: int
    G: Float[Tensor, "d_out d_in"]
    log_lik: float
    n_tokens: int

    @property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight."""
        return self.G.norm().item()


def score(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    *,
    batch_size: int = 16,
    on_error: str = "raise",
    progress: bool = False,
) -> pd.DataFrame:
    """Tests each response, given its prompt, against each key.

    Args:
        model: the base model p_θ; one under ``watermarked()`` is refused.
        prompts, responses: lists of lists of token ids, one prompt a response. All response tokens are scored, the first included.
            An empty prompt stands for the model's start token.
        wm: the watermark the keys belong to; ``wm.sigma`` cancels in ψ but must be the keys' own where they are bound.
        keys: K keys; one backward pass serves them all.
        batch_size: texts a pass; changes speed and memory, not ψ.
        on_error: ``"record"`` keeps a text that cannot be scored as rows with NaN and its reason in a further column ``error``, and goes on.

    Returns:
        One row a text × key, texts in the order given: ``text`` (index), ``key_id``, ``psi``, ``p_value``, ``log10_p``,
        ``grad_norm`` (‖G‖, or ‖PG‖ where rank_dropped > 0), ``log_lik`` (nats, sum over tokens), ``n_tokens``.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, KeyMismatchError, UnknownWeightError.
    """
    if on_error not in ("raise", "record"):
        raise InvalidTextError(f"on_error: expected 'raise' or 'record', got {on_error!r}")
    if not keys:
        raise InvalidTextError("expected at least one key to test for, got none; gradients() needs no key")
    if isinstance(keys, perturb.Key):
        raise InvalidTextError("keys: expected a list of keys, got one; write keys=[key]")
    linear = wm.find(model)
    xis = perturb.noises(keys, wm, model).to(linear.parameter.device)
    failed: dict[int, str] = {}
    rows = []
    for found in gradients(model, prompts, responses, wm, batch_size=batch_size, failed=failed if on_error == "record" else None, progress=progress):
        try:
            psi = statistic(found, xis, wm.sigma)
        except DegenerateScoreError as error:
            if on_error == "raise":
                raise
            failed[found.text] = str(error)
            continue
        rows.append(table(found, psi, [key.key_id for key in keys]))
    if on_error == "record":
        rows += [_failure(text, responses[text], keys) for text in failed]
    found_rows = pd.concat(rows).sort_values("text", kind="stable", ignore_index=True)
    return found_rows if on_error == "raise" else found_rows.assign(error=found_rows["text"].map(failed))


def statistic(found: TextGradient, xis: Float[Tensor, "k d_out d_in"], sigma: float) -> Float[np.ndarray, " k"]:
    """ψ = ⟨ξ, G⟩ / (σ‖G‖) for each of K noises, float64.

    Raises:
        DegenerateScoreError: if G is zero or not finite, so that ψ does not exist.
    """
    norm_g = found.norm
    if not np.isfinite(norm_g) or not np.isfinite(found.log_lik) or norm_g == 0:
        raise DegenerateScoreError(
            f"text {found.text}: expected a finite, non-zero gradient, got ‖G‖ = {norm_g} and log-likelihood {found.log_lik};"
            " a weight that the text does not depend on, or an overflow in this dtype (try float32)"
        )
    unit = found.G.flatten() / norm_g
    return (xis.flatten(1).to(unit.dtype) @ unit).double().cpu().numpy() / sigma


def table(found: TextGradient, psi: Float[np.ndarray, " k"], key_ids: Sequence[str]) -> pd.DataFrame:
    """The rows of one text: ψ with its p-value 1 − Φ(ψ), in float64 and on the log scale."""
    return pd.DataFrame(
        {
            "text": found.text,
            "key_id": list(key_ids),
            "psi": psi,
            "p_value": norm.sf(psi),
            "log10_p": norm.logsf(psi) / np.log(10),
            "grad_norm": found.norm,
            "log_lik": found.log_lik,
            "n_tokens": found.n_tokens,
        },
        columns=COLUMNS,
    )


def gradients(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    wm: perturb.Watermark,
    *,
    batch_size: int = 16,
    failed: dict[int, str] | None = None,
    progress: bool = False,
) -> Iterator[TextGradient]:
    """G = ∇_θ log p_θ(y | x) (or PG where rank_dropped > 0) of each text, one at a time, shortest first.

    Everything about a text that does not depend on a key. With ``failed``, a text that cannot be scored is noted there
    (index → reason) instead of raising.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidTextError(f"batch_size: expected a whole number ≥ 1, got {batch_size!r}")
    perturb.refuse_perturbed(model)
    linear = wm.find(model)
    project = wm.projector(linear)
    pairs = _checked_pairs(model, prompts, responses, failed)
    order = sorted(pairs, key=lambda i: sum(map(len, pairs[i])))
    bar = tqdm(total=len(order), desc="scoring", unit="text", disable=not progress)
    with bar:
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            perturb.refuse_perturbed(model)  # again: what runs between two yields may have watermarked it
            with _frozen(model):
                matrices, log_liks = _batch_gradients(model, linear, [pairs[i] for i in batch])
            for i, matrix, log_lik in zip(batch, matrices, log_liks, strict=True):
                yield TextGradient(i, project(matrix), log_lik, len(pairs[i][1]))
            bar.update(len(batch))


def _checked_pairs(model, prompts, responses, failed) -> dict[int, tuple[list[int], list[int]]]:
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
def _frozen(model: PreTrainedModel) -> Iterator[None]:
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


def _batch_gradients(
    model: PreTrainedModel, linear: models.Linear, pairs: Sequence[tuple[list[int], list[int]]]
) -> tuple[Iterator[Tensor], list[float]]:
    """Each text's G (formed lazily, one in memory at a time) and log-likelihood, from one forward and one backward pass.

    Padding is on the right, where a causal model cannot see it, and carries no loss: a text's G does not depend on its batch.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_, inputs, output):
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        calls.append((inputs[0].detach(), output))
        return output

    ids, mask = tokens.pad([prompt + response for prompt, response in pairs], "right", model.device)
    first = min(len(prompt) for prompt, _ in pairs) - 1  # the earliest position that predicts a response token
    handle = linear.module.register_forward_hook(keep)
    try:
        log_liks = _log_likelihoods(model, ids, mask, pairs, first)
    finally:
        handle.remove()
    if not log_liks.requires_grad:
        raise DegenerateScoreError(f"expected texts that depend on {linear.name}, but the model computes them without it; choose another weight")
    grads = torch.autograd.grad(log_liks.sum(), [output for _, output in calls])
    dtype = torch.promote_types(grads[0].dtype, torch.float32)  # G has many more terms than bfloat16 has digits

    def matrix(i: int) -> Tensor:
        n = len(pairs[i][0]) + len(pairs[i][1])
        return sum(g[i, :n].to(dtype).T @ a[i, :n].to(dtype) for (a, _), g in zip(calls, grads, strict=True))

    return map(matrix, range(len(pairs))), log_liks.detach().double().tolist()


def _log_likelihoods(model: PreTrainedModel, ids: Tensor, mask: Tensor, pairs, first: int) -> Float[Tensor, " texts"]:
    """log p_θ(y | x) of each row, nats, summed over its response tokens; the log-softmax in float32 at least."""
    kept = {"logits_to_keep": ids.shape[1] - first} if model._supports_logits_to_keep() else {}
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits
    logits = logits[:, logits.shape[1] - (ids.shape[1] - first) : -1]  # the last position predicts nothing that we have
    if logits.dtype != torch.float64:
        logits = logits.float()
    targets = ids[:, first + 1 :]
    log_p = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    position = torch.arange(first + 1, ids.shape[1])
    scored = torch.stack([(position >= len(x)) & (position < len(x) + len(y)) for x, y in pairs])
    return log_p.masked_fill(~scored.to(log_p.device), 0.0).sum(-1)


def _failure(text: int, response, keys: Sequence[perturb.Key]) -> pd.DataFrame:
    n = len(response) if hasattr(response, "__len__") and not isinstance(response, str) else 0
    rows = pd.DataFrame({"text": text, "key_id": [key.key_id for key in keys], "n_tokens": n}, columns=COLUMNS)
    return rows.astype(dict.fromkeys(("psi", "p_value", "log10_p", "grad_norm", "log_lik"), float))
