"""McNemar's test and its power against exact enumeration."""

from math import comb

import pytest
from scipy.stats import multinomial

from gaussmark_lib.quality import accuracy


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (5, 0), (3, 9), (10, 10), (31, 12)])
def test_p_value_is_the_binomial_sum(lost, gained):
    m = lost + gained
    as_far = sum(comb(m, k) for k in range(m + 1) if abs(k - m / 2) >= abs(lost - m / 2))
    assert accuracy.mcnemar(lost, gained) == pytest.approx(as_far / 2**m, rel=1e-12)


def outcomes(n, p_lost, p_gained):
    """Every (lost, gained) with its probability."""
    shares = [p_lost, p_gained, 1 - p_lost - p_gained]
    for lost in range(n + 1):
        for gained in range(n - lost + 1):
            counts = [lost, gained, n - lost - gained]
            yield lost, gained, multinomial.pmf(counts, n, shares)


@pytest.mark.parametrize(("n", "drop", "churn"), [(40, 0.1, 0.05), (40, 0.0, 0.2), (60, 0.15, 0.0)])
def test_power_is_the_sum_over_all_outcomes(n, drop, churn):
    by_hand = sum(
        p
        for lost, gained, p in outcomes(n, drop + churn / 2, churn / 2)
        if accuracy.mcnemar(lost, gained) <= 0.05
    )
    assert accuracy.power(n, drop, churn) == pytest.approx(by_hand, abs=1e-7)
