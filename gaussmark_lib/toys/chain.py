"""From the likelihood ratio to ψ, one approximation at a time, and what each step costs (paper,
Sec. 3.1).

With g = ∇ log p_θ(y) the statistics are, for a key ξ and a text y,

    ratio       log p_{θ+ξ}(y) − log E_ξ' p_{θ+ξ'}(y)      against the nearest null
    linearised  ⟨ξ, g⟩ − σ²‖g‖²/2                           both logarithms to first order in ξ
    inner       ⟨ξ, g⟩                                      the quadratic term dropped
    psi         ⟨ξ, g⟩ / (σ‖g‖)                             N(0, 1) over keys, whatever the text

A threshold can keep a level for two nulls. *Model text*: y ~ m, the mixture. *Any text*: y from any
distribution; then the level must hold for each y on its own, P_ξ(reject | y) ≤ α. The power Σ_y
E_ξ[p_{θ+ξ}(y) 1{reject}] has one term a text, and by Neyman and Pearson each is largest if the keys
with the α largest p_{θ+ξ}(y) are rejected. So the most powerful test for any text compares
p_{θ+ξ}(y) with its own (1−α) quantile over keys. To first order in σ those keys are a half-space,
and the test *is* ψ.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy import special

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys.softmax import Keys, LinearSoftmax

Table = Float[np.ndarray, "keys texts"]
Rejected = Bool[np.ndarray, "keys texts"]


def statistics(model: LinearSoftmax, sigma: float, unit_noise: Keys) -> dict[str, Table]:
    """The four statistics above; the expectation over ξ' is the mean over the given keys."""
    log_p = model.log_p(sigma * unit_noise)
    inner = sigma * unit_noise @ model.gradients.T
    return {
        "ratio": log_p - (special.logsumexp(log_p, axis=0) - np.log(len(log_p))),
        "linearised": inner - sigma**2 * model.grad_norms**2 / 2,
        "inner": inner,
        "psi": inner / (sigma * model.grad_norms),
    }


def errors(model: LinearSoftmax, sigmas: list[float], unit_noise: Keys) -> pd.DataFrame:
    """Root mean square, over keys and y ~ p_θ, of the inner product and of what each approximation
    changes: ``sigma, step, rms`` (nats).
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
        rows += [(sigma, name, np.sqrt((x**2 @ model.base_p).mean())) for name, x in steps.items()]
    return pd.DataFrame(rows, columns=["sigma", "step", "rms"])


def thresholds(statistic: Table, level: float) -> Float[np.ndarray, " texts"]:
    """For each text the value that exactly ⌊level · keys⌋ keys exceed (fewer if there are ties)."""
    place = len(statistic) - 1 - int(level * len(statistic))
    return np.partition(statistic, place, axis=0)[place]


def reject_per_text(statistic: Table, level: float) -> Rejected:
    """Each text has its own threshold: holds the level for any text."""
    return statistic > thresholds(statistic, level)


def reject_worst_text(statistic: Table, level: float) -> Rejected:
    """One threshold, high enough for the worst text: holds the level for any text, and wastes it on
    all but one.
    """
    return statistic > thresholds(statistic, level).max()


def reject_model_text(
    statistic: Table, level: float, mixture: Float[np.ndarray, " texts"]
) -> Rejected:
    """One threshold, at which the largest values hold the level when y ~ mixture, and only then."""
    order = np.argsort(statistic, axis=None)[::-1]
    null = np.broadcast_to(mixture / len(statistic), statistic.shape).ravel()[order]
    rejected = np.zeros(statistic.size, dtype=bool)
    rejected[order[np.cumsum(null) <= level]] = True
    return rejected.reshape(statistic.shape)


def powers(
    model: LinearSoftmax, sigmas: list[float], level: float, unit_noise: Keys
) -> pd.DataFrame:
    """Each test's exact power over the given keys: ``sigma``, ``null`` (for which the level holds:
    "any text", "model text"), ``test, power``.
    """
    rows = []
    for sigma in sigmas:
        s = statistics(model, sigma, unit_noise)
        likelihood = np.exp(model.log_p(sigma * unit_noise))
        mixture = likelihood.mean(axis=0)
        rejected = {
            ("any text", "likelihood, a threshold per text (most powerful)"): reject_per_text(
                likelihood, level
            ),
            ("any text", "ψ, threshold Φ⁻¹(1−α)"): s["psi"] > threshold(level),
            ("any text", "likelihood ratio, one threshold"): reject_worst_text(s["ratio"], level),
            ("model text", "likelihood ratio (most powerful)"): reject_model_text(
                s["ratio"], level, mixture
            ),
            ("model text", "linearised"): reject_model_text(s["linearised"], level, mixture),
            ("model text", "inner product"): reject_model_text(s["inner"], level, mixture),
        }
        rows += [
            (sigma, null, test, (likelihood * reject).sum(axis=1).mean())
            for (null, test), reject in rejected.items()
        ]
    return pd.DataFrame(rows, columns=["sigma", "null", "test", "power"])
