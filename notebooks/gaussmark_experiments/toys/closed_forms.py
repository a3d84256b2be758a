"""The Gaussian example, in which all integrals are known (paper, Sec. 3 and Lemma
"gaussian_details"): y ~ N(θ, I_d), watermarked y ~ N(θ + ξ, I_d), ξ ~ N(0, σ² I_d).

The gradient of a watermarked y is g = y − θ = ξ + z with z ~ N(0, I_d). Given g, the unit noise ξ/σ
is normal with mean σ g/(1+σ²) and covariance I/(1+σ²), and ‖g‖ is √(1+σ²) χ_d. Hence, exactly,

    ψ = ⟨ξ, g⟩ / (σ‖g‖)  =  (σ χ_d + Z) / √(1+σ²),     χ_d and Z ~ N(0, 1) independent.

The rate printed in the lemma, σ²√d/√(1+σ²), has a σ too many: its proof divides by ‖ξ + z‖, but not
by the σ in the denominator of the statistic.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gaussmark_lib.stats import threshold

LARGEST = 10**7  # dimension in a search


def simulate_psi(
    dim: int, sigma: float, n: int, seed: int, watermarked: bool = True
) -> Float[np.ndarray, " n"]:
    """Simulate ψ of n pairs of a key and a text of the Gaussian example, by its definition."""
    rng = np.random.default_rng([seed, 5])
    noise = sigma * rng.standard_normal((n, dim))
    gradient = rng.standard_normal((n, dim))
    if watermarked:
        gradient += noise
    inner = np.einsum("nd,nd->n", noise, gradient)
    return inner / (sigma * np.linalg.norm(gradient, axis=1))


def rate(dim: int, sigma: float) -> float:
    """Return σ√d/√(1+σ²), around which ψ concentrates in high dimension.

    The lemma prints σ times this value.
    """
    return float(sigma * np.sqrt(dim / (1 + sigma**2)))


def expected_norm(dim: int) -> float:
    """Return E χ_d = √2 Γ((d+1)/2)/Γ(d/2), the mean ‖∇ log p_θ(y)‖ of the Gaussian example.

    >>> round(expected_norm(2), 6)  # √(π/2)
    1.253314
    """
    return float(np.sqrt(2) * special.poch(dim / 2, 0.5))


def expected_psi(dim: int, sigma: float) -> float:
    """Return the exact mean of ψ in the Gaussian example, σ/√(1+σ²) · E χ_d."""
    return float(sigma / np.sqrt(1 + sigma**2) * expected_norm(dim))


def gaussian_power(dim: int, sigma: float, level: float) -> float:
    """Return P(ψ ≥ τ), exactly.

    With c = τ√(1+σ²), ψ ≥ τ means σχ_d + Z ≥ c, or (c − Z)/(χ_d/√d) ≤ σ√d. The left side has the
    noncentral t distribution with d degrees of freedom and noncentrality c.

    >>> round(gaussian_power(100, 1e-9, 0.05), 6)  # no noise, no power beyond the level
    0.05
    """
    c = threshold(level) * np.sqrt(1 + sigma**2)
    return float(stats.nct.cdf(sigma * np.sqrt(dim), dim, c))


def first_dimension(enough: Callable[[int], bool]) -> int:
    """Return the smallest d with ``enough(d)``, by bisection.

    If ``enough`` is true for some d, it must be true for all larger d.
    """
    dimensions = range(1, LARGEST)
    return bisect_left(dimensions, True, key=enough) + 1  # dimension d is at place d − 1


def dimension_needed(sigma: float, level: float, beta: float) -> int:
    """Return the smallest d at which the exact power of the Gaussian example is at least 1 − β."""

    def is_enough(dim: int) -> bool:
        return gaussian_power(dim, sigma, level) >= 1 - beta

    return first_dimension(is_enough)


def least_price(power: float, level: float) -> float:
    """Return kl(power ‖ level) nats, the smallest price of a test with this level and power.

    By data processing, the alternative must be that far from every null, and the price is at least
    this distance.

    >>> round(least_price(0.9, 0.05), 3), least_price(0.05, 0.05)
    (2.376, 0.0)
    """
    detected = special.rel_entr(power, level)
    missed = special.rel_entr(1 - power, 1 - level)
    return float(detected + missed)
