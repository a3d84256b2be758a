"""A model whose every integral is known: the Gaussian example (paper, Sec. 3 and Lemma
"gaussian_details"), y ~ N(θ, I_d), watermarked y ~ N(θ + ξ, I_d), ξ ~ N(0, σ² I_d).

Its gradient is g = y − θ = ξ + z with z ~ N(0, I_d). Given g, the
unit noise ξ/σ is normal with mean σ g/(1+σ²) and covariance I/(1+σ²), and ‖g‖ is √(1+σ²) χ_d.
Hence, exactly,

    ψ = ⟨ξ, g⟩ / (σ‖g‖)  =  (σ χ_d + Z) / √(1+σ²),     χ_d and Z ~ N(0, 1) independent.

The rate that the lemma prints, σ²√d/√(1+σ²), has one σ too many: its proof divides by ‖ξ + z‖ but
not by the σ in the statistic's denominator.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gaussmark_lib.stats import threshold

LARGEST = 10**7  # dimension that is tried


def simulate_psi(
    dim: int, sigma: float, n: int, seed: int, watermarked: bool = True
) -> Float[np.ndarray, " n"]:
    """ψ of n pairs (key, text) of the Gaussian example, drawn as the definition says."""
    rng = np.random.default_rng([seed, 5])
    noise = sigma * rng.standard_normal((n, dim))
    gradient = rng.standard_normal((n, dim)) + (noise if watermarked else 0.0)
    return np.einsum("nd,nd->n", noise, gradient) / (sigma * np.linalg.norm(gradient, axis=1))


def rate(dim: int, sigma: float) -> float:
    """σ√d/√(1+σ²), around which ψ concentrates in high dimension; the lemma prints σ times this."""
    return float(sigma * np.sqrt(dim / (1 + sigma**2)))


def expected_norm(dim: int) -> float:
    """E χ_d = √2 Γ((d+1)/2)/Γ(d/2), the mean ‖∇ log p_θ(y)‖ of the Gaussian example.

    >>> round(expected_norm(2), 6)  # √(π/2)
    1.253314
    """
    return float(np.sqrt(2) * special.poch(dim / 2, 0.5))


def expected_psi(dim: int, sigma: float) -> float:
    """The exact mean of ψ in the Gaussian example, σ/√(1+σ²) · E χ_d."""
    return float(sigma / np.sqrt(1 + sigma**2) * expected_norm(dim))


def gaussian_power(dim: int, sigma: float, level: float) -> float:
    """The exact P(ψ ≥ τ): σχ_d + Z ≥ c = τ√(1+σ²) says (c − Z)/(χ_d/√d) ≤ σ√d; the left side is
    noncentral t (d, noncentrality c).

    >>> round(gaussian_power(100, 1e-9, 0.05), 6)  # no noise, no power beyond the level
    0.05
    """
    return float(stats.nct.cdf(sigma * np.sqrt(dim), dim, threshold(level) * np.sqrt(1 + sigma**2)))


def first_dimension(enough: Callable[[int], bool]) -> int:
    """The smallest d with ``enough(d)``, by bisection; ``enough`` must stay true once it is."""
    return bisect_left(range(1, LARGEST), True, key=enough) + 1


def dimension_needed(sigma: float, level: float, beta: float) -> int:
    """The smallest d at which the exact power of the Gaussian example is at least 1 − β."""
    return first_dimension(lambda dim: gaussian_power(dim, sigma, level) >= 1 - beta)


def least_price(power: float, level: float) -> float:
    """kl(power ‖ level) nats: no test of this level has this power for less. The alternative must
    be that far from every null (data processing), and the price is at least that distance.

    >>> round(least_price(0.9, 0.05), 3), least_price(0.05, 0.05)
    (2.376, 0.0)
    """
    return float(special.rel_entr(power, level) + special.rel_entr(1 - power, 1 - level))
