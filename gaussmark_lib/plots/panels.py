"""One figure for most tables: estimates with their intervals, as lines where x is a number, or else
as points, one row per category; two panels side by side for the values of another column.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, style

Looks = Mapping[Any, Mapping]
Groups = Sequence[tuple[Mapping, pd.DataFrame]]  # how the rows of one value of ``by`` look
COLUMNS = 2  # of panels: a page is 1,280 pixels wide
BANDS = 2  # lines whose bands may lie over each other; of more, the intervals are bars


def panels(
    table: pd.DataFrame,
    x: str,
    y: str = "value",
    *,
    by: str | None = None,
    panel: str | None = None,
    looks: Looks | None = None,
    at: Mapping[str, float] | None = None,
    title: str = "",
    caption: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xscale: str = "linear",
    ylim: tuple[float, float] | None = None,
) -> Figure:
    """Draws column ``y`` with its interval (``y_low, y_high``, or ``low, high``, or none).

    Args:
        x: a column of numbers, or of categories, which are drawn from top to bottom in the table's
            order, with the estimate across.
        by: a column whose values have a colour each; looks: value → matplotlib's ``color, marker,
            linestyle, label``, by default ``style.look``.
        panel: a column whose values have a panel each.
        at: label → a value of y to draw a thin line at.
        xscale: "linear" or "log", of column x.
        xlabel, ylabel: of the columns x and y; by default their names.
    """
    names = [None] if panel is None else list(table[panel].unique())
    is_lines = pd.api.types.is_numeric_dtype(table[x])
    if by and not looks:
        looks = {name: style.look(name, i) for i, name in enumerate(table[by].unique())}
    n_looks = table[by].nunique() if by else 1  # each needs its place in a category's row
    height = 3.9 if is_lines else 1.6 + max(0.42, 0.15 * n_looks) * table[x].nunique()
    columns = min(len(names), COLUMNS)
    n_rows = -(-len(names) // columns)
    size = (2.4 + 4.4 * columns, height * n_rows)
    figure, grid = plt.subplots(n_rows, columns, figsize=size, sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names, strict=False):
        rows = table if panel is None else table[table[panel] == name]
        groups = [
            ({"label": group} | dict(look), rows[rows[by] == group] if by else rows)
            for group, look in (looks or {None: style.look("measured")}).items()
        ]
        if is_lines:
            _lines(axes, groups, x, y, xscale)
        else:
            _points(axes, groups, list(rows[x].unique()), x, y)
        for label, value in (at or {}).items():
            (axes.axhline if is_lines else axes.axvline)(value, **style.DASHED, label=label)
        if is_lines:
            axes.set(xlabel=xlabel or x, ylabel=ylabel or y, xscale=xscale)
        else:  # the estimate goes across
            axes.set(xlabel=ylabel or y, ylabel="")
        axes.set_title("" if name is None else name)
        if ylim:
            (axes.set_ylim if is_lines else axes.set_xlim)(ylim)
        if is_lines and xscale == "log":
            is_count = pd.api.types.is_integer_dtype(table[x]) and table[x].nunique() <= 8
            style.log_ticks(axes, table[x]) if is_count else style.few_log_ticks(axes.xaxis)
        if n_rows == 1:
            axes.label_outer(remove_inner_ticks=False)
    if by or at:
        style.legend_beside(grid[0, -1])
    return style.caption(figure, caption, title)


def _lines(axes: Axes, groups: Groups, x: str, y: str, scale: str) -> None:
    forward, back = (np.log, np.exp) if scale == "log" else (np.asarray, np.asarray)
    places = np.unique(np.concatenate([forward(rows[x]) for _, rows in groups]))
    step = 0.07 * np.diff(places).min(initial=np.ptp(places) or 1.0)  # between bars at one x
    bounds = [intervals.bounds(rows, y)[1:] for _, rows in groups]
    barred = [place for place, ends in enumerate(bounds) if np.isfinite(ends).any()]
    for place, (look, rows) in enumerate(groups):
        rows = rows.sort_values(x)
        if len(groups) <= BANDS and len(rows):
            intervals.band(axes, rows[x], rows, y, **look)
        elif len(rows):
            shift = 0.0
            if place in barred:
                shift = step * (barred.index(place) - (len(barred) - 1) / 2)
            at = back(forward(rows[x]) + shift)
            intervals.bars(axes, at, rows, y, **{"linestyle": "-", "linewidth": 1} | look)


def _points(axes: Axes, groups: Groups, categories: list, x: str, y: str) -> None:
    step = min(0.2, 0.8 / len(groups))  # keeps the intervals of one category apart
    for place, (look, rows) in enumerate(groups):
        if len(rows):
            shift = step * (place - (len(groups) - 1) / 2)
            places = [categories.index(name) + shift for name in rows[x]]
            look = look | {"linestyle": "none"}
            intervals.bars(axes, places, rows, y, horizontal=True, **look)
    style.categories(axes, categories)
