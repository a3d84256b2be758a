"""Detection: how far a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text that does not depend on
the key: the test is exact over keys, and nothing needs to be true of the text or of the model. G is taken at the base θ.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import binding, checks, perturb, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.gradients import TextGradient, gradients, of_pairs
from gaussmark_lib.keys import listed
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import placed

__all__ = ["COLUMNS", "TextGradient", "gradients", "score", "statistic", "table"]

COLUMNS = ["text", "key_id", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"]


def score(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    *,
    lengths: Sequence[int] | None = None,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    on_error: str = "raise",
) -> pd.DataFrame:
    """Tests each response, given its prompt, against each key.

    Args:
        model: the base model p_θ; one under ``watermarked()`` is refused.
        prompts, responses: token ids, one prompt per response. All response tokens are scored. An empty prompt stands for the model's start token.
        wm: the watermark of the keys; ``wm.sigma`` cancels in ψ, but must be the keys' own where they are bound.
        keys: K keys; one backward pass serves them all.
        lengths: where given, each response is tested on its first n tokens, for each of these n that it has: ``n_tokens`` tells which.
        xis: what ``perturb.noises(model, wm, keys)`` returned, where the caller holds it already.
        dtype: the lowest precision that will do, ``"bfloat16"``, ``"float32"`` or ``"float64"``; by default the model's own. The level is exact
            in any; a low precision costs power. Where the processor has no bfloat16 arithmetic, float32 takes its place.
        batch_size: texts per pass; changes speed and memory, and ψ by its rounding alone: by less than 1e-4 in float32 and 0.1 in bfloat16
            (measured on the embedded model: 2e-6 to 1e-5, and 0.006 to 0.03; tests/oracle/test_batch_invariance.py).
        on_error: ``"record"`` keeps a text that cannot be scored as rows with NaN and its reason in a further column ``error``, and goes on.

    Returns:
        One row per text (× length) × key, texts in the order given: ``text`` (index), ``key_id``, ``psi`` (higher means more watermarked),
        ``p_value``, ``log10_p`` (exact where p underflows), ``grad_norm`` (‖G‖, or ‖PG‖ where rank_dropped > 0), ``log_lik`` (nats, sum over
        tokens), ``n_tokens``.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, KeyMismatchError, UnknownWeightError.
    """
    tokens.check_model(model)
    checks.chosen(on_error, "on_error", ("raise", "record"), InvalidTextError)
    keys = listed(keys)
    perturb.refuse_perturbed(model)
    wm = placed(model, wm)
    xis = checked_noises(wm, keys, xis)
    prompts, responses = tokens.as_many(prompts, responses)
    pairs, failed = tokens.usable_pairs(model, prompts, responses)
    if failed and on_error == "raise":
        raise next(iter(failed.values()))
    each = of_pairs(model, pairs, wm, lengths=lengths, dtype=dtype, batch_size=batch_size)
    facts, psi = [], [np.empty((0, len(keys)))]
    for several in _batched(each, min(len(keys), 32)):  # held together, they take no more memory than the noises
        units = []
        for found in several:
            try:
                units.append(found.unit())
                facts.append(_facts(found))
            except DegenerateScoreError as error:
                if on_error == "raise":
                    raise
                failed[found.text] = error
        if units:
            psi.append(_inner(torch.stack(units), xis, wm.sigma))
    rows = [_rows(facts, np.concatenate(psi), [key.key_id for key in keys]), *(failure(text, responses[text], keys) for text in failed)]
    scores = pd.concat(rows).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)
    if on_error == "raise":
        return scores
    return scores.assign(error=scores["text"].map({text: str(error) for text, error in failed.items()}))


def checked_noises(wm: perturb.PlacedWatermark, keys: Sequence[perturb.Key], xis: Tensor | None = None) -> Float[Tensor, "k d_out d_in"]:
    """The noises of these keys on the model's device: those given, where they have the right shape, or else drawn."""
    if xis is None:
        xis = perturb.noises(wm.model, wm, keys)
    else:
        use = binding.Use(wm)
        for key in keys:
            key.check(use)
    expected = (len(keys), *wm.linear.shape)
    if not isinstance(xis, Tensor) or not xis.is_floating_point() or xis.shape != expected:
        got = f"one of {xis.dtype} and shape {tuple(xis.shape)}" if isinstance(xis, Tensor) else checks.kind(xis)
        raise InvalidWatermarkError(f"xis: expected the noises of these keys, a tensor of floats of shape {expected}, got {got}")
    return xis.to(wm.linear.parameter.device)


def statistic(found: TextGradient, xis: Float[Tensor, "k d_out d_in"], sigma: float) -> Float[np.ndarray, " k"]:
    """ψ = ⟨ξ, G⟩ / (σ‖G‖) for each of K noises, float64. DegenerateScoreError if G is zero or not finite."""
    return _inner(found.unit()[None], xis, checks.positive(sigma, "sigma", InvalidWatermarkError))[0]


def _inner(units: Float[Tensor, "texts d"], xis: Float[Tensor, "k d_out d_in"], sigma: float) -> Float[np.ndarray, "texts k"]:
    return finite((units @ xis.flatten(1).to(units.dtype).T).double().cpu().numpy() / sigma)


def finite(psi: Float[np.ndarray, "texts k"]) -> Float[np.ndarray, "texts k"]:
    """ψ as it is; InvalidWatermarkError where it is not finite although the gradients are."""
    if not np.isfinite(psi).all():
        raise InvalidWatermarkError(
            f"xis: expected finite noises and σ > 0, got {(~np.isfinite(psi)).sum()} of {psi.size} ψ that are NaN or infinite"
        )
    return psi


def table(found: TextGradient, psi: Float[np.ndarray, " k"], key_ids: Sequence[str]) -> pd.DataFrame:
    """The rows of one text: ψ with its p-value 1 − Φ(ψ), in float64 and on the log scale."""
    return _rows([_facts(found)], psi[None], key_ids)


def _facts(found: TextGradient) -> dict[str, int | float]:
    return {"text": found.text, "grad_norm": found.norm, "log_lik": found.log_lik, "n_tokens": found.n_tokens}


def _rows(facts: Sequence[dict[str, int | float]], psi: Float[np.ndarray, "texts k"], key_ids: Sequence[str]) -> pd.DataFrame:
    n, k = psi.shape
    flat = psi.ravel()
    by_text = pd.DataFrame(facts, columns=["text", "grad_norm", "log_lik", "n_tokens"]).loc[np.repeat(np.arange(n), k)].reset_index(drop=True)
    return by_text.assign(key_id=list(key_ids) * n, psi=flat, p_value=norm.sf(flat), log10_p=norm.logsf(flat) / np.log(10))[COLUMNS]


def _batched(items: Iterable[TextGradient], n: int) -> Iterator[list[TextGradient]]:
    items = iter(items)
    while several := list(islice(items, n)):
        yield several


def failure(text: int, response, keys: Sequence[perturb.Key]) -> pd.DataFrame:
    """The rows of a text that could not be scored: NaN but for its number and length."""
    n = len(response) if hasattr(response, "__len__") and not isinstance(response, str) else 0
    rows = pd.DataFrame({"text": text, "key_id": [key.key_id for key in keys], "n_tokens": n}, columns=COLUMNS)
    return rows.astype(dict.fromkeys(("psi", "p_value", "log10_p", "grad_norm", "log_lik"), float))
