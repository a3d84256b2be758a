"""Askers on toys; and what one key does, against simulated kinds of text."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

from gaussmark_lib.beyond.attacks import askers
from gaussmark_lib.beyond.joint import Public, public
from gaussmark_lib.errors import GaussMarkError

TEXT = list(range(100, 160))


@pytest.mark.parametrize("is_number", [True, False])
def test_a_climber_keeps_the_best_answer(is_number):
    """A detector that likes even tokens; a yes from 45 on."""
    asked = []

    def answer(texts: list[list[int]]) -> list[float]:
        scores = [sum(token % 2 == 0 for token in ids) for ids in texts]
        asked.extend(texts)
        return scores if is_number else [score >= 45 for score in scores]

    ids, best = askers.climbed(answer, TEXT, 40, 8, np.random.default_rng(0))
    assert len(asked) == 1 + 40 * 8
    assert len(ids) == len(TEXT)
    assert best == answer([ids])[0]
    assert (best > 45) == is_number
    with pytest.raises(GaussMarkError, match="n_steps: expected a whole number"):
        askers.climbed(answer, TEXT, 0, 8, np.random.default_rng(0))


def test_a_climber_keeps_what_no_edit_improves():
    def answer(texts):
        return [float(ids == TEXT) for ids in texts]

    assert askers.climbed(answer, TEXT, 5, 8, np.random.default_rng(0)) == (TEXT, 1.0)


def test_variants_and_phases_exchange_what_they_say():
    rng = np.random.default_rng(1)
    changed = [np.not_equal(ids, TEXT) for ids in askers.variants(TEXT, 200, rng)]
    assert np.mean(changed) == pytest.approx(0.11, abs=0.01)
    for i, ids in enumerate(askers.phases(TEXT, 8, rng)):
        assert set(np.flatnonzero(np.not_equal(ids, TEXT))) <= set(range(i, 60, 8))


def test_what_is_answered_is_what_the_detector_answers():
    rng = np.random.default_rng(2)
    texts = [*askers.variants(TEXT, 6, rng), TEXT]
    psi = rng.standard_normal((20, 7)) + 1
    for of_key, yes in zip(psi, askers.answered(texts, psi, 0.05), strict=True):
        state, asked = Public(None, 0.05, {}), zip(texts, norm.sf(of_key), strict=True)
        assert [state.answer(str(y), public.runs(y), p) for y, p in asked] == yes.tolist()


@pytest.mark.parametrize("c", [0.2, 0.7])
def test_one_key_on_texts_with_a_common_factor(c):
    """ψ_i = √c z + √(1 − c) e_i: of n texts K = c + (1 − c)·I, and z₀ listens to z through them."""
    rng, tau, n = np.random.default_rng(3), norm.isf(1e-3), 50
    z, e = rng.standard_normal((4_000, 1)), rng.standard_normal((4_000, 2 * n))
    psi = np.sqrt(c) * z + np.sqrt(1 - c) * e
    K = c + (1 - c) * np.eye(n)
    z0, k = askers.common(psi[:, :n], K), askers.loadings(K)
    assert kstest(z0, "norm").pvalue > 1e-3
    # a further text has the covariance n·c with the sum of n, whose variance is 1ᵀK1
    np.testing.assert_allclose(k, n * c / np.sqrt(n + n * (n - 1) * c))
    high = z0 > 1.5
    predicted = askers.one_key(tau, k[0], z0[high]).mean()
    assert (psi[high, n:] >= tau).mean() == pytest.approx(predicted, rel=0.25)


def test_one_key_keeps_the_level_in_the_mean_over_keys():
    k, grid = np.array([0.1, 0.5, 0.9]), np.linspace(-8, 8, 4_001)
    each = askers.one_key(norm.isf(1e-3), k[:, None], grid)
    over_keys = (each * norm.pdf(grid)).sum(1) * np.diff(grid)[0]
    assert over_keys == pytest.approx(1e-3, rel=1e-3)
    tau = askers.threshold(1e-6, k, 2.0)
    one_by_one = [norm.sf((tau - 2 * one) / np.sqrt(1 - one**2)) for one in k]
    assert np.mean(one_by_one) == pytest.approx(1e-6, rel=1e-6)


def test_loadings_are_cosines():
    u = np.random.default_rng(4).standard_normal((9, 5)) + 1
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    for i, k in enumerate(askers.loadings(u @ u.T)):
        others = np.delete(u, i, 0)
        assert k == pytest.approx(u[i] @ others.sum(0) * 9 / 8 / np.linalg.norm(u.sum(0)))
        assert abs(k) < 1
