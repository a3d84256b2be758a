"""Schemes compared over the same prompts and keys: each figure of one over, or less, that of another, with an interval of the pair.

Two schemes' texts of one prompt are alike, and so are two under one key, so the difference is known better than either mean. Prompts and keys are
resampled together for both (``stats.crossed_interval``).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gaussmark_lib import stats


def ratios(table: pd.DataFrame, column: str, base: str, *, n_resamples: int = 1000) -> pd.DataFrame:
    """Each scheme's mean over the base scheme's, paired over prompts and keys: ``scheme, value, low, high, n_prompts, n_keys``, and ``mean``."""
    return _paired(table, column, base, lambda ours, theirs: ours.mean() / theirs.mean(), n_resamples)


def differences(table: pd.DataFrame, column: str, base: str, *, n_resamples: int = 1000) -> pd.DataFrame:
    """The same for the difference of the means."""
    return _paired(table, column, base, lambda ours, theirs: ours.mean() - theirs.mean(), n_resamples)


def _paired(table: pd.DataFrame, column: str, base: str, statistic: Callable[[np.ndarray, np.ndarray], float], n_resamples: int) -> pd.DataFrame:
    matrices = {name: rows.pivot(index="prompt", columns="key", values=column).to_numpy(float) for name, rows in table.groupby("scheme", sort=False)}
    return pd.DataFrame(
        {"scheme": name, "mean": ours.mean()} | stats.crossed_interval(statistic, ours, matrices[base], n_resamples=n_resamples)
        for name, ours in matrices.items()
        if name != base
    )
