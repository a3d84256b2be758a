"""The quantile test against its definition, exact enumeration and simulation; the proposition's
bounds against exact levels.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from gaussmark_lib import stats
from gaussmark_lib.beyond.token_level import quantiles as q

SHARE = st.floats(0.02, 0.98)


def by_definition(gammas: list[float], quantile: float) -> float | None:
    """The largest element with a share of at most λ' at or below it; counts in whole numbers where
    λ'K is one.
    """
    k = len(gammas)
    fits = [g for g in gammas if sum(other <= g for other in gammas) <= quantile * k + 1e-9]
    return max(fits) if fits else None


@given(
    gammas=st.lists(st.floats(-4, 4), min_size=1, max_size=25, unique=True),
    quantile=SHARE,
    alpha_0=SHARE,
)
def test_detection_is_the_papers_quantile_at_the_threshold(gammas, quantile, alpha_0):
    expected = by_definition(gammas, quantile)
    threshold, level = stats.threshold(alpha_0), q.exact_level(len(gammas), quantile, alpha_0)
    p = distributions.binom.sf(sum(g >= threshold for g in gammas) - 1, len(gammas), alpha_0)
    if expected is None:  # no such quantile: never detected, at level 0
        assert not q.detected(gammas, quantile, alpha_0)
        assert level == 0
    else:
        assert q.detected(gammas, quantile, alpha_0) == (expected >= threshold)
        assert q.detected(gammas, quantile, alpha_0) == (p <= level * (1 + 1e-12))


@pytest.mark.parametrize(
    ("n", "quantile", "alpha_0"),
    [(1, 0.999999999, 0.3), (5, 0.6, 0.4), (8, 0.5, 0.25), (8, 0.9, 0.1)],
)
def test_the_exact_level_is_the_sum_over_all_outcomes(n, quantile, alpha_0):
    level = 0.0
    for outcome in itertools.product([0, 1], repeat=n):
        gammas = np.where(outcome, stats.threshold(alpha_0) + 0.1, -3.0)
        gammas += 1e-3 * np.arange(n)  # all different
        if q.detected(gammas, quantile, alpha_0):
            level += alpha_0 ** sum(outcome) * (1 - alpha_0) ** (n - sum(outcome))
    assert q.exact_level(n, quantile, alpha_0) == pytest.approx(level, rel=1e-9)


@given(n=st.integers(2, 400), quantile=SHARE, alpha_0=SHARE)
def test_hoeffdings_bound_holds_and_is_never_below_the_exact_level(n, quantile, alpha_0):
    if quantile > 1 - alpha_0 or quantile * n < 1:
        return
    assert q.exact_level(n, quantile, alpha_0) <= q.level_bound(n, quantile, alpha_0) * (1 + 1e-9)


@given(level=st.floats(1e-4, 0.2), quantile=st.floats(0.1, 0.6), alpha_0=st.floats(0.01, 0.35))
def test_the_promised_number_of_tokens_is_enough_and_one_fewer_is_not(level, quantile, alpha_0):
    n = q.tokens_for_level(level, quantile, alpha_0)
    assert q.level_bound(n, quantile, alpha_0) <= level * (1 + 1e-9)
    assert n == 1 or q.level_bound(n - 1, quantile, alpha_0) > level * (1 - 1e-9)


def test_the_powers_bound_is_below_the_true_power():
    """Uncorrupted tokens hit with probability 1 − β₀ and corrupted ones never: the worst that the
    proposition allows, by the exact binomial.
    """
    n, quantile, beta_0, corrupted = 200, 0.75, 0.2, 0.25
    kept = round(n * (1 - corrupted))
    power = distributions.binom.sf(q.hits_needed(n, quantile) - 1, kept, 1 - beta_0)
    assert q.power_bound(n, quantile, beta_0, corrupted) < power


@given(n=st.integers(1, 300), level=st.floats(1e-4, 0.3), alpha_0=SHARE)
def test_the_best_quantile_keeps_the_level_and_no_larger_one_does(n, level, alpha_0):
    lam = q.quantile_for(n, level, alpha_0)
    if alpha_0**n > level or n == 1:
        assert lam == 0
        return
    assert 0 < lam < 1
    assert q.exact_level(n, lam, alpha_0) <= level * (1 + 1e-9)
    next_one = lam + 1 / n
    if next_one < 1 - 1e-9:
        assert q.exact_level(n, next_one, alpha_0) > level * (1 - 1e-9)


def test_counting_is_worth_its_efficiency_of_adding():
    """Power of both tests at a small common shift, n and n·efficiency tokens: equal within a
    hundredth.
    """
    for alpha_0 in (0.5, 0.2):
        n, shift = 40_000, 0.015
        hit = distributions.norm.sf(stats.threshold(alpha_0) - shift)
        counting = distributions.binom.sf(distributions.binom.isf(0.05, n, alpha_0), n, hit)
        mean = shift * (n * q.efficiency(alpha_0)) ** 0.5
        adding = distributions.norm.sf(stats.threshold(0.05) - mean)
        assert counting == pytest.approx(adding, abs=0.01)
