"""A batch of texts under one key: the chance of any false alarm.

Bonferroni and Šidák treat the texts as independent, and Fisher's sum of logarithms is wrong where
they are not. Under the null their joint law is known: ψ ~ N(0, K) with K_ij = ⟨u_i, u_j⟩.
"""

import numpy as np
from jaxtyping import Float

AT_A_TIME = 1 << 22  # simulated numbers


def family(
    psi: Float[np.ndarray, "*texts"],
    K: Float[np.ndarray, "n n"],
    *,
    n: int = 9_999,
    seed: int = 0,
) -> Float[np.ndarray, "*texts"]:
    """Family-wise p-values: the chance that the largest ψ of a batch is at least this one, if no
    text carries the key.

        p = (1 + #{b : max_j X_j^(b) ≥ ψ}) / (1 + n),   X^(b) ~ N(0, K),   b = 1 … n

    Rejecting all p ≤ α raises any false alarm with probability at most α, exactly so whatever n;
    the least p of a batch is the batch's own.
    """
    simulated = greatest(K, n, seed)
    return (1 + n - np.searchsorted(simulated, psi, side="left")) / (1 + n)


def greatest(K: Float[np.ndarray, "texts texts"], n: int, seed: int) -> Float[np.ndarray, " n"]:
    """max_j X_j of n simulations of X ~ N(0, K), in ascending order."""
    values, vectors = np.linalg.eigh(K)  # K may be singular
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T  # rootᵀ root = K
    rng = np.random.default_rng(seed)
    sizes = np.diff([*range(0, n, max(1, AT_A_TIME // len(K))), n])
    parts = [(rng.standard_normal((size, len(K))) @ root).max(1) for size in sizes]
    return np.sort(np.concatenate(parts))
