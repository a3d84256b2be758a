"""The spread of false alarms over keys, beside the law's: it holds as often as is said where the
law does, and shows where it does not.
"""

import numpy as np
import pytest

from gaussmark_lib import stats
from gaussmark_lib.experiments import law_of_spread
from gaussmark_lib.experiments import one_key_in_production as production


def factor(n, cosine):
    return np.full((n, n), cosine) + (1 - cosine) * np.eye(n)


@pytest.mark.parametrize("cosine", [0.02, 0.6])
def test_the_interval_holds_one_as_often_as_is_said(cosine, monkeypatch):
    monkeypatch.setattr(law_of_spread, "N_RESAMPLES", 400)
    K, rng = factor(10, cosine), np.random.default_rng(0)
    found = [
        law_of_spread.over_predicted(
            rng.multivariate_normal(np.zeros(10), K, size=100), K, confidence=0.9
        )
        for _ in range(150)
    ]
    assert 0.83 <= np.mean([one.low <= 1 <= one.high for one in found]) <= 0.97
    assert np.mean([one.value for one in found]) == pytest.approx(1, abs=0.06)


def test_a_wrong_law_is_seen():
    psi = np.random.default_rng(1).multivariate_normal(np.zeros(12), factor(12, 0.5), size=400)
    right = law_of_spread.over_predicted(psi, factor(12, 0.5))
    assert right.low < 1 < right.high
    assert law_of_spread.over_predicted(psi, np.eye(12)).low > 1.2


def test_few_keys_with_rare_alarms_have_no_interval():
    found = law_of_spread.over_predicted(np.zeros((8, 4)), factor(4, 0.9))
    assert (found.value, found.n) == (0, 8)
    assert np.isnan(found.low)


def test_the_simulated_rates_are_those_of_the_law():
    K = factor(9, 0.4)
    rates = law_of_spread.simulated(K)
    assert rates.mean() == pytest.approx(0.05, abs=0.003)
    assert rates.std() == pytest.approx(production.predicted_spread(K), rel=0.03)


def test_what_reaches_farthest_from_one():
    wide, low, none = (
        stats.Estimate(1.0, 0.8, 1.3, 9),
        stats.Estimate(0.6, 0.5, 0.9, 9),
        stats.Estimate(1.0, np.nan, np.nan, 9),
    )
    assert law_of_spread.farthest([wide, low]) is low
    assert law_of_spread.farthest([wide, none, low]) is none
