"""Rates with intervals, tests of a test's level, and the power that gradient norms predict. No plots, no models.

Where ψ comes from watermarked text and the model is locally linear in the weight, ψ ≈ N(σ‖G‖, 1): the noise shifts the text's
log-likelihood by ⟨ξ, G⟩ and sampling from p_{θ+ξ} tilts it by as much. So σ‖G‖, known from *unwatermarked* text alone, predicts
the mean of ψ, and Φ(σ‖G‖ − τ_α) the power at level α (the Gaussian-shift reading of the paper's Prop. on linear softmax power).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats
from sklearn.metrics import roc_curve


def threshold(level: float) -> float:
    """τ_α = Φ⁻¹(1 − α): ψ at or above it is detected at this level.

    >>> round(threshold(0.05), 3)
    1.645
    """
    if not 0 < level < 1:
        raise ValueError(f"a level is a probability: expected 0 < level < 1, got {level}")
    return float(stats.norm.isf(level))


def rate(hits: ArrayLike, confidence: float = 0.95) -> dict[str, float]:
    """Share of True with its exact (Clopper–Pearson) interval: ``rate``, ``low``, ``high``, ``n``.

    >>> rate([True, False, True, True])["rate"]
    0.75
    """
    hits = np.asarray(hits, dtype=bool).ravel()
    if hits.size == 0:
        raise ValueError("a rate needs at least one trial, got none")
    interval = stats.binomtest(int(hits.sum()), hits.size).proportion_ci(confidence, method="exact")
    return {"rate": float(hits.mean()), "low": interval.low, "high": interval.high, "n": hits.size}


def tpr(psi: ArrayLike, level: float, confidence: float = 0.95) -> dict[str, float]:
    """True positive rate: share of ψ at or above τ_α, with its exact interval. On unwatermarked text or wrong keys, the realised level."""
    psi = np.asarray(psi, dtype=float)
    if np.isnan(psi).any():
        raise ValueError(
            f"{np.isnan(psi).sum()} of {psi.size} texts have no ψ (NaN) and are neither hits nor misses; look at them, then leave them out"
        )
    return {"level": level} | rate(psi >= threshold(level), confidence)


def levels(psi: ArrayLike, at: tuple[float, ...] = (0.05, 0.01, 0.001), confidence: float = 0.95) -> pd.DataFrame:
    """Realised level at each nominal level: one row each with ``level, rate, low, high, n`` and ``holds`` (nominal inside the interval)."""
    found = pd.DataFrame([tpr(psi, level, confidence) for level in at])
    found["holds"] = found["level"].between(found["low"], found["high"])
    return found


def uniformity(p: ArrayLike) -> dict[str, float]:
    """Kolmogorov–Smirnov test of p-values against the uniform distribution: ``distance``, ``p_value``, ``n``. For independent p-values."""
    p = np.asarray(p, dtype=float).ravel()
    test = stats.kstest(p, "uniform")
    return {"distance": float(test.statistic), "p_value": float(test.pvalue), "n": p.size}


def qq(p: ArrayLike, confidence: float = 0.95) -> pd.DataFrame:
    """Sorted p-values beside what a uniform sample would give: ``expected``, ``observed``, and the pointwise band ``low``–``high``.

    The i-th smallest of n uniform numbers is Beta(i, n + 1 − i), with mean i/(n + 1).
    """
    observed = np.sort(np.asarray(p, dtype=float).ravel())
    n = observed.size
    i = np.arange(1, n + 1)
    tail = (1 - confidence) / 2
    order = stats.beta(i, n + 1 - i)
    return pd.DataFrame({"expected": i / (n + 1), "observed": observed, "low": order.ppf(tail), "high": order.isf(tail)})


def mean_interval(x: ArrayLike, confidence: float = 0.95) -> dict[str, float]:
    """Mean with Student's interval: ``mean``, ``low``, ``high``, ``n``."""
    x = np.asarray(x, dtype=float).ravel()
    if x.size < 2:
        raise ValueError(f"an interval for a mean needs at least two values, got {x.size}")
    half = stats.sem(x) * stats.t.isf((1 - confidence) / 2, x.size - 1)
    return {"mean": float(x.mean()), "low": float(x.mean() - half), "high": float(x.mean() + half), "n": x.size}


def paired(base: ArrayLike, other: ArrayLike, *, confidence: float = 0.95, resamples: int = 9_999, seed: int = 0) -> dict[str, float]:
    """The mean of other − base over items that both were measured on, without assuming a distribution.

    The interval is the bootstrap's (percentiles of the mean over items drawn with replacement). The p-value is two-sided, from flipping the signs
    of the differences at random: exact where swapping the two within an item changes nothing under the null.

    Returns:
        ``mean, low, high, p_value, n``, and ``n_equal``: items on which both are exactly the same.
    """
    base, other = np.asarray(base, dtype=float), np.asarray(other, dtype=float)
    if base.shape != other.shape or base.ndim != 1 or base.size < 2:
        raise ValueError(f"expected two rows of the same length, at least 2, one number an item; got shapes {base.shape} and {other.shape}")
    difference = other - base
    if not np.isfinite(difference).all():
        raise ValueError(f"expected finite numbers, got {(~np.isfinite(difference)).sum()} items with NaN or infinity; leave them out and say so")
    n, rng = difference.size, np.random.default_rng(seed)
    means, as_large = np.empty(resamples), 0
    bound = abs(difference.sum()) * (1 - 1e-12)  # sums of the same numbers in another order differ in their last digits
    for rows in np.array_split(np.arange(resamples), max(1, resamples * n // 4_000_000)):
        means[rows] = difference[rng.integers(n, size=(len(rows), n))].mean(axis=1)
        signs = rng.integers(2, size=(len(rows), n)) * 2 - 1
        as_large += int((abs(signs @ difference) >= bound).sum())
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    p_value = (1 + as_large) / (resamples + 1)
    return {
        "mean": float(difference.mean()),
        "low": float(low),
        "high": float(high),
        "p_value": p_value,
        "n": n,
        "n_equal": int((difference == 0).sum()),
    }


def crossed_interval(
    statistic: Callable[..., float], *matrices: ArrayLike, confidence: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """A statistic of texts that are prompts × keys, with an interval over both: ``value``, ``low``, ``high``, ``n_prompts``, ``n_keys``.

    Texts of one prompt are alike, and so are texts of one key, so resampling texts would promise too much. Here prompts and keys are resampled
    independently (the bootstrap of Owen, "The pigeonhole bootstrap", Ann. Appl. Stat. 2007), which is conservative. It cannot know more about
    keys than it has seen: with three of them, it is a rough guide.

    Args:
        statistic: of the matrices' values, e.g. a median.
        matrices: each (prompts, keys); resampled alike.
    """
    matrices = [np.asarray(matrix, dtype=float) for matrix in matrices]
    if {matrix.shape for matrix in matrices} != {matrices[0].shape} or matrices[0].ndim != 2 or len(matrices[0]) < 2:
        raise ValueError(f"expected matrices of one shape, two or more prompts × keys, got {[matrix.shape for matrix in matrices]}")
    n_prompts, n_keys = matrices[0].shape
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(n_resamples):
        chosen = np.ix_(rng.integers(n_prompts, size=n_prompts), rng.integers(n_keys, size=n_keys))
        draws.append(statistic(*(matrix[chosen] for matrix in matrices)))
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return {"value": float(statistic(*matrices)), "low": float(low), "high": float(high), "n_prompts": n_prompts, "n_keys": n_keys}


def roc(null: ArrayLike, watermarked: ArrayLike) -> pd.DataFrame:
    """ROC of ψ: ``fpr``, ``tpr``, ``threshold``; scikit-learn's, higher ψ meaning watermarked."""
    labels, values = _labelled(null, watermarked)
    return pd.DataFrame(dict(zip(("fpr", "tpr", "threshold"), roc_curve(labels, values), strict=True)))


def auc(null: ArrayLike, watermarked: ArrayLike) -> float:
    """Area under the ROC: the chance that a watermarked text's ψ exceeds an unwatermarked one's.

    >>> auc([0.0, 1.0], [2.0, 3.0])
    1.0
    """
    null, watermarked = np.ravel(null), np.ravel(watermarked)
    if not null.size or not watermarked.size:
        raise ValueError(f"expected values of both kinds, got {null.size} without and {watermarked.size} with a watermark")
    ranks = stats.rankdata(np.concatenate([watermarked, null]), nan_policy="raise")[: watermarked.size]  # ties share theirs, and so count half
    return float((ranks.mean() - (watermarked.size + 1) / 2) / null.size)


def _labelled(null: ArrayLike, watermarked: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    null, watermarked = np.ravel(null), np.ravel(watermarked)
    return np.repeat([0, 1], [null.size, watermarked.size]), np.concatenate([null, watermarked])


def predicted_psi(grad_norm: ArrayLike, sigma: float) -> np.ndarray:
    """σ‖G‖ of each unwatermarked text: the mean of ψ that it promises in the linear regime."""
    return sigma * np.asarray(grad_norm, dtype=float)


def predicted_power(grad_norm: ArrayLike, sigma: float, level: float) -> float:
    """Mean over texts of Φ(σ‖G‖ − τ_α): the share that will be detected at this level, from unwatermarked texts alone."""
    return float(stats.norm.cdf(predicted_psi(grad_norm, sigma) - threshold(level)).mean())


def sigma_for_psi(grad_norm: ArrayLike, psi: float) -> float:
    """The σ at which σ · median‖G‖ is a wanted ψ.

    >>> sigma_for_psi([10.0, 20.0, 90.0], psi=3.0)
    0.15
    """
    median = float(np.median(np.asarray(grad_norm, dtype=float)))
    if not np.isfinite(median) or median <= 0 or not psi > 0:
        raise ValueError(f"expected positive gradient norms and a ψ > 0, got median ‖G‖ = {median} and ψ = {psi}")
    return psi / median


def sigma_for_power(grad_norm: ArrayLike, power: float, level: float) -> float:
    """The σ at which :func:`predicted_power` at a level is the wanted power; ``grad_norm`` being of texts of the length in question.

    It is a promise of the linear regime: past it a larger σ does not detect more.

    >>> sigma_for_power([10.0, 10.0], power=0.5, level=0.05) * 10 == threshold(0.05)
    True
    """
    norms = np.asarray(grad_norm, dtype=float).ravel()
    if norms.size == 0 or not np.isfinite(norms).all() or (norms <= 0).any():
        raise ValueError(f"expected positive gradient norms of at least one text, got {norms.size} of which {(norms > 0).sum()} are positive")
    if not level < power < 1:
        raise ValueError(f"power: expected a number between the level, {level}, which no watermark at all has, and 1; got {power}")
    unit = 1 / norms.max()  # at σ = unit, no text has a ψ above 1
    high = unit
    while predicted_power(norms, high, level) < power:
        high *= 2
    return float(optimize.brentq(lambda sigma: predicted_power(norms, sigma, level) - power, 0.0, high, xtol=1e-12 * unit, rtol=1e-12))


def predicted_price(psi: float, n_tokens: int) -> float:
    """ψ²/(2T) nats a token: the divergence of p_{θ+ξ} from p_θ that a mean ψ over T tokens costs, whatever the weight.

    >>> predicted_price(3.0, 200)
    0.0225
    """
    return psi**2 / (2 * n_tokens)
