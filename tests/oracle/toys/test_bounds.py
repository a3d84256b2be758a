"""The paper's power bounds: above the exact miss rate in
every cell, the printed forms below it.
"""

import numpy as np
import pytest
from scipy import integrate, special, stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import bounds, gaussian, power, printed, softmax

RICH = softmax.random_model(1024, 64, temperature=10.0, seed=0)
RICH_KEYS = softmax.unit_noises(64, 512, seed=0)


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_mgf_of_the_norm_by_integration(dim):
    for t in (-20.0, -3.0, 0.0, 0.5, 6.0):
        peak = max((t + np.sqrt(t**2 + 4 * (dim - 1))) / 2, 0.0)
        top = t * peak + (stats.chi.logpdf(peak, dim) if peak > 0 else stats.chi.logpdf(1e-12, dim))
        exact, _ = integrate.quad(
            lambda r, t=t, top=top: np.exp(t * r + stats.chi.logpdf(r, dim) - top),
            0,
            peak + 12,
            points=[peak] if peak > 0 else None,
            limit=300,
        )
        assert bounds.log_mgf_chi(dim, t) == pytest.approx(np.log(exact) + top, rel=1e-8, abs=1e-10)
    assert bounds.log_mgf_chi(dim, np.array([0.5, 6.0])).shape == (2,)


# --- the corollary ---


def test_quantiles_by_loops():
    model, unit = softmax.random_model(8, 2, seed=1), softmax.unit_noises(2, 4, seed=0)
    shares = [0.01, 0.1, 0.5]
    for share, found in zip(shares, bounds.quantiles(model, unit, shares), strict=True):
        for z, value in zip(unit, found, strict=True):
            inner = model.gradients @ z
            candidates = [
                t
                for t in inner
                if sum(p for p, i in zip(model.base_p, inner, strict=True) if i >= t) >= share
            ]
            assert value == pytest.approx(max(candidates), rel=1e-12)


def test_quantile_takes_at_least_the_share_even_where_outcomes_tie_it_exactly():
    model = softmax.LinearSoftmax(np.zeros(1), np.array([[-2.0], [-1.0], [1.0], [2.0]]))
    half, more = bounds.quantiles(model, np.ones((1, 1)), [0.5, 0.51])[:, 0]
    assert half == pytest.approx(
        1.0
    )  # P(⟨Z,∇⟩ > 1) is only .25: a strict quantile would break the proof
    assert more == pytest.approx(-1.0)


def test_log_k_by_direct_averages():
    model = softmax.random_model(20, 3, seed=2)
    unit = softmax.unit_noises(3, 2**14, seed=0)
    directions = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    share, sigma, tau = 0.2, 0.7, 1.5
    numerator = np.log(
        sum(
            p * np.exp(sigma * tau * r) for p, r in zip(model.base_p, model.grad_norms, strict=True)
        )
    )
    direct = numerator + np.log(np.exp(-sigma * bounds.quantiles(model, unit, [share])[0]).mean())
    value, effective = bounds.log_k(
        model, sigma, tau, bounds.quantiles(model, directions, [share])[0]
    )
    assert value == pytest.approx(direct, abs=5e-3)
    assert 1 < effective <= 2**14


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n_outcomes", "dim"), [(5, 1), (30, 2), (60, 8)])
def test_corollary_is_above_the_exact_miss_rate(seed, n_outcomes, dim):
    model, unit = (
        softmax.random_model(n_outcomes, dim, seed=seed),
        softmax.unit_noises(dim, 512, seed=seed),
    )
    for level in (0.3, 0.05, 1e-3):
        for share in (0.02, 0.2, 0.6):
            table = bounds.corollary(model, [0.1, 1.0, 4.0], level, unit, [share])
            for row in table.itertuples():
                assert row.bound >= power.miss_probability(model, row.sigma, level, unit)


def test_corollary_says_something_in_a_rich_model_and_stays_above():
    rich = softmax.random_model(4096, 64, temperature=10.0, seed=0)
    table = bounds.corollary(rich, [6.0, 10.0], 0.05, RICH_KEYS, [1.5 / 4096, 10 / 4096]).set_index(
        "sigma"
    )
    assert (table["effective_keys"] > 20).all()
    for sigma in (6.0, 10.0):
        exact = power.miss_probability(rich, sigma, 0.05, RICH_KEYS[:128])
        assert 10 * exact < table.loc[sigma, "bound"] < 0.6
    best = bounds.corollary(rich, [6.0], 0.05, RICH_KEYS, [10 / 4096])
    assert table.loc[6.0, "bound"] < best["bound"].iloc[0]  # it really took the better share


def test_the_printed_corollary_fails_at_a_small_level():
    for level, holds in ((0.05, True), (1e-4, False)):
        row = bounds.corollary(RICH, [6.0], level, RICH_KEYS, [1.5 / 1024]).iloc[0]
        exact = power.miss_probability(RICH, 6.0, level, RICH_KEYS)
        assert (row["printed_bound"] >= exact) == holds
        assert row["bound"] >= exact


@pytest.mark.parametrize("tau", [1.0, 1.6448536269514722])  # as printed, and with the proof's τ
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_the_condition_of_the_corollary_is_never_met(dim, tau):
    """K is convex with K(0) = 0, so K(σ)/σ rises, past zero, to τ max‖∇‖ − min Γ: the supremum over
    σ is positive.
    """
    for seed in range(3):
        model = softmax.random_model(40, dim, seed=seed)
        unit = softmax.unit_noises(dim, 256, seed=seed)
        directions = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        for share in (0.01, 0.3):
            quantile = bounds.quantiles(model, directions, [share])[0]
            sigmas = np.geomspace(0.01, 3000, 12)
            slope = np.array(
                [bounds.log_k(model, sigma, tau, quantile)[0] / sigma for sigma in sigmas]
            )
            assert (np.diff(slope) > -1e-9).all()
            assert slope[-1] > 0
            if quantile.min() >= 0:
                assert slope[-1] == pytest.approx(tau * model.grad_norms.max(), rel=0.05)


# --- the strongly log-concave theorem ---


@pytest.mark.parametrize("dim", [1, 16, 64, 256])
def test_theorem_is_above_the_exact_miss_rate(dim):
    for sigma in np.geomspace(0.03, 8, 9):
        for level in (0.3, 0.05, 1e-4):
            assert bounds.strongly_log_concave(dim, sigma, level) >= 1 - gaussian.power(
                dim, sigma, level
            )


def test_theorem_says_something_and_is_its_own_formula():
    dim, sigma, level = 100, 0.7, 0.05
    tau = stats.norm.isf(level)
    moment, _ = integrate.quad(
        lambda r: np.exp(tau * sigma * (r - 10)) * stats.chi.pdf(r, dim), 0, 30, points=[10]
    )
    slow = (
        (1 + sigma**2) ** (-dim / 2)
        * stats.norm.cdf(tau * np.sqrt(1 + sigma**2))
        * moment
        * np.exp(10 * tau * sigma)
    )
    assert slow < 0.05
    assert bounds.strongly_log_concave(dim, sigma, level) == pytest.approx(slow, rel=1e-6)
    assert bounds.strongly_log_concave(dim, 2 * sigma, level, variance=4.0) == pytest.approx(
        slow, rel=1e-6
    )  # only σ/√variance matters


def test_printed_curvature_gives_a_bound_that_simulation_breaks():
    """Σ = 4I: ψ simulated from scratch."""
    dim, sigma, n = 64, 0.5, 4000
    rng = np.random.default_rng(1)
    noise = sigma * rng.standard_normal((n, dim))
    gradient = (noise + 2 * rng.standard_normal((n, dim))) / 4
    missed = (
        (noise * gradient).sum(axis=1) / (sigma * np.linalg.norm(gradient, axis=1))
        <= threshold(0.05)
    ).mean()
    claim = printed.gaussian_curvature(dim, 4.0, sigma, 0.05)
    assert claim["exact"] == pytest.approx(missed, abs=4 * np.sqrt(0.25 / n))
    assert claim["printed"] < 1e-6 < missed <= claim["repaired"]


def test_dimension_needed_is_the_first_that_suffices():
    for sigma in (0.1, 0.5):
        dim = bounds.dimension_needed(sigma, 0.05, 0.1)
        assert (
            bounds.strongly_log_concave(dim, sigma, 0.05)
            <= 0.1
            < bounds.strongly_log_concave(dim - 1, sigma, 0.05)
        )
    assert bounds.dimension_needed(0.1, 0.05, 0.1) * 0.1**2 == pytest.approx(
        bounds.dimension_needed(0.02, 0.05, 0.1) * 0.02**2, rel=0.05
    )


# --- what the paper prints ---


def test_each_printed_statement_is_off_in_the_direction_it_says():
    table = printed.table(RICH, n_keys=256).set_index("where")
    rate, power_claim, tail, limit, corollary, theorem = (table.iloc[i] for i in range(6))
    assert rate["printed"] > 4 * rate["exact"]
    assert power_claim["exact"] == pytest.approx(2 * 0.05, rel=1e-3)
    assert tail["printed"] < 1e-4 < 0.99 < tail["exact"]
    assert abs(limit["printed"] - limit["exact"]) > 0.1
    assert corollary["printed"] < 0.1 < corollary["exact"]
    assert theorem["printed"] < theorem["exact"]


def test_repairs_hold():
    for spread in (1.0, 3.0, 10.0):
        for level in (0.05, 1e-3, 1e-10):
            dim = np.ceil(8 * np.log(1 / level) * spread**2)
            assert stats.chi.cdf(threshold(level) * spread, dim) <= np.exp(-dim / 16)
    for scale in (0.01, 1.0, 100.0):
        claim = printed.large_noise_limit(
            softmax.random_model(60, 2, seed=0), scale, 0.05, 1024, seed=0
        )
        assert claim["exact"] <= claim["repaired"]
    assert printed.condition_number()["exact"] == pytest.approx(
        special.gammainc(1843 / 2, (threshold(1e-10) * 10) ** 2 / 2), rel=1e-9
    )
