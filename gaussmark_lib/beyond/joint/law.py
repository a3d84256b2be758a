"""The joint law of many texts under one key, and the part of each text's statistic that is new.

With k_i the vector of ⟨u_i, u_j⟩ over the earlier texts j < i and K_{<i} their Gram matrix, the
*innovation* of text i is

    r_i = (ψ_i − k_iᵀK_{<i}⁻¹ψ_{<i}) / s_i,   s_i² = ⟨u_i, u_i⟩ − k_iᵀK_{<i}⁻¹k_i

and s_i ∈ [0, 1] is its *residual*: the length of the part of u_i outside the span of the earlier
directions. In the factor K = LLᵀ, row i of L is (l_i, s_i) with l_i = L_{<i}⁻¹k_i, and r = L⁻¹ψ:
one triangular solve per text.

**Proposition 1 (one key, exactly).** For texts that do not depend on z, the innovations are
independent N(0, 1) over the draw of the single z. *Proof.* r_i = ⟨z, v_i⟩ with v_i = (u_i −
projection of u_i on span(u_1 … u_{i−1}))/s_i. The v_i are orthonormal, and the coordinates of
z ~ N(0, I) in an orthonormal system are independent N(0, 1). ∎ So the number of false alarms at
level α among n texts is Binomial(n, α), for any kinds of text.

**Proposition 2 (queries do not help).** Let text i be any function of ψ_1 … ψ_{i−1}, of the earlier
texts and of randomness that is independent of z. Then r_i is N(0, 1) given all of these, so that
all r_i are independent N(0, 1). *Proof.* By induction, the history is a function of r_1 … r_{i−1}
and of that randomness, where r_j = ⟨z, v_j⟩ and v_j is a function of the history before j. Given
the history, z is still N(0, I) outside span(v_1 … v_{i−1}), with an independent coordinate for each
direction there. Text i, and so v_i, is fixed given the history, and v_i is orthogonal to that span.
So r_i is such a coordinate. ∎

Proposition 2 has two conditions. *Every* number ever answered with the key is a function of the r_j
in the memory. And a text carries no other trace of z: the user holds no watermarked text. A text
with a negligible residual is therefore answered with l_iᵀr, which the memory knows, and not with
its ψ. Otherwise the difference of two answers, divided by a small residual, would give ⟨z, v⟩ in a
direction v that is not in the memory.

Inner products of directions are float64 sums over the stored float32 numbers (``directions``). The
rounding error of ψ is far below ``NOTHING_NEW``.

The same law gives the probability of any false alarm in a batch (``family``). Bonferroni and Šidák
treat the texts as independent, and Fisher's sum of logarithms is wrong if they are not.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

AT_A_TIME = 1 << 22  # simulated numbers
NOTHING_NEW = 1e-3  # a residual up to here counts as 0: float32 fixes a direction to 1e-6


class Factor:
    """The Cholesky factor of a Gram matrix that grows by one row at a time, in float64."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 0))  # L, lower triangular

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def coordinates(self, k: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return L⁻¹k, the coordinates of a direction in the orthonormal system of the earlier
        directions, given its inner products with them.
        """
        if self.n == 0:
            return k  # SciPy refuses an empty system
        return solve_triangular(self.rows, k, lower=True, check_finite=False)

    def append(self, coordinates: Float[np.ndarray, " n"], residual: float) -> None:
        """Append the row (l, s) to L."""
        rows = np.pad(self.rows, (0, 1))  # a row and a column of zeros
        rows[-1] = [*coordinates, residual]
        self.rows = rows


def innovations(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]
) -> tuple[Float[np.ndarray, "keys n"], Float[np.ndarray, " n"]]:
    """Return the innovations of all texts under many keys, and the texts' residuals.

    Both are in the order of K. A text without anything new has the innovation NaN and residual 0.
    """
    factor = Factor()
    new = []  # texts with a residual, which are the rows of the factor
    r = np.full(psi.shape, np.nan)
    residuals = np.zeros(len(K))
    for i in range(len(K)):
        coordinates = factor.coordinates(K[i, new])
        square = K[i, i] - coordinates @ coordinates
        residual = np.sqrt(max(square, 0.0))  # rounding may take the square below 0
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
    """Return family-wise p-values: the probability that the largest ψ of a batch is at least ψ, if
    no text carries the key.

        p = (1 + #{b : max_j X_j^(b) ≥ ψ}) / (1 + n),   X^(b) ~ N(0, K),   b = 1 … n

    Rejecting all p ≤ α raises any false alarm with probability at most α, exactly, whatever n is.
    The smallest p of a batch is the p-value of the whole batch.
    """
    simulated = greatest(K, n, seed)
    n_below = np.searchsorted(simulated, psi, side="left")
    return (1 + n - n_below) / (1 + n)


def greatest(K: Float[np.ndarray, "texts texts"], n: int, seed: int) -> Float[np.ndarray, " n"]:
    """Return max_j X_j of n simulations of X ~ N(0, K), in ascending order."""
    values, vectors = np.linalg.eigh(K)  # K may be singular
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T  # rootᵀ root = K
    rng = np.random.default_rng(seed)
    n_at_a_time = max(1, AT_A_TIME // len(K))
    maxima = []
    for start in range(0, n, n_at_a_time):
        n_simulations = min(n_at_a_time, n - start)
        normals = rng.standard_normal((n_simulations, len(K)))
        X = normals @ root  # (simulations, texts)
        maxima.append(X.max(1))
    return np.sort(np.concatenate(maxima))
