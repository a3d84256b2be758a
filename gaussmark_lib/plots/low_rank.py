"""Figures of 07_low_rank."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, style
from gaussmark_lib.plots.robustness import survival


def _shades(n: int) -> list:
    return sns.color_palette("viridis", n + 1)[:n]


def spectrum(singular_values: np.ndarray, norms: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Left: the weight's singular values. Right: share of ‖G‖² in the top-k directions against k/d, mean and range over texts, a line a side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9))
    d = len(singular_values)
    energy = (singular_values**2).cumsum() / (singular_values**2).sum()
    left.plot(np.arange(1, d + 1), singular_values, color=style.THEORY)
    left.set(xlabel="number of the direction", ylabel="singular value of the weight", title="The weight has strong directions,", ylim=(0, None))
    right.plot(np.arange(1, d + 1) / d, energy, color=style.THEORY, linestyle=":", label="of the weight's own ‖θ‖²")
    for (side, table), colour in zip(norms.items(), (style.WATERMARKED, style.PLAIN), strict=False):
        shares = table.groupby("rank_dropped")["share"].agg(value="mean", low="min", high="max")
        intervals.band(right, shares.index / d, shares, marker="", color=colour, label=f"of ‖G‖², {side} directions")
    right.plot([0, 1], [0, 1], color=style.THEORY, linewidth=0.8)
    right.set(xlabel=f"k/{d}: share of the directions", ylabel="share in the top k", title="but the gradient does not favour them", ylim=(0, 1.02))
    return style.caption(figure, caption)


def misuses(null: pd.DataFrame, detected: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: ψ of human text by statistic (``low_rank.misuses``), with N(0, 1). Right: shares detected (``statistic, kind, value, low, high``)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9))
    kinds = detected["kind"].unique()
    looks = {name: {"color": colour} for name, colour in zip(null["statistic"].unique(), style.COLOURS, strict=False)}
    for name, look in looks.items():
        psi = null.loc[null["statistic"] == name, "psi"]
        left.hist(psi, bins=np.linspace(-4, 4, 33), density=True, histtype="step", linewidth=1.6, label=name, **look)
    intervals.dodged(right, detected, "kind", "statistic", looks, step=0.15)
    style.normal_density(left)
    left.set(xlabel="ψ of human text, fresh keys", ylabel="density", title="Under the null")
    left.legend(fontsize="x-small")
    right.axhline(level, **style.DOTTED)
    right.set(xticks=range(len(kinds)), xticklabels=kinds, xlim=(-0.5, len(kinds) - 0.5), ylim=(-0.03, 1.03))
    right.set(ylabel="share detected", title=f"and what a threshold for level {level} makes of it")
    return style.caption(figure, caption)


def power(compared: pd.DataFrame, level: float, caption: str) -> Figure:
    """Mean ψ against k, and TPR against tokens, measured with intervals and predicted (``low_rank.against_prediction``), all at one σ."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    longest = compared[compared["n_tokens"] == compared["n_tokens"].max()]
    intervals.bars(left, longest["rank_dropped"], longest, "psi", color=style.WATERMARKED, label="measured, 95%")
    left.plot(longest["rank_dropped"], longest["predicted_psi"], "x--", color=style.THEORY, label="σ · mean ‖PG‖ of plain text")
    left.axhline(0, **style.THIN)
    left.set(xlabel="k directions dropped", ylabel=f"mean ψ of {longest['n_tokens'].iloc[0]} tokens")
    left.set_title("At the same σ, each direction dropped is power lost")
    ranks = sorted(compared["rank_dropped"].unique())
    ranks = [ranks[i] for i in sorted({0, len(ranks) // 2, len(ranks) - 1})]  # more would hide each other
    for i, (colour, rank) in enumerate(zip(_shades(len(ranks)), ranks, strict=True)):
        rows = compared[compared["rank_dropped"] == rank]
        intervals.bars(right, rows["n_tokens"] + 1.5 * i, rows, "tpr", capsize=2, color=colour, label=f"k = {rank}")
        right.plot(rows["n_tokens"], rows["predicted_power"], "--", color=colour, linewidth=1)
    right.axhline(level, **style.DOTTED)
    right.set(xlabel=style.TOKENS, ylabel=f"share detected at level {level}", ylim=(-0.02, 1.03))
    right.set_title("points measured, dashes predicted from plain text")
    style.legend_beside(right)
    return style.caption(figure, caption)


def cost(curve: pd.DataFrame, caption: str) -> Figure:
    """Δ cross-entropy of human text against σ², and against the law's price on the model's own text (``low_rank.cost_curve``), a line a rank."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 4.1), sharey=True)
    curve = curve.sort_values("sigma", kind="stable").assign(variance=lambda t: t["sigma"] ** 2)
    names = curve["scheme"].unique()
    for colour, name in zip(_shades(len(names)), names, strict=True):
        rows = curve[curve["scheme"] == name]
        for axes, x in ((left, "variance"), (right, "law")):
            intervals.bars(axes, rows[x], rows, "delta", linestyle="-", markersize=4, capsize=2, linewidth=1, color=colour, label=name)
    ends = np.array([curve["law"].min() * 0.8, curve["law"].max() * 1.2])
    right.plot(ends, ends, **style.DASHED, label="the price on own text")
    left.set(xscale="log", yscale="log", xlabel="σ²", ylabel="Δ cross-entropy of human text, nats a token")
    left.set_title("Projections look cheaper at the same σ²;")
    right.set(xscale="log", xlabel="½σ²‖PG‖²/T: the price on own text, nats a token", title="at the same price they are one line")
    right.legend()
    return style.caption(figure, caption)


def equal_price(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Each scheme's mean over vanilla's with its 95% interval (rows of ``compared.ratios``), a colour a quantity; not all have all schemes."""
    rows = pd.concat([table.assign(quantity=quantity) for quantity, table in tables.items()], ignore_index=True)
    names = rows["scheme"].unique()
    figure, axes = plt.subplots(figsize=(7.6, 0.75 * len(names) + 1.4))
    looks = {quantity: {"marker": marker} for quantity, marker in zip(tables, "osD^v", strict=False)}
    intervals.dodged(axes, rows, "scheme", "quantity", looks, horizontal=True)
    axes.axvline(1, **style.THIN)
    style.categories(axes, names)
    axes.set(xlabel="over the vanilla scheme's")
    style.legend_beside(axes)
    return style.caption(figure, caption, "At the σ of equal price")


def robustness(shares: pd.DataFrame, against: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: share detected by corruption, own key and plain text (``compared.shares``); right: mean ψ less vanilla's (``under_corruption``).

    Both with a column ``label`` for what was done.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    labels, schemes = shares["label"].unique(), shares["scheme"].unique()
    looks = {name: {"color": colour} for name, colour in zip(schemes, _shades(len(schemes)), strict=True)}
    survival(left, shares, looks, level)
    intervals.dodged(right, against[against["figure"] == "statistic"], "label", "scheme", looks)
    right.axhline(0, **style.THIN)
    right.set(ylabel=f"mean ψ less {schemes[0]}'s", title="and by how much they differ, paired")
    right.set_xticks(range(len(labels)), labels, fontsize="small")
    for axes in (left, right):
        axes.legend(fontsize="x-small")
    return style.caption(figure, caption)


def sides(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ with its interval beside the predicted one, a row a scheme (``scheme, predicted_psi, psi, psi_low, psi_high``)."""
    figure, axes = plt.subplots(figsize=(6.4, 0.5 * len(table) + 1.6))
    intervals.bars(axes, range(len(table)), table, "psi", horizontal=True, color=style.WATERMARKED, label="measured, 95%")
    axes.plot(table["predicted_psi"], range(len(table)), "x", color=style.THEORY, markersize=8, label="predicted from plain text")
    style.categories(axes, table["scheme"])
    axes.set(xlabel="mean ψ", xlim=(0, None))
    axes.legend(loc="lower left")
    return style.caption(figure, caption, "At equal price, from whichever side")
