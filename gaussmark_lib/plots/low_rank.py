"""Figures of 07_low_rank."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib.plots import style


def _bars(rows: pd.DataFrame, column: str) -> list[np.ndarray]:
    """What matplotlib wants for an interval, never below 0."""
    return [np.maximum(side, 0) for side in (rows[column] - rows[f"{column}_low"], rows[f"{column}_high"] - rows[column])]


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
        shares = table.groupby("rank_dropped")["share"].agg(["mean", "min", "max"])
        right.plot(shares.index / d, shares["mean"], color=colour, label=f"of ‖G‖², {side} directions")
        right.fill_between(shares.index / d, shares["min"], shares["max"], color=colour, alpha=0.18, linewidth=0)
    right.plot([0, 1], [0, 1], color=style.THEORY, linewidth=0.8)
    right.set(xlabel=f"k/{d}: share of the directions", ylabel="share in the top k", title="but the gradient does not favour them", ylim=(0, 1.02))
    right.legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)


def misuses(null: pd.DataFrame, rates: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: ψ of human text by statistic (``low_rank.misuses``), with N(0, 1). Right: shares detected (``statistic, kind, rate, low, high``)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9))
    names = list(null["statistic"].unique())
    colours = dict(zip(names, sns.color_palette("colorblind")[:3], strict=True))
    for name, values in null.groupby("statistic", sort=False)["psi"]:
        left.hist(values, bins=np.linspace(-4, 4, 33), density=True, histtype="step", linewidth=1.6, color=colours[name], label=name)
    grid = np.linspace(-4, 4, 200)
    left.plot(grid, norm.pdf(grid), color=style.THEORY, linewidth=1, label="N(0, 1)")
    left.set(xlabel="ψ of human text, fresh keys", ylabel="density", title="Under the null")
    left.legend(fontsize="x-small")
    places = {kind: place for place, kind in enumerate(rates["kind"].unique())}
    for shift, name in zip((-0.15, 0, 0.15), names, strict=True):
        rows = rates[rates["statistic"] == name]
        errors = [rows["rate"] - rows["low"], rows["high"] - rows["rate"]]
        right.errorbar(
            [places[kind] + shift for kind in rows["kind"]], rows["rate"], yerr=errors, fmt="o", capsize=3, color=colours[name], label=name
        )
    right.axhline(level, color=style.THEORY, linewidth=1, linestyle=":")
    right.set(xticks=range(len(places)), xticklabels=list(places), xlim=(-0.5, len(places) - 0.5), ylim=(-0.03, 1.03))
    right.set(ylabel="share detected", title=f"and what a threshold for level {level} makes of it")
    figure.tight_layout()
    return style.caption(figure, caption)


def power(compared: pd.DataFrame, level: float, caption: str) -> Figure:
    """Mean ψ against k, and TPR against tokens, measured with intervals and predicted (``low_rank.against_prediction``), all at one σ."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    longest = compared[compared["n_tokens"] == compared["n_tokens"].max()]
    left.errorbar(
        longest["rank_dropped"], longest["psi"], yerr=_bars(longest, "psi"), fmt="o", capsize=3, color=style.WATERMARKED, label="measured, 95%"
    )
    left.plot(longest["rank_dropped"], longest["predicted_psi"], "x--", color=style.THEORY, label="σ · mean ‖PG‖ of plain text")
    left.axhline(0, color=style.THEORY, linewidth=0.8)
    left.set(
        xlabel="k directions dropped",
        ylabel=f"mean ψ of {longest['n_tokens'].iloc[0]} tokens",
        title="At the same σ, each direction dropped is power lost",
    )
    left.legend(fontsize="small")
    ranks = sorted(compared["rank_dropped"].unique())
    ranks = [ranks[i] for i in sorted({0, len(ranks) // 2, len(ranks) - 1})]  # more would hide each other
    for i, (colour, rank) in enumerate(zip(_shades(len(ranks)), ranks, strict=True)):
        rows = compared[compared["rank_dropped"] == rank]
        right.errorbar(rows["n_tokens"] + 1.5 * i, rows["tpr"], yerr=_bars(rows, "tpr"), fmt="o", capsize=2, color=colour, label=f"k = {rank}")
        right.plot(rows["n_tokens"], rows["predicted_power"], "--", color=colour, linewidth=1)
    right.axhline(level, color=style.THEORY, linestyle=":", linewidth=1)
    right.set(
        xlabel="tokens of response",
        ylabel=f"share detected at level {level}",
        ylim=(-0.02, 1.03),
        title="points measured, dashes predicted from plain text",
    )
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return style.caption(figure, caption)


def cost(curve: pd.DataFrame, caption: str) -> Figure:
    """Δ cross-entropy of human text against σ², and against the law's price on the model's own text (``low_rank.cost_curve``), a line a rank."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 4.1), sharey=True)
    schemes = list(curve["scheme"].unique())
    for colour, (name, rows) in zip(_shades(len(schemes)), curve.groupby("scheme", sort=False), strict=True):
        rows = rows.sort_values("sigma")
        for axes, x in ((left, rows["sigma"] ** 2), (right, rows["law"])):
            axes.errorbar(x, rows["delta"], yerr=_bars(rows, "delta"), marker="o", markersize=4, capsize=2, linewidth=1, color=colour, label=name)
    ends = np.array([curve["law"].min() * 0.8, curve["law"].max() * 1.2])
    right.plot(ends, ends, color=style.THEORY, linewidth=1, linestyle="--", label="as dear as own text")
    left.set(
        xscale="log",
        yscale="log",
        xlabel="σ²",
        ylabel="Δ cross-entropy of human text, nats a token",
        title="Projections look cheaper at the same σ²;",
    )
    right.set(xscale="log", xlabel="½σ²‖PG‖²/T: the price on own text, nats a token", title="at the same price they are one line")
    right.legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)


def equal_price(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Each scheme's mean over vanilla's with its 95% interval (rows of ``compared.ratios``), a colour a quantity; not all have all schemes."""
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows["scheme"]))
    figure, axes = plt.subplots(figsize=(7.6, 0.75 * len(names) + 1.4))
    for i, (quantity, rows) in enumerate(tables.items()):
        y = [names.index(name) + 0.2 * (i - (len(tables) - 1) / 2) for name in rows["scheme"]]
        axes.errorbar(rows["value"], y, xerr=_around(rows), fmt="osD"[i % 3], capsize=3, label=quantity)
    axes.axvline(1, color=style.THEORY, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel="over the vanilla scheme's", title="At the σ of equal price")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return style.caption(figure, caption)


def robustness(shares: pd.DataFrame, against: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: share detected by corruption, own key and plain text (``compared.shares``); right: mean ψ less vanilla's (``under_corruption``).

    Both with a column ``label`` for what was done.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    labels, schemes = list(shares["label"].unique()), list(shares["scheme"].unique())
    colours = dict(zip(schemes, _shades(len(schemes)), strict=True))
    for i, name in enumerate(schemes):
        x = np.arange(len(labels)) + 0.2 * (i - (len(schemes) - 1) / 2)
        for kind, shift, fill in (("own key", 0, "full"), ("plain text", 0.05, "none")):
            rows = shares[(shares["scheme"] == name) & (shares["kind"] == kind)].set_index("label").loc[labels]
            look = {"fmt": "o", "markersize": 5, "capsize": 2, "fillstyle": fill, "color": colours[name]}
            left.errorbar(x + shift, rows["value"], yerr=_around(rows), label=name if fill == "full" else None, **look)
        if i:
            rows = against[(against["figure"] == "statistic") & (against["scheme"] == name)].set_index("label").loc[labels]
            right.errorbar(x, rows["value"], yerr=_around(rows), fmt="o", capsize=3, color=colours[name], label=name)
    left.errorbar([], [], fmt="o", fillstyle="none", color=style.THEORY, label="plain text")
    left.axhline(level, color=style.THEORY, linestyle=":", linewidth=1)
    left.set(ylabel=f"share detected at level {level}", ylim=(-0.03, 1.03), title="At equal price: what survives")
    right.axhline(0, color=style.THEORY, linewidth=1)
    right.set(ylabel=f"mean ψ less {schemes[0]}'s", title="and by how much they differ, paired")
    for axes in (left, right):
        axes.set_xticks(range(len(labels)), labels, fontsize="small")
        axes.legend(fontsize="x-small")
    figure.tight_layout()
    return style.caption(figure, caption)


def _around(rows: pd.DataFrame) -> list[np.ndarray]:
    return [np.maximum(rows["value"] - rows["low"], 0), np.maximum(rows["high"] - rows["value"], 0)]


def sides(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ with its interval beside the predicted one, a row a scheme (``scheme, predicted_psi, psi, psi_low, psi_high``)."""
    figure, axes = plt.subplots(figsize=(6.4, 0.5 * len(table) + 1.6))
    axes.errorbar(table["psi"], range(len(table)), xerr=_bars(table, "psi"), fmt="o", capsize=3, color=style.WATERMARKED, label="measured, 95%")
    axes.plot(table["predicted_psi"], range(len(table)), "x", color=style.THEORY, markersize=8, label="predicted from plain text")
    axes.set_yticks(range(len(table)), table["scheme"])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set(xlabel="mean ψ", title="At equal price, from whichever side", xlim=(0, None))
    axes.legend(fontsize="small", loc="lower left")
    figure.tight_layout()
    return style.caption(figure, caption)
