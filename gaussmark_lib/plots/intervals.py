"""Estimates with their intervals: points with error bars, and lines with bands.

A table names an estimate's columns ``value, low, high``, or ``psi, psi_low, psi_high`` where a row
has several (``stats.Estimate.row``).
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from numpy.typing import ArrayLike

from gaussmark_lib.stats import Estimate

Estimates = pd.DataFrame | Estimate | Iterable[Estimate]


def bounds(rows: Estimates, column: str = "value") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The estimates, their lower and their upper bounds: ``column`` with ``column_low`` and
    ``column_high``, or else ``low`` and ``high``.
    """
    if isinstance(rows, Estimate):
        rows = [rows]
    if not isinstance(rows, pd.DataFrame):
        rows = pd.DataFrame(
            [estimate.row() for estimate in rows], columns=["value", "low", "high", "n"]
        )
    prefix = f"{column}_" if f"{column}_low" in rows else ""
    return tuple(rows[name].to_numpy(float) for name in (column, f"{prefix}low", f"{prefix}high"))


def sides(rows: Estimates, column: str = "value") -> np.ndarray:
    """What matplotlib calls ``xerr`` or ``yerr``, shape (2, rows): never negative, NaN where a
    bound is unknown.

    >>> sides(Estimate(0.5, 0.25, 0.5 - 1e-12, 4)).tolist()
    [[0.25], [0.0]]
    """
    value, low, high = bounds(rows, column)
    return np.maximum([value - low, high - value], 0)


def bars(
    axes: Axes,
    at: ArrayLike,
    rows: Estimates,
    column: str = "value",
    *,
    horizontal: bool = False,
    **look,
) -> ErrorbarContainer:
    """A point with its interval for each row, at these places of the other axis."""
    value, error = bounds(rows, column)[0], sides(rows, column)
    look = {"linestyle": "none", "marker": "o", "capsize": 3} | look
    return (
        axes.errorbar(value, at, xerr=error, **look)
        if horizontal
        else axes.errorbar(at, value, yerr=error, **look)
    )


def band(
    axes: Axes,
    at: ArrayLike,
    rows: Estimates,
    column: str = "value",
    *,
    alpha: float = 0.18,
    **look,
) -> None:
    """A line through the estimates and a band between their bounds."""
    value, low, high = bounds(rows, column)
    (line,) = axes.plot(at, value, **{"marker": "o"} | look)
    axes.fill_between(at, low, high, alpha=alpha, linewidth=0, color=line.get_color())


def offsets(n: int, step: float) -> np.ndarray:
    """Shifts that keep n intervals of one place apart, centred on it.

    >>> offsets(3, 0.2).tolist()
    [-0.2, 0.0, 0.2]
    """
    return step * (np.arange(n) - (n - 1) / 2)
