"""The test of Algorithm 4, and the bounds of the robustness proposition (paper, App. "Robustness to
Corruptions").

Each token k has its own key and its own Γ_k. Under the null, the Γ_k are independent N(0, 1). A
*hit* is Γ_k ≥ τ = Φ⁻¹(1 − α₀). The text is called watermarked if the λ'-quantile of all Γ_k is at
least τ. With K tokens and m = ⌊λ'K⌋ that quantile is the m-th smallest, so

    detected  ⇔  at least K − m + 1 hits,     level = P(Binomial(K, α₀) ≥ K − m + 1)     exactly.

The proposition bounds the level by Hoeffding's exp(−2K(1 − λ' − α₀)²), which is far above the exact
level. Its proof requires K(1 − λ') hits, one fewer than the quantile does. This is harmless for the
level, but too optimistic by one hit for the power. At α₀ = ½ the test is the sign test.

If the proposition proves nothing, a bound is NaN, and the number of tokens is infinite.

===========  ==============================================================
paper        here
===========  ==============================================================
K            ``n_tokens``
α₀, β₀       ``alpha_0``, ``beta_0``: error rates of one token's test
λ'           ``quantile``, the quantile's parameter
λ₀           ``corrupted``: the share of tokens that may be substituted
α, β         ``level``, and one minus the power, of the whole test
===========  ==============================================================
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, norm

from gaussmark_lib import stats


def detected(gammas: ArrayLike, quantile: float, alpha_0: float) -> bool:
    """Return whether the λ'-quantile is at or above Φ⁻¹(1 − α₀); it counts hits."""
    hits = np.asarray(gammas) >= stats.threshold(alpha_0)
    return bool(hits.sum() >= hits_needed(hits.size, quantile))


def hits_needed(n_tokens: int, quantile: float) -> int:
    """Return K − ⌊λ'K⌋ + 1, the number of hits that are needed for a detection.

    It is K + 1, so that no text is detected, if λ' < 1/K: then there is no such quantile.

    >>> hits_needed(100, 0.9)
    11
    """
    return n_tokens - math.floor(quantile * n_tokens + 1e-9) + 1  # as a float 0.29·100 < 29


def exact_level(n_tokens: int, quantile: float, alpha_0: float) -> float:
    """Return P(Binomial(K, α₀) ≥ hits needed), the level of the quantile test for every text."""
    return float(binom.sf(hits_needed(n_tokens, quantile) - 1, n_tokens, alpha_0))


def level_bound(n_tokens: int, quantile: float, alpha_0: float) -> float:
    """Return exp(−2K(1 − λ' − α₀)²), the proposition's bound on the level, for λ' ≤ 1 − α₀."""
    gap = 1 - quantile - alpha_0
    if gap < 0:
        return math.nan
    return math.exp(-2 * n_tokens * gap**2)


def power_bound(n_tokens: int, quantile: float, beta_0: float, corrupted: float) -> float:
    """Return 1 − exp(−(1 − λ₀)K(λ' − λ₀ − β₀)²/2), the proposition's bound on the power.

    A share λ₀ of the tokens is substituted; λ' must be at least λ₀ + β₀.
    """
    gap = quantile - corrupted - beta_0
    if gap < 0:
        return math.nan
    n_intact = (1 - corrupted) * n_tokens
    return -math.expm1(-n_intact * gap**2 / 2)


def tokens_for_level(level: float, quantile: float, alpha_0: float) -> float:
    """Return the smallest K for which the proposition promises the level α.

    It is log(1/α) / (2(1 − λ' − α₀)²), rounded up.

    >>> tokens_for_level(0.01, quantile=0.8, alpha_0=0.1)
    231
    """
    gap = 1 - quantile - alpha_0
    if gap <= 0:
        return math.inf
    return math.ceil(math.log(1 / level) / (2 * gap**2))


def quantile_for(n_tokens: int, level: float, alpha_0: float) -> float:
    """Return the λ' of the most powerful quantile test whose exact level is at most ``level``.

    It is 0, which never detects, if even K hits of K are more probable than the level.

    >>> lam = quantile_for(100, 0.05, 0.5)
    >>> hits_needed(100, lam), round(exact_level(100, lam, 0.5), 3)
    (59, 0.044)
    """
    needed = int(binom.isf(level, n_tokens, alpha_0)) + 1  # the smallest h with P(X ≥ h) ≤ level
    needed = max(2, needed)  # because λ' < 1
    return max(0, n_tokens - needed + 1) / n_tokens


def efficiency(alpha_0: float) -> float:
    """Return the Pitman efficiency of counting hits, φ(τ)² / (α₀(1 − α₀)) ≤ 2/π.

    With this share of the tokens, the sum of the Γ_k is as powerful as counting hits among all
    tokens (for small shifts).

    >>> round(efficiency(0.5) * np.pi, 6), round(efficiency(0.05), 3)
    (2.0, 0.224)
    """
    density = norm.pdf(stats.threshold(alpha_0))  # φ(τ)
    variance = alpha_0 * (1 - alpha_0)  # of a hit
    return float(density**2 / variance)
