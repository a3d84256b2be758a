"""Figures of 11_playground, drawn without pyplot, since a panel draws in a thread of its own."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import stats
from gaussmark_lib.plots import style

GROUPS = {  # (kind of text, key) → colour and marker
    ("watermarked", "this key"): (style.WATERMARKED, "D"),
    ("plain", "this key"): (style.PLAIN, "o"),
    ("watermarked", "wrong key"): (style.WRONG_KEY, "s"),
    ("plain", "wrong key"): ("0.45", "^"),
}


def psi_on_null(
    scores: pd.DataFrame, predicted: float, level: float = 0.05, caption: str = ""
) -> Figure:
    """ψ of each text and key below the density that ψ has without a watermark; a row a group.

    Args:
        scores: ``kind``, ``key``, ``psi``, ``n_tokens``: a row a text × key.
        predicted: σ·median‖G‖, where the watermarked texts should be.
    """
    figure = Figure(figsize=(6.0, 3.4), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(
        min(-4.0, scores["psi"].min() - 0.5),
        max(5.0, predicted + 2, scores["psi"].max() + 0.5),
        400,
    )
    tau = stats.threshold(level)
    axes.fill_between(grid, norm.pdf(grid), color="0.88")
    axes.fill_between(grid, norm.pdf(grid), where=grid >= tau, color="0.6")
    axes.plot(grid, norm.pdf(grid), **style.THIN)
    axes.axvline(tau, **style.DASHED)
    axes.text(tau + 0.07, 0.39, f"detected at level {level} →", fontsize="small", va="top")
    axes.plot(predicted, 0, marker="v", color="black", markersize=9, clip_on=False, zorder=5)
    axes.annotate(
        "predicted, σ·‖G‖",
        (predicted, 0),
        xytext=(0, 9),
        textcoords="offset points",
        ha="center",
        fontsize="small",
    )
    rows = -0.055 * np.arange(1, len(GROUPS) + 1)
    for row, ((kind, key), (colour, marker)) in zip(rows, GROUPS.items(), strict=True):
        psi = scores.loc[(scores["kind"] == kind) & (scores["key"] == key), "psi"]
        axes.plot(psi, np.full(len(psi), row), marker, color=colour, alpha=0.8)
    axes.set_yticks(rows, [", ".join(group) for group in GROUPS], fontsize="small")
    axes.grid(axis="y", visible=False)
    n = scores.groupby(["kind", "key"]).size().iloc[0]
    axes.set(
        xlabel="ψ, in standard deviations of a text without watermark",
        ylim=(rows[-1] - 0.044, 0.43),
        xlim=(grid[0], grid[-1]),
    )
    axes.set_title(
        f"ψ below its null density N(0, 1): n = {n} a row, {scores['n_tokens'].iloc[0]} tokens"
        " each",
        loc="left",
    )
    return style.caption(figure, caption) if caption else figure


def psi_when_turned(scores: pd.DataFrame, level: float = 0.05, caption: str = "") -> Figure:
    """ψ of watermarked texts under this key and the wrong one, against the ψ that σ was solved for.

    Args:
        scores: ``wanted``, ``kind``, ``key``, ``psi``, ``n_tokens``: a row a text × key.
    """
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    marked = scores[scores["kind"] == "watermarked"]
    top = marked["wanted"].max() * 1.08
    axes.plot([0, top], [0, top], **style.THIN, label="as predicted")
    axes.axhline(stats.threshold(level), **style.DASHED, label=f"detected above, level {level}")
    for key in ("this key", "wrong key"):
        colour, marker = GROUPS["watermarked", key]
        rows = marked[marked["key"] == key]
        axes.plot(rows["wanted"], rows["psi"], marker, color=colour, alpha=0.8, label=key)
    n = marked.groupby(["wanted", "key"]).size().iloc[0]
    axes.set(
        xlabel="wanted ψ = σ · median‖G‖", ylabel="measured ψ (standard deviations)", xlim=(0, top)
    )
    axes.set_title(
        f"Which key responds to σ? n = {n} texts a setting, {marked['n_tokens'].iloc[0]} tokens",
        loc="left",
    )
    axes.legend(fontsize="small")
    return style.caption(figure, caption) if caption else figure
