"""The Gaussian example against integrals and simulation."""

import numpy as np
import pytest
from scipy import integrate, stats

from gaussmark_experiments.toys import closed_forms, softmax
from gaussmark_lib.stats import interval

CELLS = [(1, 0.5), (1, 5.0), (4, 1.0), (64, 0.2), (64, 4.0), (1024, 0.05)]


@pytest.mark.parametrize(("dim", "sigma"), CELLS)
def test_power_is_the_integral_over_the_gradient_norm(dim, sigma):
    for level in (0.2, 0.05, 1e-4):
        c = stats.norm.isf(level) * np.sqrt(1 + sigma**2)
        low, high = stats.chi.ppf([1e-15, 1 - 1e-15], dim)
        exact, _ = integrate.quad(
            lambda r, c=c: stats.norm.cdf(sigma * r - c) * stats.chi.pdf(r, dim),
            low,
            high,
            limit=200,
            epsabs=0,
            epsrel=1e-10,
        )
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
    log_ratio = np.log(likelihood / likelihood.mean(axis=0))
    information = (likelihood * log_ratio).sum(axis=1).mean()
    price = (likelihood * np.log(likelihood / model.base_p)).sum(axis=1).mean()
    least = closed_forms.least_price(softmax.power(model, sigma, 0.05, unit), 0.05)
    assert least < information < price
