"""Streams in which every so many texts is marked: how soon the running evidence finds them, and
what innovations cost in power.

What the linear regime says of a stream, with nothing fitted and no key: the mean of ψ is σ‖G_i‖ for
a marked text and 0 for others, and innovations are the same linear map of it as of ψ, r = L⁻¹ψ with
K = LLᵀ. Where all of n texts are marked and any two gradients have the cosine c, that is about ψ/(1
+ nc): marked gradients share the key's direction, which the memory learns and does not count twice.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import chi2

from gaussmark_lib import generate_many, models, perturb, stats
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.joint import law, stream
from gaussmark_lib.tokens import Texts

COLUMNS = [
    "key_id",
    "every",
    "place",
    "marked",
    "psi",
    "innovation",
    "promised",
    "expected",
    "forecast",
    "cosine",
]


def mixed(
    lm: models.LM,
    prompts: Texts,
    plain: Pairs | int,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    n_tokens: int,
    *,
    every: Sequence[int],
    seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """A stream for each key and each k of ``every``: the plain texts, of which every k-th is
    exchanged for one that the key has written.

    ``plain``: their number is enough where every text is marked. Streams of one key share their
    marked texts. Innovations are given all that stood before in the stream.

    Returns:
        ``key_id, every, place, marked, psi, innovation`` (NaN: nothing new), ``promised`` (λ =
        σ‖R‖), ``expected`` (the mean of ψ in the linear regime), ``forecast`` (that of the
        innovation), ``cosine`` (mean of the stream's marked gradients).
    """
    n = plain if isinstance(plain, int) else len(plain[0])
    asked = [prompts[i % len(prompts)] for i in range(max(1, n // min(every)))]
    units, norms = (
        (None, None)
        if isinstance(plain, int)
        else production.directions(lm, plain, wm, dtype=dtype)
    )
    tables = []
    for number, key in enumerate(keys):
        [written] = generate_many.sample(lm.model, asked, [(wm, key)], n_tokens, seed=seed + number)
        own_units, own_norms = production.directions(lm, (asked, written), wm, dtype=dtype)
        z = perturb.noise(lm.model, wm, key).flatten() / wm.sigma
        for k in every:
            marked = np.arange(k - 1, n, k)
            both, both_norms = own_units, own_norms
            if k > 1:
                both, both_norms = units.clone(), norms.copy()
                both[marked.tolist()], both_norms[marked] = (
                    own_units[: len(marked)],
                    own_norms[: len(marked)],
                )
            tables.append(
                _stream(both, both_norms, z.to(both), marked, wm.sigma).assign(
                    key_id=key.key_id, every=k
                )
            )
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _stream(
    units: torch.Tensor, norms: np.ndarray, z: torch.Tensor, marked: np.ndarray, sigma: float
) -> pd.DataFrame:
    K, is_marked = law.inner(units, units), np.isin(np.arange(len(units)), marked)
    psi, expected = law.inner(units, z[None])[:, 0], sigma * norms * is_marked
    both, residual = production.innovations(np.stack([psi, expected]), K)
    r = np.full((2, len(units)), np.nan)
    r[:, residual > law.NOTHING_NEW] = both
    residual = np.where(np.isnan(r[0]), 0, residual)
    of_marked = K[np.ix_(marked, marked)]
    cosine = (of_marked.sum() - np.trace(of_marked)) / max(1, len(marked) * (len(marked) - 1))
    columns = {
        "place": range(len(units)),
        "marked": is_marked,
        "psi": psi,
        "innovation": r[0],
        "promised": sigma * norms * residual,
    }
    return pd.DataFrame(columns | {"expected": expected, "forecast": r[1], "cosine": cosine})


def watched(streams: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """The streams with the running evidence of each, ``log_e``."""
    bets = stream.log_bets(
        streams["innovation"].fillna(0).to_numpy(), streams["promised"].to_numpy(), share
    )
    found = streams.assign(log_e=bets)
    return found.assign(log_e=found.groupby(["key_id", "every"], sort=False)["log_e"].cumsum())


def found_after(streams: pd.DataFrame, level: float = 0.05) -> pd.Series:
    """The number of texts after which each stream's E reaches 1/α (``key_id, every`` → texts;
    infinite where it never does).
    """
    over = streams["place"].where(streams["log_e"] >= -np.log(level)) + 1
    return over.groupby([streams["key_id"], streams["every"]], sort=False).min().fillna(np.inf)


def lost(streams: pd.DataFrame) -> stats.Estimate:
    """The share of the marked texts' mean ψ that innovations lose, with Student's interval over
    keys.
    """
    means = streams[streams["marked"]].groupby("key_id")[["psi", "innovation"]].mean()
    return stats.mean(1 - means["innovation"] / means["psi"])


def deviation(values: Float[np.ndarray, " n"], confidence: float = 0.95) -> stats.Estimate:
    """The standard deviation s of normal values with its exact interval: (n − 1)s²/σ² is χ² of n −
    1 degrees. No interval of fewer than two.
    """
    n, tail = len(values), (1 - confidence) / 2
    if n < 2:
        return stats.Estimate(np.nan, np.nan, np.nan, n)
    s = float(values.std(ddof=1))
    low, high = (s * float(np.sqrt((n - 1) / chi2(n - 1).isf(q))) for q in (tail, 1 - tail))
    return stats.Estimate(s, low, high, n)


def kept_by_place(streams: pd.DataFrame, ends: Sequence[int]) -> pd.DataFrame:
    """Innovation over ψ of the marked texts up to each place of ``ends``: ``first, last`` (places
    from 1), the ratio of means with a 95% interval, ``theory`` (L⁻¹σ‖G‖ over σ‖G‖) and
    ``one_factor`` (1/(1 + nc)).
    """
    rows, start = [], 0
    for end in ends:
        here = streams[streams["marked"] & streams["place"].between(start, end - 1)].dropna(
            subset="innovation"
        )
        ratio = here["innovation"].mean() / here["psi"].mean()
        half = (
            1.96
            * (here["innovation"] - ratio * here["psi"]).std()
            / np.sqrt(len(here))
            / abs(here["psi"].mean())
        )
        formula = (1 / (1 + here["place"] * here["cosine"])).mean()
        theory = {
            "theory": here["forecast"].mean() / here["expected"].mean(),
            "one_factor": formula,
        }
        rows.append(
            {"first": start + 1, "last": end}
            | stats.Estimate(ratio, ratio - half, ratio + half, len(here)).row()
            | theory
        )
        start = end
    return pd.DataFrame(rows)
