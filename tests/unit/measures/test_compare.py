"""Changes, controls and shares on made-up items; McNemar's test and its power against exact
enumeration.
"""

from math import comb

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multinomial

from gaussmark_experiments.measures import compare
from gaussmark_experiments.measures.compare import CONTROL, GAUSSMARK, STRONG
from gaussmark_lib import stats


def changes(model, shift, n=80, seed=0, measure="toy"):
    noise = np.random.default_rng(seed).normal(0, 0.1, size=n)
    return compare.changes(measure, model, np.arange(n) % 8, shift + noise)


def test_a_measure_that_misses_the_strong_mark_is_blind():
    gaussmark = changes(GAUSSMARK, 0.01, seed=1)
    both = pd.concat([gaussmark, changes(STRONG, 0.4, seed=2)])
    assert compare.seen(both) == ["toy"]
    assert "(8 keys × 10)" in compare.sentence(both, "toy", "change of the toy (cm)")
    missed = pd.concat([gaussmark, changes(STRONG, 0.0, seed=2)])
    assert compare.seen(missed) == []
    assert compare.sentence(missed, "toy").startswith("**toy: blind.**")
    assert compare.mean_change(gaussmark).n == 80


@pytest.mark.parametrize(("change", "is_seen"), [(0.5, True), (0.0, False)])
def test_a_change_that_is_the_same_for_every_key_is_seen(change, is_seen):
    """There is no interval over keys then: McNemar's test of the items decides."""
    alike = compare.changes("toy", STRONG, np.arange(40) % 8, np.full(40, change))
    assert np.isnan(compare.mean_change(alike).low)
    assert compare.seen(alike) == ["toy"] * is_seen


def test_an_interval_covers_keys_that_were_not_tried():
    """Each key moves all of its items alike: items are many, and keys are few."""
    rng, hits = np.random.default_rng(4), 0
    for _ in range(200):
        effects = np.tile(rng.normal(0, 1, size=8), 10)
        drawn = compare.changes("toy", GAUSSMARK, np.arange(80) % 8, effects)
        estimate = compare.mean_change(drawn)
        hits += estimate.low <= 0 <= estimate.high
    covered = stats.interval(np.arange(200) < hits, confidence=0.999)
    assert covered.low <= 0.95 <= covered.high


def test_a_share_of_the_strong_marks_change_covers_its_truth():
    """Over two measures with changes in opposite directions: ratios of means over keys, by hand,
    and how often the interval holds the truth.
    """
    rng, hits = np.random.default_rng(5), 0
    key = np.repeat(np.arange(16), 5)
    for _ in range(200):
        tables, by_key = [], {GAUSSMARK: 0, STRONG: 0}
        for measure, strong in (("up", 1.0), ("down", -2.0)):
            for model, factor in ((GAUSSMARK, 0.2), (STRONG, 1.0)):
                change = factor * strong + rng.normal(0, 0.3, 16)[key] + rng.normal(0, 0.5, 80)
                tables.append(compare.changes(measure, model, key, change))
                by_key[model] += np.sign(strong) * change.mean()
        share = compare.share_of_strong(pd.concat(tables), ["up", "down"])
        assert share.value == pytest.approx(by_key[GAUSSMARK] / by_key[STRONG])
        hits += share.low <= 0.2 <= share.high
    assert share.n == 160
    covered = stats.interval(np.arange(200) < hits, confidence=0.999)
    assert covered.low <= 0.95 <= covered.high


def test_the_control_holds_where_nothing_differs_and_fails_where_something_does():
    """The level is that of all measures together."""
    held = [
        compare.control_holds(
            pd.concat(changes(CONTROL, 0.0, seed=5 * i + j, measure=str(j)) for j in range(5)), 0.2
        )
        for i in range(200)
    ]
    alarms = stats.interval(~np.array(held), confidence=0.999)
    assert alarms.low <= 1 - 0.96**5 <= alarms.high
    assert not compare.control_holds(changes(CONTROL, 0.3))


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (5, 0), (3, 9), (10, 10), (31, 12)])
def test_p_value_is_the_binomial_sum(lost, gained):
    m = lost + gained
    as_far = sum(comb(m, k) for k in range(m + 1) if abs(k - m / 2) >= abs(lost - m / 2))
    counted = compare.lost_and_gained(pd.Series([0] * 4 + [-1] * lost + [1] * gained))
    assert counted == {"items": m + 4, "lost": lost, "gained": gained, "p": counted["p"]}
    assert counted["p"] == pytest.approx(as_far / 2**m, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "drop", "churn"), [(40, 0.1, 0.05), (40, 0.0, 0.2), (60, 0.15, 0.0), (9, 0.0, 0.0)]
)
def test_power_is_the_sum_over_all_outcomes(n, drop, churn):
    shares = [drop + churn / 2, churn / 2, 1 - drop - churn]
    by_hand = sum(
        multinomial.pmf([lost, gained, n - lost - gained], n, shares)
        for lost in range(n + 1)
        for gained in range(n - lost + 1)
        if compare.mcnemar(lost, gained) <= 0.05
    )
    assert compare.mcnemar_power(n, drop, churn) == pytest.approx(by_hand, abs=1e-7)


def crossed(rng, n_keys, n_items):
    """Changes with a part of the key, a part of the item, and one of both."""
    of_both = rng.normal(size=(n_keys, n_items))
    change = 0.5 * rng.normal(size=(n_keys, 1)) + 0.8 * rng.normal(size=n_items) + of_both
    rows = [
        compare.changes("toy", compare.GAUSSMARK, key, of_key).assign(item=range(n_items))
        for key, of_key in enumerate(change)
    ]
    return pd.concat(rows, ignore_index=True)


def test_an_interval_over_keys_and_items_covers_the_truth_and_one_over_keys_does_not():
    rng = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(300):
        rows = crossed(rng, 12, 20)
        estimates = compare.over_keys_and_items(rows), compare.mean_change(rows)
        covered += [estimate.low <= 0 <= estimate.high for estimate in estimates]
    both, keys_alone = covered / 300
    assert 0.92 <= both <= 0.99
    assert keys_alone < 0.9


def test_items_that_all_keys_answer_alike_count_once():
    change = np.random.default_rng(1).normal(size=50)
    same = [
        compare.changes("toy", compare.GAUSSMARK, key, change).assign(item=range(50))
        for key in range(60)
    ]
    found = compare.over_keys_and_items(pd.concat(same))
    alone = stats.interval(change)
    assert (found.value, found.low, found.n) == pytest.approx((alone.value, alone.low, 50))
