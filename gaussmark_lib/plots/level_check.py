"""Figures of 02_level_check."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style


def qq(table: pd.DataFrame, caption: str) -> Figure:
    """Observed against expected quantiles of p on log axes (columns ``p_value``, ``kind``): all
    pairs, and each kind, beside the band of as many.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.6), sharex=True, sharey=True)
    by_kind = {kind: rows["p_value"] for kind, rows in table.groupby("kind", sort=False)}
    _band(left, len(table))
    everything = stats.qq(table["p_value"])
    left.plot(
        everything["expected"],
        everything["observed"],
        color="black",
        linewidth=1.4,
        label="all pairs",
    )
    _band(right, min(map(len, by_kind.values())))
    for kind, p in by_kind.items():
        points = stats.qq(p)
        right.plot(points["expected"], points["observed"], linewidth=1.2, label=kind)
    start, least = 0.5 / len(table), min(table["p_value"].min(), 1 / len(table)) / 3
    each = min(map(len, by_kind.values()))
    for axes, title in (
        (left, f"All pairs of a key and a text, n = {len(table):,}"),
        (right, f"Each kind of text, n = {each:,}"),
    ):
        axes.plot([least, 1], [least, 1], **style.THIN, label="observed = expected")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="expected quantile of a uniform p",
            title=title,
            xlim=(start, 1.2),
            ylim=(least, 1.2),
        )
    left.set_ylabel("observed p")
    left.legend(loc="upper left", fontsize="x-small")  # errors of the tail show at the lower left
    style.legend_beside(right)
    return style.caption(figure, caption, "Is p uniform over keys?")


def _band(axes: Axes, n: int) -> None:
    band = stats.qq((np.arange(n) + 0.5) / n)
    axes.fill_between(
        band["expected"],
        band["low"],
        band["high"],
        color="0.88",
        label="95% of uniform p, pointwise",
    )


def realised_levels(table: pd.DataFrame, caption: str) -> Figure:
    """Realised over nominal level with exact intervals (columns ``kind, level, value, low,
    high``).
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    ratios = table.assign(
        **{name: table[name] / table["level"] for name in ("value", "low", "high")}
    )
    looks = {level: {"label": f"level {level}"} for level in table["level"].unique()}
    intervals.dodged(axes, ratios, "kind", "level", looks, horizontal=True)
    axes.axvline(1, **style.THIN)
    axes.set(xlabel="share of alarms / nominal level")
    style.categories(axes, table["kind"].unique())
    style.legend_beside(axes)
    return style.caption(figure, caption, "Is the realised level the nominal one?")


def per_key_rates(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Each fixed key's rate of false positives, a point a key, a row a kind (columns ``kind, value,
    n``), beside the binomial spread.
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    n = int(table["n"].iloc[0])
    low, high = binom(n, level).ppf([0.025, 0.975]) / n
    axes.axvspan(low, high, color="0.88", label=f"binomial 95%,\nn = {n} texts")
    axes.axvline(level, **style.THIN, label=f"level {level}")
    sns.stripplot(
        table,
        x="value",
        y="kind",
        hue="kind",
        alpha=0.35,
        size=4,
        jitter=0.32,
        ax=axes,
        legend=False,
    )
    axes.set(xlabel="share of the kind's texts that one key calls watermarked", ylabel="")
    style.legend_beside(axes)
    return style.caption(
        figure, caption, "How far is one fixed key's rate of false alarms from the level?"
    )


def trap(table: pd.DataFrame, expected: float, caption: str) -> Figure:
    """ψ of unwatermarked text with the gradient at θ and at θ + ξ (columns ``psi``, ``at``), the
    N(0, 1) that p-values assume, and −σ·mean‖G‖.
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    for (at, rows), colour in zip(
        table.groupby("at", sort=False), (style.PLAIN, style.WRONG_KEY), strict=True
    ):
        axes.hist(
            rows["psi"],
            bins="auto",
            density=True,
            alpha=0.5,
            color=colour,
            label=f"gradient at {at}",
        )
    style.normal_density(axes, min(-4.0, table["psi"].min()), max(4.0, table["psi"].max()))
    axes.axvline(expected, **style.DASHED, label=f"−σ · mean ‖G‖ = {expected:.2f}")
    axes.set(xlabel="ψ of unwatermarked text", ylabel="density")
    style.legend_beside(axes)
    return style.caption(
        figure, caption, "Where is ψ of unwatermarked text, with the gradient at θ and at θ + ξ?"
    )
