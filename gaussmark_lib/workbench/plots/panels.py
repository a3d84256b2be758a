"""A figure for most tables: estimates with their intervals.

If x is a number, estimates are lines; otherwise they are points, with one row per category. The
values of another column can have a panel each, two panels side by side.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from gaussmark_lib.workbench.plots import intervals, style

Looks = Mapping[Any, Mapping]
COLUMNS = 2  # of panels: a page is 1,280 pixels wide
BANDS = 2  # lines with bands, which may overlap; with more lines, the intervals are bars


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
    xlabel: str | None = None,
    ylabel: str | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    ylim: tuple[float, float | None] | None = None,
    sharey: bool = True,
) -> Figure:
    """Draw column ``y`` with its interval (``y_low, y_high``, or ``low, high``, or no interval).

    Args:
        x: a column of numbers, or of categories. Categories are drawn from top to bottom in the
            order of the table, with the estimates on the horizontal axis.
        by: a column; each of its values has a colour.
        looks: value of ``by`` → matplotlib's ``color, marker, linestyle, label``; by default
            ``style.look``.
        panel: a column; each of its values has a panel.
        at: label → value of y, at which a thin line is drawn.
        xscale, yscale: "linear" or "log", for the columns x and y.
        xlabel, ylabel: labels of the columns x and y; by default their names.
    """
    names = [None] if panel is None else list(table[panel].unique())
    is_lines = pd.api.types.is_numeric_dtype(table[x])
    if by and not looks:
        looks = {name: style.look(name, i) for i, name in enumerate(table[by].unique())}
    looks = looks or {None: style.look("measured")}
    xlabel = x if xlabel is None else xlabel
    ylabel = y if ylabel is None else ylabel
    rows_of = {name: table if panel is None else table[table[panel] == name] for name in names}
    shown = [table] * len(names) if sharey else rows_of.values()
    heights = [_height(rows, x, by, is_lines) for rows in shown]
    figure, grid = _grid(heights, sharey)
    for axes, (name, rows) in zip(figure.axes, rows_of.items(), strict=True):
        # panels that share an axis have the same rows, also where a panel lacks a category
        categories = list((table if sharey else rows)[x].unique())
        if is_lines:
            draw = partial(_lines, scale=xscale)
        else:
            draw = partial(_points, categories=categories)
        draw(axes, rows, x, y, by, looks)
        draw_line = axes.axhline if is_lines else axes.axvline
        for label, value in (at or {}).items():
            draw_line(value, **style.DASHED, label=label)
        title_of_panel = "" if name is None else name
        if is_lines:
            axes.set(xlabel=xlabel, ylabel=ylabel, title=title_of_panel)
            axes.set(xscale=xscale, yscale=yscale)
        else:  # the estimates are on the horizontal axis
            axes.set(xlabel=ylabel, ylabel="", title=title_of_panel, xscale=yscale)
        if ylim:
            set_limits = axes.set_ylim if is_lines else axes.set_xlim
            set_limits(ylim)
        if is_lines and xscale == "log":
            is_count = pd.api.types.is_integer_dtype(rows[x]) and rows[x].nunique() <= 8
            if is_count:
                style.log_ticks(axes, rows[x])
            else:
                style.few_log_ticks(axes.xaxis)
        if sharey and len(grid) == 1:
            axes.label_outer(remove_inner_ticks=False)
    if by or at:
        has_place = len(names) < grid.size  # in the last row, beside the last panel
        beside = figure.axes[-1] if has_place else grid[0, -1]
        style.legend_beside(beside, figure.axes, has_place=has_place)
    return style.caption(figure, caption, title)


def _height(rows: pd.DataFrame, x: str, by: str | None, is_lines: bool) -> float:
    """The height of a panel of these rows, in inches."""
    if is_lines:
        return 3.9
    n_looks = rows[by].nunique() if by else 1  # each has its place in a category's row
    return 1.6 + max(0.42, 0.15 * n_looks) * rows[x].nunique()


def _grid(heights: Sequence[float], sharey: bool) -> tuple[Figure, np.ndarray]:
    """A figure with a panel of each height, and its grid, whose last place can be empty."""
    n_columns = min(len(heights), COLUMNS)
    firsts = range(0, len(heights), n_columns)  # of each row of panels
    row_heights = [max(heights[first : first + n_columns]) for first in firsts]
    is_full = len(heights) % n_columns == 0  # then the legend stands beside the grid
    figure, grid = plt.subplots(
        len(row_heights),
        n_columns,
        figsize=(4.4 * n_columns + (2.4 if is_full else 0.6), sum(row_heights)),
        height_ratios=row_heights,
        sharey=sharey,
        squeeze=False,
    )
    for axes in grid.flat[len(heights) :]:
        axes.remove()
    return figure, grid


def _lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, by: str | None, looks: Looks, scale: str
) -> None:
    """A line per group."""
    is_log = scale == "log"
    places = np.sort(_scaled(rows[x].unique(), is_log))
    step = 0.07 * np.diff(places).min(initial=np.ptp(places) or 1.0)  # between bars at one x
    _, low, high = intervals.bounds(rows, y)
    with_interval = rows[np.isfinite(low) | np.isfinite(high)]
    # Groups with bars, which stand next to each other at one x.
    barred = [group for group in looks if not by or (with_interval[by] == group).any()]
    for group, look in looks.items():
        rows_of_group = (rows[rows[by] == group] if by else rows).sort_values(x)
        if not len(rows_of_group):
            continue
        look = {"label": group} | dict(look)
        if len(looks) <= BANDS:
            intervals.band(axes, rows_of_group[x], rows_of_group, y, **look)
            continue
        shift = 0.0
        if group in barred:
            shift = step * (barred.index(group) - (len(barred) - 1) / 2)
        at = _scaled(rows_of_group[x], is_log) + shift
        if is_log:
            at = np.exp(at)
        look = {"linestyle": "-", "linewidth": 1} | look
        intervals.bars(axes, at, rows_of_group, y, **look)


def _scaled(values: ArrayLike, is_log: bool) -> np.ndarray:
    """Values as their places on the axis."""
    values = np.asarray(values)
    return np.log(values) if is_log else values


def _points(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    by: str | None,
    looks: Looks,
    categories: Sequence,
) -> None:
    """A point per group in the row of each category."""
    step = min(0.2, 0.8 / len(looks))  # between the groups of a category
    for i, (group, look) in enumerate(looks.items()):
        rows_of_group = rows[rows[by] == group] if by else rows
        if not len(rows_of_group):
            continue
        shift = step * (i - (len(looks) - 1) / 2)
        places = [categories.index(name) + shift for name in rows_of_group[x]]
        look = {"label": group} | dict(look) | {"linestyle": "none"}
        intervals.bars(axes, places, rows_of_group, y, horizontal=True, **look)
    style.categories(axes, categories)
