"""Detection: how far a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

Paper → here: prompt x → ``prompts``, text y → ``responses``, ξ → ``perturb.noise``, θ → the matrix
``wm.weight`` of the base model, ψ → ``psi``.

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text
that does not depend on the key. The test is exact over keys, whatever the text and the model are. G
is taken at the base θ.

For noise in several weights s = 1, 2, … with σ_s each,

    ψ = Σ_s ⟨ξ_s, G_s⟩ / √(Σ_s σ_s²‖G_s‖²)

With rank reduction G stands for PG, and ⟨Pξ, PG⟩ = ⟨ξ, PG⟩.
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

# A gradient and its ψ: for each key, or a number if each text is tested with a single key.
Tested = tuple[TextGradient, Float[np.ndarray, " k"] | float]


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
    """Test each response, given its prompt, against each key (paper, Alg. 2).

    Args:
        model: the base model p_θ.
        prompts, responses: token ids, one prompt per response. All tokens of the response are
            scored. An empty prompt stands for the model's start token.
        wm: with a single weight, ``wm.sigma`` cancels in ψ; with several, the ratios of their σ
            matter.
        keys: a single backward pass serves all keys, and memory does not grow with their number.
        paired: test text i with ``keys[i]`` alone.
        token_weights: w_t of each response's tokens, which must not depend on the key: G becomes
            the gradient of Σ_t w_t log p_θ(y_t | x, y_<t), and the test stays exact. Either the
            numbers, or a function that gets a response's ids and their log p, nats, and returns its
            w_t, such as ``beyond.channel.weights(model)``. A function costs no further forward
            pass. With a list of functions (None is w_t = 1), each text has the rows of the first
            function, then those of the second, and so on.
        lengths: test the first n tokens of each response, for each of these n that it has.
        xis: ``perturb.noises(model, wm, keys)`` of a single weight, if the caller has it already.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"float64"``, by default the model's dtype; float32
            if the processor has no bfloat16. The level is exact in each; a lower precision costs
            power.
        batch_size: changes ψ by rounding alone: less than 1e-4 in float32. In bfloat16 it is about
            0.03, and up to 0.3 for single texts; ``dtype="float32"`` avoids it.
        on_error: ``"raise"``, or ``"record"``: a text that fails, even at a single length or
            weighting, has one row of NaN per key, and the reason in a column ``error``.

    Returns:
        One row per text (× length) × key, texts in the order given, with ``COLUMNS``:

        * ``text``: the number of the text, from 0; ``key_id``: the key's public name;
        * ``psi``, and ``p_value`` = 1 − Φ(ψ), float64; ``log10_p`` is exact even if p underflows;
        * ``grad_norm``: ‖G‖ in nats per unit of weight (Frobenius; ‖PG‖ if rank_dropped > 0). For
          several weights it is √(Σ_s (σ_s/σ_1)²‖G_s‖²), in units of the first σ. So in both cases
          ``wm.sigmas[0] * grad_norm`` is the mean ψ that theory predicts for a watermarked text;
        * ``log_lik``: log p_θ(y | x), nats, the sum over the ``n_tokens`` tokens scored.

    Raises:
        PerturbedModelError: the model carries a watermark; give the base model.
        InvalidTextError: ids outside the vocabulary, an empty response, or one beyond the context.
        InvalidWatermarkError: the model has no such weight, or ``xis`` has another shape.
        KeyMismatchError: a key was bound to another weight, σ, rank or base model.
        DegenerateScoreError: G is zero or not finite, so ψ does not exist.

    Example:
        >>> from gaussmark_lib import models
        >>> lm = models.load("doclm")
        >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
        >>> text = lm.encode("Return the mean of all values.")
        >>> scores = score(lm.model, [[]], [text], wm, [Key.from_seed(1), Key.from_seed(2)])
        >>> scores["p_value"].between(0, 1).tolist()
        [True, True]
    """
    require_one_of(on_error, "on_error", ("raise", "record"), InvalidTextError)
    placed, keys = perturb.ready(model, wm, keys)
    failed: dict[int, GaussMarkError] | None = {} if on_error == "record" else None
    pairs = placed.reader.pairs(prompts, responses, failed)
    if paired and len(keys) != len(responses):
        got = f"{len(keys)} for {len(responses)} texts"
        raise InvalidTextError(f"paired: expected one key per text, got {got}")
    if xis is not None:
        _check_noises(xis, placed, keys, paired)
    gradients_of_texts = of_pairs(
        placed,
        pairs,
        token_weights=token_weights,
        lengths=lengths,
        dtype=dtype,
        batch_size=batch_size,
        failed=failed,
    )
    names = [key.key_id for key in keys]
    key_ids = [[name] for name in names] if paired else [names for _ in responses]
    tested = statistics(gradients_of_texts, placed, keys, paired=paired, xis=xis)
    scores = table(tested, key_ids)
    if failed is None:
        return scores
    failures = [failure(text, responses[text], key_ids[text]) for text in failed]
    reasons = {text: str(error) for text, error in failed.items()}
    scores = scores[~scores["text"].isin(failed)]  # other lengths or weightings of a failed text
    scores = pd.concat([scores, *failures]) if len(scores) else pd.concat(failures)
    scores = scores.sort_values(ORDER, kind="stable", ignore_index=True)
    return scores.assign(error=scores["text"].map(reasons))


def _check_noises(
    xis: Float[Tensor, "k d_out d_in"], wm: PlacedWatermark, keys: Sequence[Key], paired: bool
) -> None:
    """Raise InvalidWatermarkError unless these are the noises of all keys in the single weight."""
    if len(wm.linears) > 1:
        raise InvalidWatermarkError(f"xis: expected a single weight, got {len(wm.linears)}")
    shape = (len(keys), *wm.linear.shape)
    is_tensor = isinstance(xis, Tensor)
    has_shape = is_tensor and xis.shape == shape
    if has_shape and not paired and xis.isfinite().all():
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
    """Return ψ = ⟨ξ, u⟩/σ, u = G/‖G‖, of each text and key, float64: (texts, keys).

    If ``paired``, a text is tested with the key of its number alone, and the result is (texts,).
    Rows are in the order of the gradients, which is not that of the texts.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> G = gradients(lm.model, [[]], [lm.encode("Return the mean.")], wm)
    >>> psi(G, wm.on(lm.model), [Key.from_seed(1), Key.from_seed(2)]).shape
    (1, 2)
    """
    tested = statistics(gradients, wm, keys, paired=paired)
    psi_of_texts = [psi_of_keys for _, psi_of_keys in tested]
    shape = (-1,) if paired else (-1, len(keys))  # even if there are no texts
    return np.array(psi_of_texts).reshape(shape)


def statistics(
    gradients: Iterable[TextGradient],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
) -> Iterator[Tested]:
    """Yield each gradient with its :func:`psi`, an array (keys,), or a number if ``paired``.

    It holds a bounded number of gradients and noises at a time.
    """
    sigma = wm.sigmas[0]
    at_once = blocks.at_once(len(keys), wm.d)
    fit_all_keys = len(keys) <= at_once.keys
    noises = None  # σz of all keys, (keys, d)
    if xis is not None:
        noises = xis.flatten(1)
    elif not paired and fit_all_keys:
        noises = streams(keys, wm.d, sigma, wm.model.device)  # drawn once for all texts
    for block in blocks.in_lists(gradients, at_once.texts):
        u = torch.stack([gradient.unit() for gradient in block])  # G/‖G‖, (texts, d)
        if paired:
            inner = _inner_paired(u, [keys[gradient.text] for gradient in block], sigma)
        elif noises is not None:
            inner = u @ noises.to(u).T  # (texts, keys)
        else:
            inner = _inner_in_parts(u, keys, at_once.keys, sigma)
        values = inner.double().cpu().numpy() / sigma
        yield from zip(block, values, strict=True)


def _inner_paired(
    u: Float[Tensor, "texts d"], keys: Sequence[Key], sigma: float
) -> Float[Tensor, " texts"]:
    """Return ⟨ξ, u⟩ of each text and its key."""
    xi = streams(keys, u.shape[1], sigma, u.device).to(u)  # (texts, d)
    products = [torch.dot(direction, noise) for direction, noise in zip(u, xi, strict=True)]
    return torch.stack(products)


def _inner_in_parts(
    u: Float[Tensor, "texts d"], keys: Sequence[Key], n_keys: int, sigma: float
) -> Float[Tensor, "texts keys"]:
    """Return ⟨ξ, u⟩ of each text and each key; hold the noises of ``n_keys`` keys at a time."""
    products = []
    for part in blocks.in_lists(keys, n_keys):
        xi = streams(part, u.shape[1], sigma, u.device).to(u)  # (part, d)
        products.append(u @ xi.T)
        del xi  # before the noises of the next part are drawn
    return torch.cat(products, dim=1)


def table(
    tested: Iterable[Tested], key_ids: Mapping[int, Sequence[str]] | Sequence[Sequence[str]]
) -> pd.DataFrame:
    """Return the rows of :func:`score`, in the order of texts and lengths.

    Args:
        tested: each gradient with its ψ, as ``statistics`` yields them.
        key_ids: the names of the keys that each text was tested with, by the text's number.
    """
    rows = []
    for gradient, psi_of_keys in tested:
        facts = (gradient.norm, gradient.log_lik, gradient.n_tokens)
        for key_id, value in zip(key_ids[gradient.text], np.atleast_1d(psi_of_keys), strict=True):
            rows.append((gradient.text, key_id, value, *facts))
    names = ["text", "key_id", "psi", "grad_norm", "log_lik", "n_tokens"]
    scores = pd.DataFrame(rows, columns=names)
    psi_of_rows = scores["psi"].to_numpy(float)
    scores["p_value"] = norm.sf(psi_of_rows)
    scores["log10_p"] = norm.logsf(psi_of_rows) / np.log(10)  # exact even if p underflows
    # stable: the keys of a text stay in their order
    return scores[COLUMNS].sort_values(ORDER, kind="stable", ignore_index=True)


def failure(text: int, response: Ids, key_ids: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a text that could not be scored: NaN except ``text``, ``key_id`` and
    ``n_tokens``.
    """
    is_list = hasattr(response, "__len__") and not isinstance(response, str)
    facts = {"text": text, "key_id": key_ids, "n_tokens": len(response) if is_list else 0}
    return pd.DataFrame(facts).reindex(columns=COLUMNS)
