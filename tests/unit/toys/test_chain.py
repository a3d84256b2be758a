"""The chain of statistics: identities by enumeration, optimality by trying everything."""

from itertools import combinations, product

import numpy as np
import pytest

from gaussmark_experiments.toys import chain, softmax
from gaussmark_lib.stats import threshold

MODEL = softmax.random_model(9, 3, seed=7)
UNIT = softmax.unit_noises(3, 512, seed=0)
LIKELIHOOD = np.exp(MODEL.log_p(0.8 * UNIT))
MIXTURE = LIKELIHOOD.mean(axis=0)


def test_statistics_by_loops():
    unit, sigma = UNIT[:5], 0.6
    s = chain.statistics(MODEL, sigma, unit)
    likelihood = np.exp(MODEL.log_p(sigma * unit))
    for k in range(5):
        for y, g in enumerate(MODEL.gradients):
            inner, ratio = sum(sigma * unit[k] * g), likelihood[k, y] / (sum(likelihood[:, y]) / 5)
            assert s["ratio"][k, y] == pytest.approx(np.log(ratio), rel=1e-9, abs=1e-12)
            assert s["linearised"][k, y] == pytest.approx(inner - sigma**2 * sum(g**2) / 2)
            assert s["inner"][k, y] == pytest.approx(inner)
            assert s["psi"][k, y] == pytest.approx(inner / (sigma * np.sqrt(sum(g**2))))


def test_errors_by_loops_and_their_slopes():
    table = chain.errors(MODEL, [0.01, 0.02, 0.4], UNIT)
    table = table.pivot(index="sigma", columns="step", values="rms")
    slopes = np.log2(table.loc[0.02] / table.loc[0.01])
    assert slopes.filter(like="itself").to_numpy() == pytest.approx([1.0], abs=1e-6)
    assert slopes.filter(regex="error|both").to_numpy() == pytest.approx([2.0] * 3, abs=0.02)
    s = chain.statistics(MODEL, 0.4, UNIT)
    slow = sum(
        MODEL.base_p[y] * (s["ratio"][k, y] - s["inner"][k, y]) ** 2 / 512
        for k in range(512)
        for y in range(9)
    )
    assert table.loc[0.4, "both together"] == pytest.approx(np.sqrt(slow), rel=1e-10)


def test_levels_of_the_thresholds():
    s = chain.statistics(MODEL, 0.8, UNIT)
    assert (chain.reject_per_text(s["ratio"], 0.05).mean(axis=0) == int(0.05 * 512) / 512).all()
    null = MIXTURE / 512
    rejected = chain.reject_model_text(s["ratio"], 0.05, MIXTURE)
    assert 0.05 - null.max() < (rejected * null).sum() <= 0.05
    assert rejected.mean(axis=0).max() > 0.06  # for some single texts this level does not hold
    realised = (s["psi"] > threshold(0.05)).mean(axis=0)
    assert realised == pytest.approx(np.full(9, 0.05), abs=0.01)  # a 512-point net


def test_threshold_per_text_is_the_best_of_all_tests_for_any_text():
    """Six keys, level 1/3: every test that rejects at most two keys per text, tried out; texts do
    not interact.
    """
    likelihood = LIKELIHOOD[:6]
    pairs = list(combinations(range(6), 2))
    best = sum(max(sum(likelihood[list(pair), y]) for pair in pairs) for y in range(9))
    rejected = chain.reject_per_text(likelihood, 1 / 3)
    assert (likelihood * rejected).sum() == pytest.approx(best, rel=1e-12)


def test_likelihood_ratio_is_the_best_test_for_model_text():
    """Three keys, three texts: all 512 tests; none with at most the same null probability has more
    power.
    """
    likelihood = LIKELIHOOD[:3, :3] / LIKELIHOOD[:3, :3].sum(axis=1, keepdims=True)
    mixture = likelihood.mean(axis=0)
    others = [np.reshape(test, (3, 3)) for test in product([0, 1], repeat=9)]
    for level in (0.2, 0.4, 0.7):
        rejected = chain.reject_model_text(np.log(likelihood / mixture), level, mixture)
        size, power = (rejected * mixture / 3).sum(), (likelihood * rejected / 3).sum()
        for other in others:
            if (other * mixture / 3).sum() <= size:
                assert (likelihood * other / 3).sum() <= power + 1e-12


def test_powers_are_the_sums_of_what_is_rejected():
    table = chain.powers(MODEL, [0.8], 0.05, UNIT).set_index("test")["power"]
    rejected = chain.statistics(MODEL, 0.8, UNIT)["psi"] > threshold(0.05)
    assert table[chain.PSI] == pytest.approx((LIKELIHOOD * rejected).sum() / 512)
    assert table[chain.PSI] < table[chain.BEST] + 0.01
    assert table[chain.BEST] <= table[chain.BEST_FOR_MODEL_TEXT]
