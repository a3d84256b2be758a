"""Figures of 02_level_check."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import binom

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style


def qq(table: pd.DataFrame, caption: str) -> Figure:
    """Observed against expected quantiles of p on log axes, a line a kind (columns ``p_value``, ``kind``), with the band of the smallest kind."""
    figure, axes = plt.subplots(figsize=(6.2, 5.2))
    smallest = table.groupby("kind").size().min()
    band = stats.qq(np.linspace(0.5, smallest - 0.5, smallest) / smallest)
    axes.fill_between(band["expected"], band["low"], band["high"], color="0.88", label=f"95% pointwise, n = {smallest:,}")
    axes.plot([1e-5, 1], [1e-5, 1], **style.THIN)
    for kind, rows in table.groupby("kind", sort=False):
        points = stats.qq(rows["p_value"])
        axes.plot(points["expected"], points["observed"], marker=".", markersize=3, linewidth=0.8, label=f"{kind} (n = {len(rows):,})")
    everything = stats.qq(table["p_value"])
    axes.plot(everything["expected"], everything["observed"], color="black", linewidth=1.4, label=f"all (n = {len(table):,})")
    axes.set(xscale="log", yscale="log", xlabel="expected quantile of a uniform p", ylabel="observed p", xlim=(3e-5, 1.1), ylim=(1e-6, 1.1))
    axes.legend(loc="upper left")
    return style.caption(figure, caption, "Over keys, p is uniform for every kind of text, far into the tail")


def realised_levels(table: pd.DataFrame, caption: str) -> Figure:
    """Realised over nominal level with exact intervals (columns ``kind, level, value, low, high``)."""
    figure, axes = plt.subplots()
    ratios = table.assign(**{name: table[name] / table["level"] for name in ("value", "low", "high")})
    looks = {level: {"label": f"level {level}"} for level in table["level"].unique()}
    intervals.dodged(axes, ratios, "kind", "level", looks, horizontal=True)
    axes.axvline(1, **style.THIN)
    axes.set(xlabel="realised rate of false positives / nominal level")
    style.categories(axes, table["kind"].unique())
    return style.caption(figure, caption, "The realised level is the nominal one")


def per_key_rates(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Each fixed key's rate of false positives, a point a key, a row a kind (columns ``kind, value, n``), beside the binomial spread."""
    figure, axes = plt.subplots()
    n = int(table["n"].iloc[0])
    low, high = binom(n, level).ppf([0.025, 0.975]) / n
    axes.axvspan(low, high, color="0.88", label=f"binomial 95%, n = {n} texts")
    axes.axvline(level, **style.THIN, label=f"level {level}")
    sns.stripplot(table, x="value", y="kind", hue="kind", alpha=0.35, size=4, jitter=0.32, ax=axes, legend=False)
    axes.set(xlabel="share of the kind's texts that one key calls watermarked", ylabel="")
    axes.legend(loc="upper right")
    return style.caption(figure, caption, "A fixed key can be wrong about a whole kind of text")


def trap(table: pd.DataFrame, caption: str) -> Figure:
    """ψ of unwatermarked text with the gradient at θ and at θ + ξ (columns ``psi``, ``at``), with the N(0, 1) that p-values assume."""
    figure, axes = plt.subplots()
    palette = {"θ": style.PLAIN, "θ + ξ": style.WATERMARKED}
    sns.histplot(table, x="psi", hue="at", stat="density", common_norm=False, bins=30, alpha=0.45, palette=palette, ax=axes)
    style.normal_density(axes, min(-4.0, table["psi"].min()), max(4.0, table["psi"].max()))
    axes.get_legend().set_title("gradient at\n(line: N(0, 1))")
    axes.set(xlabel="ψ of unwatermarked text", ylabel="density")
    return style.caption(figure, caption, "Scored at θ + ξ, the test's null distribution is gone")
