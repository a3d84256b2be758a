"""One figure for most tables: estimates with their intervals, as lines where x is a number, or else
as points, one row per category; two panels side by side for the values of another column.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib.workbench.plots import intervals, style

Looks = Mapping[Any, Mapping]
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
    xlabel: str | None = None,
    ylabel: str | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    ylim: tuple[float, float] | None = None,
    sharey: bool = True,
) -> Figure:
    """Draws column ``y`` with its interval (``y_low, y_high``, or ``low, high``, or none).

    Args:
        x: a column of numbers, or of categories, which are drawn from top to bottom in the table's
            order, with the estimate across.
        by: a column whose values have a colour each; looks: value → matplotlib's ``color, marker,
            linestyle, label``, by default ``style.look``.
        panel: a column whose values have a panel each.
        at: label → a value of y to draw a thin line at.
        xscale, yscale: "linear" or "log", of the columns x and y.
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
    figure, grid = plt.subplots(n_rows, columns, figsize=size, sharey=sharey, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names, strict=False):
        rows = table if panel is None else table[table[panel] == name]
        draw = partial(_lines, scale=xscale) if is_lines else _points
        draw(axes, rows, x, y, by, looks or {None: style.look("measured")})
        for label, value in (at or {}).items():
            (axes.axhline if is_lines else axes.axvline)(value, **style.DASHED, label=label)
        labels = [x if xlabel is None else xlabel, y if ylabel is None else ylabel]
        scales, limits = {"xscale": xscale, "yscale": yscale}, {"ylim": ylim}
        if not is_lines:  # the estimate goes across
            labels, scales, limits = [labels[1], ""], {"xscale": yscale}, {"xlim": ylim}
        axes.set(xlabel=labels[0], ylabel=labels[1], title="" if name is None else name, **scales)
        axes.set(**{end: limit for end, limit in limits.items() if limit})
        if is_lines and xscale == "log":
            is_count = pd.api.types.is_integer_dtype(table[x]) and table[x].nunique() <= 8
            style.log_ticks(axes, table[x]) if is_count else style.few_log_ticks(axes.xaxis)
        if sharey and n_rows == 1:
            axes.label_outer(remove_inner_ticks=False)
    if by or at:
        style.legend_beside(grid[0, -1])
    return style.caption(figure, caption, title)


def _lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, by: str | None, looks: Looks, scale: str
) -> None:
    forward, back = (np.log, np.exp) if scale == "log" else (np.asarray, np.asarray)
    places = np.sort(forward(rows[x].unique()))
    step = 0.07 * np.diff(places).min(initial=np.ptp(places) or 1.0)  # between bars at one x
    known = rows[np.isfinite(intervals.bounds(rows, y)[1:]).any(axis=0)]
    barred = [group for group in looks if not by or (known[by] == group).any()]
    for group, look in looks.items():
        chosen = (rows[rows[by] == group] if by else rows).sort_values(x)
        look = {"label": group} | dict(look)
        if len(looks) <= BANDS and len(chosen):
            intervals.band(axes, chosen[x], chosen, y, **look)
        elif len(chosen):
            shift = 0.0
            if group in barred:
                shift = step * (barred.index(group) - (len(barred) - 1) / 2)
            at = back(forward(chosen[x]) + shift)
            intervals.bars(axes, at, chosen, y, **{"linestyle": "-", "linewidth": 1} | look)


def _points(axes: Axes, rows: pd.DataFrame, x: str, y: str, by: str | None, looks: Looks) -> None:
    categories = list(rows[x].unique())
    step = min(0.2, 0.8 / len(looks))  # keeps the intervals of one category apart
    for place, (group, look) in enumerate(looks.items()):
        chosen = rows[rows[by] == group] if by else rows
        if len(chosen):
            shift = step * (place - (len(looks) - 1) / 2)
            places = [categories.index(name) + shift for name in chosen[x]]
            look = {"label": group} | {**look} | {"linestyle": "none"}
            intervals.bars(axes, places, chosen, y, horizontal=True, **look)
    style.categories(axes, categories)
