"""Whoever may question a detector; and what one key does to texts of a kind.

**One key.** Let K = ⟨u_i, u_j⟩ be the cosines of a kind's human texts, and z₀ = Σψ/√(1ᵀK1) the
key's ψ along the sum of their directions: N(0, 1) over keys. A text whose direction has the cosine
k with that sum has ψ = k z₀ + √(1 − k²) e with an independent e, so a key at z₀ accuses it at

    Φ̄((τ − k z₀)/√(1 − k²))

exactly, over the keys that are at z₀.
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
Answer = Callable[[list[Ids]], Sequence[float]]  # of each text a number, or True and False


def climbed(
    answer: Answer, ids: Ids, n_steps: int, n_tries: int, rng: np.random.Generator
) -> tuple[Ids, float]:
    """The text with the best answer that was found, and that answer: of ``n_tries`` texts with one
    token exchanged the best is kept, step by step, where it is no worse.

    GaussMarkError: an asker without questions.
    """
    require_int(n_steps, "n_steps"), require_int(n_tries, "n_tries")
    [best] = answer([ids])
    for _ in range(n_steps):
        tries = [exchanged(ids, [int(rng.integers(len(ids)))], rng) for _ in range(n_tries)]
        answers = answer(tries)
        i = int(np.argmax(answers))
        if answers[i] >= best:
            ids, best = tries[i], answers[i]
    return ids, float(best)


def exchanged(ids: Ids, places: Sequence[int], rng: np.random.Generator) -> Ids:
    """The tokens at these places exchanged for others of the text."""
    new = list(ids)
    for place in places:
        new[place] = int(rng.choice(ids))
    return new


def variants(ids: Ids, n: int, rng: np.random.Generator, share: float = 0.11) -> list[Ids]:
    """n copies of a text, each with so many of its tokens exchanged, at random."""
    chosen = (np.flatnonzero(rng.random(len(ids)) < share).tolist() for _ in range(n))
    return [exchanged(ids, places, rng) for places in chosen]


def phases(ids: Ids, n: int, rng: np.random.Generator, every: int = 8) -> list[Ids]:
    """n copies with every eighth token exchanged, each from the next phase."""
    return [exchanged(ids, range(i % every, len(ids), every), rng) for i in range(n)]


def answered(
    texts: Sequence[Ids], psi: Float[np.ndarray, "keys n"], level: float
) -> Bool[np.ndarray, "keys n"]:
    """Which texts ``joint.public`` calls detected under each key, asked in their order by somebody
    who fixed them before.
    """
    return norm.sf(psi) <= public.levels(texts, level)


def one_key(tau: float, k: ArrayLike, z0: ArrayLike) -> np.ndarray:
    """How probably a key at z₀ accuses a text of cosine k with its kind at the threshold τ."""
    k = np.asarray(k)
    return norm.sf((tau - k * z0) / np.sqrt(1 - k**2))


def threshold(rate: float, k: Float[np.ndarray, " n"], z0: float) -> float:
    """τ at which this key accuses so large a share of such texts."""
    return brentq(lambda tau: one_key(tau, k, z0).mean() - rate, -40, 40)


def loadings(K: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """k of further texts of a kind, of which these n > 1 are examples: the cosine of each with the
    sum of the others, as if there were n others.
    """
    n = len(K)
    return (K.sum(1) - 1) * n / (n - 1) / np.sqrt(K.sum())


def common(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> np.ndarray:
    """z₀ of each key, from human texts of a kind."""
    return psi.sum(1) / np.sqrt(K.sum())
