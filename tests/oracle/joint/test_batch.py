"""Batches of dependent statistics: the rates of false alarms and of false discoveries, over
keys.
"""

import numpy as np
import pytest
from scipy.stats import norm

from gaussmark_lib import joint
from gaussmark_lib.stats import rate

N_TEXTS, N_KEYS = 20, 4000


def drawn(cosine: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ψ (keys, texts) ~ N(0, K) with one cosine."""
    K = np.full((N_TEXTS, N_TEXTS), cosine) + (1 - cosine) * np.eye(N_TEXTS)
    return np.random.default_rng(seed).multivariate_normal(np.zeros(N_TEXTS), K, size=N_KEYS), K


@pytest.mark.parametrize("cosine", [0.0, 0.8])
def test_the_family_wise_rate_is_the_level(cosine):
    psi, K = drawn(cosine)
    p = joint.family(psi.ravel()[:N_TEXTS], K, n=99)
    assert p.shape == (N_TEXTS,)
    least = np.array(
        [
            joint.family([row.max()] * N_TEXTS, K, n=199, seed=i)[0]
            for i, row in enumerate(psi[:1500])
        ]
    )
    found = rate(least <= 0.05, confidence=0.999)
    assert found.low <= 0.05 <= found.high
    bonferroni = rate(norm.sf(psi.max(1)) * N_TEXTS <= 0.05, confidence=0.999)
    assert bonferroni.high < 0.05 or cosine == 0, "what the joint law gains"


def test_the_greatest_of_a_simulation():
    found = joint.batch.greatest(np.eye(4), 50_000, 0)
    assert (np.diff(found) >= 0).all()
    at = np.array([0.0, 1.0, 2.0])
    expected = norm.cdf(at) ** 4
    assert np.abs(np.searchsorted(found, at) / 50_000 - expected).max() < 4 * np.sqrt(0.25 / 50_000)


def test_family_counts_simulations_one_by_one():
    psi, K = drawn(0.5)
    n = 400
    values, vectors = np.linalg.eigh(K)
    x = np.random.default_rng(3).standard_normal((n, N_TEXTS)) @ (
        np.sqrt(values)[:, None] * vectors.T
    )
    slow = [(1 + sum(max(row) >= value for row in x)) / (1 + n) for value in psi[0]]
    assert joint.family(psi[0], K, n=n, seed=3).tolist() == pytest.approx(slow)


@pytest.mark.parametrize("with_gram", [False, True], ids=["e-BH", "BH"])
@pytest.mark.parametrize("cosine", [0.0, 0.8])
def test_the_share_of_false_discoveries_is_controlled(cosine, with_gram):
    psi, K = drawn(cosine)
    marked, norms = np.arange(N_TEXTS) < 5, np.full(N_TEXTS, 40.0)
    false, found = [], []
    for row in psi:
        called = joint.discoveries(
            row + 4.0 * marked, norms, 0.1, fdr=0.2, K=K if with_gram else None
        )
        false.append((called & ~marked).sum() / max(called.sum(), 1))
        found.append(called[marked].mean())
    assert np.mean(false) <= 0.2 * 0.75 + 3 * np.std(false) / np.sqrt(N_KEYS)
    assert np.mean(found) > 0.5


def test_e_bh_against_its_definition():
    rng = np.random.default_rng(5)
    for _ in range(200):
        psi, norms = rng.normal(1.5, 2, size=12), rng.uniform(5, 60, size=12)
        e = np.exp(0.1 * norms * psi - (0.1 * norms) ** 2 / 2)
        greatest = max((k for k in range(1, 13) if np.sort(e)[-k] >= 12 / (0.2 * k)), default=0)
        expected = np.isin(np.arange(12), np.argsort(-e)[:greatest])
        assert joint.discoveries(psi, norms, 0.1, fdr=0.2).tolist() == expected.tolist()
