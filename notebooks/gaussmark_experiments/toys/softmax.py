"""The linear softmax model over a small set of outcomes (paper, Def. "linear_softmax"):

    p_θ(y) = exp⟨θ, φ(y)⟩ / Σ_y' exp⟨θ, φ(y')⟩

Adding ξ to θ tilts the model exponentially (paper, Lemma "radonnikodym_softmax"):

    γ(y, ξ) = p_{θ+ξ}(y) / p_θ(y) = exp⟨ξ, ∇ log p_θ(y)⟩ / E_θ exp⟨ξ, ∇ log p_θ⟩

and the test at level α misses with probability (paper, Prop. "softmax_power_adaptive")

    β = E_{y ~ p_θ, ξ}[γ(y, ξ) 1{ψ(y, ξ) ≤ τ}],     τ = Φ⁻¹(1 − α).

The mean over y is an exact sum, the mean over ξ an average over given keys.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gaussmark_lib.stats import threshold

Keys = Float[np.ndarray, "keys d"]  # ξ, or ξ/σ, of each key
Table = Float[np.ndarray, "keys outcomes"]


@dataclass(frozen=True, eq=False)
class LinearSoftmax:
    """θ and the features φ, one row per outcome; derived arrays are computed once."""

    theta: Float[np.ndarray, " d"]
    features: Float[np.ndarray, "outcomes d"]

    def log_p(self, noise: Keys) -> Table:
        """Return log p_{θ+ξ}(y) in nats."""
        logits = (self.theta + noise) @ self.features.T  # (keys, outcomes)
        return special.log_softmax(logits, axis=1)

    @cached_property
    def base_p(self) -> Float[np.ndarray, " outcomes"]:
        """p_θ(y)."""
        no_noise = np.zeros((1, len(self.theta)))
        return np.exp(self.log_p(no_noise)[0])

    @cached_property
    def gradients(self) -> Float[np.ndarray, "outcomes d"]:
        """∇_θ log p_θ(y) = φ(y) − E_θ φ."""
        return self.features - self.base_p @ self.features

    @cached_property
    def grad_norms(self) -> Float[np.ndarray, " outcomes"]:
        """‖∇_θ log p_θ(y)‖."""
        return np.linalg.norm(self.gradients, axis=1)

    @property
    def entropy(self) -> float:
        """−Σ_y p_θ(y) log p_θ(y), in nats."""
        return float(special.entr(self.base_p).sum())

    def psi(self, unit_noise: Keys) -> Table:
        """Return ψ(y, ξ) = ⟨ξ, ∇⟩/(σ‖∇‖) for ξ = σ · unit_noise; σ cancels."""
        unit_gradients = self.gradients / self.grad_norms[:, None]
        return unit_noise @ unit_gradients.T

    def tilt(self, noise: Keys) -> Table:
        """Return γ(y, ξ), by the right-hand side of the identity above."""
        inner = noise @ self.gradients.T  # (keys, outcomes)
        log_mean = special.logsumexp(inner, axis=1, b=self.base_p, keepdims=True)
        return np.exp(inner - log_mean)


def random_model(
    n_outcomes: int, dim: int, temperature: float = 1.0, seed: int = 0
) -> LinearSoftmax:
    """Draw a model: features in random directions with lengths uniform on [0.5, 1.5].

    θ is standard normal, divided by the temperature.
    """
    rng = np.random.default_rng([seed, 1])  # not the stream of the keys with this seed
    directions = rng.standard_normal((n_outcomes, dim))
    lengths = rng.uniform(0.5, 1.5, size=(n_outcomes, 1))
    features = lengths * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    theta = rng.standard_normal(dim) / temperature
    return LinearSoftmax(theta, features)


def unit_noises(dim: int, n: int, seed: int) -> Keys:
    """Return n points that are spread like N(0, I_d); n is a power of 2.

    Half of them are a scrambled Sobol net, whose averages converge fast. The other half is its
    mirror image, so that odd moments vanish exactly.
    """
    rng = np.random.default_rng([seed, 2])
    net = stats.qmc.MultivariateNormalQMC(np.zeros(dim), rng=rng)
    half = net.random(n // 2)
    return np.concatenate([half, -half])


def simulate_psi(
    model: LinearSoftmax, sigma: float, n: int, seed: int, watermarked: bool = True
) -> Float[np.ndarray, " n"]:
    """Simulate ψ of n pairs: a key, then an outcome from p_{θ+ξ}, or from p_θ without the key."""
    rng = np.random.default_rng([seed, 3])
    unit_noise = rng.standard_normal((n, len(model.theta)))
    noise = sigma * unit_noise if watermarked else np.zeros_like(unit_noise)
    log_p = model.log_p(noise)
    outcome = (log_p + rng.gumbel(size=log_p.shape)).argmax(axis=1)  # one draw from each row
    inner = np.einsum("nd,nd->n", unit_noise, model.gradients[outcome])
    return inner / model.grad_norms[outcome]


def power(model: LinearSoftmax, sigma: float, level: float, unit_noise: Keys) -> float:
    """Return 1 − β, with β as in the proposition."""
    is_missed = model.psi(unit_noise) <= threshold(level)
    tilt = model.tilt(sigma * unit_noise)
    beta_of_keys = (tilt * is_missed) @ model.base_p
    return 1 - float(beta_of_keys.mean())


def power_limit(model: LinearSoftmax, level: float, unit_noise: Keys) -> float:
    """Return the power as σ → ∞, where the text is always argmax_y ⟨ξ, ∇ log p_θ(y)⟩."""
    outcome = (unit_noise @ model.gradients.T).argmax(axis=1)  # of each key
    psi = model.psi(unit_noise)[np.arange(len(outcome)), outcome]
    return float((psi > threshold(level)).mean())
