"""Figures of 06_robustness, for any schemes and corruptions."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.experiments import fading
from gaussmark_lib.experiments.robustness import OWN, PLAIN
from gaussmark_lib.plots import intervals, style

EDITED = "share of tokens edited"
PANELS = ("median p", "TPR at 0.05", "TPR at 0.01", "AUC")


def detection(summary: pd.DataFrame, caption: str, *, by: str = "corruption", x: str = "fraction", label: str = EDITED) -> Figure:
    """Each figure of detection with its interval against f, or another column, a panel a figure, a line a corruption (or ``by="scheme"``)."""
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.6), sharex=True)
    for axes, name in zip(panels.flat, PANELS, strict=True):
        for line, colour in zip(summary[by].unique(), style.COLOURS, strict=False):
            rows = summary[(summary[by] == line) & (summary["figure"] == name)].sort_values(x)
            intervals.band(axes, rows[x], rows, label=line, color=colour, markersize=4, alpha=0.15)
        scale = {"median p": {"yscale": "log"}, "AUC": {"ylim": (0.4, 1.02)}}.get(name, {"ylim": (-0.02, 1.02)})
        axes.axhline({"median p": 0.05, "AUC": 0.5}.get(name) or float(name.split()[-1]), **style.DOTTED)
        axes.set(ylabel=name, xlabel=label if axes in panels[1] else "", **scale)
    panels[0, 0].set_title("Dotted: level, or what guessing gives")
    return style.caption(figure, caption)


def parts(table: pd.DataFrame, caption: str) -> Figure:
    """Signal, norm and ψ as shares of their values without edits (rows of ``fading.parts``), beside what lost tokens alone would do."""
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.9), sharex=True)
    grid = np.linspace(0, table["fraction"].max(), 60)
    expected = {"signal": 1 - grid, "norm": np.sqrt(1 - grid), "psi": np.sqrt(1 - grid)}
    for axes, (name, label) in zip(panels, fading.FIGURES.items(), strict=True):
        axes.plot(grid, expected[name], color=style.THEORY, linestyle="--", label="tokens lost, nothing else")
        for corruption, colour in zip(table["corruption"].unique(), style.COLOURS, strict=False):
            rows = table[(table["corruption"] == corruption) & (table["figure"] == name)].sort_values("fraction")
            intervals.band(axes, rows["fraction"], rows, label=corruption, color=colour, markersize=4, alpha=0.15)
        axes.axhline(1, color="0.8", linewidth=1, zorder=0)
        axes.set(xlabel=EDITED, title=label)
    panels[0].set_ylabel("share of its value without edits")
    panels[1].legend(fontsize="x-small")
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
        axes.plot(grid, grid, **style.DOTTED)
        axes.set(xlabel="plain texts called watermarked", ylim=(-0.02, 1.02))
    panels[0].set(ylabel="watermarked texts detected", title="ROC: the threshold runs through ψ")
    panels[1].set(xscale="log", xlim=(smallest, 1), title="its left end")
    panels[0].legend(loc="lower right")
    return style.caption(figure, caption)


def forest(summary: pd.DataFrame, caption: str, *, title: str = "") -> Figure:
    """A row a corruption, in the order given, a panel a figure, a colour a scheme, with intervals; of a single scheme, its first row dashed."""
    names, schemes = summary["corruption"].unique(), summary["scheme"].unique()
    several = len(schemes) > 1
    colours = sns.color_palette("colorblind", len(schemes)) if several else [style.WATERMARKED]
    looks = {scheme: {"color": colour, "label": scheme if several else None} for scheme, colour in zip(schemes, colours, strict=True)}
    figure, panels = plt.subplots(1, 3, figsize=(10.2, (0.23 + 0.13 * len(schemes)) * len(names) + 1.6), sharey=True)
    for axes, name in zip(panels, PANELS[:3], strict=True):
        rows = summary[summary["figure"] == name]
        intervals.dodged(axes, rows, "corruption", "scheme", looks, step=0.7 / len(looks), horizontal=True, markersize=5)
        if not several:
            axes.axvline(rows["value"].iloc[0], **style.DASHED)
        if name == "median p":
            axes.set(xlabel=name, xscale="log")
            axes.axvline(0.05, **style.DOTTED)
        else:
            axes.set(xlabel=name, xlim=(-0.03, 1.03))
    style.categories(panels[0], names)
    panels[0].set_title(title)
    if several:
        style.legend_beside(panels[-1])
    return style.caption(figure, caption)


def levels(realised: pd.DataFrame, caption: str) -> Figure:
    """The realised level of each scheme after each corruption with its exact interval (rows of ``robustness.null_levels``), a panel a level."""
    names, schemes = realised["corruption"].unique(), realised["scheme"].unique()
    figure, panels = plt.subplots(1, 2, figsize=(10, (0.2 + 0.1 * len(schemes)) * len(names) + 1.6), sharey=True)
    several = len(schemes) > 1
    looks = {scheme: {"color": colour, "label": scheme if several else None} for scheme, colour in zip(schemes, style.COLOURS, strict=False)}
    for axes, (level, rows) in zip(panels, realised.groupby("level", sort=False), strict=True):
        intervals.dodged(axes, rows, "corruption", "scheme", looks, step=0.7 / len(looks), horizontal=True, markersize=4, capsize=2)
        axes.axvline(level, **style.DASHED)
        axes.set(xlabel=f"human texts called watermarked at level {level}", xlim=(0, None))
    style.categories(panels[0], names)
    panels[0].set_title("No corruption moves the level: none of them knows the key")
    if several:
        panels[1].legend()
    return style.caption(figure, caption)


def survival(axes: Axes, shares: pd.DataFrame, looks: Mapping[str, Mapping], level: float) -> None:
    """Share detected after each change (``compared.shares`` with a column ``label``), a look a scheme: own key filled, plain text empty."""
    own, plain = (shares[shares["kind"] == kind] for kind in (OWN, PLAIN))
    intervals.dodged(axes, own, "label", "scheme", looks, markersize=5, capsize=2)
    intervals.dodged(axes, plain, "label", "scheme", looks, aside=0.06, markersize=5, capsize=2, fillstyle="none", label=None)
    axes.errorbar([], [], fmt="o", fillstyle="none", color=style.THEORY, label=PLAIN)
    axes.axhline(level, **style.DOTTED)
    labels = shares["label"].unique()
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set(ylabel=f"share detected at level {level}", ylim=(-0.03, 1.03), title="At equal price: what survives")
