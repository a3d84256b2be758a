"""Figures of 06_robustness, for any schemes and corruptions."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.experiments import fading
from gaussmark_lib.experiments.robustness import OWN, PLAIN
from gaussmark_lib.plots import intervals, style

EDITED = "share of tokens edited"
PANELS = ("median p", "TPR at 0.05", "TPR at 0.01", "AUC")


def detection(
    summary: pd.DataFrame,
    caption: str,
    *,
    by: str = "corruption",
    x: str = "fraction",
    label: str = EDITED,
) -> Figure:
    """Each figure of detection with its interval against f, or another column, a panel a figure, a
    line a corruption (or ``by="scheme"``).
    """
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.6), sharex=True)
    looks = style.schemes(summary[by].unique()) if by == "scheme" else _looks(summary[by].unique())
    for axes, name in zip(panels.flat, PANELS, strict=True):
        _lines(axes, summary[summary["figure"] == name], by, x, looks)
        _scale(axes, name)
        axes.set(ylabel=name, xlabel=label if axes in panels[1] else "")
    return style.caption(figure, caption, "How much detection is left?")


def against_fraction(
    summary: pd.DataFrame,
    caption: str,
    *,
    title: str = "",
    figures: Sequence[str] = ("TPR at 0.05", "median p"),
) -> Figure:
    """Detection against the share of tokens edited, with intervals: a column of panels a
    corruption, a row a figure, a line a scheme.
    """
    names = summary["corruption"].unique()
    figure, panels = plt.subplots(
        len(figures),
        len(names),
        figsize=(max(7.0, 2.75 * len(names)), 2.5 * len(figures) + 0.7),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    looks = style.schemes(summary["scheme"].unique())
    for (row, which), (column, name) in product(enumerate(figures), enumerate(names)):
        axes = panels[row, column]
        _lines(
            axes,
            summary[(summary["figure"] == which) & (summary["corruption"] == name)],
            "scheme",
            "fraction",
            looks,
        )
        _scale(axes, which)
        axes.set(
            title=name if row == 0 else "",
            ylabel=which if column == 0 else "",
            xlabel="share edited",
        )
    if len(looks) > 1:
        style.legend_beside(panels[0, -1])
    return style.caption(figure, caption, title)


def _lines(axes: Axes, rows: pd.DataFrame, by: str, x: str, looks: Mapping[str, Mapping]) -> None:
    """A line with error bars for each value of ``by``, set a little apart so that none hides
    another.
    """
    step = 0.02 * (rows[x].max() - rows[x].min())
    for (name, look), shift in zip(looks.items(), intervals.offsets(len(looks), step), strict=True):
        line = rows[rows[by] == name].sort_values(x)
        intervals.bars(
            axes, line[x] + shift, line, linestyle="-", linewidth=1, markersize=4, capsize=2, **look
        )


def _scale(axes: Axes, figure: str) -> None:
    """The scale of a figure of detection, and what it is where nothing is detected, dotted."""
    axes.axhline(
        {"median p": 0.05, "AUC": 0.5}.get(figure) or float(figure.split()[-1]), **style.DOTTED
    )
    axes.set(
        **{"median p": {"yscale": "log"}, "AUC": {"ylim": (0.4, 1.02)}}.get(
            figure, {"ylim": (-0.03, 1.03)}
        )
    )


def _looks(names: Iterable[str]) -> dict[str, dict]:
    return {
        name: {"color": colour, "marker": "o", "label": name}
        for name, colour in zip(names, style.COLOURS, strict=False)
    }


def parts(table: pd.DataFrame, caption: str) -> Figure:
    """Signal, norm and ψ as shares of their values without edits (rows of ``fading.parts``), a row
    each, a column a corruption.

    Dashed: what it would be if tokens were lost and nothing else happened.
    """
    names = table["corruption"].unique()
    figure, panels = plt.subplots(
        len(fading.FIGURES),
        len(names),
        figsize=(max(7.0, 2.6 * len(names)), 6.4),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    grid = np.linspace(0, table["fraction"].max(), 60)
    expected = {"signal": 1 - grid, "norm": np.sqrt(1 - grid), "psi": np.sqrt(1 - grid)}
    for (row, (part, label)), (column, name) in product(
        enumerate(fading.FIGURES.items()), enumerate(names)
    ):
        axes, rows = (
            panels[row, column],
            table[(table["corruption"] == name) & (table["figure"] == part)].sort_values(
                "fraction"
            ),
        )
        axes.plot(grid, expected[part], **style.DASHED, label="tokens lost, nothing else")
        intervals.bars(
            axes,
            rows["fraction"],
            rows,
            linestyle="-",
            linewidth=1,
            markersize=4,
            capsize=2,
            color=style.WATERMARKED,
            label="measured",
        )
        axes.axhline(1, color="0.8", linewidth=1, zorder=0)
        axes.set(
            title=name if row == 0 else "",
            ylabel=label if column == 0 else "",
            xlabel="share edited",
        )
    style.legend_beside(panels[0, -1])
    return style.caption(figure, caption, "Signal, norm and ψ over their values without edits")


def roc(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], caption: str) -> Figure:
    """A panel an edit: its ROC, {edit: (statistic of plain texts, of watermarked ones)}, beside
    that of the first entry, which is unedited.
    """
    (first, unedited), *edits = curves.items()
    figure, panels = plt.subplots(
        1, len(edits), figsize=(2.75 * len(edits), 3.2), sharey=True, squeeze=False
    )
    smallest = 1 / min(len(null) for null, _ in curves.values())
    for axes, (name, edited) in zip(panels[0], edits, strict=True):
        for label, (null, own), look in (
            (first, unedited, style.THIN),
            ("edited", edited, {"color": style.WATERMARKED}),
        ):
            points = stats.roc(null, own)
            axes.plot(points["fpr"], points["tpr"], drawstyle="steps-post", label=label, **look)
        axes.plot(np.geomspace(smallest, 1, 50), np.geomspace(smallest, 1, 50), **style.DOTTED)
        axes.set(
            xscale="log", xlim=(smallest, 1), ylim=(-0.02, 1.02), xlabel="plain texts called marked"
        )
        style.few_log_ticks(axes.xaxis)
        axes.set_title(f"{name}\nAUC {stats.auc(*edited):.2f}, {first} {stats.auc(*unedited):.2f}")
    panels[0, 0].set_ylabel("watermarked texts detected")
    style.legend_beside(panels[0, -1])
    return style.caption(figure, caption, "Does ψ tell edited texts from plain ones?")


def one_key(by_key: pd.DataFrame, shared: pd.DataFrame, n_texts: int, caption: str) -> Figure:
    """The mean ψ of the same plain texts under each key (``robustness.one_key``), a row a
    corruption, beside where 95% of keys should put it.
    """
    names = list(shared["corruption"])
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(names) + 1.7))
    for place, row in enumerate(shared.itertuples()):
        means = by_key.loc[by_key["corruption"] == row.corruption, "mean_psi"]
        jitter = np.linspace(-0.18, 0.18, len(means))
        axes.plot(
            means,
            place + jitter,
            ".",
            color=style.PLAIN,
            markersize=4,
            alpha=0.6,
            label="one key" if place == 0 else None,
        )
        band = {"color": style.THEORY, "linewidth": 2, "capsize": 4, "linestyle": "none"}
        axes.errorbar(
            0,
            place + 0.3,
            xerr=1.96 * row.sd,
            label="95% of keys, from the gradients" if place == 0 else None,
            **band,
        )
    for side in (-1, 1):
        axes.axvline(
            side * 1.96 / np.sqrt(n_texts),
            **style.DOTTED,
            label="95%, if texts were independent" if side > 0 else None,
        )
    style.categories(axes, names)
    axes.set(xlabel=f"mean ψ of {n_texts} plain texts under one key")
    style.legend_beside(axes)
    return style.caption(
        figure, caption, "What does one key say of plain texts that were edited in one way?"
    )


def forest(summary: pd.DataFrame, caption: str, *, title: str = "") -> Figure:
    """A row a corruption, in the order given, a panel a figure, a colour a scheme, with intervals;
    of a single scheme, its first row dashed.
    """
    names, schemes = summary["corruption"].unique(), summary["scheme"].unique()
    several = len(schemes) > 1
    looks = (
        style.schemes(schemes)
        if several
        else {schemes[0]: style.scheme(schemes[0]) | {"label": None}}
    )
    figure, panels = plt.subplots(
        1, 3, figsize=(10.2, (0.23 + 0.13 * len(schemes)) * len(names) + 1.6), sharey=True
    )
    for axes, name in zip(panels, PANELS[:3], strict=True):
        rows = summary[summary["figure"] == name]
        intervals.dodged(
            axes,
            rows,
            "corruption",
            "scheme",
            looks,
            step=0.7 / len(looks),
            horizontal=True,
            markersize=5,
        )
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
    """The realised level of each scheme after each corruption with its exact interval (rows of
    ``robustness.null_levels``), a panel a level.
    """
    names, schemes = realised["corruption"].unique(), realised["scheme"].unique()
    figure, panels = plt.subplots(
        1, 2, figsize=(10, (0.2 + 0.1 * len(schemes)) * len(names) + 1.6), sharey=True
    )
    several = len(schemes) > 1
    looks = (
        style.schemes(schemes)
        if several
        else {schemes[0]: style.scheme(schemes[0]) | {"label": None}}
    )
    for axes, (level, rows) in zip(panels, realised.groupby("level", sort=False), strict=True):
        intervals.dodged(
            axes,
            rows,
            "corruption",
            "scheme",
            looks,
            step=0.7 / len(looks),
            horizontal=True,
            markersize=4,
            capsize=2,
        )
        axes.axvline(level, **style.DASHED)
        axes.set(xlabel=f"human texts called watermarked at level {level}", xlim=(0, None))
    style.categories(panels[0], names)
    panels[0].set_title("Does any corruption move the level?")
    if several:
        panels[1].legend()
    return style.caption(figure, caption)


def survival(axes: Axes, shares: pd.DataFrame, looks: Mapping[str, Mapping], level: float) -> None:
    """Share detected after each change (``compared.shares`` with a column ``label``), a look a
    scheme: own key filled, plain text empty.
    """
    own, plain = (shares[shares["kind"] == kind] for kind in (OWN, PLAIN))
    intervals.dodged(axes, own, "label", "scheme", looks, markersize=5, capsize=2)
    intervals.dodged(
        axes,
        plain,
        "label",
        "scheme",
        looks,
        aside=0.06,
        markersize=5,
        capsize=2,
        fillstyle="none",
        label=None,
    )
    axes.errorbar([], [], fmt="o", fillstyle="none", color=style.THEORY, label=PLAIN)
    axes.axhline(level, **style.DOTTED)
    labels = shares["label"].unique()
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set(ylabel=f"share detected at level {level}", ylim=(-0.03, 1.03), title="What survives?")
