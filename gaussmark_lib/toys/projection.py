"""Which null hypothesis is nearest to the watermark.

The alternative draws a key ξ ~ ν and a text y ~ p_{θ+ξ}; a null draws an independent text, ν ⊗ μ.
Keys are the rows of ``likelihood``, with probabilities ``weights``, and texts its columns. The
mixture m is the nearest null, at the mutual information of key and text, since

    E_ξ KL(p_{θ+ξ} ‖ μ)  =  E_ξ KL(p_{θ+ξ} ‖ m)  +  KL(m ‖ μ),      m(y) = E_ξ p_{θ+ξ}(y)

(paper, Prop. "closest_measure", whose display leaves out the average over ξ that its proof takes).
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import rel_entr


def kl(
    p: Float[np.ndarray, "..."], q: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."] | float:
    """KL(p ‖ q) = Σ_y p(y) log(p(y)/q(y)) in nats, over the last axis; rows broadcast."""
    return rel_entr(p, q).sum(axis=-1)


def mixture(
    likelihood: Float[np.ndarray, "keys texts"], weights: Float[np.ndarray, " keys"]
) -> Float[np.ndarray, " texts"]:
    """m(y) = Σ_k w_k p_k(y): the text's distribution for someone who does not know the key."""
    return weights @ likelihood


def distance(
    likelihood: Float[np.ndarray, "keys texts"],
    weights: Float[np.ndarray, " keys"],
    mu: Float[np.ndarray, " texts"],
) -> float:
    """KL(alternative ‖ ν ⊗ μ) = Σ_k w_k KL(p_k ‖ μ) in nats.

    >>> p, fair = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])
    >>> distance(p, fair, fair) < distance(p, fair, np.array([0.6, 0.4]))
    True
    """
    return float(weights @ kl(likelihood, mu))


def compare_nulls(
    likelihood: Float[np.ndarray, "keys texts"],
    weights: Float[np.ndarray, " keys"],
    n: int,
    seed: int,
) -> pd.DataFrame:
    """The mixture against n other text distributions μ, half of them near it: ``to_mixture`` = KL(m
    ‖ μ), ``distance``, its ``excess`` over m's.
    """
    rng = np.random.default_rng([seed, 6])
    m = mixture(likelihood, weights)
    far = rng.dirichlet(np.ones(len(m)), size=n - n // 2)
    near = m * np.exp(
        rng.uniform(0.003, 0.3, size=(n // 2, 1)) * rng.standard_normal((n // 2, len(m)))
    )
    others = np.concatenate([far, near / near.sum(axis=1, keepdims=True)])
    distances = np.array([distance(likelihood, weights, mu) for mu in others])
    return pd.DataFrame(
        {
            "to_mixture": kl(m, others),
            "distance": distances,
            "excess": distances - distance(likelihood, weights, m),
        }
    )
