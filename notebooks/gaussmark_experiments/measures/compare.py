"""Each item's change from the base model is a row, so that all measures are summarised in the same
way; and sentences about the changes.

Each key has its own items, and intervals cluster by key, so they also hold for other keys.
``CONTROL`` is the base model again, which no measure may find. ``STRONG`` is a mark that each
measure should find: a measure that does not is blind, and says nothing about the other models.

Among yes-or-no items some are *lost* (the base model alone is right) and some *gained*. If both
models are equally good, lost is Binomial(lost + gained, ½): McNemar's exact test. It assumes
independent items, so it only holds for the keys that were tried.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import binom
from scipy.stats import t as student

from gaussmark_lib import stats

# models
GAUSSMARK = "GaussMark"
CONTROL = "base, another draw"
STRONG = "strong mark"


def changes(measure: str, model, key, change) -> pd.DataFrame:
    """Return a row per item: ``measure, model, key`` (the key's number), ``change``."""
    columns = {
        "change": np.asarray(change, float),
        "model": model,
        "key": key,
    }
    return pd.DataFrame(columns).assign(measure=measure)


def mean_change(rows: pd.DataFrame, confidence: float = 0.95) -> stats.Estimate:
    """Return the mean change with an interval that clusters by key; n counts items."""
    estimate = stats.interval(
        rows["change"],
        cluster=rows["key"],
        confidence=confidence,
    )
    return replace(estimate, n=len(rows))


def over_keys_and_items(rows: pd.DataFrame, confidence: float = 0.95) -> stats.Estimate:
    """Return the mean change if each key answers the same items (column ``item``). The interval
    holds for other keys and for other items.

    The variance of the mean is the variance of clusters by key, plus that of clusters by item,
    minus that of rows, which are in both (Cameron, Gelbach and Miller 2011). It is at least the
    larger of the first two. The interval is Student's; its degrees of freedom are the smaller
    number of clusters less 1. n counts different items.
    """
    mean = rows["change"].mean()
    residuals = rows["change"] - mean
    # a key number belongs to a model, and an item number to a measure
    sums_by_key = residuals.groupby([rows["model"], rows["key"]]).sum()
    sums_by_item = residuals.groupby([rows["measure"], rows["item"]]).sum()
    of_keys = _variance_of_total(sums_by_key)
    of_items = _variance_of_total(sums_by_item)
    of_rows = _variance_of_total(residuals)
    of_keys_and_items = of_keys + of_items - of_rows
    error = np.sqrt(max(of_keys, of_items, of_keys_and_items)) / len(rows)
    n_items = len(sums_by_item)
    n_clusters = min(len(sums_by_key), n_items)
    if n_clusters == 1:
        return stats.Estimate(mean, np.nan, np.nan, n_items)
    quantile = student.ppf((1 + confidence) / 2, n_clusters - 1)
    half_width = quantile * error
    return stats.Estimate(
        value=mean,
        low=mean - half_width,
        high=mean + half_width,
        n=n_items,
    )


def _variance_of_total(sums: pd.Series) -> float:
    """The variance of a sum over independent clusters, from each cluster's sum of residuals."""
    n = len(sums)
    if n < 2:
        return np.nan
    return (sums**2).sum() * n / (n - 1)


def summary(changes: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Return :func:`mean_change` of each measure and model, and whether it ``differs`` from 0. It
    does if its interval excludes 0. If there is no interval, because all keys agree, it does if
    McNemar's test of the items rejects.
    """
    means = []
    p_values = []
    for (measure, model), rows in changes.groupby(["measure", "model"], sort=False):
        estimate = mean_change(rows, confidence)
        means.append({"measure": measure, "model": model} | estimate.row())
        p_values.append(lost_and_gained(rows["change"])["p"])
    table = pd.DataFrame(means)
    by_keys = (table["low"] > 0) | (table["high"] < 0)
    by_items = pd.Series(p_values) <= 1 - confidence
    has_interval = table["low"].notna()
    return table.assign(differs=by_keys.where(has_interval, by_items))


def seen(changes: pd.DataFrame) -> list[str]:
    """Return the measures that find the strong mark; all other measures are blind."""
    of_strong = changes[changes["model"] == STRONG]
    table = summary(of_strong)
    return table.loc[table["differs"], "measure"].tolist()


def sizes(changes: pd.DataFrame) -> str:
    """Describe keys × items of a measure and model, such as "8 keys × 50".

    >>> sizes(changes("toy", GAUSSMARK, [0, 0, 1, 1, 1], 0.0))
    '2 keys × 2 to 3'
    """
    n_keys = changes["key"].nunique()
    n_items = changes.groupby(["measure", "model", "key"]).size()
    smallest = n_items.min()
    largest = n_items.max()
    in_words = f"{smallest:,}"
    if smallest < largest:
        in_words += f" to {largest:,}"
    return f"{n_keys} keys × {in_words}"


def sentence(changes: pd.DataFrame, measure: str, quantity: str = "change") -> str:
    """Say how GaussMark changes a measure, or that the measure is blind. The ``quantity`` names
    what the column ``change`` holds, with its unit.
    """
    rows = changes[changes["measure"] == measure]
    of_strong = rows[rows["model"] == STRONG]
    if measure not in seen(of_strong):
        return (
            f"**{measure}: blind.** Under the strong mark, the mean {quantity} is"
            f" {mean_change(of_strong)}. So this measure does not see the strong mark, and it says"
            " nothing about GaussMark."
        )
    of_gaussmark = rows[rows["model"] == GAUSSMARK]
    return (
        f"**{measure}**: under GaussMark, the mean {quantity} is {mean_change(of_gaussmark)}"
        f" ({sizes(of_gaussmark)}). Under the strong mark, the mean is {mean_change(of_strong)}."
    )


def share_of_strong(changes: pd.DataFrame, measures: Sequence[str]) -> stats.Estimate:
    """Divide GaussMark's mean change by the strong mark's, both over these measures: R = d̄/s̄,
    where d_k and s_k are means over measures of key k's mean changes, in the direction of the
    strong mark.

    The interval is Student's over keys of R + (d_k − R·s_k)/s̄ (the delta method); n counts items.
    """
    of_measures = changes[changes["measure"].isin(measures)]
    rows = of_measures[of_measures["model"].isin([GAUSSMARK, STRONG])]
    means = rows.groupby(["measure", "key", "model"])["change"].mean()
    means = means.unstack()  # rows: measure and key; columns: models
    # 1 for a measure that the strong mark raises, −1 for a measure that it lowers
    direction = np.sign(means[STRONG].groupby("measure").transform("mean"))
    aligned = means.mul(direction, axis="index")
    by_key = aligned.groupby("key").mean()
    d = by_key[GAUSSMARK]
    s = by_key[STRONG]
    ratio = d.mean() / s.mean()
    linearised = ratio + (d - ratio * s) / s.mean()
    n_items = int((rows["model"] == GAUSSMARK).sum())
    return replace(stats.interval(linearised), n=n_items)


def control_holds(changes: pd.DataFrame, level: float = 1e-4) -> bool:
    """Return whether no measure finds ``CONTROL``, which is the base model itself. The probability
    of a wrong False is at most ``level``, for all measures together.
    """
    control = changes[changes["model"] == CONTROL]
    # Bonferroni's correction
    level_of_measure = level / control["measure"].nunique()
    table = summary(control, confidence=1 - level_of_measure)
    return not table["differs"].any()


def lost_and_gained(change: pd.Series) -> dict[str, float]:
    """Count a mark's yes-or-no items: ``items, lost, gained``, and McNemar's ``p``."""
    n_lost = int((change < 0).sum())
    n_gained = int((change > 0).sum())
    return {
        "items": len(change),
        "lost": n_lost,
        "gained": n_gained,
        "p": mcnemar(n_lost, n_gained),
    }


def mcnemar(lost: ArrayLike, gained: ArrayLike) -> ArrayLike:
    """Return the two-sided exact p-value: twice the smaller tail of Binomial(lost + gained, ½), at
    most 1.

    >>> mcnemar(5, 0).item(), mcnemar(0, 0).item()
    (0.0625, 1.0)
    """
    lost = np.asarray(lost)
    gained = np.asarray(gained)
    smaller = np.minimum(lost, gained)
    smaller_tail = binom.cdf(smaller, lost + gained, 0.5)
    return np.minimum(1.0, 2 * smaller_tail)


def mcnemar_power(n: int, drop: float, churn: float, level: float = 0.05) -> float:
    """Return P(McNemar's test of n items rejects at this level), exactly.

    An item is lost with probability drop + churn/2 and gained with churn/2. So accuracy falls by
    ``drop``, and a share ``churn`` of the items changes as between two models of the same quality.
    """
    p_changed = drop + churn
    p_lost_if_changed = (drop + churn / 2) / max(p_changed, 1e-300)
    n_changed = binom(n, p_changed)
    # all numbers of changed items but the 1e-9 at both ends, (numbers, 1)
    m = np.arange(n_changed.ppf(1e-9), n_changed.isf(1e-9) + 1)[:, None]
    lost = np.arange(m.max() + 1)
    p_of_both = n_changed.pmf(m) * binom.pmf(lost, m, p_lost_if_changed)  # (numbers, lost)
    rejects = mcnemar(lost, m - lost) <= level
    return p_of_both[rejects].sum()
