"""McNemar's test, its interval and its power, against exact enumeration and simulation."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from gaussmark_lib.quality import accuracy


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (5, 0), (3, 9), (10, 10), (31, 12)])
def test_p_value_is_the_binomial_sum(lost, gained):
    m = lost + gained
    as_far = sum(comb(m, k) for k in range(m + 1) if abs(k - m / 2) >= abs(lost - m / 2))
    assert accuracy.mcnemar(lost, gained) == pytest.approx(as_far / 2**m, rel=1e-12)


def test_counts_and_direction():
    base, other = [1, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 1]
    change, p_value, n_equal = accuracy.paired(base, other)
    assert accuracy.changes(base, other) == (2, 1)
    assert (n_equal, change.n, p_value) == (3, 6, accuracy.mcnemar(2, 1))
    assert change.value == pytest.approx(np.mean(other) - np.mean(base))
    assert accuracy.paired(other, base).change.value == -change.value
    assert change.low < change.value < change.high


def _enumerate(n, p_lost, p_gained):
    """Every (lost, gained) with its probability."""
    for lost in range(n + 1):
        for gained in range(n - lost + 1):
            yield (
                lost,
                gained,
                stats.multinomial.pmf(
                    [lost, gained, n - lost - gained], n, [p_lost, p_gained, 1 - p_lost - p_gained]
                ),
            )


@pytest.mark.parametrize(
    ("p_lost", "p_gained"), [(0.02, 0.02), (0.1, 0.05), (0.3, 0.05), (0.25, 0.25)]
)
def test_the_interval_covers(p_lost, p_gained):
    """Over all outcomes of 40 items, the 95% interval holds the true difference with a probability
    of about 95%.
    """
    n, coverage = 40, 0.0
    for lost, gained, probability in _enumerate(n, p_lost, p_gained):
        if probability > 1e-9:
            base = np.repeat([1, 0, 1], [lost, gained, n - lost - gained])
            other = np.repeat([0, 1, 1], [lost, gained, n - lost - gained])
            change = accuracy.paired(base, other).change
            coverage += probability * (change.low <= p_gained - p_lost <= change.high)
    assert 0.93 <= coverage <= 0.999


@pytest.mark.parametrize(("n", "drop", "churn"), [(40, 0.1, 0.05), (40, 0.0, 0.2), (60, 0.15, 0.0)])
def test_power_is_the_sum_over_all_outcomes(n, drop, churn):
    by_hand = sum(
        p
        for lost, gained, p in _enumerate(n, drop + churn / 2, churn / 2)
        if accuracy.mcnemar(lost, gained) <= 0.05
    )
    assert accuracy.power(n, drop, churn) == pytest.approx(by_hand, abs=1e-7)


def test_power_is_what_simulation_gives():
    n, drop, churn, trials = 300, 0.05, 0.04, 4_000
    rng = np.random.default_rng(1)
    lost, gained, _ = rng.multinomial(
        n, [drop + churn / 2, churn / 2, 1 - drop - churn], size=trials
    ).T
    hits = int((accuracy.mcnemar(lost, gained) <= 0.05).sum())
    low, high = stats.binomtest(hits, trials).proportion_ci(0.999)
    assert low <= accuracy.power(n, drop, churn) <= high


def test_the_detectable_drop_has_the_wanted_power_and_no_smaller_one_has():
    drop = accuracy.detectable_drop(300, 0.03)
    assert accuracy.power(300, drop, 0.03) >= 0.8 > accuracy.power(300, drop - 0.001, 0.03)
    assert np.isnan(accuracy.detectable_drop(3, 0.03))
