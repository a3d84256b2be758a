"""The paper's two power bounds in the form that their proofs give, and the differences to the
printed statements (arXiv:2501.13941).

*Linear softmax* (paper, Cor. "alt2"). With τ = Φ⁻¹(1−α), ξ = σZ and Γ_a(Z) the (1−a) quantile of
⟨Z, ∇ log p_θ(y)⟩ over y ~ p_θ, a miss has ⟨ξ, ∇⟩ ≤ στ‖∇‖ and E_θ exp⟨ξ, ∇⟩ ≥ a exp(σ Γ_a(Z)), so
for every σ > 0 and a in (0, 1)

    β ≤ exp(K(σ)) / a,      K(σ) = log E_θ exp(σ τ ‖∇‖) + log E_Z exp(−σ Γ_a(Z)).

The printed corollary omits τ from K, so that its bound does not depend on the level, and requires
Λ = −sup_σ K(σ)/σ ≥ 0. This never holds: K is convex with K(0) = 0, so K(σ)/σ rises to
τ max‖∇‖ − min_Z Γ_a(Z) ≥ τ max‖∇‖ > 0. :func:`corollary` uses K at the given σ.

*Strongly log-concave* (paper, Thm. "main_sc"). If log p_{θ+ξ}(y) ≤ log p_θ(y) + ⟨ξ, ∇⟩ − η‖ξ‖²/2
for all ξ, then

    β ≤ (1 + ησ²)^{−d/2} Φ(τ √(1 + ησ²)) E_θ exp(τ σ ‖∇‖).

For y ~ N(θ, Σ) this holds with η = λ_min(Σ⁻¹). The paper prints λ_min(Σ), which in general is
another number.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special, stats

from gaussmark_experiments.toys import closed_forms, softmax
from gaussmark_experiments.toys.softmax import Keys, LinearSoftmax
from gaussmark_lib.stats import threshold


def quantile(model: LinearSoftmax, unit_noise: Keys, share: float) -> Float[np.ndarray, " keys"]:
    """Return Γ_a(Z) of each key: the largest t with P_{y ~ p_θ}(⟨Z, ∇⟩ ≥ t) ≥ a.

    It is "at least t", not "above t": with finitely many outcomes, only the former event has the
    mass a that the proof needs.
    """
    inner = unit_noise @ model.gradients.T  # (keys, outcomes)
    order = np.argsort(-inner, axis=1)
    mass = np.cumsum(model.base_p[order], axis=1)
    is_enough = mass >= share * (1 - 1e-12)  # up to rounding
    place = is_enough.argmax(axis=1)[:, None]  # the first place in the order, (keys, 1)
    outcome = np.take_along_axis(order, place, axis=1)
    return np.take_along_axis(inner, outcome, axis=1)[:, 0]


def log_k(
    model: LinearSoftmax,
    sigma: float,
    tau: float,
    direction_quantile: Float[np.ndarray, " directions"],
) -> float:
    """Return K(σ).

    Γ(Z) = ‖Z‖ Γ(Z/‖Z‖). Only the direction is averaged over draws; the length χ_d is integrated,
    because a few rare lengths would dominate a mean over draws.
    """
    numerator = special.logsumexp(sigma * tau * model.grad_norms, b=model.base_p)
    log_w = log_mgf_chi(len(model.theta), -sigma * direction_quantile)
    return float(numerator + special.logsumexp(log_w) - np.log(len(log_w)))


def corollary(
    model: LinearSoftmax,
    sigmas: list[float],
    level: float,
    unit_noise: Keys,
    shares: list[float],
    tau: float | None = None,
) -> pd.DataFrame:
    """Return the corollary's bound on β at each σ, for the best of the given shares a.

    Args:
        tau: by default Φ⁻¹(1 − α); 1 gives the printed corollary.

    Returns:
        One row per σ: ``sigma``; ``share``, the best a; ``bound``, capped at 1; and ``slope`` =
        K(σ)/σ, which must be negative for a bound below 1.
    """
    tau = threshold(level) if tau is None else tau
    directions = unit_noise / np.linalg.norm(unit_noise, axis=1, keepdims=True)
    quantiles = {share: quantile(model, directions, share) for share in shares}
    rows = []
    for sigma in sigmas:
        k = {share: log_k(model, sigma, tau, values) for share, values in quantiles.items()}
        log_bounds = {share: k[share] - np.log(share) for share in shares}
        best = min(shares, key=log_bounds.__getitem__)
        rows.append((sigma, best, _capped(log_bounds[best]), k[best] / sigma))
    return pd.DataFrame(rows, columns=["sigma", "share", "bound", "slope"])


def _capped(log_bound: float) -> float:
    """A bound on a probability, at most 1."""
    return np.exp(min(0.0, log_bound))


def log_mgf_chi(dim: int, t: Float[np.ndarray, "..."] | float) -> Float[np.ndarray, "..."] | float:
    """Return log E exp(t χ_d), elementwise in t.

    Under p_θ = N(θ, I_d) the norm of the gradient is χ_d. The tilted density is log-concave with
    curvature at least 1: all but 1e-21 of its mass lies within ten units of its peak.
    """
    t = np.asarray(t, dtype=float)[..., None]
    root = np.sqrt(t**2 + 4 * (dim - 1))
    # The peak of t r + (d−1) log r − r²/2 is (t + root)/2; for t < 0 without cancellation:
    peak_below_0 = 2 * (dim - 1) / np.maximum(root - t, 1e-300)
    peak = np.where(t > 0, (t + root) / 2, peak_below_0)
    low = np.maximum(0.0, peak - 10)
    width = peak + 10 - low
    node, weight = np.polynomial.legendre.leggauss(160)
    r = low + width * (node + 1) / 2
    log_integrand = t * r + stats.chi.logpdf(r, dim)
    return special.logsumexp(log_integrand, b=weight * width / 2, axis=-1)


def strongly_log_concave(
    dim: int, sigma: float, level: float, variance: float = 1.0, eta: float | None = None
) -> float:
    """Return the theorem's bound on β for y ~ N(θ, variance · I_d), capped at 1.

    The gradients have norm χ_d/√variance; η is 1/variance by default.
    """
    tau = threshold(level)
    eta = 1 / variance if eta is None else eta
    growth = np.log1p(eta * sigma**2)
    return _capped(
        -dim / 2 * growth
        + stats.norm.logcdf(tau * np.exp(growth / 2))
        + log_mgf_chi(dim, tau * sigma / np.sqrt(variance))
    )


def large_noise_limit(
    model: LinearSoftmax, scale: float, level: float, unit_noise: Keys
) -> tuple[float, float, float]:
    """Return the limit of β as σ → ∞: as printed, corrected, and exact.

    The display "extreme_case" prints β = P(sup_y ⟨Z, ∇⟩ ≤ τR/r). What holds is
    β ≤ P(sup_y ⟨Z, ∇⟩ ≤ τR). If the features are multiplied by ``scale`` and θ is divided by it,
    the model is the same, but only the left side of the printed event is scaled.
    """
    model = LinearSoftmax(model.theta / scale, model.features * scale)
    largest = (unit_noise @ model.gradients.T).max(axis=1)  # sup_y ⟨Z, ∇⟩ of each key
    tau = threshold(level)
    R = model.grad_norms.max()
    r = model.grad_norms.min()
    as_printed = (largest <= tau * R / r).mean()
    corrected = (largest <= tau * R).mean()
    exact = 1 - softmax.power_limit(model, level, unit_noise)
    return as_printed, corrected, exact


def printed(rich: LinearSoftmax, n_keys: int = 1024, seed: int = 0) -> pd.DataFrame:
    """List the printed statements that differ from what their proofs show.

    The ideas of the proofs hold in every case; the differences are a factor, a sign, a logarithm or
    a range.

    * Lemma "gaussian_details" prints ψ ≳ σ²√d/√(1+σ²). But ψ ≤ ‖ξ‖/σ, which is about √d for every
      σ. Its second claim is a power of 1−β, here .99, once σ√d ≳ √log(1/min(α, β)). But at d = 1
      the power tends to 2α; the condition must be that σ√d/√(1+σ²) is large.
    * After "extreme_case", P(‖Z‖ ≤ τR/r) ≤ exp(−dr/16R) is claimed once 2√log(1/α) ≤ √(dr/2R). The
      condition needs (R/r)², not R/r: 2√log(1/α) ≤ √(d/2) r/R gives
      P(‖Z‖ ≤ τR/r) ≤ P(χ²_d ≤ d/2) ≤ exp(−d/16).
    * Corollary "alt2": the bound on β does not contain the level, because τ is lost between two
      lines of the proof. But β → 1 as α → 0.
    * Before theorem "main_sc", N(θ, Σ) is called η-strongly log-concave with η = λ_min(Σ). Correct
      is λ_min(Σ⁻¹). Rescaled, Σ = 4I is the Gaussian example at σ/2.

    Returns:
        One row per statement: ``where`` it is, the ``quantity``, its ``printed`` and its ``exact``
        value.
    """
    keys = softmax.unit_noises(len(rich.theta), n_keys, seed)
    keys_2 = softmax.unit_noises(2, n_keys, seed)
    spread = 10.0  # R/r after "extreme_case"
    level = 1e-10  # α there
    dim = int(np.ceil(8 * np.log(1 / level) * spread))
    model = softmax.random_model(60, 2, seed=seed)
    limit, _, exact_limit = large_noise_limit(model, 4.0, 0.05, keys_2)
    alt2 = corollary(rich, [6.0], 1e-4, keys, [1.5 / len(rich.features)], tau=1.0)
    rows = [
        (
            "lemma, Gaussian example",
            "mean ψ at d = 64, σ = 4: the ratio grows as σ",
            4.0 * closed_forms.rate(64, 4.0),
            closed_forms.expected_psi(64, 4.0),
        ),
        (
            "its second claim",
            "power at d = 1, σ = 1000, at least",
            0.99,
            closed_forms.gaussian_power(1, 1e3, 0.05),
        ),
        (
            "dimensions for σ → ∞",
            "P(‖Z‖ ≤ τR/r) ≥ P(miss), R/r = 10, α = 1e-10, at most",
            np.exp(-dim / (16 * spread)),
            stats.chi.cdf(threshold(level) * spread, dim),
        ),
        (
            "miss rate for σ → ∞",
            "P(miss) as σ → ∞, d = 2, features 4 times as long",
            limit,
            exact_limit,
        ),
        (
            "corollary, a bound for any σ",
            "P(miss) at σ = 6, α = 1e-4, at most",
            alt2["bound"].iloc[0],
            1 - softmax.power(rich, 6.0, 1e-4, keys),
        ),
        (
            "log-concave theorem, its example",
            "P(miss) for Σ = 4I, d = 64, σ = .5, at most",
            strongly_log_concave(64, 0.5, 0.05, 4.0, eta=4.0),
            1 - closed_forms.gaussian_power(64, 0.25, 0.05),
        ),
    ]
    return pd.DataFrame(rows, columns=["where", "quantity", "printed", "exact"])
