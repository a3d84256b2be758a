"""Figures of 10_speed."""

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, style

# a colour and a marker a task, whatever its precision, the same in every figure; of other tasks,
# those that are left
LOOKS = {
    "plain": (style.PLAIN, "o"),
    "watermarked": (style.WATERMARKED, "s"),
    "score": (style.OTHERS[0], "s"),
    "forward pass alone": (style.OTHERS[1], "D"),
    "plain loop": (style.OTHERS[3], "o"),
}


def against(
    table: pd.DataFrame, x: str, xlabel: str, title: str, caption: str, unit: str = "seconds"
) -> Figure:
    """Median seconds against a size, both axes from 0, a line a ``task``, with the fastest and
    slowest repeat (columns ``task``, x, ``seconds``).
    """
    figure, axes = plt.subplots()
    for (task, rows), *other in zip(
        table.groupby("task", sort=False), style.OTHERS, "osD^v", strict=False
    ):
        colour, marker = LOOKS.get(task.split(",")[0], other)
        seconds = rows.groupby(x)["seconds"].agg(value="median", low="min", high="max")
        intervals.bars(
            axes, seconds.index, seconds, linestyle="-", color=colour, marker=marker, label=task
        )
    axes.set(
        xlabel=xlabel,
        ylabel=unit,
        xlim=(0, 1.05 * table[x].max()),
        ylim=(0, 1.05 * table["seconds"].max()),
    )
    axes.set_xticks(sorted(set(table[x])))
    style.legend_beside(axes)
    return style.caption(figure, caption, title)


def ratios(table: pd.DataFrame, title: str, caption: str) -> Figure:
    """How many times faster than the reference, which is the first row, a bar a task
    (``speed.ratios``); whiskers: fastest and slowest repeat.
    """
    figure, axes = plt.subplots(figsize=(7.0, 1.1 + 0.45 * len(table)), layout="constrained")
    axes.barh(
        table["task"],
        table["ratio"],
        xerr=intervals.sides(table, "ratio"),
        color=style.PLAIN,
        alpha=0.6,
        capsize=3,
    )
    axes.axvline(1, **style.THIN)
    for y, (value, high) in enumerate(zip(table["ratio"], table["high"], strict=True)):
        axes.text(
            high + 0.02 * table["high"].max(),
            y,
            f"{value:.2f}×",
            va="center",
            fontsize="small",
            backgroundcolor="white",
        )
    axes.invert_yaxis()
    axes.set(
        xlabel=f"times as fast as: {table['task'].iloc[0]}", xlim=(0, 1.15 * table["high"].max())
    )
    return style.caption(figure, caption, title)
