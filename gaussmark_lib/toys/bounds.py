"""The paper's two power bounds, in the form that their proofs give, to be compared with the exact
power.

*Linear softmax* (paper, Cor. "alt2"). With τ = Φ⁻¹(1−α), ξ = σZ and Γ_a(Z) the (1−a) quantile of
⟨Z, ∇ log p_θ(y)⟩ over y ~ p_θ, a miss has ⟨ξ, ∇⟩ ≤ στ‖∇‖ and E_θ exp⟨ξ, ∇⟩ ≥ a exp(σ Γ_a(Z)), so
for every σ > 0 and a in (0, 1)

    β ≤ exp(K(σ)) / a,      K(σ) = log E_θ exp(σ τ ‖∇‖) + log E_Z exp(−σ Γ_a(Z)).

The printed corollary leaves τ out of K, so that its bound does not depend on the level, and asks
that Λ = −sup_σ K(σ)/σ be ≥ 0. That is never met: K is convex with K(0) = 0, so K(σ)/σ rises to τ
max‖∇‖ − min_Z Γ_a(Z) ≥ τ max‖∇‖ > 0. :func:`corollary` uses K at the σ in question.

*Strongly log-concave* (paper, Thm. "main_sc"). If log p_{θ+ξ}(y) ≤ log p_θ(y) + ⟨ξ, ∇⟩ − η‖ξ‖²/2
for all ξ, then

    β ≤ (1 + ησ²)^{−d/2} Φ(τ √(1 + ησ²)) E_θ exp(τ σ ‖∇‖).

For y ~ N(θ, Σ) this holds with η = λ_min(Σ⁻¹); the paper prints λ_min(Σ), another number unless Σ =
I.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special, stats

from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import gaussian
from gaussmark_lib.toys.softmax import Keys, LinearSoftmax


def quantiles(
    model: LinearSoftmax, unit_noise: Keys, shares: list[float]
) -> Float[np.ndarray, "shares keys"]:
    """Γ_a(Z) for each share a and each key: the largest t with P_{y ~ p_θ}(⟨Z, ∇⟩ ≥ t) ≥ a.

    "At least t", not "above t": with finitely many outcomes only this one carries the mass a that
    the proof uses.
    """
    inner = unit_noise @ model.gradients.T
    order = np.argsort(-inner, axis=1)
    mass = np.cumsum(model.base_p[order], axis=1)
    last = np.stack(
        [(mass >= share * (1 - 1e-12)).argmax(axis=1) for share in shares], axis=1
    )  # of the outcomes that make up a share
    return np.take_along_axis(inner, np.take_along_axis(order, last, axis=1), axis=1).T


def log_k(
    model: LinearSoftmax,
    sigma: float,
    tau: float,
    direction_quantile: Float[np.ndarray, " directions"],
) -> tuple[float, float]:
    """K(σ) = log E_θ exp(στ‖∇‖) + log E_Z exp(−σΓ(Z)), and Kish's effective number (Σw)²/Σw² of
    directions behind its second term.

    Γ(Z) = ‖Z‖ Γ(Z/‖Z‖): the length χ_d is integrated and only the direction averaged over draws,
    since a few rare lengths would decide the mean.
    """
    numerator = special.logsumexp(sigma * tau * model.grad_norms, b=model.base_p)
    log_w = log_mgf_chi(len(model.theta), -sigma * direction_quantile)
    effective = np.exp(2 * special.logsumexp(log_w) - special.logsumexp(2 * log_w))
    return float(numerator + special.logsumexp(log_w) - np.log(len(log_w))), float(effective)


def corollary(
    model: LinearSoftmax, sigmas: list[float], level: float, unit_noise: Keys, shares: list[float]
) -> pd.DataFrame:
    """The corollary's bound at each σ, at the best of the given shares a.

    One row a σ: ``bound`` on β (capped at 1) and ``log_bound``, the ``share`` a, ``slope`` = K(σ)/σ
    there (the bound needs it negative), ``printed_bound`` (the same without τ), ``effective_keys``
    (see :func:`log_k`).
    """
    tau = threshold(level)
    directions = unit_noise / np.linalg.norm(unit_noise, axis=1, keepdims=True)
    quantile = dict(zip(shares, quantiles(model, directions, shares), strict=True))
    rows = []
    for sigma in sigmas:
        k = {share: log_k(model, sigma, tau, q) for share, q in quantile.items()}
        share = min(shares, key=lambda a: k[a][0] - np.log(a))
        log_bound = k[share][0] - np.log(share)
        log_printed = log_k(model, sigma, 1.0, quantile[share])[0] - np.log(share)
        rows.append(
            {
                "sigma": sigma,
                "share": share,
                "bound": _capped(log_bound),
                "log_bound": log_bound,
                "slope": k[share][0] / sigma,
                "printed_bound": _capped(log_printed),
                "effective_keys": k[share][1],
            }
        )
    return pd.DataFrame(rows)


def _capped(log_bound: float) -> float:
    """A bound on a probability."""
    return float(np.exp(min(0.0, log_bound)))


def first_sigma(table: pd.DataFrame, column: str, beta: float) -> float | None:
    """The smallest σ of a table whose miss rate (or bound on it) is at most β; None if there is
    none.
    """
    return min(table.loc[table[column] <= beta, "sigma"], default=None)


def log_mgf_chi(dim: int, t: Float[np.ndarray, "..."] | float) -> Float[np.ndarray, "..."] | float:
    """log E exp(t χ_d), elementwise in t; under p_θ = N(θ, I_d) the gradient's norm is χ_d.

    The tilted density is log-concave with curvature at least 1: all but 1e-21 of it lies within ten
    units of its peak.
    """
    t = np.asarray(t, dtype=float)[..., None]
    root = np.sqrt(t**2 + 4 * (dim - 1))
    peak = np.where(
        t > 0, (t + root) / 2, 2 * (dim - 1) / np.maximum(root - t, 1e-300)
    )  # of t r + (d−1) log r − r²/2, without cancellation
    low = np.maximum(0.0, peak - 10)
    node, weight = np.polynomial.legendre.leggauss(160)
    r = low + (peak + 10 - low) * (node + 1) / 2
    return special.logsumexp(
        t * r + stats.chi.logpdf(r, dim), b=weight * (peak + 10 - low) / 2, axis=-1
    )


def strongly_log_concave(
    dim: int, sigma: float, level: float, variance: float = 1.0, eta: float | None = None
) -> float:
    """The theorem's bound on β for y ~ N(θ, variance · I_d), whose gradients have norm
    χ_d/√variance, capped at 1; η is 1/variance by default.
    """
    tau = threshold(level)
    eta = 1 / variance if eta is None else eta
    growth = np.log1p(eta * sigma**2)
    log_bound = (
        -dim / 2 * growth
        + stats.norm.logcdf(tau * np.exp(growth / 2))
        + log_mgf_chi(dim, tau * sigma / np.sqrt(variance))
    )
    return _capped(log_bound)


def dimension_needed(sigma: float, level: float, beta: float) -> int:
    """The smallest d at which the theorem promises a miss rate of at most β for y ~ N(θ, I_d); once
    below 1, the bound falls in d.
    """
    return gaussian.first_dimension(lambda dim: strongly_log_concave(dim, sigma, level) <= beta)


def log_concave_table(
    dims: list[int], sigmas: list[float], level: float, n: int, seed: int
) -> pd.DataFrame:
    """One row a (dim, sigma): exact ``beta``, the theorem's ``bound``, and ``hits`` of n simulated
    texts, for y ~ N(θ, I_d).
    """
    table = gaussian.table(dims, sigmas, n, level, seed)[["dim", "sigma", "n", "hits", "power"]]
    bound = [
        strongly_log_concave(dim, sigma, level)
        for dim, sigma in zip(table["dim"], table["sigma"], strict=True)
    ]
    return table.assign(beta=1 - table["power"], bound=bound)
