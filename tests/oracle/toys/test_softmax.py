"""The enumerated linear softmax model against slow loops, finite differences and simulation."""

import numpy as np
import pytest
from scipy import special, stats

from gaussmark_lib.stats import rate as share
from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import power, projection, regime, softmax

MODEL = softmax.random_model(12, 2, seed=3)
UNIT_2 = softmax.unit_noises(2, 256, seed=8)


def slow_log_p(model, noise):
    """log p_{θ+ξ}(y) of one key, one outcome at a time."""
    scores = [
        sum((model.theta[i] + noise[i]) * phi[i] for i in range(len(noise)))
        for phi in model.features
    ]
    return np.array([s - np.log(sum(np.exp(scores))) for s in scores])


def test_log_p_is_the_definition():
    noise = np.array([[0.3, -1.2], [0.0, 0.0]])
    assert MODEL.log_p(noise)[0] == pytest.approx(slow_log_p(MODEL, noise[0]), rel=1e-12)
    assert MODEL.base_p == pytest.approx(np.exp(slow_log_p(MODEL, noise[1])), rel=1e-12)


def test_gradients_are_finite_differences():
    step = 1e-5
    for y in range(12):
        numeric = [
            (MODEL.log_p(step * e[None])[0, y] - MODEL.log_p(-step * e[None])[0, y]) / (2 * step)
            for e in np.eye(2)
        ]
        assert MODEL.gradients[y] == pytest.approx(np.array(numeric), rel=1e-7, abs=1e-9)
        assert MODEL.grad_norms[y] == pytest.approx(np.hypot(*numeric), rel=1e-7)


def test_radon_nikodym_identity():
    for sigma in (0.01, 1.0, 10.0):
        noise = sigma * softmax.unit_noises(2, 64, seed=1)
        ratio = np.exp(MODEL.log_p(noise) - np.log(MODEL.base_p))
        assert MODEL.tilt(noise) == pytest.approx(ratio, rel=1e-12)
        assert MODEL.tilt(noise) @ MODEL.base_p == pytest.approx(np.ones(64), rel=1e-12)


def test_psi_is_the_definition_and_ignores_scale():
    unit = softmax.unit_noises(2, 4, seed=2)
    sigma = 0.37
    for k in range(4):
        for y in range(12):
            noise = sigma * unit[k]
            slow = sum(noise * MODEL.gradients[y]) / (sigma * np.sqrt(sum(MODEL.gradients[y] ** 2)))
            assert MODEL.psi(unit)[k, y] == pytest.approx(slow, rel=1e-12)


def test_unit_noises_look_normal():
    unit = softmax.unit_noises(3, 4096, seed=0)
    assert np.cov(unit.T) == pytest.approx(np.eye(3), abs=0.01)
    assert unit.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-14)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 4.0])
def test_simulation_has_the_summed_mean_and_power(sigma):
    """Model and simulation share the seed on purpose: their random streams must still be
    independent.
    """
    model = softmax.random_model(40, 8, seed=5)
    unit = softmax.unit_noises(8, 4096, seed=5)
    psi = softmax.simulate_psi(model, sigma, 4000, seed=5)
    assert psi.mean() == pytest.approx(
        softmax.expected_psi(model, sigma, unit), abs=4 * stats.sem(psi) + 1e-3
    )
    found = share(psi <= threshold(0.05), confidence=0.9999)
    assert found.low - 1e-3 <= power.miss_probability(model, sigma, 0.05, unit) <= found.high + 1e-3


def test_model_and_keys_of_one_seed_are_unrelated():
    """They once were the same numbers: the first keys pointed along the features, and the miss rate
    came out as .45 for .71.
    """
    model = softmax.random_model(1000, 64, temperature=10.0, seed=0)
    psi = softmax.simulate_psi(model, 1.0, 1000, seed=0)
    found = share(psi <= threshold(0.05), confidence=0.9999)
    assert (
        found.low
        <= power.miss_probability(model, 1.0, 0.05, softmax.unit_noises(64, 1024, seed=1))
        <= found.high
    )


def test_expected_psi_and_price_by_loops():
    unit = softmax.unit_noises(2, 8, seed=4)
    mean = price = 0.0
    for u in unit:
        log_p, base = slow_log_p(MODEL, 0.8 * u), slow_log_p(MODEL, 0 * u)
        for y in range(12):
            g = MODEL.gradients[y]
            mean += np.exp(log_p[y]) * (u @ g) / np.linalg.norm(g) / 8
            price += np.exp(log_p[y]) * (log_p[y] - base[y]) / 8
    assert softmax.expected_psi(MODEL, 0.8, unit) == pytest.approx(mean, rel=1e-12)
    assert softmax.price(MODEL, 0.8, unit) == pytest.approx(price, rel=1e-12)


def test_least_price_is_binary_kl_and_nothing_undercuts_it():
    """kl(power ‖ level) ≤ mutual information ≤ price, for the exact power of the test."""
    assert regime.least_price(0.3, 0.1) == pytest.approx(
        0.3 * np.log(3) + 0.7 * np.log(7 / 9), rel=1e-12
    )
    unit = softmax.unit_noises(2, 1024, seed=0)
    for sigma in (0.1, 0.5, 2.0):
        likelihood = np.exp(MODEL.log_p(sigma * unit))
        weights = np.full(1024, 1 / 1024)
        information = projection.distance(
            likelihood, weights, projection.mixture(likelihood, weights)
        )
        detected = 1 - power.miss_probability(MODEL, sigma, 0.05, unit)
        assert regime.least_price(detected, 0.05) < information < softmax.price(MODEL, sigma, unit)


def test_regime_table_starts_on_the_law_and_leaves_it():
    unit = softmax.unit_noises(2, 2**13, seed=0)
    table = regime.table(MODEL, unit, 200, [0.05, 10.0])
    start, end = table[table["predicted"] == 0.05], table[table["predicted"] == 10.0]
    assert list(start["mean_psi"]) == pytest.approx([0.05] * 3, rel=0.02)
    assert list(start["price"]) == pytest.approx(
        [
            0.05**2 / 2 * (MODEL.base_p @ MODEL.grad_norms**2) / MODEL.expected_norm**2,
            *[0.05**2 / 2] * 2,
        ],
        rel=0.02,
    )
    assert (end["mean_psi"] < 8.5).all()
    assert end["sigma"].iloc[0] == pytest.approx(10 / MODEL.expected_norm)
    assert end["sigma"].iloc[1] == pytest.approx(10 / stats.chi.mean(200))


# --- the power proposition ---


def test_miss_probability_by_loops():
    unit = softmax.unit_noises(2, 16, seed=9)
    sigma, total = 1.3, 0.0
    for u in unit:
        inner = [sigma * (u @ g) for g in MODEL.gradients]
        mean = sum(p * np.exp(i) for p, i in zip(MODEL.base_p, inner, strict=True))
        for p, i, norm in zip(MODEL.base_p, inner, MODEL.grad_norms, strict=True):
            if i / (sigma * norm) <= 1.6448536269514722:
                total += p * np.exp(i) / mean / 16
    assert power.miss_probability(MODEL, sigma, 0.05, unit) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_integral_converges_and_agrees_with_the_average(dim):
    model = softmax.random_model(10, dim, seed=2)
    unit = softmax.unit_noises(dim, 2**15, seed=0)
    for sigma in (0.3, 1.0):
        exact = power.miss_probability_integrated(model, sigma, 0.05, nodes=48 if dim < 3 else 28)
        assert power.miss_probability_integrated(
            model, sigma, 0.05, nodes=56 if dim < 3 else 36
        ) == pytest.approx(exact, rel=1e-9)
        assert power.miss_probability(model, sigma, 0.05, unit) == pytest.approx(exact, abs=5e-4)


def test_integral_of_one_coin_by_hand():
    """d = 1, y = ±1, θ = 0: β = Σ_y P-integral of the logistic function up to τ, on a fine grid."""
    model = softmax.LinearSoftmax(np.zeros(1), np.array([[1.0], [-1.0]]))
    z = np.linspace(-12, stats.norm.isf(0.05), 2_000_001)
    for sigma in (0.1, 0.9):
        by_hand = 2 * np.trapezoid(stats.norm.pdf(z) * special.expit(2 * sigma * z), z)
        assert power.miss_probability_integrated(model, sigma, 0.05) == pytest.approx(
            by_hand, rel=1e-9
        )


def test_power_ends():
    unit = softmax.unit_noises(2, 4096, seed=0)
    assert power.miss_probability(MODEL, 1e-6, 0.05, unit) == pytest.approx(0.95, abs=2e-3)
    assert power.miss_probability(MODEL, 3000.0, 0.05, unit) == pytest.approx(
        power.miss_probability_limit(MODEL, 0.05, unit), abs=2e-3
    )


def test_simulated_and_temperature_tables():
    found = power.simulated(MODEL, [0.5, 1.0], 0.05, n=300, seed=4)
    assert (
        found["hits"].iloc[1]
        == (softmax.simulate_psi(MODEL, 1.0, 300, seed=5) > threshold(0.05)).sum()
    )
    unit = softmax.unit_noises(3, 1024, seed=0)
    summed = power.summed(MODEL, [0.5, 1.0], 0.05, UNIT_2)
    assert summed["beta"].iloc[1] == power.miss_probability(MODEL, 1.0, 0.05, UNIT_2)
    assert (summed["power"] == 1 - summed["beta"]).all()
    table = power.temperature_table(10, 3, [0.05, 1.0, 10.0], 0.7, 0.05, unit, seed=1)
    model = softmax.random_model(10, 3, 1.0, seed=1)
    assert table["power"].iloc[1] == pytest.approx(
        1 - power.miss_probability(model, 0.7, 0.05, unit)
    )
    assert table["predicted_psi"].iloc[1] == pytest.approx(0.7 * model.expected_norm)
    assert table["mean_psi"].iloc[1] == pytest.approx(softmax.expected_psi(model, 0.7, unit))
    order = np.argsort(model.grad_norms)
    median = next(
        model.grad_norms[order][i] for i in range(10) if model.base_p[order][: i + 1].sum() >= 0.5
    )
    assert table["norm_50"].iloc[1] == median
    assert table["entropy"].is_monotonic_increasing
    assert table["power"].iloc[0] < table["power"].iloc[2]
