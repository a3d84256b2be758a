"""Askers on toys; and what one key does, against simulated kinds of text."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

from gaussmark_lib.attacks import askers
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.joint import Public, public

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
    rng, tau = np.random.default_rng(3), norm.isf(1e-3)
    z0 = rng.standard_normal(4_000)
    e = rng.standard_normal((4_000, 50))
    psi = np.sqrt(c) * z0[:, None] + np.sqrt(1 - c) * e
    K = c + (1 - c) * np.eye(50)
    assert kstest(askers.common(psi, K), "norm").pvalue > 1e-3
    high = z0 > 1.5
    assert (psi[high] >= tau).mean() == pytest.approx(
        askers.one_key(tau, c, z0[high]).mean(), rel=0.25
    )
    grid = np.linspace(-8, 8, 4_001)
    over_keys = (askers.one_key(tau, c, grid) * norm.pdf(grid)).sum() * (grid[1] - grid[0])
    assert over_keys == pytest.approx(1e-3, rel=1e-3)
    assert askers.one_key(norm.isf(1e-6), 0.7, 3) == pytest.approx(2e-5, rel=0.2)
    assert askers.one_key(askers.threshold(1e-6, c, 2.0), c, 2.0) == pytest.approx(1e-6, rel=1e-6)
