"""Figures of 08_kgw_baseline: schemes side by side."""

from itertools import cycle

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, robustness, style

after_edits = robustness.forest


def text_changes(table: pd.DataFrame, caption: str) -> Figure:
    """Change of each measure of the text (rows of ``text_changes.against_plain``), a panel a measure, a row a scheme, with intervals."""
    names = table["scheme"].unique()
    figure, panels = plt.subplots(1, table["measure"].nunique(), figsize=(10.5, 0.4 * len(names) + 1.6), sharey=True)
    for axes, (measure, rows) in zip(panels, table.groupby("measure", sort=False), strict=True):
        intervals.bars(axes, range(len(names)), rows.set_index("scheme").loc[names], horizontal=True, markersize=5, color=style.WATERMARKED)
        axes.axvline(0, **style.THIN)
        unit = ", nats a token" if measure == "cross-entropy" else ""
        axes.set(xlabel=f"Δ {measure}{unit}\n(plain text: {rows['plain'].iloc[0]:.3g})")
    style.categories(panels[0], names)
    panels[0].set_title("Texts to the same prompts, less plain ones")
    return style.caption(figure, caption)


def pareto(table: pd.DataFrame, n_tokens: int, caption: str) -> Figure:
    """Detectability (median p, upwards) against price, a point a scheme with both intervals, and the line exp(−tokens · price) that a price can buy.

    Columns: ``scheme``, ``p, p_low, p_high`` and ``cost, cost_low, cost_high``, nats a token.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    colours = sns.color_palette("colorblind", len(table))
    for (scheme, row), colour, marker in zip(table.groupby("scheme", sort=False), colours, cycle("osD^vP*X"), strict=False):
        look = {"marker": marker, "markersize": 8, "color": colour, "label": scheme}
        intervals.bars(axes, row["cost"], row, "p", xerr=intervals.sides(row, "cost"), **look)
    grid = np.linspace(0, 1.05 * table["cost_high"].max(), 50)
    axes.plot(grid, np.exp(-n_tokens * grid), **style.DASHED, label="p = exp(−nats)")
    axes.axhline(0.05, **style.DOTTED)
    price = "price: distance from the base model under the key, nats a token"
    axes.set(yscale="log", xlim=(0, None), xlabel=price, ylabel="median p (up is better detected)")
    axes.invert_yaxis()
    style.legend_beside(axes)
    return style.caption(figure, caption, "What detection costs: left and up is better")


def tails(realised: pd.DataFrame, caption: str) -> Figure:
    """Realised level of two tests over nominal ones (columns ``test, level, value, low, high, expected``), as a ratio, with exact intervals."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (test, rows), colour, shift in zip(realised.groupby("test", sort=False), style.COLOURS, (0.97, 1.03), strict=False):
        ratios = rows[["value", "low", "high", "expected"]].div(rows["level"], axis=0)
        intervals.bars(axes, rows["level"] * shift, ratios, color=colour, label=f"{test}, measured")
        axes.plot(rows["level"] * shift, ratios["expected"], "_", markersize=18, color=colour, label=f"{test}, if binomial")
    axes.axhline(1, **style.THIN)
    axes.set(xlabel="nominal level", ylabel="realised over nominal level")
    axes.set_ylim(0, 1.5 * max(2, realised["expected"].div(realised["level"]).max()))  # intervals of rare alarms reach far beyond
    style.log_ticks(axes, realised["level"])
    style.legend_beside(axes)
    return style.caption(figure, caption, "A normal tail for a count is too thin")


def seconds(times: pd.DataFrame, caption: str) -> Figure:
    """Seconds of each task in each repeat (rows of ``speed.alternating`` with a column ``of``), a panel for each value of ``of``."""
    groups = list(times.groupby("of", sort=False))
    figure, panels = plt.subplots(1, len(groups), figsize=(10, 2.9), layout="constrained")
    for axes, (of, rows) in zip(panels, groups, strict=True):
        sns.stripplot(rows, x="seconds", y="task", hue="task", legend=False, size=6, alpha=0.8, palette="colorblind", ax=axes)
        medians = rows.groupby("task", sort=False)["seconds"].median()
        axes.plot(medians, medians.index, "|", markersize=18, color="black", label="median")
        axes.set(xlim=(0, 1.1 * rows["seconds"].max()), ylim=(len(medians) - 0.5, -0.5), xlabel="seconds", ylabel="", title=of)
    panels[-1].legend(loc="lower right")
    return style.caption(figure, caption)
