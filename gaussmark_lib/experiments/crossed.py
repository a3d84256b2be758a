"""What a table says of each of its cells, that is, of texts that are prompts × keys: one row a
cell, with intervals over both.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from gaussmark_lib import stats

LEVELS = (0.05, 0.01)


def by_cell(
    table: pd.DataFrame, columns: Sequence[str], row: Callable[[pd.DataFrame], dict]
) -> pd.DataFrame:
    """One row a cell, in the order of their first appearance: the columns that name it, and what
    ``row`` makes of its rows.
    """
    cells = table.groupby(list(columns), sort=False)
    return pd.DataFrame(dict(zip(columns, names, strict=True)) | row(cell) for names, cell in cells)


def mean(
    cell: pd.DataFrame, column: str, *, share: bool = False, n_resamples: int = 500, **options
) -> stats.Estimate:
    """Mean of a column over prompts and keys; of a column of truth values, a share. Options are
    those of ``stats.crossed_interval``.
    """
    share = share or pd.api.types.is_bool_dtype(cell[column])
    return stats.crossed_interval(
        np.mean, stats.matrix(cell, column), n_resamples=n_resamples, share=share, **options
    )


def detection(
    own: np.ndarray, plain: np.ndarray, median_p: Callable[[np.ndarray], float], **options
) -> list[dict[str, str | float]]:
    """Each figure of detection, from log₁₀ p of watermarked and of plain texts, prompts × keys: a
    row with ``figure, value, low, high, n``.

    The figures are ``median p``, ``AUC``, and at each α of ``LEVELS`` ``TPR at α`` and ``false
    positives at α`` (of plain text).
    """
    found = {
        "median p": stats.crossed_interval(median_p, own, **options),
        "AUC": _area(plain, own, **options),
    }
    for level in LEVELS:
        for figure, texts in ((f"TPR at {level}", own), (f"false positives at {level}", plain)):
            found[figure] = stats.crossed_interval(
                partial(_share, level=level), texts, share=True, **options
            )
    return [{"figure": figure} | estimate.row() for figure, estimate in found.items()]


def _area(
    plain: np.ndarray, own: np.ndarray, *, confidence: float = 0.95, **options
) -> stats.Estimate:
    """AUC. It compares a plain text of one prompt with a marked one of another, so at 0 or 1 the
    trials of its exact binomial interval are pairs of prompts, no prompt in two of them: half as
    many as a share has.
    """
    area = stats.auc(-plain, -own)
    if area in (0.0, 1.0):
        pairs = stats.rate(np.full(len(own) // 2, area), confidence)
        return stats.Estimate(area, pairs.low, pairs.high, own.size)
    return stats.crossed_interval(
        lambda plain, own: stats.auc(-plain, -own), plain, own, confidence=confidence, **options
    )


def _share(log10_p: np.ndarray, level: float) -> float:
    return float((10**log10_p <= level).mean())
