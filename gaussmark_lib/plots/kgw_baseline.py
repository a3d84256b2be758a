"""Figures of 08_kgw_baseline: schemes side by side."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib.plots import style


def _points(axes: Axes, rows: pd.DataFrame, place: np.ndarray, **look) -> None:
    sides = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
    axes.errorbar(rows["value"], place, xerr=np.maximum(sides, 0), fmt="o", markersize=5, capsize=3, **look)


def after_edits(summary: pd.DataFrame, caption: str, *, figures: Sequence[str] = ("median p", "TPR at 0.05", "TPR at 0.01")) -> Figure:
    """A row a corruption, a panel a figure (rows of ``robustness.by_fraction``), a colour a scheme, with intervals."""
    names, schemes = summary["corruption"].unique(), summary["scheme"].unique()
    colours = sns.color_palette("colorblind", len(schemes))
    figure, panels = plt.subplots(1, len(figures), figsize=(10.5, (0.25 + 0.13 * len(schemes)) * len(names) + 1.5), sharey=True)
    for axes, name in zip(panels, figures, strict=True):
        for colour, scheme, up in zip(colours, schemes, np.linspace(-0.3, 0.3, len(schemes)), strict=True):
            rows = summary[(summary["figure"] == name) & (summary["scheme"] == scheme)].set_index("corruption").loc[names]
            _points(axes, rows, np.arange(len(names)) + up, color=colour, label=scheme)
        if name == "median p":
            axes.set_xscale("log")
            axes.axvline(0.05, color=style.THEORY, linestyle=":", linewidth=1)
        else:
            axes.set_xlim(-0.03, 1.03)
        axes.set(xlabel=name)
    panels[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    panels[-1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return style.caption(figure, caption)


def text_changes(table: pd.DataFrame, caption: str) -> Figure:
    """Change of each measure of the text (rows of ``text_changes.against_plain``), a panel a measure, a row a scheme, with intervals."""
    names = table["scheme"].unique()
    figure, panels = plt.subplots(1, table["measure"].nunique(), figsize=(10.5, 0.4 * len(names) + 1.6), sharey=True)
    for axes, (measure, rows) in zip(panels, table.groupby("measure", sort=False), strict=True):
        _points(axes, rows.set_index("scheme").loc[names], np.arange(len(names)), color=style.WATERMARKED)
        axes.axvline(0, color=style.THEORY, linewidth=1)
        unit = ", nats a token" if measure == "cross-entropy" else ""
        axes.set(xlabel=f"Δ {measure}{unit}\n(plain text: {rows['plain'].iloc[0]:.3g})")
    panels[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    panels[0].set_title("Texts to the same prompts, less plain ones")
    figure.tight_layout()
    return style.caption(figure, caption)


def pareto(
    table: pd.DataFrame, n_tokens: int, caption: str, *, cost: str = "price: distance from the base model under the key, nats a token"
) -> Figure:
    """Detectability (median p, upwards) against quality cost, a point a scheme with both intervals.

    Columns: ``scheme``, ``p, p_low, p_high`` and ``cost, cost_low, cost_high``, nats a token. The line is exp(−tokens · cost), which is what a
    price can buy.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    markers = "osD^vP*X"
    for place, (row, colour) in enumerate(zip(table.itertuples(), sns.color_palette("colorblind", len(table)), strict=True)):
        x, y = ([[value - low], [high - value]] for value, low, high in ((row.cost, row.cost_low, row.cost_high), (row.p, row.p_low, row.p_high)))
        look = {"fmt": markers[place % len(markers)], "markersize": 8, "capsize": 3, "color": colour, "label": row.scheme}
        axes.errorbar(row.cost, row.p, xerr=np.maximum(x, 0), yerr=np.maximum(y, 0), **look)
    grid = np.linspace(0, 1.05 * table["cost_high"].max(), 50)
    axes.plot(grid, np.exp(-n_tokens * grid), color=style.THEORY, linestyle="--", linewidth=1, label="p = exp(−nats)")
    axes.axhline(0.05, color=style.THEORY, linestyle=":", linewidth=1)
    axes.set(yscale="log", xlim=(0, None), xlabel=cost, ylabel="median p (up is better found)", title="What detection costs: left and up is better")
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(figure, caption)


def tails(found: pd.DataFrame, caption: str) -> Figure:
    """Realised level of two tests over nominal ones (columns ``test, level, rate, low, high, expected``), as a ratio, with exact intervals."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (test, rows), colour, shift in zip(found.groupby("test", sort=False), sns.color_palette("colorblind"), (0.97, 1.03), strict=False):
        ratio, sides = rows["rate"] / rows["level"], [(rows["rate"] - rows["low"]) / rows["level"], (rows["high"] - rows["rate"]) / rows["level"]]
        axes.errorbar(rows["level"] * shift, ratio, yerr=sides, fmt="o", capsize=3, color=colour, label=f"{test}, measured")
        axes.plot(rows["level"] * shift, rows["expected"] / rows["level"], "_", markersize=18, color=colour, label=f"{test}, if binomial")
    axes.axhline(1, color=style.THEORY, linewidth=1)
    levels = sorted(found["level"].unique())
    axes.set(xscale="log", xlabel="nominal level", ylabel="realised over nominal level", title="A normal tail for a count is too thin")
    axes.set_ylim(0, 1.5 * max(2, found["expected"].div(found["level"]).max()))  # intervals of rare alarms reach far beyond
    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    axes.minorticks_off()
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(figure, caption)


def seconds(times: pd.DataFrame, caption: str) -> Figure:
    """Seconds of each task in each repeat (rows of ``speed.alternating`` with a column ``of``), a panel for each value of ``of``."""
    groups = list(times.groupby("of", sort=False))
    figure, panels = plt.subplots(1, len(groups), figsize=(10, 2.9), layout="constrained")
    for axes, (of, rows) in zip(panels, groups, strict=True):
        sns.stripplot(rows, x="seconds", y="task", hue="task", legend=False, size=6, alpha=0.8, palette="colorblind", ax=axes)
        medians = rows.groupby("task", sort=False)["seconds"].median()
        axes.plot(medians, medians.index, "|", markersize=18, color="black", label="median")
        axes.set(xlim=(0, 1.1 * rows["seconds"].max()), ylim=(len(medians) - 0.5, -0.5), xlabel="seconds", ylabel="", title=of)
    panels[-1].legend(fontsize="small", loc="lower right")
    return style.caption(figure, caption)
