"""Estimates with their intervals: points with error bars, and lines with bands.

The columns of an estimate are ``value, low, high``, or for example ``psi, psi_low, psi_high`` if a
row has several estimates (``stats.Estimate.row``). Without bounds, there is no bar and no band.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from numpy.typing import ArrayLike


def bounds(rows: pd.DataFrame, column: str = "value") -> Float[np.ndarray, "3 rows"]:
    """Return the estimates, their lower and their upper bounds; missing bounds are NaN.

    The bounds are ``column_low`` and ``column_high`` if the table has them, else ``low`` and
    ``high``.
    """
    prefix = f"{column}_" if f"{column}_low" in rows else ""
    columns = [column, f"{prefix}low", f"{prefix}high"]
    return rows.reindex(columns=columns).to_numpy(float).T


def bars(
    axes: Axes,
    at: ArrayLike,
    rows: pd.DataFrame,
    column: str = "value",
    *,
    horizontal: bool = False,
    **look,
) -> ErrorbarContainer:
    """Draw a point with its interval for each row, at these places of the other axis."""
    value, low, high = bounds(rows, column)
    error = np.maximum([value - low, high - value], 0)  # by rounding, a bound may lie inside
    if not np.isfinite(error).any():
        error = None  # the legend shows no bars either
    look = {"linestyle": "none", "marker": "o", "capsize": 3} | look
    if horizontal:
        return axes.errorbar(value, at, xerr=error, **look)
    return axes.errorbar(at, value, yerr=error, **look)


def band(axes: Axes, at: ArrayLike, rows: pd.DataFrame, column: str = "value", **look) -> None:
    """Draw a line through the estimates, and a band between their bounds."""
    value, low, high = bounds(rows, column)
    look = {"marker": "o"} | look
    [line] = axes.plot(at, value, **look)
    axes.fill_between(at, low, high, alpha=0.18, linewidth=0, color=line.get_color())
