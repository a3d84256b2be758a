"""What may be said, and the table that says it."""

import math

import numpy as np
import pytest

from gaussmark_lib import stats
from gaussmark_lib.quality import diversity
from gaussmark_lib.quality.verdict import (
    DIFFERENT,
    INDISTINGUISHABLE,
    OPEN,
    Metric,
    outcome,
    sentence,
)
from gaussmark_lib.stats import Estimate, Paired

ACCURACY, LOSS, SHIFT = (
    Metric("accuracy", "", "lower", 0.05),
    Metric("loss", "nats", "higher", 0.03),
    Metric("length", "tokens", "either", 2.0),
)


def found(difference, half, p_value, n=100, n_equal=0):
    return Paired(Estimate(difference, difference - half, difference + half, n), p_value, n_equal)


@pytest.mark.parametrize(
    ("metric", "difference", "word"),
    [
        (ACCURACY, -0.1, "worse"),
        (ACCURACY, 0.1, "better"),
        (LOSS, 0.1, "worse"),
        (LOSS, -0.1, "better"),
        (SHIFT, 1, "higher"),
        (SHIFT, -1, "lower"),
    ],
)
def test_a_difference_has_a_direction(metric, difference, word):
    assert sentence(metric, found(difference, 0.02, 0.001)).startswith(
        f"{word} by {abs(difference):g}"
    )


def test_no_significance_is_no_claim_unless_the_interval_is_narrow():
    assert sentence(LOSS, found(0.005, 0.01, 0.3)).startswith("indistinguishable at this n = 100")
    assert "too small for a claim" in sentence(LOSS, found(0.005, 0.06, 0.3))
    assert "about 400 would do" in sentence(LOSS, found(0.0, 0.06, 0.3))
    assert "about 400 would do" in sentence(LOSS, found(0.02, 0.02, 0.06)), (
        "twice as narrow, where the change leaves a third of the margin"
    )
    assert sentence(LOSS, found(0.04, 0.05, 0.06)).endswith(
        "reaches beyond ±0.03, and the change itself, +0.04, lies beyond it"
    )


def test_a_metric_without_a_margin_needs_a_number_of_items():
    mmd = Metric("MMD²", "", "either", None)
    assert sentence(mmd, found(0.0, math.nan, 0.4, n=256)) == "not told apart at n = 256 (p = 0.4)"
    assert "too small" in sentence(mmd, found(0.0, math.nan, 0.4, n=12))
    assert sentence(mmd, found(0.1, math.nan, 0.001, n=256)).startswith("told apart")


def test_items_that_all_change_alike_leave_no_interval():
    changed = stats.paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert math.isnan(changed.change.low)
    assert (
        sentence(LOSS, changed)
        == "n = 3 is too small for a claim: all items changed alike, which leaves no interval"
    )
    assert outcome(LOSS, changed) == OPEN


def test_equal_items_are_called_equal_and_none_are_no_claim():
    assert sentence(LOSS, found(0.0, 0.0, 1.0, n_equal=100)) == "equal on every one of 100 items"
    assert sentence(LOSS, found(0.0, 0.0, 1.0, n_equal=99)).startswith("indistinguishable")
    assert sentence(LOSS, found(0.0, 0.0, math.nan, n=1)).startswith("no claim")


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (found(0.1, 0.02, 0.001), DIFFERENT),
        (found(0.005, 0.01, 0.3), INDISTINGUISHABLE),
        (found(0.005, 0.06, 0.3), OPEN),
        (found(0.0, 0.0, 1.0, n_equal=100), INDISTINGUISHABLE),
        (found(0.0, 0.0, math.nan, n=1), OPEN),
    ],
)
def test_the_outcome_is_the_sentence_in_one_word(test, expected):
    words = {
        DIFFERENT: ("worse", "better"),
        INDISTINGUISHABLE: ("indistinguishable", "equal"),
        OPEN: ("n =", "no claim"),
    }
    assert outcome(LOSS, test) == expected
    assert sentence(LOSS, test).startswith(words[expected])


def test_without_a_margin_nothing_is_called_equal():
    assert outcome(Metric("MMD²", "", "either", None), found(0.0, 0.001, 0.4, n=256)) == OPEN


class TestPaired:
    def test_the_mean_and_a_bootstrap_around_it(self):
        rng = np.random.default_rng(0)
        base, other = rng.normal(size=60), rng.normal(size=60)
        change = stats.paired(base, other).change
        assert change.value == pytest.approx(np.mean(other - base))
        by_formula = stats.mean(other - base)
        assert change.low == pytest.approx(by_formula.low, abs=0.04)
        assert change.high == pytest.approx(by_formula.high, abs=0.04)

    def test_the_p_value_is_that_of_all_sign_flips(self):
        from itertools import product

        difference = np.array([0.3, 0.1, 0.4, -0.1, 0.5, 0.2, 0.35, 0.0])
        sums = np.array([np.dot(signs, difference) for signs in product([-1, 1], repeat=8)])
        exact = (abs(sums) >= abs(difference.sum()) - 1e-12).mean()
        assert stats.paired(np.zeros(8), difference, n_resamples=20_000).p_value == pytest.approx(
            exact, abs=0.005
        )

    def test_it_is_exact_under_the_null(self):
        rng = np.random.default_rng(2)
        p = [
            stats.paired(np.zeros(20), rng.standard_t(3, size=20), n_resamples=199, seed=i).p_value
            for i in range(600)
        ]
        level = stats.rate(np.array(p) <= 0.05, confidence=0.999)
        assert level.low <= 0.05 <= level.high

    def test_equal_is_equal(self):
        change, p_value, n_equal = stats.paired([1.0, 2.0], [1.0, 2.0])
        assert (change.value, change.n, p_value, n_equal) == (0, 2, 1.0, 2)
        assert np.isnan([change.low, change.high]).all(), (
            "two equal pairs do not say that all pairs are equal"
        )


def test_diversity_by_hand():
    table = diversity.table([[1, 2, 1, 2, 1, 2], [3, 4, 0, 5, 6, 7]], ends={0})
    assert table["distinct_1"].tolist() == [2 / 6, 1.0]
    assert table["distinct_2"].tolist() == [2 / 5, 1.0]
    assert table["seq_rep_4"].tolist() == pytest.approx([1 / 3, 0.0])
    assert table["length"].tolist() == [6, 2]
    assert table["ended"].tolist() == [False, True]
