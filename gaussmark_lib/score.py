"""Detection: how far a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text
that does not depend on the key: the test is exact over keys, and nothing needs to be true of the
text or of the model. G is taken at the base θ.

For noise in several weights, ψ = Σ_s ⟨ξ_s, G_s⟩ / √Σ_s σ_s²‖G_s‖². With rank reduction G stands for
PG, and ⟨Pξ, PG⟩ = ⟨ξ, PG⟩.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import perturb
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.errors import (
    GaussMarkError,
    InvalidTextError,
    InvalidWatermarkError,
    kind,
    require_one_of,
)
from gaussmark_lib.gradients import TextGradient, TokenWeights, gradients, of_pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

__all__ = ["COLUMNS", "TextGradient", "gradients", "psi", "score", "table"]

COLUMNS = ["text", "key_id", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"]
ORDER = ["text", "n_tokens"]


def score(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
    token_weights: TokenWeights | None = None,
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
        token_weights: w_t of each response's tokens, not from the key: G becomes the gradient of
            Σ_t w_t log p_θ(y_t | x, y_<t), and the test stays exact. Either the numbers, or a
            function that gets a response's ids and their log p, nats, and gives its w_t, such as
            ``beyond.channel.weights(model)``. It costs no further forward pass. Of several
            functions (None is w_t = 1), each text has the rows of one after the other.
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
        is exact where p underflows, ``grad_norm`` is ‖G‖ (‖PG‖ where rank_dropped > 0), and
        ``log_lik`` is in nats, the sum over tokens.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, KeyMismatchError,
        InvalidWatermarkError.
    """
    require_one_of(on_error, "on_error", ("raise", "record"), InvalidTextError)
    wm, keys = perturb.ready(model, wm, keys)
    failed: dict[int, GaussMarkError] | None = {} if on_error == "record" else None
    pairs = wm.reader.pairs(prompts, responses, failed)
    if paired and len(keys) != len(responses):
        got = f"{len(keys)} for {len(responses)} texts"
        raise InvalidTextError(f"paired: expected one key per text, got {got}")
    if xis is not None:
        _check_noises(xis, wm, keys, paired)
    gradients = of_pairs(
        wm,
        pairs,
        token_weights=token_weights,
        lengths=lengths,
        dtype=dtype,
        batch_size=batch_size,
        failed=failed,
    )
    names = [key.key_id for key in keys]
    key_ids = [[name] for name in names] if paired else [names for _ in responses]
    scores = table(statistics(gradients, wm, keys, paired=paired, xis=xis), key_ids)
    if failed is None:
        return scores
    failures = [failure(text, responses[text], key_ids[text]) for text in failed]
    reasons = {text: str(error) for text, error in failed.items()}
    scores = pd.concat([scores, *failures]).sort_values(ORDER, kind="stable", ignore_index=True)
    return scores.assign(error=scores["text"].map(reasons))


def _check_noises(
    xis: Float[Tensor, "k d_out d_in"], wm: PlacedWatermark, keys: Sequence[Key], paired: bool
) -> None:
    """InvalidWatermarkError for what is not the noises of all keys in the one weight."""
    shape = (len(keys), *wm.linear.shape)
    is_tensor = isinstance(xis, Tensor)
    if is_tensor and not paired and xis.shape == shape and xis.isfinite().all():
        return
    expected = f"xis: expected the finite noises of all keys, of shape {shape}, and not paired"
    got = tuple(xis.shape) if is_tensor else kind(xis)
    raise InvalidWatermarkError(f"{expected}, got {got}")


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


def table(
    tested: Iterable[tuple[TextGradient, Float[np.ndarray, " k"] | float]],
    key_ids: Mapping[int, Sequence[str]] | Sequence[Sequence[str]],
) -> pd.DataFrame:
    """The rows of each text, in the order of texts and lengths: ψ with its p-value 1 − Φ(ψ), in
    float64 and on the log scale.
    """
    rows = [
        (one.text, key_id, psi, one.norm, one.log_lik, one.n_tokens)
        for one, values in tested
        for key_id, psi in zip(key_ids[one.text], np.atleast_1d(values), strict=True)
    ]
    names = ["text", "key_id", "psi", "grad_norm", "log_lik", "n_tokens"]
    scores = pd.DataFrame(rows, columns=names)
    psi = scores["psi"].to_numpy(float)
    scores = scores.assign(p_value=norm.sf(psi), log10_p=norm.logsf(psi) / np.log(10))
    return scores[COLUMNS].sort_values(ORDER, kind="stable", ignore_index=True)


def failure(text: int, response: Ids, key_ids: Sequence[str]) -> pd.DataFrame:
    """The rows of a text that could not be scored."""
    is_list = hasattr(response, "__len__") and not isinstance(response, str)
    facts = {"text": text, "key_id": key_ids, "n_tokens": len(response) if is_list else 0}
    return pd.DataFrame(facts).reindex(columns=COLUMNS)
