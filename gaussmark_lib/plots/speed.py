"""Figures of 10_speed."""

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import style


def against(table: pd.DataFrame, x: str, xlabel: str, title: str, caption: str, unit: str = "seconds") -> Figure:
    """Median seconds against a size, a line a ``task``, with the fastest and slowest repeat (columns ``task``, x, ``seconds``)."""
    figure, axes = plt.subplots()
    for colour, (task, rows) in zip(sns.color_palette("colorblind"), table.groupby("task", sort=False), strict=False):
        found = rows.groupby(x)["seconds"].agg(["median", "min", "max"])
        axes.plot(found.index, found["median"], marker="o", color=colour, label=task)
        axes.fill_between(found.index, found["min"], found["max"], color=colour, alpha=0.18, linewidth=0)
    sizes = sorted(table[x].unique())
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=unit, title=title)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def ratios(table: pd.DataFrame, title: str, caption: str) -> Figure:
    """How many times faster than the reference, a bar a task (``speed.ratios``), the fastest and slowest repeat as whiskers."""
    figure, axes = plt.subplots(figsize=(7.0, 0.9 + 0.45 * len(table)))
    errors = [table["ratio"] - table["low"], table["high"] - table["ratio"]]
    axes.barh(table["task"], table["ratio"], xerr=errors, color=style.PLAIN, alpha=0.8, capsize=3)
    axes.axvline(1, color=style.THEORY, linewidth=1)
    for y, value in enumerate(table["ratio"]):
        axes.text(0.02, y, f" {value:.2f}×", va="center", color="white", fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as the reference", title=title)
    return style.caption(figure, caption)
