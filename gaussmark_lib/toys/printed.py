"""Where a printed statement of the paper is not what its proof gives: each with the numbers that
decide it.

References are to arXiv:2501.13941. The proofs' ideas hold in every case; what is listed is a
factor, a sign, a logarithm or a range.
"""

import numpy as np
import pandas as pd
from scipy import stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import bounds, closed_forms, softmax


def condition_number(spread: float, level: float) -> dict[str, float]:
    """After "extreme_case": P(‖Z‖ ≤ τR/r) ≤ exp(−dr/16R) once 2√log(1/α) ≤ √(dr/2R).

    It takes (R/r)², not R/r: 2√log(1/α) ≤ √(d/2) r/R gives P(‖Z‖ ≤ τR/r) ≤ P(χ²_d ≤ d/2) ≤
    exp(−d/16).
    """
    dim = int(np.ceil(8 * np.log(1 / level) * spread))
    exact = stats.chi.cdf(threshold(level) * spread, dim)
    return {"printed": float(np.exp(-dim / (16 * spread))), "exact": float(exact)}


def large_noise_limit(
    model: softmax.LinearSoftmax, scale: float, level: float, unit_noise: softmax.Keys
) -> dict[str, float]:
    """Display "extreme_case": β = P(sup_y ⟨Z, ∇⟩ ≤ τR/r) as σ → ∞. What holds is β ≤ P(sup_y ⟨Z, ∇⟩
    ≤ τR).

    Features ``scale`` times as long, with θ divided by as much, are the same model. But in the
    printed event they scale the left side alone.
    """
    model = softmax.LinearSoftmax(model.theta / scale, model.features * scale)
    largest = (unit_noise @ model.gradients.T).max(axis=1)
    tau, big, small = threshold(level), model.grad_norms.max(), model.grad_norms.min()
    return {
        "printed": (largest <= tau * big / small).mean(),
        "repaired": (largest <= tau * big).mean(),
        "exact": 1 - softmax.power_limit(model, level, unit_noise),
    }


def gaussian_curvature(dim: int, variance: float, sigma: float, level: float) -> dict[str, float]:
    """Before theorem "main_sc": N(θ, Σ) is η-strongly log-concave with η = λ_min(Σ). It is
    λ_min(Σ⁻¹); here Σ = variance · I.

    Rescaled by √variance this is the Gaussian example at σ/√variance, which gives the exact miss
    rate.
    """
    return {
        "printed": bounds.strongly_log_concave(dim, sigma, level, variance, eta=variance),
        "repaired": bounds.strongly_log_concave(dim, sigma, level, variance),
        "exact": 1 - closed_forms.power(dim, sigma / np.sqrt(variance), level),
    }


def table(rich: softmax.LinearSoftmax, n_keys: int = 1024, seed: int = 0) -> pd.DataFrame:
    """One row per claim: ``where``, what the numbers are (``quantity``), ``printed``, ``exact``.

    Lemma "gaussian_details", ψ ≳ σ²√d/√(1+σ²): but ψ ≤ ‖ξ‖/σ, about √d whatever σ is. Its second
    claim is power 1−β, here .99, once σ√d ≳ √log(1/min(α, β)): at d = 1 the power tends to 2α;
    σ√d/√(1+σ²) must be large. Corollary "alt2": its bound on β does not contain the level (τ was
    lost between two lines of the proof), yet β → 1 as α → 0. For the others see the functions
    above.
    """
    keys = softmax.unit_noises(len(rich.theta), n_keys, seed)
    share = 1.5 / len(rich.features)
    bound = bounds.corollary(rich, [6.0], 1e-4, keys, [share], tau=1.0)["bound"].iloc[0]
    keys_2 = softmax.unit_noises(2, n_keys, seed)
    limit = large_noise_limit(softmax.random_model(60, 2, seed=seed), 4.0, 0.05, keys_2)
    tail, curvature = condition_number(10.0, 1e-10), gaussian_curvature(64, 4.0, 0.5, 0.05)
    rows = {
        ("Lemma gaussian_details", "mean ψ at d = 64, σ = 4: the ratio grows as σ"): (
            4.0 * closed_forms.rate(64, 4.0),
            closed_forms.expected_psi(64, 4.0),
        ),
        ("Lemma gaussian_details, 2nd claim", "power at d = 1, σ = 1000, at least"): (
            0.99,
            closed_forms.power(1, 1e3, 0.05),
        ),
        ("display after extreme_case", "P(miss) at R/r = 10, α = 1e-10, at most"): (
            tail["printed"],
            tail["exact"],
        ),
        ("display extreme_case", "P(miss) as σ → ∞, d = 2, features 4 times as long"): (
            limit["printed"],
            limit["exact"],
        ),
        ("Corollary alt2", "P(miss) at σ = 6, α = 1e-4, at most"): (
            bound,
            1 - softmax.power(rich, 6.0, 1e-4, keys),
        ),
        ("Theorem main_sc, its example", "P(miss) for Σ = 4I, d = 64, σ = .5, at most"): (
            curvature["printed"],
            curvature["exact"],
        ),
    }
    return pd.DataFrame(
        [(*words, *numbers) for words, numbers in rows.items()],
        columns=["where", "quantity", "printed", "exact"],
    )
