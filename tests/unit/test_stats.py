"""Statistics: what counts as detected, and input that has no answer."""

import numpy as np
import pandas as pd
import pytest

from gaussmark_lib import stats
from gaussmark_lib.errors import StatisticsError


def test_psi_at_the_threshold_is_detected():
    tau = stats.threshold(0.05)
    assert stats.tpr(
        [tau, np.nextafter(tau, 0), np.nextafter(tau, 9)], 0.05
    ).value == pytest.approx(2 / 3)


def test_higher_psi_means_more_watermarked():
    assert stats.auc([-1.0, 0.0], [5.0, 6.0]) == 1
    assert stats.auc([5.0, 6.0], [-1.0, 0.0]) == 0
    assert stats.tpr([9.0], 0.05).value == 1
    assert stats.tpr([-9.0], 0.05).value == 0


def test_a_text_without_psi_is_neither_hit_nor_miss():
    """A failed row must not read as "not watermarked"."""
    with pytest.raises(ValueError, match="psi: expected numbers, got 1 of 3 that are NaN"):
        stats.tpr([3.0, np.nan, 0.0], 0.05)
    with pytest.raises(ValueError, match="got 1 of 1 that are NaN"):
        stats.levels(pd.Series([np.nan]))


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("hits", [[True, np.nan], ["yes", "no"], [0, 2], [None, True], "1"])
def test_what_is_neither_a_hit_nor_a_miss(hits):
    with pytest.raises(StatisticsError, match="hits: expected"):
        stats.rate(hits)


@pytest.mark.parametrize("summary", [stats.qq, stats.uniformity, stats.mean])
def test_nan_is_not_passed_on(summary):
    with pytest.raises(StatisticsError, match="got 1 of 3 that are NaN"):
        summary([0.5, np.nan, 0.1])


def test_infinite_psi_is_still_a_psi():
    assert stats.tpr([np.inf, -np.inf], 0.05).value == 0.5


@pytest.mark.parametrize("level", [0, 1, -0.05, 5, float("nan")])
def test_a_level_is_a_probability(level):
    for f in (
        lambda: stats.threshold(level),
        lambda: stats.tpr([1.0], level),
        lambda: stats.predicted_power([1.0], 1.0, level),
    ):
        with pytest.raises(ValueError, match="expected 0 < level < 1, got"):
            f()


def test_levels_say_whether_the_nominal_one_holds():
    psi = np.random.default_rng(0).standard_normal(5000)
    found = stats.levels(psi)
    assert found["level"].tolist() == [0.05, 0.01, 0.001]
    assert found["holds"].all()
    assert (found["n"] == 5000).all()
    assert not stats.levels(psi + 1)["holds"].any()
    assert not stats.levels(psi - 6).loc[0, "holds"]  # too few false positives is no level either


def test_rates_and_means_of_nothing():
    with pytest.raises(ValueError, match="a rate needs at least one trial"):
        stats.rate([])
    with pytest.raises(ValueError, match="a rate needs at least one trial"):
        stats.tpr([], 0.05)
    with pytest.raises(ValueError, match="at least two values, got 1"):
        stats.mean([1.0])


def test_equal_values_have_no_interval():
    assert np.isnan([(found := stats.mean([2.0, 2.0, 2.0])).low, found.high]).all()
    assert (found.value, found.n) == (2.0, 3)


@pytest.mark.parametrize(
    ("norms", "psi"),
    [
        ([], 3),
        ([0.0, 0.0], 3),
        ([np.nan], 3),
        ([np.inf], 3),
        ([1.0], 0),
        ([1.0], -1),
        ([1.0], np.nan),
    ],
)
def test_sigma_cannot_be_solved_for_from_nothing(norms, psi):
    with pytest.raises(
        ValueError, match=r"(grad_norm|psi): expected|expected positive gradient norms"
    ):
        stats.sigma_for_psi(norms, psi)


def test_sigma_is_solved_for_by_the_median():
    """One text with a huge gradient must not weaken the watermark of all others."""
    assert stats.sigma_for_psi([10.0, 20.0, 1e9], 3) == pytest.approx(0.15)


def test_shapes_are_flattened_and_series_are_fine():
    table = pd.Series([3.0, 0.0, 2.0, -1.0])
    assert stats.tpr(table, 0.05).n == 4
    assert stats.tpr(table.to_numpy().reshape(2, 2), 0.05).value == 0.5
    assert stats.auc(table[:2], table[2:]) == 0.25


def test_qq_sorts_and_keeps_every_p_value():
    found = stats.qq([0.7, 0.1, 0.4])
    assert found["observed"].tolist() == [0.1, 0.4, 0.7]
    assert found["expected"].tolist() == [0.25, 0.5, 0.75]
    assert (found["low"] < found["expected"]).all()
    assert (found["expected"] < found["high"]).all()


def test_a_matrix_has_prompts_in_order_and_keys_as_they_first_appear():
    table = pd.DataFrame(
        {"prompt": [1, 0, 1, 0], "key_id": ["z", "z", "a", "a"], "x": [1, 2, 3, 4]}
    )
    assert stats.matrix(table, "x").tolist() == [[2, 4], [1, 3]]
