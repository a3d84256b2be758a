"""The test of Algorithm 4 and what the robustness proposition promises of it (paper, App.
"Robustness to Corruptions").

Each token k has its own key and its own Γ_k, which is N(0, 1) under the null, independent of the
others. A *hit* is Γ_k ≥ τ = Φ⁻¹(1 − α₀). The text is called watermarked if the λ'-quantile of all
Γ_k is at least τ. With K tokens and m = ⌊λ'K⌋ that quantile is the m-th smallest, so

    detected  ⇔  at least K − m + 1 hits,     level = P(Binomial(K, α₀) ≥ K − m + 1)     exactly.

The proposition bounds the level by Hoeffding's exp(−2K(1 − λ' − α₀)²), which is far above it. Its
proof asks for K(1 − λ') hits, one fewer than the quantile: harmless for the level, one hit too
optimistic for the power. At α₀ = ½ the test is the sign test.

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
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, norm

from gaussmark_lib import stats
from gaussmark_lib.errors import BoundError


def detected(gammas: ArrayLike, quantile: float, alpha_0: float) -> bool:
    """Whether the λ'-quantile is at or above Φ⁻¹(1 − α₀), as a count of hits."""
    hits = np.asarray(gammas) >= stats.threshold(alpha_0)
    return bool(hits.sum() >= hits_needed(hits.size, quantile))


def hits_needed(n_tokens: int, quantile: float) -> int:
    """K − ⌊λ'K⌋ + 1: how many hits make the quantile pass.

    >>> hits_needed(100, 0.9)
    11
    """
    return n_tokens - _rank(n_tokens, quantile) + 1


def exact_level(n_tokens: int, quantile: float, alpha_0: float) -> float:
    """P(Binomial(K, α₀) ≥ hits needed): the level of the quantile test for every text."""
    return float(binom.sf(hits_needed(n_tokens, quantile) - 1, n_tokens, alpha_0))


def level_bound(n_tokens: int, quantile: float, alpha_0: float) -> float:
    """exp(−2K(1 − λ' − α₀)²), the proposition's bound on the level. Raises BoundError unless λ' ≤ 1
    − α₀.
    """
    return math.exp(-2 * n_tokens * _level_gap(quantile, alpha_0) ** 2)


def power_bound(n_tokens: int, quantile: float, beta_0: float, corrupted: float) -> float:
    """1 − exp(−(1 − λ₀)K(λ' − λ₀ − β₀)²/2), the proposition's bound on the power with a share λ₀ of
    substituted tokens.

    Raises BoundError unless λ' ≥ λ₀ + β₀.
    """
    if corrupted + beta_0 > quantile:
        raise BoundError(
            f"the power is proved for λ' ≥ λ₀ + β₀, got λ' = {quantile} < {corrupted} + {beta_0} ="
            f" {corrupted + beta_0:.6g}; choose a larger λ', less corruption, or a token test of"
            " more power"
        )
    return -math.expm1(-(1 - corrupted) * n_tokens * (quantile - corrupted - beta_0) ** 2 / 2)


def tokens_for_level(level: float, quantile: float, alpha_0: float) -> int:
    """The K from which on the proposition promises level α: log(1/α) / (2(1 − λ' − α₀)²), rounded
    up.

    >>> tokens_for_level(0.01, quantile=0.8, alpha_0=0.1)
    231
    """
    if (gap := _level_gap(quantile, alpha_0)) == 0:
        raise BoundError(
            "no number of tokens is enough where 1 − λ' − α₀ = 0: expected it to be positive"
        )
    return math.ceil(math.log(1 / level) / (2 * gap**2))


def quantile_for(n_tokens: int, level: float, alpha_0: float) -> float:
    """The λ' of the most powerful quantile test whose exact level is at most ``level``.

    Raises BoundError if even K hits of K are likelier than the level: too few tokens.

    >>> lam = quantile_for(100, 0.05, 0.5)
    >>> hits_needed(100, lam), round(exact_level(100, lam, 0.5), 3)
    (59, 0.044)
    """
    needed = max(
        2, int(binom.isf(level, n_tokens, alpha_0)) + 1
    )  # isf: the smallest h with P(X > h) ≤ level; 2, since λ' < 1
    if needed > n_tokens:
        raise BoundError(
            f"no quantile test of {n_tokens} tokens has level {level}: even all hits have"
            f" probability α₀^K = {alpha_0**n_tokens:.3g}"
        )
    return (n_tokens - needed + 1) / n_tokens


def quantiles_near(
    n_tokens: int, best: float, steps: Iterable[float] = (0.015, 0.03, 0.06, 0.09, 0.12)
) -> list[float]:
    """λ' of some tests about the best one: of whole numbers of hits, K − ⌊λ'K⌋ + 1, the best one
    among them.

    A rounded λ' may be another test: ⌊0.333·24⌋ is 7, and 8/24 is only nearly 0.333.

    >>> [round(24 * q) for q in quantiles_near(24, 8 / 24)]
    [5, 6, 7, 8, 9, 10, 11]
    """
    m = _rank(n_tokens, best)
    shifts = {round(step * n_tokens) for step in steps}
    near = {m} | {m + shift for shift in shifts} | {m - shift for shift in shifts}
    return [some / n_tokens for some in sorted(near) if 1 <= some < n_tokens]


def efficiency(alpha_0: float) -> float:
    """φ(τ)² / (α₀(1 − α₀)) ≤ 2/π: with this share of the tokens, the sum of the Γ_k is as powerful
    as counting hits (small shifts; Pitman).

    >>> round(efficiency(0.5) * np.pi, 6), round(efficiency(0.05), 3)
    (2.0, 0.224)
    """
    return float(norm.pdf(stats.threshold(alpha_0)) ** 2 / (alpha_0 * (1 - alpha_0)))


def _rank(n_tokens: int, quantile: float) -> int:
    """m = ⌊λ'K⌋, with 0.29·100 being 29."""
    rank = math.floor(quantile * n_tokens + 1e-9)
    if rank < 1:
        raise BoundError(
            f"the {quantile}-quantile of {n_tokens} statistics does not exist: expected λ' ≥ 1/K ="
            f" {1 / max(1, n_tokens):.3g}"
        )
    return rank


def _level_gap(quantile: float, alpha_0: float) -> float:
    if quantile > 1 - alpha_0:
        raise BoundError(
            f"the level is proved for λ' ≤ 1 − α₀, got λ' = {quantile} > 1 − {alpha_0} ="
            f" {1 - alpha_0:.6g}; choose a smaller λ' or a smaller α₀"
        )
    return 1 - quantile - alpha_0
