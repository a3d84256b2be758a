"""The enumerated linear softmax model against slow loops, finite differences and simulation; the
Gaussian example against integrals and simulation.
"""

import numpy as np
import pytest
from scipy import integrate, stats

from gaussmark_experiments.toys import closed_forms, softmax
from gaussmark_lib.stats import interval, threshold

MODEL = softmax.random_model(12, 2, seed=3)


def slow_log_p(model, noise):
    """log p_{θ+ξ}(y) of one key, one outcome at a time."""
    scores = [sum((model.theta + noise) * phi) for phi in model.features]
    return np.array([s - np.log(sum(np.exp(scores))) for s in scores])


def test_log_p_is_the_definition():
    noise = np.array([[0.3, -1.2], [0.0, 0.0]])
    assert MODEL.log_p(noise)[0] == pytest.approx(slow_log_p(MODEL, noise[0]), rel=1e-12)
    assert MODEL.base_p == pytest.approx(np.exp(slow_log_p(MODEL, noise[1])), rel=1e-12)
    assert MODEL.entropy == pytest.approx(-sum(p * np.log(p) for p in MODEL.base_p), rel=1e-12)


def test_gradients_are_finite_differences():
    step = 1e-5 * np.eye(2)
    numeric = (MODEL.log_p(step) - MODEL.log_p(-step)).T / 2e-5
    assert MODEL.gradients == pytest.approx(numeric, rel=1e-7, abs=1e-9)
    assert MODEL.grad_norms == pytest.approx(np.hypot(*numeric.T), rel=1e-7)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 10.0])
def test_radon_nikodym_identity(sigma):
    noise = sigma * softmax.unit_noises(2, 64, seed=1)
    ratio = np.exp(MODEL.log_p(noise) - np.log(MODEL.base_p))
    assert MODEL.tilt(noise) == pytest.approx(ratio, rel=1e-12)
    assert MODEL.tilt(noise) @ MODEL.base_p == pytest.approx(np.ones(64), rel=1e-12)


def test_psi_and_the_power_by_loops():
    unit, sigma, tau = softmax.unit_noises(2, 8, seed=4), 0.8, threshold(0.05)
    power = 0.0
    for k, u in enumerate(unit):
        log_p = slow_log_p(MODEL, sigma * u)
        for y, g in enumerate(MODEL.gradients):
            psi = sum(sigma * u * g) / (sigma * np.sqrt(sum(g**2)))
            assert MODEL.psi(unit)[k, y] == pytest.approx(psi, rel=1e-12)
            power += np.exp(log_p[y]) * (psi > tau) / 8
    assert softmax.power(MODEL, sigma, 0.05, unit) == pytest.approx(power, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 4.0])
def test_simulation_has_the_summed_mean_and_power(sigma):
    """Model and simulation share the seed on purpose: their random streams must still be
    independent.
    """
    model = softmax.random_model(40, 8, seed=5)
    unit = softmax.unit_noises(8, 4096, seed=5)
    psi = softmax.simulate_psi(model, sigma, 4000, seed=5)
    marked_p = np.exp(model.log_p(sigma * unit))
    exact = (marked_p * model.psi(unit)).sum(axis=1).mean()
    assert psi.mean() == pytest.approx(exact, abs=4 * stats.sem(psi) + 1e-3)
    hits = interval(psi > threshold(0.05), confidence=0.9999)
    assert hits.low - 1e-3 <= softmax.power(model, sigma, 0.05, unit) <= hits.high + 1e-3
    plain = softmax.simulate_psi(model, sigma, 4000, seed=5, watermarked=False)
    assert stats.kstest(plain, "norm").pvalue > 1e-3


def test_power_ends():
    unit = softmax.unit_noises(2, 4096, seed=0)
    assert softmax.power(MODEL, 1e-6, 0.05, unit) == pytest.approx(0.05, abs=2e-3)
    limit = softmax.power_limit(MODEL, 0.05, unit)
    assert softmax.power(MODEL, 3000.0, 0.05, unit) == pytest.approx(limit, abs=2e-3)


# --- the Gaussian example ---

CELLS = [(1, 0.5), (1, 5.0), (4, 1.0), (64, 0.2), (64, 4.0), (1024, 0.05)]


@pytest.mark.parametrize(("dim", "sigma"), CELLS)
def test_power_is_the_integral_over_the_gradient_norm(dim, sigma):
    for level in (0.2, 0.05, 1e-4):
        c = stats.norm.isf(level) * np.sqrt(1 + sigma**2)
        low, high = stats.chi.ppf([1e-15, 1 - 1e-15], dim)

        def hit(r: float, c: float = c) -> float:
            return stats.norm.cdf(sigma * r - c) * stats.chi.pdf(r, dim)

        exact, _ = integrate.quad(hit, low, high, limit=200, epsabs=0, epsrel=1e-10)
        assert closed_forms.gaussian_power(dim, sigma, level) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("dim", "sigma"), CELLS)
def test_simulation_agrees_with_mean_and_power(dim, sigma):
    psi = closed_forms.simulate_psi(dim, sigma, 4000, seed=1)
    exact = closed_forms.expected_psi(dim, sigma)
    assert psi.mean() == pytest.approx(exact, abs=4 * stats.sem(psi))
    hits = interval(psi >= stats.norm.isf(0.05), confidence=0.9999)
    assert hits.low <= closed_forms.gaussian_power(dim, sigma, 0.05) <= hits.high


def test_the_rate_is_the_limit():
    rate = closed_forms.rate(1024, 0.2)
    assert closed_forms.expected_psi(1024, 0.2) == pytest.approx(rate, rel=1e-3)


def test_dimension_needed_is_the_first_that_suffices():
    dim = closed_forms.dimension_needed(0.2, 0.05, 0.1)
    assert closed_forms.gaussian_power(dim, 0.2, 0.05) >= 0.9
    assert closed_forms.gaussian_power(dim - 1, 0.2, 0.05) < 0.9
    assert [closed_forms.first_dimension(lambda d, n=n: d >= n) for n in (1, 2, 77)] == [1, 2, 77]


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_least_price_is_binary_kl_and_nothing_undercuts_it(sigma):
    """kl(power ‖ level) ≤ mutual information ≤ price, for the exact power of the test."""
    by_hand = 0.3 * np.log(3) + 0.7 * np.log(7 / 9)
    assert closed_forms.least_price(0.3, 0.1) == pytest.approx(by_hand, rel=1e-12)
    model, unit = softmax.random_model(12, 2, seed=3), softmax.unit_noises(2, 1024, seed=0)
    likelihood = np.exp(model.log_p(sigma * unit))
    information = stats.entropy(likelihood, likelihood.mean(axis=0), axis=1).mean()
    price = stats.entropy(likelihood, model.base_p[None], axis=1).mean()
    least = closed_forms.least_price(softmax.power(model, sigma, 0.05, unit), 0.05)
    assert least < information < price
