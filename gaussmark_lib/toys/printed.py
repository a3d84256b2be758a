"""Where a printed statement of the paper is not what its proof gives: each with the numbers that
decide it.

References are to arXiv:2501.13941. The proofs' ideas hold in every case; what is listed is a
factor, a sign, a logarithm or a range.
"""

import numpy as np
import pandas as pd
from scipy import stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import bounds, gaussian, power, softmax


def condition_number(spread: float = 10.0, level: float = 1e-10) -> dict[str, float]:
    """After "extreme_case": P(‖Z‖ ≤ τR/r) ≤ exp(−dr/16R) once 2√log(1/α) ≤ √(dr/2R).

    It takes (R/r)², not R/r: 2√log(1/α) ≤ √(d/2) r/R gives P(‖Z‖ ≤ τR/r) ≤ P(χ²_d ≤ d/2) ≤
    exp(−d/16).
    """
    dim = int(np.ceil(8 * np.log(1 / level) * spread))
    return {
        "printed": float(np.exp(-dim / (16 * spread))),
        "exact": float(stats.chi.cdf(threshold(level) * spread, dim)),
    }


def large_noise_limit(
    model: softmax.LinearSoftmax, scale: float, level: float, n_keys: int, seed: int
) -> dict[str, float]:
    """Display "extreme_case": β = P(sup_y ⟨Z, ∇⟩ ≤ τR/r) as σ → ∞. What holds is β ≤ P(sup_y ⟨Z, ∇⟩
    ≤ τR).

    Features ``scale`` times as long, with θ divided by as much, are the same model. But in the
    printed event they scale the left side alone.
    """
    model = softmax.LinearSoftmax(model.theta / scale, model.features * scale)
    unit_noise = softmax.unit_noises(len(model.theta), n_keys, seed)
    largest = (unit_noise @ model.gradients.T).max(axis=1)
    tau, big, small = threshold(level), model.grad_norms.max(), model.grad_norms.min()
    printed, repaired = ((largest <= limit).mean() for limit in (tau * big / small, tau * big))
    return {
        "printed": printed,
        "repaired": repaired,
        "exact": power.miss_probability_limit(model, level, unit_noise),
    }


def gaussian_curvature(
    dim: int = 64, variance: float = 4.0, sigma: float = 0.5, level: float = 0.05
) -> dict[str, float]:
    """Before theorem "main_sc": N(θ, Σ) is η-strongly log-concave with η = λ_min(Σ). It is
    λ_min(Σ⁻¹); here Σ = variance · I.

    Rescaled by √variance this is the Gaussian example at σ/√variance, which gives the exact miss
    rate.
    """
    printed, repaired = (
        bounds.strongly_log_concave(dim, sigma, level, variance, eta)
        for eta in (variance, 1 / variance)
    )
    return {
        "printed": printed,
        "repaired": repaired,
        "exact": 1 - gaussian.power(dim, sigma / np.sqrt(variance), level),
    }


def table(model: softmax.LinearSoftmax, n_keys: int = 1024, seed: int = 0) -> pd.DataFrame:
    """One row a claim: ``where``, what the numbers are (``quantity``), ``printed``, ``exact``. The
    model is a rich softmax one.

    Lemma "gaussian_details", ψ ≳ σ²√d/√(1+σ²): but ψ ≤ ‖ξ‖/σ, about √d whatever σ is. Its second
    claim is power 1−β, here .99, once σ√d ≳ √log(1/min(α, β)): at d = 1 the power tends to 2α;
    σ√d/√(1+σ²) must be large. Corollary "alt2": its bound on β does not contain the level (τ was
    lost between two lines of the proof), yet β → 1 as α → 0. For the others see the functions
    above.
    """
    limit = large_noise_limit(softmax.random_model(60, 2, seed=seed), 4.0, 0.05, n_keys, seed)
    unit_noise, share = (
        softmax.unit_noises(len(model.theta), n_keys, seed),
        1.5 / len(model.features),
    )
    bound = bounds.corollary(model, [6.0], 1e-4, unit_noise, [share])["printed_bound"].iloc[0]
    miss = power.miss_probability(model, 6.0, 1e-4, unit_noise)
    tail, curvature = condition_number(), gaussian_curvature()
    rate, mean = gaussian.printed_rate(64, 4.0), gaussian.expected_psi(64, 4.0)
    rows = [
        (
            "Lemma gaussian_details",
            "mean ψ at d = 64, σ = 4: printed up to a constant, but the ratio grows as σ",
            rate,
            mean,
        ),
        (
            "Lemma gaussian_details, 2nd claim",
            "power at d = 1, σ = 1000, α = .05: printed as a lower bound",
            0.99,
            gaussian.power(1, 1e3, 0.05),
        ),
        (
            "display after extreme_case",
            "P(miss) at R/r = 10, α = 1e-10: printed as an upper bound",
            tail["printed"],
            tail["exact"],
        ),
        (
            "display extreme_case",
            "P(miss) as σ → ∞, d = 2, features 4 times as long: printed as equal",
            limit["printed"],
            limit["exact"],
        ),
        ("Corollary alt2", "P(miss) at σ = 6, α = 1e-4: printed as an upper bound", bound, miss),
        (
            "Theorem main_sc, its example",
            "P(miss) for Σ = 4I, d = 64, σ = .5: printed as an upper bound",
            curvature["printed"],
            curvature["exact"],
        ),
    ]
    return pd.DataFrame(rows, columns=["where", "quantity", "printed", "exact"])
