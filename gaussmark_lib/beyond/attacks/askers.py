"""Users who query a detector; and false alarms of a single key on texts of one kind.

**One key.** Let K = ⟨u_i, u_j⟩ be the cosines of human texts of one kind, and z₀ = Σψ/√(1ᵀK1) the
key's ψ along the sum of their directions. Over keys, z₀ is N(0, 1). A text whose direction has the
cosine k with that sum has ψ = k z₀ + √(1 − k²) e with an independent e ~ N(0, 1). Among the keys
with this z₀, the share that accuses the text at the threshold τ is exactly

    Φ̄((τ − k z₀)/√(1 − k²))
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import norm

from gaussmark_lib.beyond.joint import public
from gaussmark_lib.errors import require_int

Ids = list[int]
Answer = Callable[[list[Ids]], Sequence[float]]  # one number, or True or False, per text


def climbed(
    answer: Answer, ids: Ids, n_steps: int, n_tries: int, rng: np.random.Generator
) -> tuple[Ids, float]:
    """Climb by single replacements; return the text with the best answer, and that answer.

    Each step tries ``n_tries`` texts with one token replaced. The best of them becomes the new
    text, unless its answer is worse than the present one.

    Raises:
        GaussMarkError: if ``n_steps`` or ``n_tries`` is not a positive integer.
    """
    require_int(n_steps, "n_steps")
    require_int(n_tries, "n_tries")
    [best] = answer([ids])
    for _ in range(n_steps):
        candidates = []
        for _ in range(n_tries):
            place = int(rng.integers(len(ids)))
            candidates.append(exchanged(ids, [place], rng))
        answers = answer(candidates)
        i = int(np.argmax(answers))
        # A tie is taken: yes-or-no answers give a climber nothing else to move on.
        if answers[i] >= best:
            ids = candidates[i]
            best = answers[i]
    return ids, float(best)


def exchanged(ids: Ids, places: Sequence[int], rng: np.random.Generator) -> Ids:
    """Replace the tokens at these places by tokens drawn from the same text."""
    new = list(ids)  # a copy: the caller's text stays as it is
    for place in places:
        new[place] = int(rng.choice(ids))
    return new


def variants(ids: Ids, n: int, rng: np.random.Generator, share: float = 0.11) -> list[Ids]:
    """Return n copies of a text; each token of a copy is replaced with probability ``share``."""
    copies = []
    for _ in range(n):
        is_replaced = rng.random(len(ids)) < share
        places = np.flatnonzero(is_replaced).tolist()
        copies.append(exchanged(ids, places, rng))
    return copies


def phases(ids: Ids, n: int, rng: np.random.Generator, every: int = 8) -> list[Ids]:
    """Return n copies with every eighth token replaced, starting one token later in each copy."""
    copies = []
    for i in range(n):
        places = range(i % every, len(ids), every)
        copies.append(exchanged(ids, places, rng))
    return copies


def answered(
    texts: Sequence[Ids], psi: Float[np.ndarray, "keys n"], level: float
) -> Bool[np.ndarray, "keys n"]:
    """Return which texts ``joint.public`` calls detected under each key.

    The user fixes all texts before the first question and asks about them in this order.
    """
    levels = public.levels(texts, level)  # one per text, the same for all keys
    return norm.sf(psi) <= levels


def one_key(tau: float, k: ArrayLike, z0: ArrayLike) -> np.ndarray:
    """Return the probability that a key at z₀ accuses a text of cosine k at the threshold τ."""
    k = np.asarray(k)
    spread = np.sqrt(1 - k**2)
    return norm.sf((tau - k * z0) / spread)


def threshold(rate: float, k: Float[np.ndarray, " n"], z0: float) -> float:
    """Return the τ at which a key at z₀ accuses the share ``rate`` of such texts."""

    def excess(tau: float) -> float:
        return one_key(tau, k, z0).mean() - rate

    return brentq(excess, -40, 40)


def loadings(K: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Return k for further texts of a kind, of which these n > 1 texts are examples.

    It is the cosine of each text with the sum of the other n − 1, scaled up to n other texts.
    """
    n = len(K)
    with_others = K.sum(1) - 1  # the cosine of a text with itself is 1
    return with_others * n / (n - 1) / np.sqrt(K.sum())


def common(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> np.ndarray:
    """Return z₀ of each key, from human texts of a kind."""
    length_of_sum = np.sqrt(K.sum())  # ‖Σ u_i‖
    return psi.sum(1) / length_of_sum
