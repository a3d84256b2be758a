"""The Gaussian example: y ~ N(θ, I_d), watermarked y ~ N(θ + ξ, I_d), ξ ~ N(0, σ² I_d) (paper, Sec.
3 and Lemma "gaussian_details").

Its gradient is g = y − θ, so under the watermark g = ξ + z with z ~ N(0, I_d). Given g, the unit
noise ξ/σ is normal with mean σ g/(1+σ²) and covariance I/(1+σ²), and ‖g‖ is √(1+σ²) χ_d. Hence,
exactly,

    ψ = ⟨ξ, g⟩ / (σ‖g‖)  =  (σ χ_d + Z) / √(1+σ²),     χ_d and Z ~ N(0, 1) independent,

from which the mean follows, and the power as a noncentral t probability. The rate that the lemma
prints, σ²√d/√(1+σ²), has one σ too many: its proof divides by ‖ξ + z‖ but not by the σ in the
statistic's denominator.
"""

from bisect import bisect_left
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special, stats

from gaussmark_lib.stats import threshold


def simulate_psi(
    dim: int, sigma: float, n: int, seed: int, watermarked: bool = True
) -> Float[np.ndarray, " n"]:
    """ψ of n pairs (key, text), drawn as the definition says; without watermark the text ignores
    the key.
    """
    rng = np.random.default_rng([seed, 5])
    noise = sigma * rng.standard_normal((n, dim))
    gradient = rng.standard_normal((n, dim)) + (noise if watermarked else 0.0)
    return np.einsum("nd,nd->n", noise, gradient) / (sigma * np.linalg.norm(gradient, axis=1))


def rate(dim: int, sigma: float) -> float:
    """σ√d/√(1+σ²), around which ψ concentrates in high dimension."""
    return float(sigma * np.sqrt(dim / (1 + sigma**2)))


def printed_rate(dim: int, sigma: float) -> float:
    """σ²√d/√(1+σ²), the rate as the lemma prints it, for comparison only."""
    return sigma * rate(dim, sigma)


def expected_norm(dim: int) -> float:
    """E‖∇ log p_θ(y)‖ = E χ_d = √2 Γ((d+1)/2)/Γ(d/2).

    >>> round(expected_norm(2), 6)  # √(π/2)
    1.253314
    """
    return float(
        np.exp(0.5 * np.log(2) + special.gammaln((dim + 1) / 2) - special.gammaln(dim / 2))
    )


def expected_psi(dim: int, sigma: float) -> float:
    """The exact mean of ψ under the watermark, σ/√(1+σ²) · E χ_d."""
    return float(sigma / np.sqrt(1 + sigma**2) * expected_norm(dim))


def power(dim: int, sigma: float, level: float) -> float:
    """The exact power P(ψ ≥ τ): σχ_d + Z ≥ c = τ√(1+σ²) says (c − Z)/(χ_d/√d) ≤ σ√d; the left side
    is noncentral t (d, noncentrality c).

    >>> round(power(100, 1e-9, 0.05), 6)  # no noise, no power beyond the level
    0.05
    """
    return float(stats.nct.cdf(sigma * np.sqrt(dim), dim, threshold(level) * np.sqrt(1 + sigma**2)))


def first_dimension(enough: Callable[[int], bool], largest: int = 10**7) -> int:
    """The smallest d with ``enough(d)``, by bisection, where ``enough`` stays true once it is."""
    return bisect_left(range(1, largest), True, key=enough) + 1


def dimension_needed(sigma: float, level: float, beta: float) -> int:
    """The smallest d at which the exact power is at least 1 − β."""
    return first_dimension(lambda dim: power(dim, sigma, level) >= 1 - beta)


def price(dim: int, sigma: float) -> float:
    """E_ξ KL(N(θ+ξ, I) ‖ N(θ, I)) = σ² d / 2, in nats a text."""
    return sigma**2 * dim / 2


def table(dims: list[int], sigmas: list[float], n: int, level: float, seed: int) -> pd.DataFrame:
    """One row a (dim, sigma): mean of n simulated ψ with its standard error, ``hits`` at the level;
    the exact mean and power, and both rates.
    """
    rows = []
    for i, (dim, sigma) in enumerate(product(dims, sigmas)):
        psi = simulate_psi(dim, sigma, n, seed + i)
        simulated = psi.mean(), stats.sem(psi), (psi >= threshold(level)).sum()
        exact = (f(dim, sigma) for f in (expected_psi, rate, printed_rate))
        rows.append((dim, sigma, n, *simulated, power(dim, sigma, level), *exact))
    columns = "dim sigma n mean_psi sem_psi hits power expected_psi rate printed_rate"
    return pd.DataFrame(rows, columns=columns.split())
