"""The enumerated linear softmax model against slow loops, finite differences and simulation."""

import numpy as np
import pytest
from scipy import stats

from gaussmark_experiments.toys import softmax
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
