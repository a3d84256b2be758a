"""Schemes compared over the same prompts and keys, as a ratio or a difference with an interval of
the pair.

Two schemes' texts of one prompt are alike, and so are two under one key, so the difference is known
better than either mean. Prompts and keys are resampled together for both
(``stats.crossed_interval``).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.stats import beta

from gaussmark_lib import stats
from gaussmark_lib.experiments import crossed


def ratios(table: pd.DataFrame, column: str, base: str) -> pd.DataFrame:
    """Each scheme's mean over the base scheme's, paired over prompts and keys: ``scheme, value,
    low, high, n``, and the scheme's own ``mean``.

    Where the interval of the base scheme's own mean contains 0, nothing bounds a ratio over it
    (Fieller): ``value, low, high`` are NaN.
    """
    found = _paired(table, column, base, lambda ours, theirs: ours.mean() / theirs.mean())
    known = crossed.mean(table[table["scheme"] == base], column)
    return (
        found.assign(value=np.nan, low=np.nan, high=np.nan)
        if known.low <= 0 <= known.high
        else found
    )


def differences(
    table: pd.DataFrame, column: str, base: str, *, n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    """The same for the difference of the means.

    Of hits, a difference is the share p₊ of the pairs that are hits of ours only, less the share p₋
    that are theirs only. Where no pair of the one kind was seen, no resample has one. Its share may
    still be up to u = 1 − (α/2)^(1/n), the exact upper end for none of n prompts, and the
    interval's half-width h on that side becomes √(h² + u²), as Newcombe (Stat. Med. 1998) adds the
    two shares' half-widths. Nor is a pair that was seen better evidence than none: each end lies at
    least as far out as it would if the pairs of that kind were ties.
    """
    found = _paired(
        table, column, base, lambda ours, theirs: ours.mean() - theirs.mean(), n_resamples
    )
    if not table[column].isin([0, 1]).all():
        return found
    hits = {
        scheme: stats.matrix(rows, column) for scheme, rows in table.groupby("scheme", sort=False)
    }
    pairs = [hits[name] - hits[base] for name in found["scheme"]]
    high = [_upper(np.minimum(pair, 0), n_resamples) for pair in pairs]
    low = [-_upper(np.minimum(-pair, 0), n_resamples) for pair in pairs]
    ends = {
        "low": np.fmin(found["low"].fillna(found["value"]), low),
        "high": np.fmax(found["high"].fillna(found["value"]), high),
    }
    return found.assign(**{name: end.clip(-1, 1) for name, end in ends.items()})


def _upper(pairs: np.ndarray, n_resamples: int) -> float:
    """The upper end of the mean of paired differences, prompts × keys, that are −1 or 0, allowing
    for pairs of 1 that were not seen.
    """
    found = stats.crossed_interval(np.mean, pairs, n_resamples=n_resamples)
    unseen = 1 - 0.025 ** (1 / len(pairs))
    return found.value + float(
        np.hypot(0 if np.isnan(found.high) else found.high - found.value, unseen)
    )


def _paired(
    table: pd.DataFrame,
    column: str,
    base: str,
    statistic: Callable[[np.ndarray, np.ndarray], float],
    n_resamples: int = stats.N_RESAMPLES,
) -> pd.DataFrame:
    matrices = {
        name: stats.matrix(rows, column) for name, rows in table.groupby("scheme", sort=False)
    }
    return pd.DataFrame(
        {"scheme": name, "mean": ours.mean()}
        | stats.crossed_interval(statistic, ours, matrices[base], n_resamples=n_resamples).row()
        for name, ours in matrices.items()
        if name != base
    )


def shares(
    table: pd.DataFrame, level: float, *, n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    """The share detected at a level, of ``robustness.measure``'s table: ``corruption, fraction,
    scheme, kind, value, low, high, n``.
    """
    hits = table.assign(hit=table["p_value"] <= level)
    where = ["corruption", "fraction", "scheme", "kind"]
    return crossed.by_cell(
        hits, where, lambda cell: crossed.mean(cell, "hit", n_resamples=n_resamples).row()
    )


def false_alarms(
    table: pd.DataFrame, level: float, column: str = "p_value", *, confidence: float = 0.999
) -> stats.Estimate:
    """The share of all rows at or below the level, with an interval over prompts and keys.

    Rows of one prompt and key are averaged first. They differ in the scheme or in what was done to
    the text, and are no trials of their own. A resample holds no alarm that was not seen, and of
    one or two it bounds less than the exact interval does of none. So the upper end is at least
    that of Clopper and Pearson for a share x of as many trials as there are prompts, also where x·n
    is no whole number (Korn and Graubard, Surv. Methodol. 1998): it rises with x, from 1 −
    (α/2)^(1/n) for none. Where all resamples agree, both ends are theirs.
    """
    hits = (
        table.assign(hit=table[column] <= level)
        .groupby(["prompt", "key_id"], sort=False)["hit"]
        .mean()
        .reset_index()
    )
    found = crossed.mean(hits, "hit", share=True, confidence=confidence, n_resamples=5_000)
    if found.value in (0, 1):  # exact already
        return found
    n, tail = hits["prompt"].nunique(), (1 - confidence) / 2
    seen = found.value * n
    low, high = beta.ppf(tail, seen, n - seen + 1), beta.isf(tail, seen + 1, n - seen)
    return replace(
        found,
        low=float(low if np.isnan(found.low) else found.low),
        high=float(np.fmax(found.high, high)),
    )
