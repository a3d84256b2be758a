"""Statistics against closed forms and simulation."""

from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special
from scipy import stats as scipy_stats

from gaussmark_lib import stats
from gaussmark_lib.errors import GaussMarkError


@given(
    counts=st.tuples(st.integers(0, 60), st.integers(0, 60)).filter(any),
    confidence=st.sampled_from([0.9, 0.95, 0.999]),
)
def test_the_interval_of_hits_is_clopper_and_pearsons(counts, confidence):
    """Quantiles of beta distributions, by the textbook."""
    hits, misses = counts
    found = stats.interval([True] * hits + [False] * misses, confidence=confidence)
    tail = (1 - confidence) / 2
    low = scipy_stats.beta.ppf(tail, hits, misses + 1) if hits else 0.0
    high = scipy_stats.beta.isf(tail, hits + 1, misses) if misses else 1.0
    assert (found.value, found.n) == (hits / (hits + misses), hits + misses)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_the_interval_of_independent_numbers_is_students():
    x = np.random.default_rng(0).exponential(size=30)
    low, high = scipy_stats.t.interval(0.9, 29, loc=x.mean(), scale=scipy_stats.sem(x))
    expected = pytest.approx({"value": x.mean(), "low": low, "high": high, "n": 30})
    assert stats.interval(x, confidence=0.9).row() == expected
    assert stats.interval(x, confidence=0.9, cluster=range(30)).row() == expected


@pytest.mark.parametrize("hits", [0, 8])
def test_a_share_of_all_or_none_has_the_exact_interval_too(hits):
    rows = np.arange(8) < hits
    for same in (rows, rows.astype(float)):
        assert stats.interval(same, np.mean, share=True) == stats.interval(rows)
    of_files = stats.interval(rows, cluster=[*"aabbccdd"])
    assert of_files == stats.interval(rows[::2])  # one trial per cluster
    assert np.isnan(stats.interval(np.ones(8)).low), "a mean of 1 is no share"


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_of_hits_in_clusters_is_korn_and_graubards(confidence):
    """With quantiles of F, as they write it, and each sum written out."""
    clusters = [(3, 1), (10, 5), (4, 0), (8, 2)]  # rows and hits
    n, n_hits = 25, 8
    p = n_hits / n
    variance = 4 / 3 * sum((hits - size * p) ** 2 for size, hits in clusters) / n**2
    measured = variance / (p * (1 - p) / (n - 1))
    largest = (3**2 + 10**2 + 4**2 + 8**2) / n
    deff = measured * (n_hits + largest) / (n_hits + measured)
    assert 1 < measured < deff < largest
    tail = (1 - confidence) / 2
    n_effective = n / deff * (scipy_stats.t.isf(tail, n - 1) / scipy_stats.t.isf(tail, 3)) ** 2
    x = p * n_effective
    below, above = 2 * (n_effective - x + 1), 2 * (n_effective - x)
    low = 2 * x * scipy_stats.f.ppf(tail, 2 * x, below)
    high = 2 * (x + 1) * scipy_stats.f.isf(tail, 2 * (x + 1), above)
    rows = [(c, i < hits) for c, (size, hits) in enumerate(clusters) for i in range(size)]
    labels, outcomes = np.array(rows).T
    found = stats.share(outcomes == 1, cluster=labels, confidence=confidence)
    assert found.row() == pytest.approx(
        {"value": p, "low": low / (below + low), "high": high / (above + high), "n": 4}
    )
    misses = stats.share(outcomes == 0, cluster=labels, confidence=confidence)
    assert (misses.low, misses.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_clusters_that_are_as_alike_as_chance_makes_them_count_as_rows():
    """No more than that, if they are more alike; a single cluster says nothing of others."""
    hits = np.arange(400) % 4 == 0
    in_fours = stats.share(hits, cluster=np.arange(400) // 4)
    alone = stats.share(hits)
    assert (in_fours.value, in_fours.n) == (0.25, 100)
    assert in_fours.high - in_fours.low == pytest.approx(alone.high - alone.low, rel=0.05)
    assert in_fours.high - in_fours.low > alone.high - alone.low
    assert stats.share(hits, cluster=range(400)) == alone
    assert np.isnan(stats.share(hits, cluster=["a"] * 400).low)


@pytest.mark.parametrize(
    ("rate", "correlation", "n_clusters"), [(0.05, 0.2, 20), (0.02, 0.5, 20), (0.5, 0.5, 8)]
)
def test_the_interval_of_a_rare_rate_in_clusters_covers_it(rate, correlation, n_clusters):
    """Clusters of ten rows; Student's interval covers .05 in 855 of 1,000 draws."""
    rng = np.random.default_rng(51)
    labels = np.repeat(np.arange(n_clusters), 10)
    spread = 1 / correlation - 1

    def interval() -> stats.Estimate:
        rates = rng.beta(rate * spread, (1 - rate) * spread, n_clusters)
        return stats.interval(rng.random(len(labels)) < rates[labels], cluster=labels)

    found = [interval() for _ in range(500)]
    assert np.mean([estimate.low <= rate <= estimate.high for estimate in found]) >= 0.93
    assert np.mean([estimate.high - estimate.low < 0.9 for estimate in found]) > 0.9, "of use"


def test_a_share_of_numbers_stays_within_0_and_1():
    rates = np.array([1.0, 0.9, 1.0, 1.0])
    assert stats.interval(rates).high > stats.interval(rates, share=True).high == 1.0
    assert stats.bootstrap(rates, np.mean, is_share=True) == stats.interval(rates, share=True)
    hits = np.arange(12) > 0
    in_pairs = {"cluster": np.arange(12) // 2}
    numbers = stats.interval(hits.astype(float), share=True, **in_pairs)
    assert numbers == stats.share(hits, **in_pairs), "0 and 1 are False and True"
    assert stats.interval(hits.astype(float), **in_pairs) == stats.mean(hits, **in_pairs)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(2, None, None), (5, None, None), (6, 0, 5), (8, 0, 7), (9, 1, 7), (15, 3, 11)],
)
def test_a_median_has_an_interval_from_six_rows_on(n, low, high):
    """Ranks of the two order statistics, from the textbook's table."""
    found = stats.interval(np.random.default_rng(0).permutation(n), np.median)
    assert (found.value, found.n) == ((n - 1) / 2, n)
    if low is None:
        assert np.isnan([found.low, found.high]).all()
    else:
        assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(("n", "n_in_cluster"), [(6, 1), (10, 1), (19, 1), (12, 5)])
def test_the_interval_of_a_median_covers_it(n, n_in_cluster):
    """Clusters have an effect of their own. The jackknife covers .71 of ten rows."""
    rng = np.random.default_rng(n)
    cluster = np.repeat(np.arange(n), n_in_cluster)

    def is_covered() -> bool:
        rows = np.exp(rng.normal(size=n)[cluster] + rng.normal(size=len(cluster)))
        found = stats.interval(rows, np.median, cluster=cluster)
        return found.low <= 1 <= found.high

    assert np.mean([is_covered() for _ in range(300)]) >= 0.93


def test_the_interval_of_a_ratio_is_that_of_the_delta_method():
    """(x̄/ȳ)·√(var(x/x̄ − y/ȳ)/n), for many rows that vary little."""
    rng = np.random.default_rng(4)
    common = rng.normal(0, 0.2, 400)
    above, below = (10 + common + rng.normal(0, 0.1, 400) for _ in range(2))
    found = stats.ratio(above, 2 * below)
    assert found.value == above.mean() / (2 * below.mean())
    error = found.value * np.std(above / above.mean() - below / below.mean()) / 20
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert stats.ratio([1.0, 5.0], [2.0, 2.0]).value == 1.5
    assert stats.ratio([1.0, 6.0], [1.0, 2.0]).value == 7 / 3, "of means, not a mean of ratios"
    assert stats.ratio(above, below, [*range(40)] * 10).n == 40


@pytest.mark.parametrize("statistic", [None, np.mean])
def test_the_intervals_of_clusters_cover_and_those_of_their_rows_do_not(statistic):
    """Clusters of 1 to 9 rows with an effect of their own."""
    rng = np.random.default_rng(2)

    held = naive = 0
    for _ in range(300):
        labels = np.repeat(np.arange(40), rng.integers(1, 10, size=40))
        rows = rng.normal(size=40)[labels] + 0.3 * rng.normal(size=len(labels))
        of_clusters = stats.interval(rows, statistic, cluster=labels, n_resamples=300)
        assert of_clusters.n == 40
        held += of_clusters.low <= 0 <= of_clusters.high
        of_rows = stats.interval(rows)
        naive += of_rows.low <= 0 <= of_rows.high
    assert held > 300 * 0.95 - 3.5 * (300 * 0.95 * 0.05) ** 0.5 - 6 * (statistic is not None)
    assert naive < 0.8 * 300


def test_a_table_is_resampled_by_rows():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"marked": rng.normal(2, 1, 50), "plain": rng.normal(0, 1, 50)})

    def difference(rows):
        return rows["marked"].mean() - rows["plain"].mean()

    by_table = stats.interval(table, difference, n_resamples=200)
    by_rows = stats.interval(table["marked"] - table["plain"], np.mean, n_resamples=200)
    assert by_table.row() == pytest.approx(by_rows.row())


@pytest.mark.parametrize("n", [3, 10, 19])
def test_few_clusters_have_students_interval_of_a_jackknife(n):
    """Of a mean it is Student's own; of a ratio it covers what the bootstrap of so few does not."""
    rng, labels = np.random.default_rng(n), np.repeat(np.arange(n), 4)
    of_mean = [stats.interval(np.arange(n) ** 2.0, one) for one in (None, np.mean)]
    assert of_mean[0].row() == pytest.approx(of_mean[1].row())

    def covered() -> bool:
        rows = np.exp(0.3 * rng.standard_normal((n, 1, 2))) * rng.uniform(0.8, 1.2, (n, 4, 2))
        found = stats.interval(rows.reshape(-1, 2), ratio, cluster=labels)
        return found.low <= 1 <= found.high

    def ratio(rows: np.ndarray) -> float:
        return rows[:, 0].mean() / rows[:, 1].mean()

    assert np.mean([covered() for _ in range(400)]) > 0.92
    assert np.isnan(stats.interval(np.arange(2.0), np.max).low)


@pytest.mark.parametrize("rows", [[2.0], [2.0, 2.0, 2.0]])
@pytest.mark.parametrize("statistic", [None, np.max])
def test_one_row_or_equal_rows_have_no_interval(rows, statistic):
    estimate = stats.interval(rows, statistic)
    assert (estimate.value, estimate.n) == (2.0, len(rows))
    assert np.isnan([estimate.low, estimate.high]).all()
    assert str(estimate) == f"2 (no interval), n = {len(rows)}"


@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_the_level_of_the_threshold_is_the_level(level):
    assert scipy_stats.norm.sf(stats.threshold(level)) == pytest.approx(level, rel=1e-12)


def test_psi_at_the_threshold_is_detected_and_a_higher_one():
    tau = stats.threshold(0.05)
    psi = [tau, np.nextafter(tau, 0), np.nextafter(tau, 9), np.inf, -np.inf, -9.0]
    assert stats.tpr(psi, 0.05).value == 0.5
    assert stats.tpr(np.reshape(psi, (2, 3)), 0.05).n == 6


def test_predicted_power_is_the_share_detected_in_simulation():
    """ψ ~ N(σ‖G‖, 1), the linear regime itself."""
    rng = np.random.default_rng(6)
    norms, sigma = rng.gamma(4, 10, size=500), 0.06
    psi = sigma * norms[:, None] + rng.standard_normal((500, 200))
    for level in (0.05, 0.01):
        measured = stats.tpr(psi, level, confidence=0.999)
        assert measured.low <= stats.predicted_power(norms, sigma, level) <= measured.high
    assert stats.predicted_power(norms, 1e-12, 0.05) == pytest.approx(0.05)  # the level


def test_the_predicted_price_is_the_divergence_of_two_normals_of_that_distance():
    """KL(N(ψ, 1) ‖ N(0, 1)) = ψ²/2, over T tokens."""
    x = np.linspace(-30, 30, 200_001)
    p, q = scipy_stats.norm.pdf(x, 3), scipy_stats.norm.logpdf(x)
    divergence = np.trapezoid(p * (scipy_stats.norm.logpdf(x, 3) - q), x)
    assert stats.predicted_price(3.0, 200) == pytest.approx(divergence / 200, rel=1e-6)


def test_sigma_is_solved_for_by_the_median():
    """One text with a huge gradient must not weaken the watermark of all others."""
    assert stats.sigma_for_psi([10.0, 20.0, 1e9], 3) == pytest.approx(0.15)


@given(
    norms=st.lists(st.floats(0.01, 100), min_size=1, max_size=20),
    level=st.sampled_from([0.05, 0.01, 1e-6]),
    share=st.floats(0.01, 0.99),
)
def test_sigma_for_power_has_the_wanted_power(norms, level, share):
    power = level + share * (1 - level)
    if power < 0.9999:
        sigma = stats.sigma_for_power(norms, power, level)
        assert stats.predicted_power(norms, sigma, level) == pytest.approx(power, abs=1e-9)


def p_of_max(x, loadings):
    """Of Z_i = λ_i S + √(1 − λ_i²) E_i, by the integral over S."""
    own = np.sqrt(1 - loadings**2)

    def slope(s):
        below = special.log_ndtr((x - loadings * s) / own).sum()
        return -scipy_stats.norm.pdf(s) * np.expm1(below)

    ends = np.linspace(-13, 13, 300)
    return sum(integrate.quad(slope, *two, epsabs=0, epsrel=1e-9)[0] for two in pairwise(ends))


@pytest.mark.parametrize("x", [-1.0, 2.0, 4.0, 7.2])
@pytest.mark.parametrize(
    "loadings", [[0.9, 0.9], [0.7, -0.7], [0.999, 0.99], [0.95, 0.9, 0.5], [0.9, -0.4, 0.2, 0.9]]
)
def test_the_largest_of_several_normals_against_one_integral(x, loadings):
    """Down to a p of 10⁻¹²."""
    loadings = np.array(loadings)
    K = np.outer(loadings, loadings)
    np.fill_diagonal(K, 1.0)
    found = np.exp(stats.log_p_of_max(x, K))
    assert found == pytest.approx(p_of_max(x, loadings), rel=1e-9 if len(K) == 2 else 1e-4)


def test_parallel_directions_count_once_and_opposite_ones_twice():
    x = np.array([0.5, 3.0, 50.0])
    one = scipy_stats.norm.logsf(x)
    for k in (1, 2, 3):
        assert stats.log_p_of_max(x, np.ones((k, k))) == pytest.approx(one, abs=1e-6)
    opposite = [[1.0, -1.0], [-1.0, 1.0]]
    assert stats.log_p_of_max(x, opposite) == pytest.approx(one + np.log(2), rel=1e-12)
    in_a_plane = np.cos(np.subtract.outer(*[np.arange(3) * 2 * np.pi / 3] * 2))  # of rank 2
    assert stats.log_p_of_max(3.0, in_a_plane) == pytest.approx(one[1] + np.log(3), abs=1e-3)


@given(psi=st.floats(-5, 60))
def test_psi_has_its_p_value_where_p_underflows(psi):
    again = stats.psi_of_log_p(scipy_stats.norm.logsf(psi))
    assert again == pytest.approx(psi, rel=1e-8, abs=1e-8)


LEVEL = "level: expected a number above 0 and below 1, got"
NO_NORMS, NOT_ALL_NORMS = ([], [0.0, 0.0], [np.inf]), ([], [0.0, 1.0], [np.nan], [np.inf])
NO_COSINES = [1.0], [[1, 2], [2, 1]], [[1, np.nan], [np.nan, 1]], [[1, 0.5], [0, 1]]


@pytest.mark.parametrize(
    ("function", "arguments", "match"),
    [
        *((stats.interval, (rows,), "without NaN") for rows in ([], [1.0, np.nan])),
        (stats.share, ([0.2, 0.0],), "hits: expected True or False for each trial"),
        (partial(stats.share, cluster=["a"]), ([True, False],), "a label for each of 2 rows"),
        (partial(stats.mean, cluster=["a", None]), ([1, 2],), "a label for each of 2 rows"),
        (stats.tpr, ([3.0, np.nan], 0.05), "psi: expected numbers, got NaN"),
        *((stats.threshold, (level,), LEVEL) for level in (0, 1, np.nan)),
        *((stats.sigma_for_power, (norms, 0.5, 0.05), "positive") for norms in NOT_ALL_NORMS),
        *((stats.sigma_for_power, ([1.0], power, 0.05), "power") for power in (0.05, 1.0)),
        *((stats.sigma_for_psi, (norms, 3), "positive gradient norms") for norms in NO_NORMS),
        *((stats.sigma_for_psi, ([1.0], psi), "psi: expected") for psi in (0, -1, np.nan)),
        *((stats.log_p_of_max, (2.0, K), "expected a matrix of cosines") for K in NO_COSINES),
    ],
)
def test_refuses(function, arguments, match):
    """A failed row must not read as "not watermarked"."""
    with pytest.raises(GaussMarkError, match=match):
        function(*arguments)


def test_sigma_for_power_in_closed_form_for_texts_that_are_alike():
    expected = (scipy_stats.norm.isf(0.01) + scipy_stats.norm.ppf(0.9)) / 25
    assert stats.sigma_for_power([25.0] * 7, 0.9, 0.01) == pytest.approx(expected, rel=1e-9)
