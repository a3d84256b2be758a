"""The joint law of many texts under one key, and the part of each text's statistic that is new.

With k_i the vector of ⟨u_i, u_j⟩ over the earlier texts j < i and K_{<i} their Gram matrix, the
*innovation* of text i is

    r_i = (ψ_i − k_iᵀK_{<i}⁻¹ψ_{<i}) / s_i,   s_i² = ⟨u_i, u_i⟩ − k_iᵀK_{<i}⁻¹k_i

and s_i ∈ [0, 1] its *residual*: the length of the part of u_i that lies outside the span of the
earlier ones. In the factor K = LLᵀ, row i of L is (l_i, s_i) with l_i = L_{<i}⁻¹k_i, and r = L⁻¹ψ:
one triangular solve a text.

**Proposition 1 (one key, exactly).** For texts that do not depend on z, the innovations are
independent N(0, 1) over the draw of the one z. *Proof.* r_i = ⟨z, v_i⟩ with v_i = (u_i − projection
of u_i on span(u_1 … u_{i−1}))/s_i, which are orthonormal; the coordinates of z ~ N(0, I) in an
orthonormal system are independent N(0, 1). ∎ So the false alarms at level α among n texts are
Binomial(n, α), for any kinds of text.

**Proposition 2 (asking does not help).** Let text i be any function of ψ_1 … ψ_{i−1}, of the
earlier texts and of randomness that is independent of z. Then r_i is N(0, 1) given all of them, so
that all r_i are independent N(0, 1). *Proof.* By induction, the history is a function of r_1 …
r_{i−1} and of that randomness, where r_j = ⟨z, v_j⟩ and v_j is a function of the history before j.
Given the history, z is normal outside span(v_1 … v_{i−1}), as it was at first: an independent
coordinate for each direction there. Text i, and so v_i, is fixed given the history, and orthogonal
to that span. So r_i is one of those coordinates. ∎ It needs *every* number ever answered with the
key to be a function of the r_j in the memory, and a text that carries no trace of z otherwise: the
asker holds no marked text. So a text with a residual that counts as none is answered with l_iᵀr,
which the memory knows, and not with its ψ: the difference of two answers, divided by a small
residual, would give ⟨z, v⟩ in a direction v that nobody remembers.

Inner products of directions are float64 sums over the float32 numbers that are stored
(``directions``), and ψ's own rounding is far below ``NOTHING_NEW``.

The same law gives the chance of any false alarm in a batch (``family``): Bonferroni and Šidák treat
the texts as independent, and Fisher's sum of logarithms is wrong where they are not.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

AT_A_TIME = 1 << 22  # simulated numbers
NOTHING_NEW = 1e-3  # a residual up to here is none: float32 vectors know their direction to 1e-6


class Factor:
    """The Cholesky factor of a Gram matrix that grows by a row at a time, float64."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 0))  # L, lower triangular

    @property
    def n(self) -> int:
        return len(self.rows)

    def coordinates(self, k: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """L⁻¹k: a direction in the orthonormal system of the earlier ones, from its inner products
        with them.
        """
        return solve_triangular(self.rows, k, lower=True, check_finite=False) if self.n else k

    def append(self, coordinates: Float[np.ndarray, " n"], residual: float) -> None:
        """One row more: L gets (l, s)."""
        rows = np.pad(self.rows, (0, 1))
        rows[-1] = [*coordinates, residual]
        self.rows = rows


def innovations(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]
) -> tuple[Float[np.ndarray, "keys n"], Float[np.ndarray, " n"]]:
    """r of all texts under many keys at once, in the order of K, NaN where nothing is new; and the
    texts' residuals, 0 there.
    """
    factor, new, r, residuals = Factor(), [], np.full(psi.shape, np.nan), np.zeros(len(K))
    for i in range(len(K)):
        coordinates = factor.coordinates(K[i, new])
        residual = np.sqrt(max(K[i, i] - coordinates @ coordinates, 0.0))
        if residual > NOTHING_NEW:
            r[:, i] = (psi[:, i] - r[:, new] @ coordinates) / residual
            residuals[i] = residual
            factor.append(coordinates, residual)
            new.append(i)
    return r, residuals


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
