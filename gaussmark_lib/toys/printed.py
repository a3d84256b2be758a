"""Where a printed statement of the paper is not what its proof gives: each with the numbers that decide it.

References are to arXiv:2501.13941. The proofs' ideas hold in every case; what is listed is a factor, a sign, a logarithm or a range.
"""

import numpy as np
import pandas as pd
from scipy import stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import bounds, gaussian, power, softmax


def lemma_rate(dim: int = 64, sigma: float = 4.0) -> dict[str, float]:
    """Lemma "gaussian_details": ψ ≳ σ²√d/√(1+σ²). But ψ ≤ ‖ξ‖/σ, about √d whatever σ is, so no constant makes it true for all σ."""
    return {"printed": gaussian.printed_rate(dim, sigma), "exact": gaussian.expected_psi(dim, sigma)}


def one_dimension(sigma: float = 1e3, level: float = 0.05) -> dict[str, float]:
    """The same lemma promises power 1−β, here .99, once σ√d ≳ √log(1/min(α, β)). With d = 1 the power tends to 2α; σ√d/√(1+σ²) must be large."""
    return {"printed": 0.99, "exact": gaussian.power(1, sigma, level)}


def condition_number(spread: float = 10.0, level: float = 1e-10) -> dict[str, float]:
    """After "extreme_case": P(‖Z‖ ≤ τR/r) ≤ exp(−dr/16R) once 2√log(1/α) ≤ √(dr/2R). It takes (R/r)², not R/r, to make this true."""
    dim = int(np.ceil(8 * np.log(1 / level) * spread))
    return {"printed": float(np.exp(-dim / (16 * spread))), "exact": float(stats.chi.cdf(threshold(level) * spread, dim))}


def condition_number_squared(spread: float = 10.0, level: float = 1e-10) -> dict[str, float]:
    """The same with (R/r)²: 2√log(1/α) ≤ √(d/2) r/R gives P(‖Z‖ ≤ τR/r) ≤ P(χ²_d ≤ d/2) ≤ exp(−d/16)."""
    dim = int(np.ceil(8 * np.log(1 / level) * spread**2))
    return {"bound": float(np.exp(-dim / 16)), "exact": float(stats.chi.cdf(threshold(level) * spread, dim))}


def large_noise_limit(model: softmax.LinearSoftmax, scale: float, level: float, n_keys: int, seed: int) -> dict[str, float]:
    """Display "extreme_case": β = P(sup_y ⟨Z, ∇⟩ ≤ τR/r) as σ → ∞. What holds is β ≤ P(sup_y ⟨Z, ∇⟩ ≤ τR).

    The left side of the printed event scales with the features and its right side does not, so longer features turn it into any number;
    the model itself does not change when θ is divided by as much.
    """
    model = softmax.LinearSoftmax(model.theta / scale, model.features * scale)
    unit_noise = softmax.unit_noises(len(model.theta), n_keys, seed)
    largest = (unit_noise @ model.gradients.T).max(axis=1)
    tau, big, small = threshold(level), model.grad_norms.max(), model.grad_norms.min()
    return {
        "printed": float((largest <= tau * big / small).mean()),
        "repaired": float((largest <= tau * big).mean()),
        "exact": power.miss_probability_limit(model, level, unit_noise),
    }


def corollary_without_level(model: softmax.LinearSoftmax, sigma: float, level: float, share: float, n_keys: int, seed: int) -> dict[str, float]:
    """Corollary "alt2": its bound on β does not contain the level (τ was lost between two lines of the proof), yet β → 1 as α → 0."""
    unit_noise = softmax.unit_noises(len(model.theta), n_keys, seed)
    row = bounds.corollary(model, [sigma], level, unit_noise, [share]).iloc[0]
    return {
        "printed": float(row["printed_bound"]),
        "repaired": float(row["bound"]),
        "exact": power.miss_probability(model, sigma, level, unit_noise),
    }


def gaussian_curvature(dim: int = 64, variance: float = 4.0, sigma: float = 0.5, level: float = 0.05) -> dict[str, float]:
    """Before theorem "main_sc": N(θ, Σ) is η-strongly log-concave with η = λ_min(Σ). It is λ_min(Σ⁻¹); here Σ = variance · I.

    Rescaled by √variance this is the Gaussian example at σ/√variance, which gives the exact miss rate.
    """
    return {
        "printed": bounds.strongly_log_concave(dim, sigma, level, variance, eta=variance),
        "repaired": bounds.strongly_log_concave(dim, sigma, level, variance),
        "exact": 1 - gaussian.power(dim, sigma / np.sqrt(variance), level),
    }


def table(model: softmax.LinearSoftmax, n_keys: int = 1024, seed: int = 0) -> pd.DataFrame:
    """All of the above, one row each: ``where``, what the numbers are (``quantity``), ``printed``, ``exact``. The model is a rich softmax one."""
    share = 1.5 / len(model.features)
    small = softmax.random_model(60, 2, seed=seed)
    rows = [
        ("Lemma gaussian_details", "mean ψ at d = 64, σ = 4: printed up to a constant, but the ratio grows as σ", lemma_rate()),
        ("Lemma gaussian_details, 2nd claim", "power at d = 1, σ = 1000, α = .05: printed as a lower bound", one_dimension()),
        ("display after extreme_case", "P(miss) at R/r = 10, α = 1e-10: printed as an upper bound", condition_number()),
        (
            "display extreme_case",
            "P(miss) as σ → ∞, d = 2, features 4 times as long: printed as equal",
            large_noise_limit(small, 4.0, 0.05, n_keys, seed),
        ),
        ("Corollary alt2", "P(miss) at σ = 6, α = 1e-4: printed as an upper bound", corollary_without_level(model, 6.0, 1e-4, share, n_keys, seed)),
        ("Theorem main_sc, its example", "P(miss) for Σ = 4I, d = 64, σ = .5: printed as an upper bound", gaussian_curvature()),
    ]
    return pd.DataFrame([{"where": where, "quantity": quantity, "printed": x["printed"], "exact": x["exact"]} for where, quantity, x in rows])
