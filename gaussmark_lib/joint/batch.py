"""A batch of texts under one key: the chance of any false alarm, and the share of false ones among
those raised.

Bonferroni and Šidák treat the texts as if they had nothing in common, and Fisher's sum of
logarithms is wrong where they have. Their joint law is known: under the null ψ ~ N(0, K)
(``law.gram``). No whitening is applied here: one marked text would shift the whitened ψ of its
neighbours.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.stats import norm

from gaussmark_lib import checks
from gaussmark_lib.errors import StatisticsError

UNIT = 1e-3  # how far a correlation may be from what it can be

AT_A_TIME = 1 << 22  # simulated numbers


def family(
    psi: ArrayLike, K: ArrayLike, *, n: int = 9_999, seed: int = 0
) -> Float[np.ndarray, " texts"]:
    """Family-wise p-values: the chance that the greatest of the batch is as great as each ψ, if no
    text carries the key.

        p_i = (1 + #{b : max_j X_j^(b) ≥ ψ_i}) / (1 + n),   X^(b) ~ N(0, K)

    Rejecting all p_i ≤ α raises any false alarm with probability at most α, exactly so whatever n;
    the least of them is the batch's own p-value.

    Args:
        psi: ψ of each text under one key. K: ``gram`` of the same texts in the same order. n:
            simulations; 1/(1 + n) is the least possible p.

    Raises:
        StatisticsError: shapes that do not fit, or a K that is no covariance.
    """
    psi, n = checks.numbers(psi, "psi").ravel(), checks.whole(n, "n", StatisticsError)
    simulated = greatest(
        covariance(K, len(psi)), n, checks.whole(seed, "seed", StatisticsError, least=0)
    )
    return (1 + n - np.searchsorted(simulated, psi, side="left")) / (1 + n)


def greatest(K: Float[np.ndarray, "texts texts"], n: int, seed: int) -> Float[np.ndarray, " n"]:
    """max_j X_j of n simulations of X ~ N(0, K), in ascending order."""
    root, rng = _root(K), np.random.default_rng(seed)
    sizes = np.diff([*range(0, n, max(1, AT_A_TIME // len(K))), n])
    return np.sort(
        np.concatenate([(rng.standard_normal((size, len(K))) @ root).max(1) for size in sizes])
    )


def discoveries(
    psi: ArrayLike,
    grad_norm: ArrayLike,
    sigma: float,
    *,
    fdr: float = 0.1,
    K: ArrayLike | None = None,
) -> Bool[np.ndarray, " texts"]:
    """Which texts of a batch to call marked, such that of those called at most a share ``fdr`` is
    false, in the mean over keys.

    The e-values e_i = exp(λ_i ψ_i − λ_i²/2) with λ_i = σ‖G_i‖ have the mean 1 for every unmarked
    text, and λ_i is known from the text alone. e-BH calls the k* texts with the greatest e, k*
    being the greatest k whose k-th is at least n/(fdr·k). That holds under *any* dependence (Wang
    and Ramdas, "False discovery rate control with e-values", JRSS B 2022).

    With K, Benjamini and Hochberg's procedure on the p-values, which has more power. It needs
    positive dependence, which one-sided tests of normal statistics have exactly where no covariance
    is negative (Benjamini and Yekutieli, Ann. Statist. 2001); so a K with a negative entry is
    refused (exact where no text is marked; with marked texts, whose gradients depend on the key, to
    first order only; e-BH without K needs none of this).

    Raises:
        StatisticsError: numbers that do not fit together, fdr outside (0, 1), a K with an entry
            below 0.
    """
    psi, norms = (
        checks.numbers(psi, "psi", finite=True).ravel(),
        checks.numbers(grad_norm, "grad_norm", finite=True).ravel(),
    )
    fdr, sigma, n = checks.share(fdr, "fdr"), checks.positive(sigma, "sigma"), len(psi)
    if len(norms) != n or (norms < 0).any():
        raise StatisticsError(
            f"grad_norm: expected a number ≥ 0 for each of {n} texts, got"
            f" {checks.shown(norms.tolist())}"
        )
    if K is not None:
        return _benjamini_hochberg(psi, covariance(K, n), fdr)
    promised = sigma * norms
    log_e = promised * psi - promised**2 / 2
    order = np.argsort(-log_e, kind="stable")
    enough = np.flatnonzero(log_e[order] >= np.log(n / fdr) - np.log(np.arange(1, n + 1)))
    return _first(order, enough)


def _benjamini_hochberg(psi: np.ndarray, K: np.ndarray, fdr: float) -> Bool[np.ndarray, " texts"]:
    if (K < 0).any():
        raise StatisticsError(
            f"K: expected no covariance below 0, got {(K < 0).sum() // 2} pairs; leave K out: e-BH"
            " holds under any dependence"
        )
    order = np.argsort(-psi, kind="stable")
    return _first(
        order,
        np.flatnonzero(
            norm.logsf(psi[order]) <= np.log(fdr * np.arange(1, len(psi) + 1) / len(psi))
        ),
    )


def _first(order: np.ndarray, enough: np.ndarray) -> Bool[np.ndarray, " texts"]:
    called = np.zeros(len(order), dtype=bool)
    called[order[: enough[-1] + 1 if len(enough) else 0]] = True
    return called


def covariance(K: ArrayLike, n: int) -> Float[np.ndarray, "n n"]:
    """A symmetric n × n matrix of correlations, with 1 on its diagonal; StatisticsError
    otherwise.
    """
    K = checks.numbers(K, "K", finite=True)
    if (
        K.shape != (n, n)
        or not np.allclose(K, K.T, atol=1e-6)
        or not np.allclose(np.diag(K), 1, atol=UNIT)
        or (abs(K) > 1 + UNIT).any()
    ):
        raise StatisticsError(
            f"K: expected the {n} × {n} matrix that joint.gram gives for these texts, got"
            f" {checks.shown(K.tolist())}"
        )
    return K


def _root(K: np.ndarray) -> np.ndarray:
    """R with RᵀR = K, for a K that may be singular."""
    values, vectors = np.linalg.eigh(K)
    if values[0] < -1e-6 * values[-1]:
        raise StatisticsError(
            f"K: expected a covariance matrix, got one with the eigenvalue {values[0]:.3g}"
        )
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
