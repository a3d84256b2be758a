"""Whoever may question a detector; and what one key does to texts of a kind.

**One key.** Where the texts of a kind share one direction, ψ = √c z₀ + √(1 − c) e with one z₀ for
all of them: c is their mean cosine, and a key whose z₀ is known accuses at

    Φ̄((τ − √c z₀)/√(1 − c))

z₀ = Σψ/√(1ᵀK1) of human texts is N(0, 1) over keys, whatever K.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.stats import norm

from gaussmark_lib.errors import require_int
from gaussmark_lib.joint import public

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


def one_key(tau: ArrayLike, c: float, z0: ArrayLike) -> np.ndarray:
    """Which share of a kind's texts a key at z₀ accuses at the threshold τ."""
    return norm.sf((np.asarray(tau) - np.sqrt(c) * np.asarray(z0)) / np.sqrt(1 - c))


def threshold(rate: float, c: float, z0: float) -> float:
    """τ at which this key accuses so many of a kind's texts."""
    return float(np.sqrt(c) * z0 + np.sqrt(1 - c) * norm.isf(rate))


def common(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> np.ndarray:
    """z₀ of each key, from human texts of a kind."""
    return psi.sum(1) / np.sqrt(K.sum())
