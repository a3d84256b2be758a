"""Figures of 06_robustness, for any schemes and corruptions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.experiments import fading
from gaussmark_lib.plots import style

EDITED = "share of tokens edited"
PANELS = ("median p", "TPR at 0.05", "TPR at 0.01", "AUC")


def _band(axes: Axes, rows: pd.DataFrame, label: str, x: str = "fraction", **look) -> None:
    rows = rows.sort_values(x)
    axes.plot(rows[x], rows["value"], marker="o", markersize=4, label=label, **look)
    axes.fill_between(rows[x], rows["low"], rows["high"], alpha=0.15, linewidth=0, color=look.get("color"))


def detection(summary: pd.DataFrame, caption: str, *, by: str = "corruption", x: str = "fraction", label: str = EDITED) -> Figure:
    """Each figure of detection with its interval against f, or another column, a panel a figure, a line a corruption (or ``by="scheme"``)."""
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.6), sharex=True)
    lines = dict(zip(summary[by].unique(), sns.color_palette("colorblind"), strict=False))
    for axes, name in zip(panels.flat, PANELS, strict=True):
        for line, colour in lines.items():
            _band(axes, summary[(summary[by] == line) & (summary["figure"] == name)], line, x, color=colour)
        if name == "median p":
            axes.set_yscale("log")
            axes.axhline(0.05, color=style.THEORY, linestyle=":", linewidth=1)
        else:
            chance = 0.5 if name == "AUC" else float(name.split()[-1])
            axes.axhline(chance, color=style.THEORY, linestyle=":", linewidth=1)
            axes.set_ylim(-0.02 if name != "AUC" else 0.4, 1.02)
        axes.set(ylabel=name, xlabel=label if axes in panels[1] else "")
    panels[0, 0].set_title("Dotted: level, or what guessing gives")
    panels[0, 0].legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)


def parts(table: pd.DataFrame, caption: str) -> Figure:
    """Signal, norm and ψ as shares of their values without edits (rows of ``fading.parts``), beside what lost tokens alone would do."""
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.9), sharex=True)
    grid = np.linspace(0, table["fraction"].max(), 60)
    expected = {"signal": 1 - grid, "norm": np.sqrt(1 - grid), "psi": np.sqrt(1 - grid)}
    for axes, (name, label) in zip(panels, fading.FIGURES.items(), strict=True):
        axes.plot(grid, expected[name], color=style.THEORY, linestyle="--", label="tokens lost, nothing else")
        for colour, (corruption, rows) in zip(sns.color_palette("colorblind"), table.groupby("corruption", sort=False), strict=False):
            _band(axes, rows[rows["figure"] == name], corruption, color=colour)
        axes.axhline(1, color="0.8", linewidth=1, zorder=0)
        axes.set(xlabel=EDITED, title=label)
    panels[0].set_ylabel("share of its value without edits")
    panels[1].legend(fontsize="x-small")
    figure.tight_layout()
    return style.caption(figure, caption)


def roc(curves: dict[str, tuple[np.ndarray, np.ndarray]], caption: str) -> Figure:
    """ROC curves, {label: (statistic of plain texts, of watermarked ones)}: the whole of it, and its left end on a log scale, where it is used."""
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.2))
    for colour, (label, (null, own)) in zip(sns.color_palette("colorblind", len(curves)), curves.items(), strict=True):
        points = stats.roc(null, own)
        for axes in panels:
            axes.plot(points["fpr"], points["tpr"], drawstyle="steps-post", color=colour, label=f"{label}: AUC {stats.auc(null, own):.2f}")
    smallest = 1 / min(len(null) for null, _ in curves.values())
    grid = np.geomspace(smallest, 1, 100)
    for axes in panels:
        axes.plot(grid, grid, color=style.THEORY, linewidth=1, linestyle=":")
        axes.set(xlabel="plain texts called watermarked", ylim=(-0.02, 1.02))
    panels[0].set(ylabel="watermarked texts detected", title="ROC: the threshold runs through ψ")
    panels[1].set(xscale="log", xlim=(smallest, 1), title="its left end")
    panels[0].legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    return style.caption(figure, caption)


def forest(summary: pd.DataFrame, caption: str, *, figures: Sequence[str] = ("median p", "TPR at 0.05", "TPR at 0.01"), title: str = "") -> Figure:
    """A row a corruption, in the order given, a panel a figure, with intervals; dashed: the first row's value."""
    names = summary["corruption"].unique()
    figure, panels = plt.subplots(1, len(figures), figsize=(10, 0.36 * len(names) + 1.6), sharey=True)
    for axes, name in zip(panels, figures, strict=True):
        rows = summary[summary["figure"] == name].set_index("corruption").loc[names]
        sides = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
        axes.errorbar(rows["value"], range(len(names)), xerr=np.maximum(sides, 0), fmt="o", capsize=3, color=style.WATERMARKED)
        axes.axvline(rows["value"].iloc[0], color=style.THEORY, linestyle="--", linewidth=1)
        if name == "median p":
            axes.set_xscale("log")
            axes.axvline(0.05, color=style.THEORY, linestyle=":", linewidth=1)
        else:
            axes.set_xlim(-0.03, 1.03)
        axes.set(xlabel=name)
    panels[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    panels[0].set_title(title)
    figure.tight_layout()
    return style.caption(figure, caption)


def levels(found: pd.DataFrame, caption: str) -> Figure:
    """The realised level of each scheme after each corruption with its exact interval (rows of ``robustness.null_levels``), a panel a level."""
    names, schemes = found["corruption"].unique(), found["scheme"].unique()
    figure, panels = plt.subplots(1, 2, figsize=(10, (0.2 + 0.1 * len(schemes)) * len(names) + 1.6), sharey=True)
    shift = np.linspace(-0.3, 0.3, len(schemes)) if len(schemes) > 1 else [0.0]
    for axes, (level, cells) in zip(panels, found.groupby("level", sort=False), strict=True):
        for colour, up, (scheme, rows) in zip(sns.color_palette("colorblind", len(schemes)), shift, cells.groupby("scheme", sort=False), strict=True):
            rows = rows.set_index("corruption").loc[names]
            sides = [rows["rate"] - rows["low"], rows["high"] - rows["rate"]]
            axes.errorbar(rows["rate"], np.arange(len(names)) + up, xerr=sides, fmt="o", markersize=4, capsize=2, color=colour, label=scheme)
        axes.axvline(level, color=style.THEORY, linewidth=1, linestyle="--")
        axes.set(xlabel=f"human texts called watermarked at level {level}", xlim=(0, None))
    panels[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    panels[0].set_title("No corruption moves the level: none of them knows the key")
    if len(schemes) > 1:
        panels[1].legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)
