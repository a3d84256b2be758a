"""The exact power of the test in a linear softmax model (paper, Prop. "softmax_power_adaptive").

    β = P(miss) = E_{y ~ p_θ, ξ}[γ(y, ξ) 1{ψ(y, ξ) ≤ τ}],     γ = p_{θ+ξ}/p_θ,     τ = Φ⁻¹(1 − α).

Over y this is summed. Over ξ it is averaged over given keys (``miss_probability``), or integrated
(``miss_probability_integrated``).
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import softmax
from gaussmark_lib.toys.softmax import Keys, LinearSoftmax


def miss_probability(model: LinearSoftmax, sigma: float, level: float, unit_noise: Keys) -> float:
    """β as the proposition writes it: the mean over keys of Σ_y p_θ(y) γ(y, ξ) 1{ψ ≤ τ}."""
    missed = model.psi(unit_noise) <= threshold(level)
    return float((model.tilt(sigma * unit_noise) * missed @ model.base_p).mean())


def miss_probability_integrated(
    model: LinearSoftmax, sigma: float, level: float, nodes: int = 48
) -> float:
    """β by quadrature over ξ too, for d ≤ 3: β = Σ_y ∫ 1{⟨ξ, e_y⟩ ≤ στ} p_{θ+ξ}(y) dN(ξ), e_y the
    gradient's direction.

    The missed keys of one y fill a half-space, inside which the integrand is smooth. Gauss–Legendre
    along e_y up to τ (from −9, below which lies 1e-19 of the mass) and Gauss–Hermite across
    converge to rounding, for σ up to about 2 with 48 nodes.
    """
    tau, dim = threshold(level), len(model.theta)
    along, weight_along = np.polynomial.legendre.leggauss(nodes)
    along = (along + 1) / 2 * (tau + 9) - 9
    weight = weight_along * (tau + 9) / 2 * stats.norm.pdf(along)
    across, weight_across = np.polynomial.hermite_e.hermegauss(nodes)
    for _ in range(dim - 1):
        weight = np.multiply.outer(weight, weight_across / np.sqrt(2 * np.pi))
    grid = np.stack(np.meshgrid(along, *[across] * (dim - 1), indexing="ij"), axis=-1).reshape(
        -1, dim
    )
    return float(
        sum(
            weight.ravel() @ np.exp(model.log_p(sigma * grid @ _frame(g)))[:, y]
            for y, g in enumerate(model.gradients)
        )
    )


def _frame(direction: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
    """An orthonormal basis, one vector a row, whose first row is the direction."""
    basis, upper = np.linalg.qr(np.column_stack([direction, np.eye(len(direction))]))
    basis[:, 0] *= np.sign(upper[0, 0])
    return basis.T


def miss_probability_limit(model: LinearSoftmax, level: float, unit_noise: Keys) -> float:
    """β as σ → ∞: the text is argmax_y ⟨ξ, ∇ log p_θ(y)⟩ for certain, and is missed where its ψ ≤
    τ.
    """
    best = (unit_noise @ model.gradients.T).argmax(axis=1)
    return float((model.psi(unit_noise)[np.arange(len(best)), best] <= threshold(level)).mean())


def simulated(
    model: LinearSoftmax, sigmas: list[float], level: float, n: int, seed: int
) -> pd.DataFrame:
    """One row a σ: how many of n simulated watermarked texts reach the threshold (``hits``)."""
    hits = [
        int((softmax.simulate_psi(model, sigma, n, seed + i) > threshold(level)).sum())
        for i, sigma in enumerate(sigmas)
    ]
    return pd.DataFrame({"sigma": sigmas, "n": n, "hits": hits})


def summed(
    model: LinearSoftmax, sigmas: list[float], level: float, unit_noise: Keys
) -> pd.DataFrame:
    """One row a σ: ``beta`` by :func:`miss_probability`, and ``power`` = 1 − β."""
    beta = np.array([miss_probability(model, sigma, level, unit_noise) for sigma in sigmas])
    return pd.DataFrame({"sigma": sigmas, "beta": beta, "power": 1 - beta})


def temperature_table(
    n_outcomes: int,
    dim: int,
    temperatures: list[float],
    sigma: float,
    level: float,
    unit_noise: Keys,
    seed: int,
) -> pd.DataFrame:
    """θ of one model divided by each temperature: entropy, 10/50/90% quantiles of ‖∇‖ over y ~ p_θ,
    σE‖∇‖, exact mean ψ and power at one σ.
    """
    rows = []
    for temperature in temperatures:
        model = softmax.random_model(n_outcomes, dim, temperature, seed)
        norms = np.quantile(
            model.grad_norms, (0.1, 0.5, 0.9), weights=model.base_p, method="inverted_cdf"
        )
        row = {"temperature": temperature, "entropy": model.entropy}
        row |= dict(zip(("norm_10", "norm_50", "norm_90"), norms, strict=True))
        row["predicted_psi"] = sigma * model.expected_norm
        row["mean_psi"] = softmax.expected_psi(model, sigma, unit_noise)
        row["power"] = 1 - miss_probability(model, sigma, level, unit_noise)
        rows.append(row)
    return pd.DataFrame(rows)
