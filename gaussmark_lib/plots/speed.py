"""Figures of 10_speed."""

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, style


def against(table: pd.DataFrame, x: str, xlabel: str, title: str, caption: str, unit: str = "seconds") -> Figure:
    """Median seconds against a size, both axes from 0, a line a ``task``, with the fastest and slowest repeat (columns ``task``, x, ``seconds``)."""
    figure, axes = plt.subplots()
    for (task, rows), colour, marker in zip(table.groupby("task", sort=False), style.COLOURS, "osD^v", strict=False):
        seconds = rows.groupby(x)["seconds"].agg(value="median", low="min", high="max")
        intervals.bars(axes, seconds.index, seconds, linestyle="-", color=colour, marker=marker, label=task)
    axes.set(xlabel=xlabel, ylabel=unit, xlim=(0, 1.05 * table[x].max()), ylim=(0, 1.05 * table["seconds"].max()))
    axes.set_xticks(sorted(set(table[x])))
    style.legend_beside(axes)
    return style.caption(figure, caption, title)


def ratios(table: pd.DataFrame, title: str, caption: str) -> Figure:
    """How many times faster than the reference, a bar a task (``speed.ratios``), the fastest and slowest repeat as whiskers."""
    figure, axes = plt.subplots(figsize=(7.0, 1.1 + 0.45 * len(table)), layout="constrained")
    axes.barh(table["task"], table["ratio"], xerr=intervals.sides(table, "ratio"), color=style.PLAIN, alpha=0.6, capsize=3)
    axes.axvline(1, **style.THIN)
    for y, value in enumerate(table["ratio"]):
        axes.text(0.02, y, f" {value:.2f}×", va="center", color="black", fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as the reference")
    return style.caption(figure, caption, title)
