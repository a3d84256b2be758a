"""Schemes compared over the same prompts and keys, as a ratio or a difference with an interval of the pair.

Two schemes' texts of one prompt are alike, and so are two under one key, so the difference is known better than either mean. Prompts and keys are
resampled together for both (``stats.crossed_interval``).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.stats import beta

from gaussmark_lib import stats
from gaussmark_lib.experiments import crossed


def ratios(table: pd.DataFrame, column: str, base: str) -> pd.DataFrame:
    """Each scheme's mean over the base scheme's, paired over prompts and keys: ``scheme, value, low, high, n``, and the scheme's own ``mean``.

    Where the interval of the base scheme's own mean contains 0, nothing bounds a ratio over it (Fieller): ``value, low, high`` are NaN.
    """
    found = _paired(table, column, base, lambda ours, theirs: ours.mean() / theirs.mean())
    known = crossed.mean(table[table["scheme"] == base], column)
    return found.assign(value=np.nan, low=np.nan, high=np.nan) if known.low <= 0 <= known.high else found


def differences(table: pd.DataFrame, column: str, base: str, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """The same for the difference of the means.

    Of hits, a difference is the share p₊ of the pairs that are hits of ours only, less the share p₋ that are theirs only. Where no pair of the one
    kind was seen, no resample has one. Its share may still be up to u = 1 − (α/2)^(1/n), the exact upper end for none of n prompts, and the
    interval's half-width h on that side becomes √(h² + u²), as Newcombe (Stat. Med. 1998) adds the two shares' half-widths.
    """
    found = _paired(table, column, base, lambda ours, theirs: ours.mean() - theirs.mean(), n_resamples)
    if not table[column].isin([0, 1]).all():
        return found
    hits = {scheme: stats.matrix(rows, column) for scheme, rows in table.groupby("scheme", sort=False)}
    unseen = 1 - 0.025 ** (1 / table["prompt"].nunique())
    more, less = (np.array([not (sign * (hits[name] - hits[base]) > 0).any() for name in found["scheme"]]) * unseen for sign in (1, -1))
    known = found["low"].notna() | (more + less > 0)
    low = found["value"] - np.hypot((found["value"] - found["low"]).fillna(0), less)
    high = found["value"] + np.hypot((found["high"] - found["value"]).fillna(0), more)
    return found.assign(low=low.clip(lower=-1).where(known), high=high.clip(upper=1).where(known))


def _paired(
    table: pd.DataFrame, column: str, base: str, statistic: Callable[[np.ndarray, np.ndarray], float], n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    matrices = {name: stats.matrix(rows, column) for name, rows in table.groupby("scheme", sort=False)}
    return pd.DataFrame(
        {"scheme": name, "mean": ours.mean()} | stats.crossed_interval(statistic, ours, matrices[base], n_resamples=n_resamples).row()
        for name, ours in matrices.items()
        if name != base
    )


def shares(table: pd.DataFrame, level: float, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """The share detected at a level, of ``robustness.measure``'s table: ``corruption, fraction, scheme, kind, value, low, high, n``."""
    hits = table.assign(hit=table["p_value"] <= level)
    where = ["corruption", "fraction", "scheme", "kind"]
    return crossed.by_cell(hits, where, lambda cell: crossed.mean(cell, "hit", n_resamples=n_resamples).row())


def false_alarms(table: pd.DataFrame, level: float, column: str = "p_value", *, confidence: float = 0.999) -> stats.Estimate:
    """The share of all rows at or below the level, with an interval over prompts and keys.

    Rows of one prompt and key are averaged first. They differ in the scheme or in what was done to the text, and are no trials of their own.
    A resample holds no alarm that was not seen, and of one or two it bounds less than the exact interval does of none. So the upper end is at least
    that of Clopper and Pearson for a share x of as many trials as there are prompts, also where x·n is no whole number (Korn and Graubard, Surv.
    Methodol. 1998): it rises with x, from 1 − (α/2)^(1/n) for none. Where all resamples agree, both ends are theirs.
    """
    hits = table.assign(hit=table[column] <= level).groupby(["prompt", "key_id"], sort=False)["hit"].mean().reset_index()
    found = crossed.mean(hits, "hit", share=True, confidence=confidence, n_resamples=5_000)
    if found.value in (0, 1):  # exact already
        return found
    n, tail = hits["prompt"].nunique(), (1 - confidence) / 2
    seen = found.value * n
    low, high = beta.ppf(tail, seen, n - seen + 1), beta.isf(tail, seen + 1, n - seen)
    return replace(found, low=float(low if np.isnan(found.low) else found.low), high=float(np.fmax(found.high, high)))
