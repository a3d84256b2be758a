"""Schemes compared over the same prompts and keys, as a ratio or a difference with an interval of the pair.

Two schemes' texts of one prompt are alike, and so are two under one key, so the difference is known better than either mean. Prompts and keys are
resampled together for both (``stats.crossed_interval``).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments import crossed


def ratios(table: pd.DataFrame, column: str, base: str) -> pd.DataFrame:
    """Each scheme's mean over the base scheme's, paired over prompts and keys: ``scheme, value, low, high, n``, and the scheme's own ``mean``."""
    return _paired(table, column, base, lambda ours, theirs: ours.mean() / theirs.mean())


def differences(table: pd.DataFrame, column: str, base: str, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """The same for the difference of the means. Where all texts of a scheme are hits, or none, resamples cannot say how far its share is from that:
    the interval then reaches as much further as the exact one of the prompts, (α/2)^(1/n).
    """
    found = _paired(table, column, base, lambda ours, theirs: ours.mean() - theirs.mean(), n_resamples)
    if not table[column].isin([0, 1]).all():
        return found
    of = table.groupby("scheme")[column].mean()
    unseen = 1 - 0.025 ** (1 / table["prompt"].nunique())
    more = ((found["scheme"].map(of) == 0) | (of[base] == 1)) * unseen  # by which the difference may be larger
    less = ((found["scheme"].map(of) == 1) | (of[base] == 0)) * unseen
    ends = {"low": np.fmin(found["low"], found["value"] - less), "high": np.fmax(found["high"], found["value"] + more)}
    return found.assign(**{name: end.where(found["low"].notna() | (more + less > 0)) for name, end in ends.items()})


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
    """
    hits = table.assign(hit=table[column] <= level).groupby(["prompt", "key_id"], sort=False)["hit"].mean().reset_index()
    return crossed.mean(hits, "hit", share=True, confidence=confidence, n_resamples=5_000)
