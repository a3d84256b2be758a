"""The Gaussian example against integrals, simulation, and the printed rate as the negative
control.
"""

import numpy as np
import pytest
from scipy import integrate, special, stats

from gaussmark_lib.stats import rate as share
from gaussmark_lib.toys import coins, gaussian, softmax

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
        assert gaussian.power(dim, sigma, level) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("dim", "sigma"), CELLS)
def test_simulation_agrees_with_mean_and_power(dim, sigma):
    psi = gaussian.simulate_psi(dim, sigma, 4000, seed=1)
    assert psi.mean() == pytest.approx(gaussian.expected_psi(dim, sigma), abs=4 * stats.sem(psi))
    for level in (0.2, 0.05):
        found = share(psi >= stats.norm.isf(level), confidence=0.9999)
        assert found.low <= gaussian.power(dim, sigma, level) <= found.high


def test_expected_norm_is_an_integral():
    for dim in (1, 2, 7, 100):
        assert gaussian.expected_norm(dim) == pytest.approx(stats.chi.mean(dim), rel=1e-12)


def test_the_rate_is_the_limit_and_the_printed_one_is_not():
    assert gaussian.expected_psi(10**6, 0.3) == pytest.approx(gaussian.rate(10**6, 0.3), rel=1e-6)
    psi = gaussian.simulate_psi(1024, 0.2, 1000, seed=2)
    assert abs(psi.mean() - gaussian.rate(1024, 0.2)) < 5 * stats.sem(psi)
    assert abs(psi.mean() - gaussian.printed_rate(1024, 0.2)) > 100 * stats.sem(psi)


def test_without_watermark_psi_is_standard_normal_and_sigma_zero_has_no_power():
    psi = gaussian.simulate_psi(16, 2.0, 5000, seed=4, watermarked=False)
    assert stats.kstest(psi, "norm").pvalue > 1e-3
    assert gaussian.power(16, 1e-9, 0.05) == pytest.approx(0.05, rel=1e-6)


def test_price_is_the_mean_log_likelihood_ratio():
    dim, sigma, n = 20, 0.4, 20_000
    rng = np.random.default_rng(5)
    noise = sigma * rng.standard_normal((n, dim))
    y = noise + rng.standard_normal((n, dim))
    log_ratio = stats.norm.logpdf(y - noise).sum(axis=1) - stats.norm.logpdf(y).sum(axis=1)
    assert gaussian.price(dim, sigma) == pytest.approx(
        log_ratio.mean(), abs=4 * stats.sem(log_ratio)
    )


def test_dimension_needed_is_the_first_that_suffices():
    dim = gaussian.dimension_needed(0.2, 0.05, 0.1)
    assert gaussian.power(dim, 0.2, 0.05) >= 0.9 > gaussian.power(dim - 1, 0.2, 0.05)
    assert [gaussian.first_dimension(lambda d, n=n: d >= n) for n in (1, 2, 77)] == [1, 2, 77]


def test_table_rows_are_the_functions():
    table = gaussian.table([4, 9], [0.1, 1.0], n=500, level=0.05, seed=0)
    assert list(table["dim"]) == [4, 4, 9, 9]
    row = table.iloc[3]
    assert row["power"] == gaussian.power(9, 1.0, 0.05)
    assert row["rate"] == pytest.approx(3 / np.sqrt(2))
    psi = gaussian.simulate_psi(9, 1.0, 500, seed=3)
    assert row["hits"] == (psi >= stats.norm.isf(0.05)).sum()
    assert row["sem_psi"] == pytest.approx(stats.sem(psi))


def test_coins_are_a_linear_softmax_model():
    """T = 3 coins are eight texts: enumerate them, with Gauss–Hermite for each coin's key."""
    y = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    model = softmax.LinearSoftmax(np.zeros(3), y)
    node, weight = np.polynomial.hermite_e.hermegauss(40)
    keys = np.array(np.meshgrid(*[node] * 3)).reshape(3, -1).T
    weights = np.prod(np.array(np.meshgrid(*[weight / weight.sum()] * 3)).reshape(3, -1), axis=0)
    for sigma in (0.1, 0.6):
        p = np.exp(model.log_p(sigma * keys))
        assert coins.expected_psi(3, sigma) == pytest.approx(
            weights @ (p * model.psi(keys)).sum(axis=1), rel=1e-8
        )
        assert coins.price(3, sigma) == pytest.approx(
            weights @ (p * (np.log(p) - np.log(1 / 8))).sum(axis=1), rel=1e-8
        )


def coin_psi(n_tokens, sigma, n, seed, watermarked=True):
    """ψ of n keys and n texts of T coins."""
    rng = np.random.default_rng([seed, 4])
    unit_noise = rng.standard_normal((n, n_tokens))
    heads = special.expit(2 * sigma * unit_noise) if watermarked else 0.5
    y = np.where(rng.random((n, n_tokens)) < heads, 1.0, -1.0)
    return np.einsum("nt,nt->n", unit_noise, y) / np.sqrt(n_tokens)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
def test_coins_simulation(sigma):
    psi = coin_psi(50, sigma, 4000, seed=6)
    assert psi.mean() == pytest.approx(coins.expected_psi(50, sigma), abs=4 * stats.sem(psi))
    assert stats.kstest(coin_psi(50, sigma, 4000, seed=7, watermarked=False), "norm").pvalue > 1e-3
