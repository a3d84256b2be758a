"""Figures of 10_speed."""

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from gaussmark_lib.plots import intervals, style


def against(table: pd.DataFrame, x: str, xlabel: str, title: str, caption: str, unit: str = "seconds") -> Figure:
    """Median seconds against a size, a line a ``task``, with the fastest and slowest repeat (columns ``task``, x, ``seconds``)."""
    figure, axes = plt.subplots()
    for colour, (task, rows) in zip(style.COLOURS, table.groupby("task", sort=False), strict=False):
        seconds = rows.groupby(x)["seconds"].agg(value="median", low="min", high="max")
        intervals.band(axes, seconds.index, seconds, color=colour, label=task)
    axes.set(yscale="log", xlabel=xlabel, ylabel=unit)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    style.log_ticks(axes, table[x])
    return style.caption(figure, caption, title)


def ratios(table: pd.DataFrame, title: str, caption: str) -> Figure:
    """How many times faster than the reference, a bar a task (``speed.ratios``), the fastest and slowest repeat as whiskers."""
    figure, axes = plt.subplots(figsize=(7.0, 1.1 + 0.45 * len(table)))
    axes.barh(table["task"], table["ratio"], xerr=intervals.sides(table, "ratio"), color=style.PLAIN, alpha=0.8, capsize=3)
    axes.axvline(1, **style.THIN)
    for y, value in enumerate(table["ratio"]):
        axes.text(0.02, y, f" {value:.2f}×", va="center", color="white", fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as the reference")
    return style.caption(figure, caption, title)
