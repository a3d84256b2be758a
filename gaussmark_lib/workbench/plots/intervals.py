"""Estimates with their intervals: points with error bars, and lines with bands.

A table names an estimate's columns ``value, low, high``, or ``psi, psi_low, psi_high`` where a row
has several (``stats.Estimate.row``). Where it has no bounds, a point or a line stands alone.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from numpy.typing import ArrayLike


def bounds(rows: pd.DataFrame, column: str = "value") -> Float[np.ndarray, "3 rows"]:
    """The estimates, their lower and their upper bounds, NaN where there are none: ``column`` with
    ``column_low`` and ``column_high``, or else ``low`` and ``high``.
    """
    prefix = f"{column}_" if f"{column}_low" in rows else ""
    return rows.reindex(columns=[column, f"{prefix}low", f"{prefix}high"]).to_numpy(float).T


def bars(
    axes: Axes,
    at: ArrayLike,
    rows: pd.DataFrame,
    column: str = "value",
    *,
    horizontal: bool = False,
    **look,
) -> ErrorbarContainer:
    """A point with its interval for each row, at these places of the other axis."""
    value, low, high = bounds(rows, column)
    error = np.maximum([value - low, high - value], 0)  # a bound may lie a rounding error inside
    look = {"linestyle": "none", "marker": "o", "capsize": 3} | look
    if horizontal:
        return axes.errorbar(value, at, xerr=error, **look)
    return axes.errorbar(at, value, yerr=error, **look)


def band(axes: Axes, at: ArrayLike, rows: pd.DataFrame, column: str = "value", **look) -> None:
    """A line through the estimates and a band between their bounds."""
    value, low, high = bounds(rows, column)
    (line,) = axes.plot(at, value, **{"marker": "o"} | look)
    axes.fill_between(at, low, high, alpha=0.18, linewidth=0, color=line.get_color())
