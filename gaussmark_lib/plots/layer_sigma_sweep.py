"""Figures of 04_layer_sigma_sweep: rows are weights, columns are σ."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, SymLogNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from gaussmark_lib.experiments.layer_sigma_sweep import short
from gaussmark_lib.plots import intervals, style
from gaussmark_lib.stats import Estimate


def _grid(cells: pd.DataFrame, column: str) -> pd.DataFrame:
    named = cells.assign(weight=cells["weight"].map(short))
    return named.pivot(index="weight", columns="sigma", values=column).reindex(named["weight"].unique())


def _heat(axes: Axes, cells: pd.DataFrame, column: str, title: str, **look) -> None:
    grid = _grid(cells, column)
    sns.heatmap(grid, ax=axes, annot=True, annot_kws={"size": 8}, linewidths=0.4, cbar=False, **look)
    axes.set(xlabel="σ", ylabel="", title=title)
    axes.set_xticklabels([f"{sigma:g}" for sigma in grid.columns], rotation=0)
    axes.set_yticklabels(grid.index if axes.get_subplotspec().is_first_col() else [], rotation=0)


def _size(cells: pd.DataFrame, panels: float) -> tuple[float, float]:
    return (1.1 + panels * (1.4 + 0.55 * cells["sigma"].nunique()), 1.6 + 0.3 * cells["weight"].nunique())


def prediction(cells: pd.DataFrame, caption: str) -> Figure:
    """Predicted mean ψ, measured mean ψ, and measured less predicted, over weights × σ (``layer_sigma_sweep.summary``)."""
    figure, panels = plt.subplots(1, 3, figsize=_size(cells, 3))
    look = {"vmin": 0, "vmax": float(cells["psi"].max()) * 1.2, "cmap": "viridis", "fmt": ".1f"}
    _heat(panels[0], cells, "predicted_psi", "predicted ψ, from plain text", **look)
    _heat(panels[1], cells, "psi", "measured ψ", **look)
    gap = cells.assign(gap=cells["psi"] - cells["predicted_psi"])
    bound = max(2.0, float(gap["gap"].abs().max()))
    norm = TwoSlopeNorm(0.0, -bound, bound)
    _heat(panels[2], gap, "gap", "measured − predicted: where linearity ends", norm=norm, cmap="PuOr", fmt=".1f")
    return style.caption(figure, caption)


def scatter(cells: pd.DataFrame, up_to: float, caption: str) -> Figure:
    """Measured against predicted mean ψ, a point a cell with its interval; the linear regime up to a bound."""
    figure, axes = plt.subplots(figsize=(6.2, 5.0))
    weights = cells["weight"].unique()
    for weight, colour in zip(weights, sns.color_palette("viridis", len(weights)), strict=True):
        rows = cells[cells["weight"] == weight]
        intervals.bars(axes, rows["predicted_psi"], rows, "psi", markersize=4, capsize=2, color=colour, label=short(weight))
    end = max(cells["predicted_psi"].max(), cells["psi_high"].max()) * 1.2
    start = min(cells["predicted_psi"].min(), 1.0) * 0.6
    axes.plot([start, end], [start, end], **style.THIN)
    axes.axvline(up_to, **style.DOTTED)
    axes.set(xlabel="predicted ψ = σ · mean ‖G‖ of plain text", ylabel="measured mean ψ")
    axes.set(xscale="log", yscale="log", xlim=(start, end), ylim=(start, end), aspect="equal")
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if start < tick < end]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    axes.legend(fontsize="x-small", ncols=2)
    return style.caption(figure, caption, "On the line, then below it")


def detection(cells: pd.DataFrame, level: float, caption: str) -> Figure:
    """Median p (log scale) and the share detected over weights × σ."""
    figure, panels = plt.subplots(1, 2, figsize=_size(cells, 2))
    floor = cells.assign(median_p=cells["median_p"].clip(lower=1e-12))
    norm = LogNorm(max(1e-6, floor["median_p"].min()), 0.5, clip=True)
    _heat(panels[0], floor, "median_p", "median p-value", norm=norm, cmap="rocket", fmt=".0e")
    _heat(panels[1], cells, "tpr", f"share detected at level {level}", vmin=0, vmax=1, cmap="viridis", fmt=".2f")
    return style.caption(figure, caption)


def cost(cells: pd.DataFrame, caption: str) -> Figure:
    """Δ cross-entropy over weights × σ; a frame around the cells that the paired test cannot tell from the base model."""
    figure, axes = plt.subplots(figsize=_size(cells, 1.3))
    bound = float(cells["delta"].abs().max())
    _heat(axes, cells, "delta", "Δ cross-entropy  [nats a token]", norm=SymLogNorm(0.01, vmin=-bound, vmax=bound), cmap="RdBu_r", fmt=".3f")
    for y, x in np.argwhere(_grid(cells, "indistinguishable").to_numpy(bool)):
        axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.6))
    return style.caption(figure, f"Framed: indistinguishable from the base model at this n. {caption}")


def solved(search: pd.DataFrame, sigma: float, check: Estimate, power: float, caption: str) -> Figure:
    """σ by bisection, step by step (``tokens, sigma, value, low, high``), beside the solved one with its measured power."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8))
    left.plot(search["tokens"], search["sigma"], "o-", color=style.PLAIN, label="bisection on measured power")
    left.axhline(sigma, color=style.WATERMARKED, label="solved from plain text")
    left.set(xlabel="watermarked tokens generated", ylabel="σ", title="Each step of a search generates text; solving generates none")
    left.xaxis.set_major_locator(MaxNLocator(4))
    intervals.bars(right, search["sigma"], search, color=style.PLAIN)
    intervals.bars(right, sigma, check, marker="D", color=style.WATERMARKED)
    right.axhline(power, **style.DASHED)
    right.set(xlabel="σ", ylabel="share detected", title=f"and the wanted power, {power:.0%}, comes out", ylim=(0, 1.02))
    return style.caption(figure, caption)
