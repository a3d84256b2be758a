"""McNemar's test and its power against exact enumeration."""

from math import comb

import numpy as np
import pytest
from scipy.stats import multinomial

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


def outcomes(n, p_lost, p_gained):
    """Every (lost, gained) with its probability."""
    shares = [p_lost, p_gained, 1 - p_lost - p_gained]
    for lost in range(n + 1):
        for gained in range(n - lost + 1):
            counts = [lost, gained, n - lost - gained]
            yield lost, gained, multinomial.pmf(counts, n, shares)


@pytest.mark.parametrize(("p_lost", "p_gained"), [(0.02, 0.02), (0.3, 0.05), (0.25, 0.25)])
def test_the_interval_covers(p_lost, p_gained):
    n, coverage = 40, 0.0
    for lost, gained, probability in outcomes(n, p_lost, p_gained):
        if probability > 1e-9:
            answers = [lost, gained, n - lost - gained]
            change = accuracy.paired(np.repeat([1, 0, 1], answers), np.repeat([0, 1, 1], answers))
            coverage += probability * (change.change.low <= p_gained - p_lost <= change.change.high)
    assert 0.93 <= coverage <= 0.999


@pytest.mark.parametrize(("n", "drop", "churn"), [(40, 0.1, 0.05), (40, 0.0, 0.2), (60, 0.15, 0.0)])
def test_power_is_the_sum_over_all_outcomes(n, drop, churn):
    by_hand = sum(
        p
        for lost, gained, p in outcomes(n, drop + churn / 2, churn / 2)
        if accuracy.mcnemar(lost, gained) <= 0.05
    )
    assert accuracy.power(n, drop, churn) == pytest.approx(by_hand, abs=1e-7)
