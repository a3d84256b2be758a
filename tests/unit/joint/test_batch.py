"""The chance of any false alarm in a batch of dependent statistics, over keys."""

import numpy as np
import pytest

from gaussmark_lib.beyond import joint

N_TEXTS, N_KEYS = 20, 4000


def drawn(cosine: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ψ (keys, texts) ~ N(0, K) with one cosine."""
    K = np.full((N_TEXTS, N_TEXTS), cosine) + (1 - cosine) * np.eye(N_TEXTS)
    return np.random.default_rng(seed).multivariate_normal(np.zeros(N_TEXTS), K, size=N_KEYS), K


def test_family_counts_simulations_one_by_one():
    psi, K = drawn(0.5)
    values, vectors = np.linalg.eigh(K)
    x = np.random.default_rng(3).standard_normal((400, N_TEXTS))
    x = x @ (np.sqrt(values)[:, None] * vectors.T)
    slow = [(1 + sum(max(row) >= value for row in x)) / 401 for value in psi[0]]
    assert joint.family(psi[0], K, n=400, seed=3).tolist() == pytest.approx(slow)


def test_a_singular_covariance_is_one_text():
    K = np.ones((2, 2))
    assert joint.family(np.array([9.0, -9.0]), K, n=99).tolist() == [0.01, 1.0]


def test_a_tie_counts_as_an_alarm():
    found = joint.family(joint.law.greatest(np.eye(4), 9, 0), np.eye(4), n=9)
    assert found.tolist() == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
