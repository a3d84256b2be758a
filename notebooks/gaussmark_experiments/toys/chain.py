"""From the likelihood ratio to ψ, one approximation at a time, and the cost of each step (paper,
Sec. 3.1).

The alternative draws a key ξ ~ ν and a text y ~ p_{θ+ξ}. A null draws the text independently of the
key: ν ⊗ μ. The mixture m(y) = E_ξ p_{θ+ξ}(y) is the closest null; its distance is the mutual
information of key and text (paper, Prop. "closest_measure").

With g = ∇ log p_θ(y) the statistics are, for a key ξ and a text y,

    ratio       log p_{θ+ξ}(y) − log m(y)
    linearised  ⟨ξ, g⟩ − σ²‖g‖²/2                           both logarithms to first order in ξ
    inner       ⟨ξ, g⟩                                      without the quadratic term
    psi         ⟨ξ, g⟩ / (σ‖g‖)                             N(0, 1) over keys, whatever the text

A threshold can hold a level for two nulls. *Model text*: y ~ m. *Any text*: y from any
distribution; then the level must hold for every single y, P_ξ(reject | y) ≤ α. The power
Σ_y E_ξ[p_{θ+ξ}(y) 1{reject}] has one term per text. By Neyman and Pearson, each term is largest if
the share α of keys with the largest p_{θ+ξ}(y) is rejected. So the most powerful test for any text
compares p_{θ+ξ}(y) with the (1−α) quantile of p_{θ+ξ}(y) over keys. To first order in σ the
rejected keys are a half-space, and the test *is* ψ.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy import special

from gaussmark_experiments.toys.softmax import Keys, LinearSoftmax, Table
from gaussmark_lib.stats import threshold

Rejected = Bool[np.ndarray, "keys outcomes"]
BEST = "likelihood, a threshold per text (most powerful)"
PSI = "ψ, threshold Φ⁻¹(1−α)"
BEST_FOR_MODEL_TEXT = "likelihood ratio (most powerful)"


def statistics(model: LinearSoftmax, sigma: float, unit_noise: Keys) -> dict[str, Table]:
    """Return the four statistics above; the mixture is the mean over the given keys."""
    log_p = model.log_p(sigma * unit_noise)  # (keys, outcomes)
    log_mixture = special.logsumexp(log_p, axis=0) - np.log(len(log_p))
    inner = sigma * unit_noise @ model.gradients.T
    return {
        "ratio": log_p - log_mixture,
        "linearised": inner - sigma**2 * model.grad_norms**2 / 2,
        "inner": inner,
        "psi": model.psi(unit_noise),
    }


def errors(model: LinearSoftmax, sigmas: list[float], unit_noise: Keys) -> pd.DataFrame:
    """Return the error of each approximation, and the size of the inner product.

    Returns:
        One row per σ and step: ``sigma``, ``step``, and ``rms``, the root mean square in nats over
        keys and y ~ p_θ.
    """
    rows = []
    for sigma in sigmas:
        s = statistics(model, sigma, unit_noise)
        steps = {
            "the statistic itself, ⟨ξ, g⟩": s["inner"],
            "error of linearising": s["ratio"] - s["linearised"],
            "error of dropping σ²‖g‖²/2": s["linearised"] - s["inner"],
            "both together": s["ratio"] - s["inner"],
        }
        for name, nats in steps.items():
            mean_square = (nats**2 @ model.base_p).mean()
            rows.append((sigma, name, np.sqrt(mean_square)))
    return pd.DataFrame(rows, columns=["sigma", "step", "rms"])


def reject_per_text(statistic: Table, level: float) -> Rejected:
    """Return which keys reject each text, with a threshold per text: the level holds for any text.

    ⌊level · keys⌋ keys exceed the threshold, or fewer if there are ties.
    """
    n_keys = len(statistic)
    last = n_keys - 1 - int(level * n_keys)  # the rank of the threshold
    thresholds = np.partition(statistic, last, axis=0)[last]  # one per text
    return statistic > thresholds


def reject_model_text(
    statistic: Table, level: float, mixture: Float[np.ndarray, " outcomes"]
) -> Rejected:
    """Return which keys reject each text, with one threshold.

    The level holds if y ~ mixture, and only then.
    """
    order = np.argsort(statistic, axis=None)[::-1]  # of all pairs of a key and a text
    probabilities = np.broadcast_to(mixture / len(statistic), statistic.shape)
    null = probabilities.ravel()[order]
    within_level = np.cumsum(null) <= level
    rejected = np.zeros(statistic.size, dtype=bool)
    rejected[order[within_level]] = True
    return rejected.reshape(statistic.shape)


def powers(
    model: LinearSoftmax, sigmas: list[float], level: float, unit_noise: Keys
) -> pd.DataFrame:
    """Return the exact power of each test over the given keys.

    Returns:
        One row per σ and test: ``sigma``; ``null``, for which the level holds ("any text" or "model
        text"); ``test``; ``power``.
    """
    rows = []
    for sigma in sigmas:
        s = statistics(model, sigma, unit_noise)
        likelihood = np.exp(model.log_p(sigma * unit_noise))
        mixture = likelihood.mean(axis=0)
        rejected = {
            ("any text", BEST): reject_per_text(likelihood, level),
            ("any text", PSI): s["psi"] > threshold(level),
            ("model text", BEST_FOR_MODEL_TEXT): reject_model_text(s["ratio"], level, mixture),
            ("model text", "inner product"): reject_model_text(s["inner"], level, mixture),
        }
        for (null, test), is_rejected in rejected.items():
            of_keys = (likelihood * is_rejected).sum(axis=1)
            rows.append((sigma, null, test, of_keys.mean()))
    return pd.DataFrame(rows, columns=["sigma", "null", "test", "power"])
