"""From the likelihood ratio to ψ, one approximation at a time, and what each step costs (paper,
Sec. 3.1).

The alternative draws a key ξ ~ ν and a text y ~ p_{θ+ξ}; a null draws an independent text, ν ⊗ μ.
The mixture m(y) = E_ξ p_{θ+ξ}(y) is the nearest null, at the mutual information of key and text
(paper, Prop. "closest_measure").

With g = ∇ log p_θ(y) the statistics are, for a key ξ and a text y,

    ratio       log p_{θ+ξ}(y) − log m(y)
    linearised  ⟨ξ, g⟩ − σ²‖g‖²/2                           both logarithms to first order in ξ
    inner       ⟨ξ, g⟩                                      the quadratic term dropped
    psi         ⟨ξ, g⟩ / (σ‖g‖)                             N(0, 1) over keys, whatever the text

A threshold can keep a level for two nulls. *Model text*: y ~ m. *Any text*: y from any
distribution; then the level must hold for each y on its own, P_ξ(reject | y) ≤ α. The power Σ_y
E_ξ[p_{θ+ξ}(y) 1{reject}] has one term per text, and by Neyman and Pearson each is largest if the
keys with the α largest p_{θ+ξ}(y) are rejected. So the most powerful test for any text compares
p_{θ+ξ}(y) with its own (1−α) quantile over keys. To first order in σ those keys are a half-space,
and the test *is* ψ.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy import special

from gaussmark_lib.beyond.toys.softmax import Keys, LinearSoftmax, Table
from gaussmark_lib.stats import threshold

Rejected = Bool[np.ndarray, "keys outcomes"]
BEST = "likelihood, a threshold per text (most powerful)"
PSI = "ψ, threshold Φ⁻¹(1−α)"
BEST_FOR_MODEL_TEXT = "likelihood ratio (most powerful)"


def statistics(model: LinearSoftmax, sigma: float, unit_noise: Keys) -> dict[str, Table]:
    """The four statistics above; the mixture is the mean over the given keys."""
    log_p = model.log_p(sigma * unit_noise)
    inner = sigma * unit_noise @ model.gradients.T
    return {
        "ratio": log_p - (special.logsumexp(log_p, axis=0) - np.log(len(log_p))),
        "linearised": inner - sigma**2 * model.grad_norms**2 / 2,
        "inner": inner,
        "psi": model.psi(unit_noise),
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


def reject_per_text(statistic: Table, level: float) -> Rejected:
    """Each text has its own threshold, which ⌊level · keys⌋ keys exceed (fewer if there are ties):
    holds the level for any text.
    """
    last = len(statistic) - 1 - int(level * len(statistic))
    return statistic > np.partition(statistic, last, axis=0)[last]


def reject_model_text(
    statistic: Table, level: float, mixture: Float[np.ndarray, " outcomes"]
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
            ("any text", BEST): reject_per_text(likelihood, level),
            ("any text", PSI): s["psi"] > threshold(level),
            ("model text", BEST_FOR_MODEL_TEXT): reject_model_text(s["ratio"], level, mixture),
            ("model text", "inner product"): reject_model_text(s["inner"], level, mixture),
        }
        rows += [
            (sigma, null, test, (likelihood * reject).sum(axis=1).mean())
            for (null, test), reject in rejected.items()
        ]
    return pd.DataFrame(rows, columns=["sigma", "null", "test", "power"])
