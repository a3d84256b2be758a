"""The paper's power bounds: above the exact miss rate in every cell, the printed forms below it."""

import numpy as np
import pytest
from scipy import integrate, stats

from gaussmark_experiments.toys import bounds, closed_forms, softmax
from gaussmark_lib.stats import threshold

RICH = softmax.random_model(1024, 64, temperature=10.0, seed=0)


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
@pytest.mark.parametrize("t", [-20.0, -3.0, 0.0, 0.5, 6.0])
def test_mgf_of_the_norm_by_integration(dim, t):
    peak = (t + np.sqrt(t**2 + 4 * (dim - 1))) / 2
    at = max(peak, 1e-12)
    top = t * at + stats.chi.logpdf(at, dim)  # so that the integrand is of order 1

    def integrand(r: float) -> float:
        return np.exp(t * r + stats.chi.logpdf(r, dim) - top)

    exact, _ = integrate.quad(integrand, 0, at + 12, points=[at], limit=300)
    [log_mgf] = bounds.log_mgf_chi(dim, np.array([t]))
    assert log_mgf == pytest.approx(np.log(exact) + top, rel=1e-8, abs=1e-10)


# --- the corollary ---


def test_quantile_by_loops():
    model, unit = softmax.random_model(8, 2, seed=1), softmax.unit_noises(2, 4, seed=0)
    for share in (0.01, 0.1, 0.5):
        for z, value in zip(unit, bounds.quantile(model, unit, share), strict=True):
            inner = model.gradients @ z
            enough = [t for t in inner if sum(model.base_p[inner >= t]) >= share]
            assert value == pytest.approx(max(enough), rel=1e-12)


def test_log_k_by_direct_averages():
    model, unit = softmax.random_model(20, 3, seed=2), softmax.unit_noises(3, 2**14, seed=0)
    directions = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    share, sigma, tau = 0.2, 0.7, 1.5
    numerator = np.log(model.base_p @ np.exp(sigma * tau * model.grad_norms))
    direct = numerator + np.log(np.exp(-sigma * bounds.quantile(model, unit, share)).mean())
    value = bounds.log_k(model, sigma, tau, bounds.quantile(model, directions, share))
    assert value == pytest.approx(direct, abs=5e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_outcomes", "dim"), [(5, 1), (30, 2), (60, 8)])
def test_corollary_is_above_the_exact_miss_rate(seed, n_outcomes, dim):
    model = softmax.random_model(n_outcomes, dim, seed=seed)
    unit = softmax.unit_noises(dim, 512, seed=seed)
    for level in (0.3, 0.05, 1e-3):
        table = bounds.corollary(model, [0.1, 1.0, 4.0], level, unit, [0.02, 0.2, 0.6])
        for row in table.itertuples():
            assert row.bound >= 1 - softmax.power(model, row.sigma, level, unit)


@pytest.mark.parametrize("tau", [1.0, 1.6448536269514722])  # as printed, and with the proof's τ
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_the_condition_of_the_corollary_is_never_met(dim, tau):
    """K is convex with K(0) = 0, so K(σ)/σ rises, past zero, to τ max‖∇‖ − min Γ."""
    model, unit = softmax.random_model(40, dim, seed=0), softmax.unit_noises(dim, 256, seed=0)
    directions = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    quantile = bounds.quantile(model, directions, 0.3)
    sigmas = np.geomspace(0.01, 3000, 12)
    slope = np.array([bounds.log_k(model, sigma, tau, quantile) / sigma for sigma in sigmas])
    assert (np.diff(slope) > -1e-9).all()
    assert slope[-1] > 0


# --- the strongly log-concave theorem ---


@pytest.mark.parametrize("dim", [1, 16, 64, 256])
def test_theorem_is_above_the_exact_miss_rate(dim):
    for sigma in np.geomspace(0.03, 8, 9):
        for level in (0.3, 0.05, 1e-4):
            exact = 1 - closed_forms.gaussian_power(dim, sigma, level)
            assert bounds.strongly_log_concave(dim, sigma, level) >= exact


def test_theorem_says_something_and_is_its_own_formula():
    dim, sigma, level = 100, 0.7, 0.05
    tau = stats.norm.isf(level)
    moment, _ = integrate.quad(
        lambda r: np.exp(tau * sigma * (r - 10)) * stats.chi.pdf(r, dim), 0, 30, points=[10]
    )
    slow = (1 + sigma**2) ** (-dim / 2) * stats.norm.cdf(tau * np.sqrt(1 + sigma**2))
    slow *= moment * np.exp(10 * tau * sigma)
    assert slow < 0.05
    assert bounds.strongly_log_concave(dim, sigma, level) == pytest.approx(slow, rel=1e-6)
    scaled = bounds.strongly_log_concave(dim, 2 * sigma, level, variance=4.0)
    assert scaled == pytest.approx(slow, rel=1e-6)  # only σ/√variance matters


# --- what the paper prints ---


def test_each_printed_statement_is_off_in_the_direction_it_says():
    rows = bounds.printed(RICH, n_keys=256)[["printed", "exact"]].to_dict("records")
    rate, power_claim, tail, limit, corollary, theorem = rows
    assert rate["printed"] > 4 * rate["exact"]
    assert power_claim["exact"] == pytest.approx(2 * 0.05, rel=1e-3)
    assert tail["printed"] < 1e-4 < 0.99 < tail["exact"]
    assert abs(limit["printed"] - limit["exact"]) > 0.1
    assert corollary["printed"] < 0.1 < corollary["exact"]
    assert theorem["printed"] < theorem["exact"]


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_repairs_hold(scale):
    model, unit = softmax.random_model(60, 2, seed=0), softmax.unit_noises(2, 1024, seed=0)
    _, repaired, exact = bounds.large_noise_limit(model, scale, 0.05, unit)
    assert exact <= repaired
    for level in (0.05, 1e-3, 1e-10):
        dim = np.ceil(8 * np.log(1 / level) * scale**2)
        assert stats.chi.cdf(threshold(level) * scale, dim) <= np.exp(-dim / 16)
