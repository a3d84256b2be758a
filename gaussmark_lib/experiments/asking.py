"""An asker of a public detector: what he gains by climbing ψ (forging), and by trying many light
edits of one text (shopping).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.stats import kstest, norm

from gaussmark_lib import models, perturb, stats
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.joint import law, repeats
from gaussmark_lib.joint.memory import Memory

ROOM = 1 << 36  # bytes: more than any of these streams fill


def forged(
    lm: models.LM,
    prompt: list[int],
    response: list[int],
    wm: perturb.Watermark,
    key: perturb.Key,
    *,
    n_steps: int,
    n_tried: int = 8,
    n_edits: int = 1,
    digits: int | None = None,
    seed: int = 0,
) -> dict:
    """A human text edited until a detector that answers ψ accuses it: at each step the best of
    ``n_tried`` candidates is kept.

    A candidate has ``n_edits`` random tokens exchanged. The last text is one candidate further, so
    that it has not been asked about. ``digits``: how far ψ is rounded in each answer.

    Returns ``psi`` (of the last text), ``innovation`` (given all questions; NaN if nothing in it is
    new), ``queries``, ``climb`` (ψ of the kept text after each step).
    """
    wm, rng = wm.on(lm.model), np.random.default_rng(seed)
    z, vocabulary, best = (
        perturb.noise(lm.model, wm, key).flatten() / wm.sigma,
        sorted(set(response)),
        list(response),
    )
    units, psis, climb, said = [], [], [], set()

    def ask(tries: list[list[int]]) -> np.ndarray:
        found, _ = production.directions(lm, ([prompt] * len(tries), tries), wm)
        said.update(map(tuple, tries))
        units.append(found)
        psis.append(law.inner(found, z.to(found)[None])[:, 0])
        return psis[-1]

    for _ in range(n_steps):
        tries = [_edited(best, n_edits, vocabulary, rng) for _ in range(n_tried)]
        psi = ask(tries)
        chosen = int(np.argmax(psi if digits is None else psi.round(digits)))
        best = tries[chosen]
        climb.append(float(psi[chosen]))
    new = (_edited(best, n_edits, vocabulary, rng) for _ in range(100))
    [last] = ask([next((ids for ids in new if tuple(ids) not in said), best)])
    asked = torch.cat(units)
    r, residual = production.innovations(np.concatenate(psis)[None], law.inner(asked, asked))
    innovation = float(r[0, -1]) if residual[-1] > law.NOTHING_NEW else np.nan
    return {
        "psi": float(last),
        "innovation": innovation,
        "queries": n_steps * n_tried,
        "climb": climb,
    }


def attacks(
    lm: models.LM,
    pairs: Pairs,
    wm: perturb.Watermark,
    n: int,
    first_seed: int,
    *,
    seed: int = 0,
    **how,
) -> pd.DataFrame:
    """A row for each of n attacks (:func:`forged`), each with a key of its own, on the human texts
    in turn.
    """
    texts = list(zip(*pairs, strict=True))
    keys = [perturb.Key.from_seed(first_seed + i) for i in range(n)]
    return pd.DataFrame(
        [
            forged(lm, *texts[i % len(texts)], wm, key, seed=seed + i, **how)
            for i, key in enumerate(keys)
        ]
    )


def shopped(
    lm: models.LM,
    prompt: list[int],
    response: list[int],
    wm: perturb.Watermark,
    seeds: Sequence[int],
    *,
    n: int,
    level: float = 0.01,
    seed: int = 0,
) -> pd.DataFrame:
    """How often one of n single-token edits of a human text is accused, over keys, by ψ, by
    innovations, and by ``p_given``: a rate each.
    """
    rng, vocabulary = np.random.default_rng(seed), sorted(set(response))
    edits = [list(response), *(_edited(response, 1, vocabulary, rng) for _ in range(n))]
    units, _ = production.directions(lm, ([prompt] * len(edits), edits), wm)
    psi, memory = (
        production.over_keys(lm, units, wm, seeds),
        Memory(len(seeds), ROOM),
    )
    answers = [
        memory.ask(u, psi[:, i], repeats.runs(ids), i)
        for i, (u, ids) in enumerate(zip(units, edits, strict=True))
    ]
    least = {
        "ψ": norm.sf(psi).min(1),
        "innovation": (
            norm.sf(np.nan_to_num(np.array([one.innovation for one in answers]), nan=-np.inf)).min(
                0
            )
        ),
        "verdict of the first": np.array([one.p_given for one in answers]).min(0),
    }
    return pd.DataFrame(
        [{"method": method} | stats.rate(p <= level).row() for method, p in least.items()]
    )


def mean(values: pd.Series) -> stats.Estimate:
    """``stats.mean`` of the numbers among them; NaN where there are fewer than two."""
    known = values.dropna()
    return (
        stats.mean(known) if len(known) > 1 else stats.Estimate(np.nan, np.nan, np.nan, len(known))
    )


def distance(values: pd.Series) -> tuple[stats.Estimate, float]:
    """Kolmogorov–Smirnov distance of the numbers among them from N(0, 1), with a 95% interval for
    that of their distribution, and the test's p.

    The distribution lies within √(log(2/0.05)/2n) = 1.358/√n of the sample's (Dvoretzky, Kiefer and
    Wolfowitz), so its distance does.
    """
    known = values.dropna()
    if known.empty:
        return stats.Estimate(np.nan, np.nan, np.nan, 0), np.nan
    d, p = kstest(known, "norm")
    e = 1.358 / np.sqrt(len(known))
    return stats.Estimate(
        float(d), max(0.0, float(d - e)), min(1.0, float(d + e)), len(known)
    ), float(p)


def _edited(
    ids: Sequence[int], n: int, vocabulary: list[int], rng: np.random.Generator
) -> list[int]:
    edited = list(ids)
    for place in rng.choice(len(ids), size=min(n, len(ids)), replace=False):
        others = [token for token in vocabulary if token != edited[int(place)]]
        edited[int(place)] = int(rng.choice(others or vocabulary))
    return edited
