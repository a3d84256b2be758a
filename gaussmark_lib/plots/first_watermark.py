"""Figures of 00_first_watermark."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style

COLOURS = {"watermarked, right key": style.WATERMARKED, "watermarked, wrong key": style.WRONG_KEY, "plain, right key": style.PLAIN}


def psi_on_null(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """ψ of each text (columns ``psi``, ``what``) as a rug of points under the N(0, 1) density that holds without a watermark."""
    figure, axes = plt.subplots()
    grid = np.linspace(-4, max(4.5, table["psi"].max() + 0.5), 400)
    axes.fill_between(grid, norm.pdf(grid), color="0.85", label="N(0, 1): any text, no watermark")
    axes.axvline(stats.threshold(level), color=style.THEORY, linestyle="--", label=f"threshold at level {level}")
    names = [name for name in COLOURS if name in set(table["what"])]
    for row, name in enumerate(names, 1):
        psi = table.loc[table["what"] == name, "psi"]
        axes.scatter(psi, np.full(len(psi), -0.04 * row), color=COLOURS[name], s=22, alpha=0.8, label=f"{name} (mean {psi.mean():.2f})")
    bottom = -0.04 * (len(names) + 1.2)
    axes.set(xlabel="ψ (standard deviations)", ylabel="density", ylim=(bottom, None), yticks=[0.0, 0.1, 0.2, 0.3, 0.4])
    style.legend_beside(axes)
    return style.caption(figure, caption, "Only the right key sees the watermark")


def psi_against_sigma(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Mean ψ with its interval against the predicted σ·median‖G‖ (columns ``sigma, predicted, psi``), and a perfect prediction's line."""
    figure, axes = plt.subplots()
    top = table["predicted"].max() * 1.05
    axes.plot([0, top], [0, top], color=style.THEORY, label="ψ = σ · median‖G‖")
    axes.axhline(stats.threshold(level), color=style.THEORY, linestyle=":", label=f"threshold at level {level}")
    sns.stripplot(table, x="predicted", y="psi", native_scale=True, color=style.WATERMARKED, alpha=0.35, size=4, ax=axes)
    means = {predicted: stats.mean(rows["psi"]) for predicted, rows in table.groupby("predicted")}
    intervals.bars(axes, list(means), means.values(), color=style.WATERMARKED, label="mean, 95% interval")
    for x, sigma in table.groupby("predicted")["sigma"].first().items():
        axes.annotate(f"σ={sigma:.3g}", (x, 0.02), xycoords=axes.get_xaxis_transform(), ha="center", fontsize="x-small", color="0.3")
    axes.set(xlabel="predicted ψ = σ · median‖G‖", ylabel="measured ψ")
    axes.legend(loc="upper left")
    return style.caption(figure, caption, "ψ grows with σ as predicted, until the model stops being linear in it")
