"""Detection: how far a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text
that does not depend on the key: the test is exact over keys, and nothing needs to be true of the
text or of the model. G is taken at the base θ.

For noise in several weights, ψ = Σ_s ⟨ξ_s, G_s⟩ / √Σ_s σ_s²‖G_s‖². With rank reduction G stands for
PG, and ⟨Pξ, PG⟩ = ⟨ξ, PG⟩.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import perturb, stats, tokens
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.errors import (
    GaussMarkError,
    InvalidTextError,
    InvalidWatermarkError,
    kind,
    require_one_of,
)
from gaussmark_lib.gradients import TextGradient, gradients, of_pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

__all__ = ["COLUMNS", "TextGradient", "gradients", "psi", "score", "table"]

COLUMNS = ["text", "key_id", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"]


def score(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
    edited: float | Sequence[float] = 0.0,
    q: ArrayLike | None = None,
    token_weights: Sequence[Sequence[float]] | None = None,
    lengths: Sequence[int] | None = None,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    on_error: str = "raise",
) -> pd.DataFrame:
    """Tests each response, given its prompt, against each key.

    Args:
        model: the base model p_θ.
        prompts, responses: token ids, one prompt per response, all of whose tokens are scored. An
            empty prompt stands for the model's start token.
        wm: with one weight, ``wm.sigma`` cancels in ψ.
        keys: one backward pass serves them all, and memory does not grow with their number.
        paired: text i is tested with ``keys[i]`` alone.
        edited: f, the share of tokens that may have been exchanged: G becomes the direction that is
            best after such edits (``channel``); 0 is the paper's ψ. Of several, such as (0, .1), p
            is that of their largest ψ, and ψ = Φ⁻¹(1 − p).
        q: what exchanged tokens come from, a positive number per token of the vocabulary; by
            default the model's ``unigrams``, or else Zipf's law over the ids.
        token_weights: w_t of each response's tokens, not from the key: G becomes the gradient of
            Σ_t w_t log p_θ(y_t | x, y_<t), and the test stays exact.
        lengths: test the first n tokens of each response, for each of these n that it has.
        xis: ``perturb.noises(model, wm, keys)`` of one weight, where the caller holds it already.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"float64"``, by default the model's own; float32
            where the processor has no bfloat16. The level is exact in any; a low one costs power.
        batch_size: moves ψ by rounding alone: less than 1e-4 in float32. In bfloat16 it is about
            0.03, and up to 0.3 for single texts; ``dtype="float32"`` avoids it.
        on_error: ``"raise"``, or ``"record"``: a text that cannot be scored has rows of NaN, and
            its reason in a column ``error``.

    Returns:
        One row per text (× length) × key, texts in the order given: ``COLUMNS``, where ``log10_p``
        is exact where p underflows, ``grad_norm`` is ‖G‖ (‖PG‖ where rank_dropped > 0), for
        the first f, and ``log_lik`` is in nats, the sum over tokens.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, KeyMismatchError,
        InvalidWatermarkError.
    """
    require_one_of(on_error, "on_error", ("raise", "record"), InvalidTextError)
    wm, keys = perturb.ready(model, wm, keys)
    failed: dict[int, GaussMarkError] | None = {} if on_error == "record" else None
    pairs = tokens.checked_pairs(model, prompts, responses, failed)
    if paired and len(keys) != len(responses):
        got = f"{len(keys)} for {len(responses)} texts"
        raise InvalidTextError(f"paired: expected one key per text, got {got}")
    shape, is_tensor = (len(keys), *wm.linear.shape), isinstance(xis, Tensor)
    fits = is_tensor and not paired and xis.shape == shape and xis.isfinite().all()
    if xis is not None and not fits:
        expected = f"xis: expected the finite noises of all keys, of shape {shape}, and not paired"
        got = tuple(xis.shape) if is_tensor else kind(xis)
        raise InvalidWatermarkError(f"{expected}, got {got}")
    settings = {"edited": edited, "q": q, "token_weights": token_weights}
    settings |= {"lengths": lengths, "dtype": dtype}
    each = of_pairs(wm, pairs, batch_size=batch_size, failed=failed, **settings)
    names = [key.key_id for key in keys]
    ids = [[name] for name in names] if paired else [names] * len(responses)
    tested = statistics(each, wm, keys, paired=paired, xis=xis)
    tested = _largest(tested, len(edited)) if isinstance(edited, list | tuple) else tested
    rows = [table(tested, ids), *(failure(i, responses[i], ids[i]) for i in failed or ())]
    scores = pd.concat(rows).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)
    if failed is None:
        return scores
    return scores.assign(error=scores["text"].map({text: str(e) for text, e in failed.items()}))


def psi(
    gradients: Iterable[TextGradient],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
) -> Float[np.ndarray, "texts *k"]:
    """ψ = ⟨ξ, u⟩/σ, u = G/‖G‖, of each text and key; if ``paired``, of ``keys[number]`` alone. Rows
    are in the order of the gradients, which is not that of the texts.
    """
    values = [psi for _, psi in statistics(gradients, wm, keys, paired=paired)]
    return np.array(values).reshape(-1, *([] if paired else [len(keys)]))


def statistics(
    gradients: Iterable[TextGradient],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
) -> Iterator[tuple[TextGradient, Float[np.ndarray, " k"] | float]]:
    """Each gradient and its :func:`psi`, in bounded memory."""
    sigma = wm.sigmas[0]
    n_texts, n_keys = blocks.at_once(len(keys), wm.d)  # what memory has room for
    held = None if xis is None else [xis.flatten(1)]
    if held is None and not paired and len(keys) <= n_keys:
        held = [streams(keys, wm.d, sigma, wm.model.device)]  # σz, drawn once for all texts
    for block in blocks.in_lists(gradients, n_texts):
        u = torch.stack([gradient.unit() for gradient in block])  # G/‖G‖, (texts, d)
        if paired:
            own = [keys[gradient.text] for gradient in block]
            xi = streams(own, wm.d, sigma, u.device).to(u)
            inner = torch.stack([*map(torch.dot, u, xi)])  # (texts,)
        else:
            few = blocks.in_lists(keys, n_keys)
            noises = held or (streams(part, wm.d, sigma, u.device) for part in few)
            inner = torch.cat([u @ xi.to(u).T for xi in noises], dim=1)  # (texts, keys)
        yield from zip(block, inner.double().cpu().numpy() / sigma, strict=True)


def _largest(
    tested: Iterable[tuple[TextGradient, Float[np.ndarray, " *k"]]], n_directions: int
) -> Iterator[tuple[TextGradient, Float[np.ndarray, " *k"]]]:
    """Of each text the first of its directions, with Φ⁻¹(1 − p) of its largest ψ."""
    for _, group in groupby(tested, lambda one: (one[0].text, one[0].n_tokens)):
        directions, psi = zip(*group, strict=True)
        if len(directions) == n_directions:  # of a text that failed some may be missing
            yield directions[0], largest(directions, np.array(psi))


def largest(
    directions: Sequence[TextGradient], psi: Float[np.ndarray, "n *k"]
) -> Float[np.ndarray, " *k"] | float:
    """Return Φ⁻¹(1 − p) for each key, where p is the p-value of the largest ψ of several
    directions.
    """
    K = [[one.cosine(other) for other in directions] for one in directions]
    return stats.psi_of_log_p(stats.log_p_of_max(np.max(psi, axis=0), K))


def table(
    tested: Iterable[tuple[TextGradient, Float[np.ndarray, " k"] | float]],
    key_ids: Mapping[int, Sequence[str]] | Sequence[Sequence[str]],
) -> pd.DataFrame:
    """The rows of each text: ψ with its p-value 1 − Φ(ψ), in float64 and on the log scale."""
    rows = [
        (one.text, key_id, psi, one.norm, one.log_lik, one.n_tokens)
        for one, values in tested
        for key_id, psi in zip(key_ids[one.text], np.atleast_1d(values), strict=True)
    ]
    names = ["text", "key_id", "psi", "grad_norm", "log_lik", "n_tokens"]
    found = pd.DataFrame(rows, columns=names)
    psi = found["psi"].to_numpy(float)
    found = found.assign(p_value=norm.sf(psi), log10_p=norm.logsf(psi) / np.log(10))
    return found[COLUMNS]


def failure(text: int, response: Ids, key_ids: Sequence[str]) -> pd.DataFrame:
    """The rows of a text that could not be scored."""
    is_list = hasattr(response, "__len__") and not isinstance(response, str)
    facts = {"text": text, "key_id": key_ids, "n_tokens": len(response) if is_list else 0}
    return pd.DataFrame(facts).reindex(columns=COLUMNS)
