"""Statistics against closed forms, loops over pairs, and simulation."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from gaussmark_lib import stats
from gaussmark_lib.errors import GaussMarkError


@given(
    hits=st.integers(0, 60),
    misses=st.integers(0, 60),
    confidence=st.sampled_from([0.9, 0.95, 0.999]),
)
def test_the_interval_of_a_rate_is_clopper_and_pearsons(hits, misses, confidence):
    """Quantiles of beta distributions, by the textbook."""
    n = hits + misses
    if n == 0:
        return
    found = stats.rate([True] * hits + [False] * misses, confidence)
    tail = (1 - confidence) / 2
    assert found.value == hits / n
    assert found.n == n
    assert found.low == pytest.approx(
        scipy_stats.beta.ppf(tail, hits, misses + 1) if hits else 0.0, rel=1e-9
    )
    assert found.high == pytest.approx(
        scipy_stats.beta.isf(tail, hits + 1, misses) if misses else 1.0, rel=1e-9
    )


def test_the_interval_of_independent_numbers_is_students():
    x = np.random.default_rng(0).exponential(size=30)
    low, high = scipy_stats.t.interval(0.9, 29, loc=x.mean(), scale=scipy_stats.sem(x))
    expected = pytest.approx({"value": x.mean(), "low": low, "high": high, "n": 30})
    assert stats.interval(x, confidence=0.9).row() == expected
    assert stats.interval(x, confidence=0.9, cluster=range(30)).row() == expected


def test_the_interval_of_hits_is_exact_and_a_share_of_all_or_none_too():
    for hits in (0, 3, 8):
        rows = np.arange(8) < hits
        expected = stats.rate(rows)
        assert stats.interval(rows) == expected
        if hits != 3:
            for same in (rows, rows.astype(float)):
                assert stats.interval(same, np.mean, share=True) == expected
            of_files = stats.interval(rows, cluster=[*"aabbccdd"])
            assert of_files == stats.rate(rows[::2])  # one trial per cluster
    assert np.isnan(stats.interval(np.ones(8)).low), "a mean of 1 is no share"


def _cover(truth, draw, n=400, **options):
    """How many of n intervals hold the truth, in standard deviations from n · 95%."""
    intervals = [stats.interval(*draw(), **options) for _ in range(n)]
    held = sum(i.low <= truth <= i.high for i in intervals)
    return (held - 0.95 * n) / (0.95 * 0.05 * n) ** 0.5


def test_the_intervals_of_independent_rows_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    assert abs(_cover(3.0, lambda: (rng.normal(3, 2, size=12),))) < 3.5
    medians = _cover(0.0, lambda: (rng.normal(size=80), np.median), n_resamples=300)
    assert abs(medians) < 3.5


@pytest.mark.parametrize("statistic", [None, np.mean])
def test_the_intervals_of_clusters_cover_and_those_of_their_rows_do_not(statistic):
    """Clusters of 1 to 9 rows with an effect of their own."""
    rng = np.random.default_rng(2)

    def draw():
        labels = np.repeat(np.arange(40), rng.integers(1, 10, size=40))
        return rng.normal(size=40)[labels] + 0.3 * rng.normal(size=len(labels)), statistic, labels

    def interval(rows, statistic, labels, **options):
        return stats.interval(rows, statistic, cluster=labels, n_resamples=300, **options)

    drawn = [draw() for _ in range(300)]
    held = sum((i := interval(*one)).low <= 0 <= i.high for one in drawn)
    naive = sum((i := stats.interval(one[0])).low <= 0 <= i.high for one in drawn)
    assert held > 300 * 0.95 - 3.5 * (300 * 0.95 * 0.05) ** 0.5 - 6 * (statistic is not None)
    assert naive < 0.8 * 300
    assert interval(*drawn[0]).n == 40


def test_a_table_is_resampled_by_rows():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"marked": rng.normal(2, 1, 50), "plain": rng.normal(0, 1, 50)})

    def ratio(rows):
        return rows["marked"].mean() - rows["plain"].mean()

    by_table = stats.interval(table, ratio, n_resamples=200)
    by_rows = stats.interval(table["marked"] - table["plain"], np.mean, n_resamples=200)
    assert by_table.row() == pytest.approx(by_rows.row())
    student = stats.interval(table["marked"] - table["plain"])
    assert by_table.low == pytest.approx(student.low, abs=0.1)
    assert by_table.high == pytest.approx(student.high, abs=0.1)


@pytest.mark.parametrize("rows", [[2.0], [2.0, 2.0, 2.0]])
@pytest.mark.parametrize("statistic", [None, np.max])
def test_one_row_or_equal_rows_have_no_interval(rows, statistic):
    estimate = stats.interval(rows, statistic)
    assert (estimate.value, estimate.n) == (2.0, len(rows))
    assert np.isnan([estimate.low, estimate.high]).all()


@pytest.mark.parametrize("rows", [[], [1.0, np.nan]])
def test_a_row_without_a_number_is_not_passed_over(rows):
    with pytest.raises(GaussMarkError, match="without NaN"):
        stats.interval(rows)


def test_the_interval_covers_as_often_as_it_says():
    """Exact: over all outcomes of 40 trials, weighted by their probability."""
    for p in (0.02, 0.05, 0.3, 0.5, 0.9):
        intervals = [stats.rate(np.arange(40) < hits) for hits in range(41)]
        covered = sum(
            scipy_stats.binom.pmf(hits, 40, p)
            for hits, i in enumerate(intervals)
            if i.low <= p <= i.high
        )
        assert covered >= 0.95


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=12),
    st.lists(st.integers(-5, 5), min_size=1, max_size=12),
)
def test_auc_is_the_share_of_pairs_in_order(null, marked):
    """Mann–Whitney, ties half, by a loop over all pairs."""
    wins = sum((b > a) + 0.5 * (b == a) for a, b in itertools.product(null, marked))
    assert stats.auc(null, marked) == pytest.approx(wins / (len(null) * len(marked)))


def test_auc_of_two_shifted_normals_is_the_closed_form():
    rng = np.random.default_rng(0)
    n = 4000
    found = stats.auc(rng.standard_normal(n), 1.5 + rng.standard_normal(n))
    assert found == pytest.approx(scipy_stats.norm.cdf(1.5 / 2**0.5), abs=3.3 * 0.5 / n**0.5)


def test_roc_points_are_the_rates_at_their_thresholds():
    rng = np.random.default_rng(1)
    null, marked = rng.standard_normal(50).round(1), (1 + rng.standard_normal(70)).round(1)
    curve = stats.roc(null, marked)
    for fpr, tpr, threshold in curve.itertuples(index=False):
        assert fpr == pytest.approx((null >= threshold).mean())
        assert tpr == pytest.approx((marked >= threshold).mean())
    assert curve.iloc[0, :2].tolist() == [0, 0]
    assert curve.iloc[-1, :2].tolist() == [1, 1]
    area = np.trapezoid(curve["tpr"], curve["fpr"])
    assert area == pytest.approx(stats.auc(null, marked))


def test_qq_bands_are_quantiles_of_order_statistics_by_simulation():
    n, repeats = 12, 20_000
    sorted_uniform = np.sort(np.random.default_rng(2).random((repeats, n)), axis=1)
    found = stats.qq(np.random.default_rng(3).random(n), confidence=0.9)
    np.testing.assert_allclose(
        found["expected"], sorted_uniform.mean(0), atol=3.5 * 0.5 / repeats**0.5
    )
    inside = (
        (sorted_uniform >= found["low"].to_numpy()) & (sorted_uniform <= found["high"].to_numpy())
    ).mean(0)
    np.testing.assert_allclose(inside, 0.9, atol=3.5 * (0.9 * 0.1 / repeats) ** 0.5)


@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_the_level_of_the_threshold_is_the_level(level):
    n = 200_000
    psi = np.random.default_rng(5).standard_normal(n)
    found = stats.tpr(psi, level, confidence=0.999)
    assert found.low <= level <= found.high
    assert scipy_stats.norm.sf(stats.threshold(level)) == pytest.approx(level, rel=1e-12)


def test_predicted_power_is_the_share_detected_in_simulation():
    """ψ ~ N(σ‖G‖, 1), the linear regime itself."""
    rng = np.random.default_rng(6)
    norms, sigma = rng.gamma(4, 10, size=500), 0.06
    n = 200
    psi = sigma * norms[:, None] + rng.standard_normal((500, n))
    for level in (0.05, 0.01):
        measured = stats.tpr(psi, level, confidence=0.999)
        assert measured.low <= stats.predicted_power(norms, sigma, level) <= measured.high
    assert stats.predicted_power(norms, 1e-12, 0.05) == pytest.approx(
        0.05
    )  # σ → 0: no more than the level


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=30), st.floats(0.1, 20))
def test_sigma_for_psi_is_the_inverse_of_the_prediction(norms, psi):
    sigma = stats.sigma_for_psi(norms, psi)
    assert np.median(stats.predicted_psi(norms, sigma)) == pytest.approx(psi)


def test_the_predicted_price_is_the_divergence_of_two_normals_of_that_distance():
    """KL(N(ψ, 1) ‖ N(0, 1)) = ψ²/2, over T tokens."""
    x = np.linspace(-30, 30, 200_001)
    p, q = scipy_stats.norm.pdf(x, 3), scipy_stats.norm.logpdf(x)
    divergence = np.trapezoid(p * (scipy_stats.norm.logpdf(x, 3) - q), x)
    assert stats.predicted_price(3.0, 200) == pytest.approx(divergence / 200, rel=1e-6)


@given(
    norms=st.lists(st.floats(0.01, 100), min_size=1, max_size=20),
    level=st.sampled_from([0.05, 0.01, 1e-6]),
    share=st.floats(0.01, 0.99),
)
def test_sigma_for_power_has_the_wanted_power(norms, level, share):
    power = level + share * (1 - level)
    if power < 0.9999:
        assert stats.predicted_power(
            norms, stats.sigma_for_power(norms, power, level), level
        ) == pytest.approx(power, abs=1e-9)


def test_sigma_for_power_in_closed_form_for_texts_that_are_alike():
    expected = (scipy_stats.norm.isf(0.01) + scipy_stats.norm.ppf(0.9)) / 25
    assert stats.sigma_for_power([25.0] * 7, 0.9, 0.01) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("norms", "power", "match"),
    [
        ([], 0.5, "positive"),
        ([0.0, 1.0], 0.5, "positive"),
        ([np.nan], 0.5, "NaN"),
        ([1.0], 0.05, "power"),
        ([1.0], 1.0, "power"),
    ],
)
def test_a_power_that_cannot_be_had(norms, power, match):
    with pytest.raises(ValueError, match=match):
        stats.sigma_for_power(norms, power, 0.05)


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
    with pytest.raises(ValueError, match="psi: expected numbers, got NaN"):
        stats.tpr([3.0, np.nan, 0.0], 0.05)
    with pytest.raises(ValueError, match="psi: expected numbers, got NaN"):
        stats.levels(pd.Series([np.nan]))


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("hits", [[True, np.nan], ["yes", "no"], [0, 2], [None, True], "1"])
def test_what_is_neither_a_hit_nor_a_miss(hits):
    with pytest.raises(GaussMarkError, match="hits: expected"):
        stats.rate(hits)


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
