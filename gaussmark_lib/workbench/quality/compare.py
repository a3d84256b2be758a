"""Each item's change from the base model as one row, so that all measures are summed up alike; and
what may be said of it.

Several keys have items of their own, and intervals cluster by key: they speak for other keys, too.
``CONTROL`` is the base model once more, which no measure may find; ``STRONG`` is a mark that each
measure should find: one that does not is blind, and says nothing of the others.

Of yes-or-no items some are *lost* (the base model alone is right) and some *gained*. If both models
are equally good, lost is Binomial(lost + gained, ½): McNemar's exact test. It takes the items for
independent, so it speaks for the keys that were tried, and for no others.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import binom
from scipy.stats import t as student

from gaussmark_lib import stats

GAUSSMARK, CONTROL, STRONG = "GaussMark", "base, another draw", "strong mark"


def changes(measure: str, model, key, change) -> pd.DataFrame:
    """One row per item: ``measure, model, key`` (the key's number), ``change``."""
    columns = {"change": np.asarray(change, float), "model": model, "key": key}
    return pd.DataFrame(columns).assign(measure=measure)


def mean_change(rows: pd.DataFrame, confidence: float = 0.95) -> stats.Estimate:
    """Mean change with an interval that clusters by key; n counts items."""
    estimate = stats.interval(rows["change"], cluster=rows["key"], confidence=confidence)
    return replace(estimate, n=len(rows))


def over_keys_and_items(rows: pd.DataFrame, confidence: float = 0.95) -> stats.Estimate:
    """Mean change where each key answers the same items (column ``item``): the interval speaks for
    other keys and for other items.

    The variance of the mean is that of clusters by key, plus that of clusters by item, minus that
    of rows, which are in both (Cameron, Gelbach and Miller 2011); it is at least the larger of the
    first two. The interval is Student's, with one degree of freedom less than the fewer clusters.
    n counts different items.
    """
    mean = rows["change"].mean()
    residuals = rows["change"] - mean
    by_key = residuals.groupby([rows["model"], rows["key"]]).sum()
    by_item = residuals.groupby([rows["measure"], rows["item"]]).sum()
    of_keys, of_items = (_variance_of_total(sums) for sums in (by_key, by_item))
    both = of_keys + of_items - _variance_of_total(residuals)
    error = np.sqrt(max(of_keys, of_items, both)) / len(rows)
    fewest = min(len(by_key), len(by_item))
    half = student.ppf((1 + confidence) / 2, fewest - 1) * error if fewest > 1 else np.nan
    return stats.Estimate(mean, mean - half, mean + half, len(by_item))


def _variance_of_total(sums: pd.Series) -> float:
    """Of the sum over independent clusters, from each cluster's sum of residuals."""
    n = len(sums)
    return (sums**2).sum() * n / (n - 1) if n > 1 else np.nan


def summary(changes: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """:func:`mean_change` of each measure and model, and whether its interval leaves out 0; where
    all keys agree, and there is none, whether McNemar's test of the items rejects.
    """
    groups = changes.groupby(["measure", "model"], sort=False)
    table = pd.DataFrame(
        {"measure": measure, "model": model} | mean_change(rows, confidence).row()
        for (measure, model), rows in groups
    )
    of_keys = (table["low"] > 0) | (table["high"] < 0)
    of_items = [lost_and_gained(rows["change"])["p"] <= 1 - confidence for _, rows in groups]
    return table.assign(differs=of_keys.where(table["low"].notna(), of_items))


def seen(changes: pd.DataFrame) -> list[str]:
    """The measures that find the strong mark; all others are blind."""
    table = summary(changes[changes["model"] == STRONG])
    return list(table[table["differs"]]["measure"])


def sizes(changes: pd.DataFrame) -> str:
    """Keys × items of a measure and model, as in "8 keys × 50".

    >>> sizes(changes("toy", GAUSSMARK, [0, 0, 1, 1, 1], 0.0))
    '2 keys × 2 to 3'
    """
    counts = changes.groupby(["measure", "model", "key"]).size()
    fewest, most = counts.min(), counts.max()
    more = f" to {most:,}" if fewest < most else ""
    return f"{changes['key'].nunique()} keys × {fewest:,}{more}"


def sentence(changes: pd.DataFrame, measure: str) -> str:
    """What a measure says of GaussMark, or that it is blind."""
    of = dict(iter(changes[changes["measure"] == measure].groupby("model")))
    by_strong = f"The strong mark changes it by {mean_change(of[STRONG])}"
    if measure not in seen(of[STRONG]):
        return f"**{measure}: blind.** {by_strong}; its silence about GaussMark means nothing."
    by_ours = f"GaussMark changes it by {mean_change(of[GAUSSMARK])} ({sizes(of[GAUSSMARK])})"
    return f"**{measure}**: {by_ours}. {by_strong}."


def share_of_strong(changes: pd.DataFrame, measures: Sequence[str]) -> stats.Estimate:
    """GaussMark's mean change divided by the strong mark's, both over these measures: R = d̄/s̄,
    d_k and s_k being means over measures of key k's mean changes, in the strong mark's direction.

    The interval is Student's over keys of R + (d_k − R·s_k)/s̄ (the delta method); n counts items.
    """
    rows = changes[changes["measure"].isin(measures) & changes["model"].isin([GAUSSMARK, STRONG])]
    means = rows.groupby(["measure", "key", "model"])["change"].mean().unstack()
    direction = np.sign(means[STRONG].groupby("measure").transform("mean"))
    d, s = (means[model].mul(direction).groupby("key").mean() for model in (GAUSSMARK, STRONG))
    share = d.mean() / s.mean()
    estimate = stats.interval(share + (d - share * s) / s.mean())
    return replace(estimate, n=int((rows["model"] == GAUSSMARK).sum()))


def control_holds(changes: pd.DataFrame, level: float = 1e-4) -> bool:
    """No measure finds ``CONTROL``, which is the base model itself. Wrong with at most probability
    ``level``, for all measures together.
    """
    control = changes[changes["model"] == CONTROL]
    return not summary(control, 1 - level / control["measure"].nunique())["differs"].any()


def lost_and_gained(change: pd.Series) -> dict[str, float]:
    """Of one mark's yes-or-no items: ``items, lost, gained``, and McNemar's ``p``."""
    lost, gained = int((change < 0).sum()), int((change > 0).sum())
    p = mcnemar(lost, gained)
    return {"items": len(change), "lost": lost, "gained": gained, "p": p}


def mcnemar(lost: ArrayLike, gained: ArrayLike) -> ArrayLike:
    """Two-sided exact p-value: twice the smaller tail of Binomial(lost + gained, ½), at most 1.

    >>> mcnemar(5, 0).item(), mcnemar(0, 0).item()
    (0.0625, 1.0)
    """
    lost, gained = np.asarray(lost), np.asarray(gained)
    return np.minimum(1.0, 2 * binom.cdf(np.minimum(lost, gained), lost + gained, 0.5))


def mcnemar_power(n: int, drop: float, churn: float, level: float = 0.05) -> float:
    """P(McNemar's test of n items rejects at this level), exact.

    An item is lost with probability drop + churn/2 and gained with churn/2: accuracy falls by
    ``drop``, and a share ``churn`` of the items changes as between two models of the same quality.
    """
    n_changes = binom(n, drop + churn)
    m = np.arange(n_changes.ppf(1e-9), n_changes.isf(1e-9) + 1)[:, None]  # changed items
    lost = np.arange(m.max() + 1)
    p = n_changes.pmf(m) * binom.pmf(lost, m, (drop + churn / 2) / max(drop + churn, 1e-300))
    return p[mcnemar(lost, m - lost) <= level].sum()
