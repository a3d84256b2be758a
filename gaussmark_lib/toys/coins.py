"""The smallest autoregressive model: T fair coins, p_θ(y) = Π_t e^{θ_t y_t} / (e^{θ_t} + e^{−θ_t})
at θ = 0, y_t = ±1.

It is a linear softmax model with φ(y) = y over 2^T texts, and every question about it is a question
about one coin. The gradient is y itself, so ‖∇ log p_θ(y)‖ = √T for every text, and under the
watermark each w_t = y_t ξ_t/σ has density φ(w)(1 + tanh σw). Hence

    ψ = Σ_t w_t / √T,     E ψ = √T E[Z tanh σZ],     E_ξ KL(p_ξ ‖ p_0) = T E[σZ tanh σZ − log cosh
    σZ].

For small σ these are σ√T and ψ²/2; for large σ every coin follows its noise's sign and ψ stops at
√(2T/π).
"""

import numpy as np
from jaxtyping import Float


def expected_psi(n_tokens: int, sigma: float) -> float:
    """√T E[Z tanh σZ]; tends to σ√T as σ → 0 and to √(2T/π) as σ → ∞.

    >>> round(expected_psi(100, 0.01), 3), round(expected_psi(100, 1e6), 3)
    (0.1, 7.979)
    """
    z, weight = _normal_nodes()
    return float(np.sqrt(n_tokens) * weight @ (z * np.tanh(sigma * z)))


def price(n_tokens: int, sigma: float) -> float:
    """E_ξ KL(p_ξ ‖ p_0) in nats a text."""
    z, weight = _normal_nodes()
    x = sigma * z
    log_cosh = np.logaddexp(x, -x) - np.log(2)
    return float(n_tokens * weight @ (x * np.tanh(x) - log_cosh))


def _normal_nodes() -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """Midpoints and weights for E f(Z), Z ~ N(0, 1), on a grid fine enough for the kink that tanh
    σz becomes.
    """
    z = (np.arange(200_000) + 0.5) / 1e4 - 10
    weight = np.exp(-(z**2) / 2)
    return z, weight / weight.sum()
