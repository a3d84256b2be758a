"""Figures of 04_layer_sigma_sweep: rows are weights, columns are σ."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from gaussmark_lib.experiments.layer_sigma_sweep import matrix_kind, short
from gaussmark_lib.plots import intervals, style
from gaussmark_lib.quality.verdict import DIFFERENT, INDISTINGUISHABLE, OPEN
from gaussmark_lib.stats import Estimate

OUTCOMES = {
    DIFFERENT: style.COLOURS[3],
    INDISTINGUISHABLE: style.COLOURS[9],
    OPEN: (0.93, 0.93, 0.93),
}
MARKERS = "osD^vPX*"  # one a kind of matrix


def _grid(cells: pd.DataFrame, column: str) -> pd.DataFrame:
    named = cells.assign(weight=cells["weight"].map(short))
    return named.pivot(index="weight", columns="sigma", values=column).reindex(
        named["weight"].unique()
    )


def _heat(axes: Axes, cells: pd.DataFrame, column: str, title: str, **look) -> None:
    grid = _grid(cells, column)
    look = {"annot": True, "annot_kws": {"size": 8}, "linewidths": 0.4, "cbar": False} | look
    sns.heatmap(grid, ax=axes, **look)
    axes.set(xlabel="σ", ylabel="", title=title)
    axes.set_xticklabels([f"{sigma:g}" for sigma in grid.columns], rotation=0)
    axes.set_yticklabels(grid.index if axes.get_subplotspec().is_first_col() else [], rotation=0)


def _size(cells: pd.DataFrame, panels: float) -> tuple[float, float]:
    return (
        min(12.4, 1.1 + panels * (1.4 + 0.55 * cells["sigma"].nunique())),
        1.6 + 0.3 * cells["weight"].nunique(),
    )


def prediction(cells: pd.DataFrame, caption: str) -> Figure:
    """Predicted mean ψ, measured mean ψ, and measured less predicted, over weights × σ
    (``layer_sigma_sweep.summary``).
    """
    figure, panels = plt.subplots(1, 3, figsize=_size(cells, 3))
    look = {"vmin": 0, "vmax": float(cells["psi"].max()) * 1.2, "cmap": "viridis", "fmt": ".1f"}
    _heat(panels[0], cells, "predicted_psi", "predicted ψ, from plain text", **look)
    _heat(panels[1], cells, "psi", "measured ψ", **look)
    gap = cells.assign(gap=cells["psi"] - cells["predicted_psi"])
    bound = max(2.0, float(gap["gap"].abs().max()))
    norm = TwoSlopeNorm(0.0, -bound, bound)
    _heat(panels[2], gap, "gap", "measured − predicted ψ", norm=norm, cmap="PuOr", fmt=".1f")
    return style.caption(figure, caption, "Does plain text predict the map of ψ?")


def scatter(cells: pd.DataFrame, up_to: float, caption: str) -> Figure:
    """Measured against predicted mean ψ, a point a cell with its interval, a colour and marker a
    kind of matrix; the linear regime up to a bound.
    """
    figure, axes = plt.subplots(figsize=(6.4, 4.8))
    for (kind, rows), colour, marker in zip(
        cells.groupby(cells["weight"].map(matrix_kind), sort=False),
        style.OTHERS,
        MARKERS,
        strict=False,
    ):
        intervals.bars(
            axes,
            rows["predicted_psi"],
            rows,
            "psi",
            markersize=4,
            capsize=2,
            color=colour,
            marker=marker,
            label=kind,
        )
    end = max(cells["predicted_psi"].max(), cells["psi_high"].max()) * 1.2
    start = max(0.05, min(cells["predicted_psi"].min(), cells["psi"].min(), 1.0) * 0.6)
    axes.plot([start, end], [start, end], **style.THIN, label="measured = predicted")
    axes.axvline(up_to, **style.DOTTED, label=f"predicted ψ = {up_to:g}")
    axes.set(xlabel="predicted ψ = σ · mean ‖G‖ of plain text", ylabel="measured mean ψ")
    axes.set(xscale="log", yscale="log", xlim=(start, end), ylim=(start, end), aspect="equal")
    ticks = [tick for tick in (0.0625, 0.25, 1, 4, 16, 64, 256) if start < tick < end]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    style.legend_beside(axes)
    cut = (
        "; a bar that meets the lower edge goes on below it"
        if (cells["psi_low"] < start).any()
        else ""
    )
    return style.caption(figure, caption + cut, "Does the measured ψ follow the predicted one?")


def detection(cells: pd.DataFrame, level: float, caption: str) -> Figure:
    """Median p (log scale) and the share detected over weights × σ."""
    figure, panels = plt.subplots(1, 2, figsize=_size(cells, 2))
    floor = cells.assign(median_p=cells["median_p"].clip(lower=1e-12))
    norm = LogNorm(min(0.01, max(1e-6, floor["median_p"].min())), 0.5, clip=True)
    _heat(
        panels[0],
        floor,
        "median_p",
        "median p-value",
        norm=norm,
        cmap="rocket",
        fmt=".0e",
        annot=_grid(cells, "median_p"),
    )
    _heat(
        panels[1],
        cells,
        "tpr",
        f"share detected at level {level}",
        vmin=0,
        vmax=1,
        cmap="viridis",
        fmt=".2f",
    )
    return style.caption(figure, caption, "Where is the watermark detected?")


def outcomes(cells: pd.DataFrame, column: str, label: str, margin: float, caption: str) -> Figure:
    """A number in each cell over weights × σ; its colour is what may be said of the cell against
    the base model (``outcome``), and no more.
    """
    width, height = _size(cells, 1.7)
    figure, axes = plt.subplots(figsize=(width, height + 0.4), layout="constrained")
    places = {name: place for place, name in enumerate(OUTCOMES)}
    look = {
        "cmap": list(OUTCOMES.values()),
        "vmin": 0,
        "vmax": len(OUTCOMES) - 1,
        "annot": _grid(cells, column),
        "fmt": ".3f",
    }
    _heat(axes, cells.assign(outcome=cells["outcome"].map(places)), "outcome", "", **look)
    says = {
        DIFFERENT: "different (p below the level)",
        INDISTINGUISHABLE: f"equal within ±{margin:g}",
        OPEN: "n too small to say",
    }
    axes.legend(
        [Patch(color=colour) for colour in OUTCOMES.values()],
        says.values(),
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )
    return style.caption(figure, caption, label)


def too_much(cells: pd.DataFrame, level: float, caption: str) -> Figure:
    """Mean ψ with the line of the prediction, and the share detected, against the predicted ψ up to
    far beyond the linear regime, a line a weight.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 4.0))
    for number, (weight, rows) in enumerate(cells.groupby("weight", sort=False)):
        rows = rows.sort_values("sigma")
        at = rows["predicted_psi"] * 1.03**number  # side by side
        look = {
            "color": style.OTHERS[number],
            "linestyle": "-",
            "marker": MARKERS[number],
            "markersize": 4,
            "capsize": 2,
        }
        intervals.bars(left, at, rows, "psi", label=short(weight), **look)
        intervals.bars(right, at, rows, "tpr", **look)
    grid = np.geomspace(cells["predicted_psi"].min(), cells["predicted_psi"].max(), 100)
    right.axhline(level, **style.DOTTED)
    bottom, top = min(0.0, cells["psi_low"].min()), 1.5 * cells["psi_high"].max()
    if grid[0] < top:
        left.plot(grid, grid, **style.THIN, label="measured = predicted")
    left.set(
        xscale="log",
        xlabel="predicted ψ = σ · mean ‖G‖",
        ylabel="measured mean ψ",
        ylim=(bottom, top),
        title="How far does ψ rise with σ?",
    )
    right.set(
        xscale="log",
        xlabel="predicted ψ = σ · mean ‖G‖",
        ylabel="share detected",
        ylim=(-0.02, 1.02),
        title=f"And the share detected at {level}?",
    )
    for axes in (left, right):
        style.few_log_ticks(axes.xaxis)
    left.legend(loc="upper right")
    return style.caption(figure, caption)


def solved(
    search: pd.DataFrame, sigma: float, check: Estimate, power: float, caption: str
) -> Figure:
    """σ by bisection, step by step (``tokens, sigma, value, low, high``), beside the solved one
    with its measured power.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.8))
    left.plot(
        search["tokens"], search["sigma"], "o-", color=style.PLAIN, label="a step of the bisection"
    )
    left.axhline(sigma, color=style.WATERMARKED)
    left.set(
        xlabel="watermarked tokens generated",
        ylabel="σ",
        title="How many tokens does a search need?",
    )
    left.xaxis.set_major_locator(MaxNLocator(4))
    intervals.bars(
        right, search["sigma"], search, color=style.PLAIN, label="a step of the bisection"
    )
    intervals.bars(
        right, sigma, check, marker="D", color=style.WATERMARKED, label="solved from plain text"
    )
    right.axhline(power, **style.DASHED, label=f"wanted, {power:.0%}")
    right.set(
        xlabel="σ", ylabel="share detected", title="Is the wanted power measured?", ylim=(0, 1.02)
    )
    style.legend_beside(right)
    return style.caption(figure, caption)
