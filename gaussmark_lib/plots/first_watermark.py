"""Figures of 00_first_watermark."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.stats import norm

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style

COLOURS = {
    "watermarked, right key": style.WATERMARKED,
    "watermarked, wrong key": style.WRONG_KEY,
    "plain, right key": style.PLAIN,
}


def schematic(xi: np.ndarray, gradient: np.ndarray, sigma: float, caption: str) -> Figure:
    """The scheme in two rows, with one small noise ξ and one text's gradient G drawn to scale: who
    writes, and who tests.
    """
    figure, axes = plt.subplots(figsize=(8.6, 3.9))
    axes.set(xlim=(0, 100), ylim=(1, 46))
    axes.axis("off")
    psi = (xi * gradient).sum() / (sigma * np.linalg.norm(gradient))
    axes.text(0, 43, "Write", weight="bold")
    axes.text(0, 18, "Test", weight="bold")
    _box(axes, 9, 33, "key\n128 secret bits", style.WATERMARKED)
    _matrix(axes, 35, 33, xi, "noise ξ ~ N(0, σ²)")
    _box(axes, 62, 33, "model with θ + ξ\nwrites as always", style.WATERMARKED)
    _box(axes, 90, 33, "text y", style.PLAIN)
    _box(axes, 90, 8, "model with θ\nlog p_θ(y)", style.PLAIN)
    _matrix(axes, 62, 8, gradient, "gradient G = ∇_θ log p_θ(y)")
    _box(axes, 33, 8, f"ψ = ⟨ξ, G⟩/(σ‖G‖)\n= {psi:.2f}", style.THEORY)
    _box(axes, 9, 8, f"p = 1 − Φ(ψ)\n= {norm.sf(psi):.3f}", style.THEORY)
    for start, end in [
        ((17, 33), (29, 33)),
        ((41, 33), (51, 33)),
        ((73, 33), (84, 33)),
        ((90, 28), (90, 13)),
        ((81, 8), (69, 8)),
        ((55, 8), (44.5, 8)),
        ((35, 25.5), (35, 13)),
        ((22, 8), (17, 8)),
    ]:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": style.THEORY})
    return style.caption(figure, caption, "From a key to a p-value")


def _box(axes: Axes, x: float, y: float, text: str, colour) -> None:
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize="small",
        bbox={"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour},
    )


def _matrix(axes: Axes, x: float, y: float, values: np.ndarray, label: str) -> None:
    """Coloured squares with their numbers, and the label above."""
    rows, columns = values.shape
    for (i, j), value in np.ndenumerate(values):
        at = (x + 6 * (j - columns / 2), y + 5 * (rows / 2 - 1 - i))
        axes.add_patch(
            Rectangle(
                at,
                6,
                5,
                facecolor=plt.cm.RdBu_r(0.5 + 0.25 * value / np.abs(values).max()),
                edgecolor="white",
            )
        )
        axes.text(
            at[0] + 3, at[1] + 2.5, f"{value:g}", ha="center", va="center", fontsize="x-small"
        )
    axes.text(x, y + 5 * rows / 2 + 1.2, label, ha="center", fontsize="small")


def psi_on_null(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """ψ of each text (columns ``psi``, ``what``) as a rug of points under the N(0, 1) density that
    holds without a watermark.
    """
    figure, axes = plt.subplots()
    grid = np.linspace(-4, max(4.5, table["psi"].max() + 0.5), 400)
    axes.fill_between(grid, norm.pdf(grid), color="0.85", label="N(0, 1): any text, no watermark")
    axes.axvline(
        stats.threshold(level),
        color=style.THEORY,
        linestyle="--",
        label=f"threshold at level {level}",
    )
    names = [name for name in COLOURS if name in set(table["what"])]
    for row, name in enumerate(names, 1):
        psi = table.loc[table["what"] == name, "psi"]
        axes.scatter(
            psi,
            np.full(len(psi), -0.04 * row),
            color=COLOURS[name],
            s=22,
            alpha=0.8,
            label=f"{name} (mean {psi.mean():.2f})",
        )
    bottom = -0.04 * (len(names) + 1.2)
    axes.set(
        xlabel="ψ (standard deviations)",
        ylabel="density",
        ylim=(bottom, None),
        yticks=[0.0, 0.1, 0.2, 0.3, 0.4],
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, "Which of the three has a ψ beyond the threshold?")


def psi_against_sigma(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Mean ψ with its interval against the predicted σ·median‖G‖ (columns ``sigma, predicted,
    psi``), and a perfect prediction's line.
    """
    figure, axes = plt.subplots()
    top = table["predicted"].max() * 1.05
    axes.plot([0, top], [0, top], color=style.THEORY, label="ψ = σ · median‖G‖")
    axes.axhline(
        stats.threshold(level),
        color=style.THEORY,
        linestyle=":",
        label=f"threshold at level {level}",
    )
    sns.stripplot(
        table,
        x="predicted",
        y="psi",
        native_scale=True,
        color=style.WATERMARKED,
        alpha=0.35,
        size=4,
        ax=axes,
    )
    means = {predicted: stats.mean(rows["psi"]) for predicted, rows in table.groupby("predicted")}
    intervals.bars(
        axes, list(means), means.values(), color=style.WATERMARKED, label="mean, 95% interval"
    )
    for x, sigma in table.groupby("predicted")["sigma"].first().items():
        axes.annotate(
            f"σ={sigma:.2g}",
            (x, 0.02),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            fontsize="x-small",
            color="0.3",
        )
    axes.set(xlabel="predicted ψ = σ · median‖G‖", ylabel="measured ψ")
    axes.legend(loc="upper left")
    return style.caption(figure, caption, "Does ψ grow with σ as predicted?")
