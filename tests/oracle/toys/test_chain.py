"""The nearest null and the chain of statistics: identities by enumeration, optimality by trying
everything.
"""

from itertools import combinations

import numpy as np
import pytest

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import chain, projection, softmax

MODEL = softmax.random_model(9, 3, seed=7)
UNIT = softmax.unit_noises(3, 512, seed=0)
LIKELIHOOD = np.exp(MODEL.log_p(0.8 * UNIT))
WEIGHTS = np.full(512, 1 / 512)
MIXTURE = LIKELIHOOD.mean(axis=0)


def slow_kl(p, q):
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def test_kl_and_distance_by_loops():
    mu = np.full(9, 1 / 9)
    assert projection.kl(LIKELIHOOD[0], mu) == pytest.approx(slow_kl(LIKELIHOOD[0], mu), rel=1e-12)
    weights = np.random.default_rng(0).dirichlet(np.ones(512))
    slow = sum(w * slow_kl(p, mu) for w, p in zip(weights, LIKELIHOOD, strict=True))
    assert projection.distance(LIKELIHOOD, weights, mu) == pytest.approx(slow, rel=1e-12)
    assert projection.mixture(LIKELIHOOD, weights) == pytest.approx(
        sum(w * p for w, p in zip(weights, LIKELIHOOD, strict=True)), rel=1e-12
    )


def test_distance_to_the_mixture_is_mutual_information():
    joint = WEIGHTS[:, None] * LIKELIHOOD
    product = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    assert projection.distance(LIKELIHOOD, WEIGHTS, MIXTURE) == pytest.approx(
        (joint * np.log(joint / product)).sum(), rel=1e-10
    )


def test_pythagoras_holds_for_every_null():
    table = projection.compare_nulls(LIKELIHOOD, WEIGHTS, 500, seed=1)
    assert len(table) == 500
    assert (table["to_mixture"] > 0).all()
    assert table["excess"].to_numpy() == pytest.approx(
        table["to_mixture"].to_numpy(), rel=1e-9, abs=1e-13
    )


def test_statistics_by_loops():
    unit, sigma = UNIT[:5], 0.6
    found = chain.statistics(MODEL, sigma, unit)
    likelihood = np.exp(MODEL.log_p(sigma * unit))
    for k in range(5):
        for y in range(9):
            g = MODEL.gradients[y]
            inner = sum(sigma * unit[k] * g)
            assert found["ratio"][k, y] == pytest.approx(
                np.log(likelihood[k, y] / (sum(likelihood[:, y]) / 5)), rel=1e-9, abs=1e-12
            )
            assert found["linearised"][k, y] == pytest.approx(
                inner - sigma**2 * sum(g**2) / 2, rel=1e-12
            )
            assert found["inner"][k, y] == pytest.approx(inner, rel=1e-12)
            assert found["psi"][k, y] == pytest.approx(
                inner / (sigma * np.sqrt(sum(g**2))), rel=1e-12
            )


def test_errors_by_loops_and_their_slopes():
    table = chain.errors(MODEL, [0.01, 0.02, 0.4], UNIT).pivot(
        index="sigma", columns="step", values="rms"
    )
    slopes = np.log2(table.loc[0.02] / table.loc[0.01])
    assert slopes.filter(like="itself").to_numpy() == pytest.approx([1.0], abs=1e-6)
    assert slopes.filter(regex="error|both").to_numpy() == pytest.approx([2.0] * 3, abs=0.02)
    s = chain.statistics(MODEL, 0.4, UNIT)
    slow = sum(
        WEIGHTS[k] * MODEL.base_p[y] * (s["ratio"][k, y] - s["inner"][k, y]) ** 2
        for k in range(512)
        for y in range(9)
    )
    assert table.loc[0.4, "both together"] == pytest.approx(np.sqrt(slow), rel=1e-10)
    drop = 0.4**2 / 2 * np.sqrt(MODEL.base_p @ MODEL.grad_norms**4)
    assert table.loc[0.4, "error of dropping σ²‖g‖²/2"] == pytest.approx(drop, rel=1e-12)


def test_second_order_term_of_the_ratio():
    """ratio − linearised = ½(σ² tr C − ξᵀCξ) + O(σ³), C the covariance of the features
    under p_θ.
    """
    sigma = 1e-3
    unit = UNIT @ np.linalg.cholesky(
        np.linalg.inv(UNIT.T @ UNIT / 512)
    )  # covariance exactly I; its mean is 0
    cov = (MODEL.gradients * MODEL.base_p[:, None]).T @ MODEL.gradients
    s = chain.statistics(MODEL, sigma, unit)
    expected = sigma**2 / 2 * (np.trace(cov) - np.einsum("ki,ij,kj->k", unit, cov, unit))
    assert (s["ratio"] - s["linearised"]) == pytest.approx(
        np.broadcast_to(expected[:, None], s["ratio"].shape), abs=20 * sigma**3
    )


def test_levels_of_the_three_kinds_of_threshold():
    s = chain.statistics(MODEL, 0.8, UNIT)
    per_text = chain.reject_per_text(s["ratio"], 0.05).mean(axis=0)
    assert (per_text == int(0.05 * 512) / 512).all()
    worst = chain.reject_worst_text(s["ratio"], 0.05).mean(axis=0)
    assert worst.max() == int(0.05 * 512) / 512
    assert worst.min() < worst.max()
    null = MIXTURE / 512
    rejected = chain.reject_model_text(s["ratio"], 0.05, MIXTURE)
    assert 0.05 - null.max() < (rejected * null).sum() <= 0.05
    assert rejected.mean(axis=0).max() > 0.06  # for some single texts this level does not hold
    assert (s["psi"] > threshold(0.05)).mean(axis=0) == pytest.approx(
        np.full(9, 0.05), abs=0.01
    )  # a 512-point net


def test_threshold_per_text_is_the_best_of_all_tests_for_any_text():
    """Six keys, level 1/3: every test that rejects at most two keys a text, tried out; texts do not
    interact.
    """
    likelihood = LIKELIHOOD[:6]
    rejected = chain.reject_per_text(likelihood, 1 / 3)
    best = (
        sum(
            max(sum(likelihood[list(pair), y]) for pair in combinations(range(6), 2))
            for y in range(9)
        )
        / 6
    )
    assert (likelihood * rejected).sum() / 6 == pytest.approx(best, rel=1e-12)


def test_likelihood_ratio_is_the_best_test_for_model_text():
    """Three keys, three texts: all 512 tests; none with at most the same null probability has more
    power.
    """
    likelihood = LIKELIHOOD[:3, :3] / LIKELIHOOD[:3, :3].sum(axis=1, keepdims=True)
    mixture = likelihood.mean(axis=0)
    for level in (0.2, 0.4, 0.7):
        rejected = chain.reject_model_text(np.log(likelihood / mixture), level, mixture)
        size = (rejected * mixture / 3).sum()
        power = (likelihood * rejected / 3).sum()
        for code in range(512):
            other = np.array([code >> i & 1 for i in range(9)], dtype=bool).reshape(3, 3)
            if (other * mixture / 3).sum() <= size:
                assert (likelihood * other / 3).sum() <= power + 1e-12
