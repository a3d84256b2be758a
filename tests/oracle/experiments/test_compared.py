"""Comparisons paired over prompts and keys, against numbers done by hand and the coverage that they
promise.
"""

import numpy as np
import pandas as pd
import pytest

from gaussmark_lib.experiments import compared


def crossed(values: np.ndarray, **facts) -> pd.DataFrame:
    rows = [
        {"prompt": i, "key_id": f"k{(7 * j) % 10}", "x": values[i, j]}
        for i in range(values.shape[0])
        for j in range(values.shape[1])
    ]
    return pd.DataFrame(rows).assign(**facts)


def table(seed: int, shift: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    common = 10 + 3 * rng.standard_normal((12, 1)) + 3 * rng.standard_normal((1, 8))
    a, b = (
        crossed(common + extra + 0.5 * rng.standard_normal((12, 8)), scheme=name)
        for name, extra in (("a", 0.0), ("b", shift))
    )
    return pd.concat([a, b])


def test_what_prompts_and_keys_share_cancels():
    [found] = compared.differences(table(0, 1.0), "x", "a").to_dict("records")
    assert found["scheme"] == "b"
    assert found["low"] < 1 < found["high"]
    assert found["high"] - found["low"] < 0.7, (
        "the spread of prompts and keys alone would give an interval of more than 3"
    )


def test_the_interval_covers_and_sees():
    covered = [
        compared.differences(table(seed, 0.0), "x", "a", n_resamples=200)[
            ["low", "high"]
        ].to_numpy()[0]
        for seed in range(60)
    ]
    assert (
        sum(low <= 0 <= high for low, high in covered) >= 50
    )  # conservative; 57 expected at least, 50 has probability 1e-3 at 95%
    [seen] = compared.differences(table(1, 2.0), "x", "a").to_dict("records")
    assert seen["low"] > 0


@pytest.mark.parametrize(("ours", "theirs"), [(0.0, 1.0), (1.0, 0.0)])
def test_all_hits_or_none_bound_a_difference_by_the_exact_interval(ours, theirs):
    """Eight prompts: 0 of 8 has the exact interval 0 to 0.369, and so has a difference that was
    seen in all of them.
    """
    cells = pd.concat(
        [crossed(np.full((8, 3), theirs), scheme="a"), crossed(np.full((8, 3), ours), scheme="b")]
    )
    [found] = compared.differences(cells, "x", "a").to_dict("records")
    low, high = (-1.0, -1 + 0.3694) if ours < theirs else (1 - 0.3694, 1.0)
    assert found["value"] == ours - theirs
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-3)


def test_a_difference_is_not_bounded_by_a_share_that_none_was_seen_of():
    """The base has no hit: with more texts it would have some, and the difference would be smaller.
    The other end is the resamples'.

    The half-widths add as squares: of the share that was seen, by resamples, and of the one that
    was not, exactly.
    """
    ours = np.zeros((8, 3))
    ours[:3] = 1
    cells = pd.concat([crossed(np.zeros((8, 3)), scheme="a"), crossed(ours, scheme="b")])
    [found] = compared.differences(cells, "x", "a").to_dict("records")
    plain = compared._paired(
        cells, "x", "a", lambda ours, theirs: ours.mean() - theirs.mean()
    ).to_dict("records")[0]
    assert found["low"] == pytest.approx(
        0.375 - ((0.375 - plain["low"]) ** 2 + 0.3694**2) ** 0.5, abs=1e-3
    )
    assert found["high"] == plain["high"]


def test_pairs_that_were_not_seen_widen_a_difference_where_neither_scheme_has_all_hits_or_none():
    """Ours is a subset of theirs: no resample is above 0. Two pairs of 16 that differ are no proof
    that ours detects no more (sign test: p = 1/4).
    """
    theirs, ours = np.tile([[1.0], [0.0]], (4, 2)), np.tile([[1.0], [0.0]], (4, 2))
    ours[[0, 2], 0] = 0
    [found] = compared.differences(
        pd.concat([crossed(theirs, scheme="a"), crossed(ours, scheme="b")]), "x", "a"
    ).to_dict("records")
    assert found["value"] == -2 / 16
    assert found["high"] > 0.2
    assert found["low"] == -0.5, "that end is the resamples'"


def test_a_pair_that_was_seen_is_no_better_evidence_than_none():
    """Four prompts, three keys: ours misses six texts that theirs detects. That ours detects one
    that theirs misses does not lower the upper end.
    """
    theirs, ours = np.ones((4, 3)), np.ones((4, 3))
    ours[:2], theirs[3, 0] = 0, 0
    ends = []
    for seen in (0, 1):
        ours[3, 0] = seen
        [found] = compared.differences(
            pd.concat([crossed(theirs, scheme="a"), crossed(ours, scheme="b")]), "x", "a"
        ).to_dict("records")
        ends.append(found["high"])
    assert 0 < ends[0] <= ends[1]


def test_many_pairs_of_one_kind_and_none_of_the_other_decide():
    theirs = np.ones((30, 2))
    ours = theirs * (np.arange(30)[:, None] >= 12)
    [found] = compared.differences(
        pd.concat([crossed(theirs, scheme="a"), crossed(ours, scheme="b")]), "x", "a"
    ).to_dict("records")
    assert found["high"] < 0, "twelve of thirty prompts"


def test_there_is_no_ratio_over_a_mean_that_is_not_told_from_zero():
    base = np.random.default_rng(0).normal(0.1, 1.0, size=(4, 2)) - 0.5
    [found] = compared.ratios(
        pd.concat([crossed(base, scheme="a"), crossed(base + 1, scheme="b")]), "x", "a"
    ).to_dict("records")
    assert np.isnan([found["value"], found["low"], found["high"]]).all()
    assert found["mean"] == pytest.approx(base.mean() + 1)


def test_a_ratio_is_of_the_means():
    values = np.array([[1.0, 3.0], [5.0, 7.0]])
    [found] = compared.ratios(
        pd.concat([crossed(values, scheme="a"), crossed(3 * values, scheme="b")]), "x", "a"
    ).to_dict("records")
    assert found["value"] == pytest.approx(3)
    assert np.isnan([found["low"], found["high"]]).all(), "resamples that all agree bound nothing"
    assert found["mean"] == 12


def test_shares_are_of_each_cell_and_kind():
    rows = [
        crossed(
            np.array([[0.01, 0.2], [0.04, 0.01]]),
            scheme="a",
            corruption="c",
            fraction=0.1,
            kind="own key",
        ),
        crossed(
            np.array([[0.5, 0.2], [0.04, 0.3]]),
            scheme="a",
            corruption="c",
            fraction=0.1,
            kind="plain text",
        ),
    ]
    found = compared.shares(
        pd.concat(rows).rename(columns={"x": "p_value"}), 0.05, n_resamples=50
    ).set_index("kind")
    assert found["value"]["own key"] == 0.75
    assert found["value"]["plain text"] == 0.25
    assert (found["n"] == 4).all(), "prompts × keys"


def test_copies_of_a_text_are_no_further_trials():
    alarms = crossed(np.where(np.eye(6, 4) > 0, 0.01, 0.5), scheme="a").rename(
        columns={"x": "p_value"}
    )
    once, often = (
        compared.false_alarms(alarms, 0.05),
        compared.false_alarms(pd.concat([alarms] * 5), 0.05),
    )
    assert once == often
    assert once.value == pytest.approx(4 / 24)


def alarms(n_prompts: int, n_keys: int, seen: int) -> pd.DataFrame:
    p = np.full(n_prompts * n_keys, 0.5)
    p[:seen] = 0.01
    return crossed(p.reshape(n_prompts, n_keys), scheme="a").rename(columns={"x": "p_value"})


@pytest.mark.parametrize(("n_prompts", "n_keys"), [(2, 2), (4, 10), (40, 2)])
def test_an_alarm_is_no_better_evidence_than_none(n_prompts, n_keys):
    upper = [
        compared.false_alarms(alarms(n_prompts, n_keys, seen), 0.05).high for seen in (0, 1, 2, 3)
    ]
    assert upper == sorted(upper)
    assert upper[0] == pytest.approx(1 - 0.0005 ** (1 / n_prompts))


def test_alarms_that_resamples_know_nothing_of_are_bounded_all_the_same():
    once = alarms(4, 2, 0)
    found = compared.false_alarms(pd.concat([once, once.assign(p_value=0.01)]), 0.05)
    assert found.value == 0.5, "one of two in every cell"
    assert 0 < found.low < 0.05 < 0.95 < found.high < 1
    many = compared.false_alarms(alarms(40, 2, 40), 0.05)
    assert many.low > 0.05, "and a level that is not kept is seen"
