"""Figures of 09_token_level_keys."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy.stats import norm

from gaussmark_lib.experiments import robustness, token_level_keys
from gaussmark_lib.plots import style

LOOK = {
    scheme: {"color": colour, "marker": marker}
    for scheme, colour, marker in zip(
        (token_level_keys.ONE, token_level_keys.SUM, token_level_keys.HITS),
        (style.WATERMARKED, style.PLAIN, sns.color_palette("colorblind")[2]),
        "osD",
        strict=True,
    )
}


def _sides(rows: pd.DataFrame, value: str = "value", low: str = "low", high: str = "high") -> list[np.ndarray]:
    return [np.maximum(rows[value] - rows[low], 0), np.maximum(rows[high] - rows[value], 0)]


def null(gammas: np.ndarray, levels: pd.DataFrame, quantile: float, alpha_0: float, caption: str) -> Figure:
    """Left: Γ_k of human text beside N(0, 1). Right: level of the quantile test against K (``token_level_keys.levels``)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1))
    left.hist(gammas, bins=np.linspace(-4, 4, 41), density=True, color=style.PLAIN, alpha=0.6, label="Γ_k of human text")
    grid = np.linspace(-4, 4, 200)
    left.plot(grid, norm.pdf(grid), color=style.THEORY, label="N(0, 1)")
    left.set(xlabel="Γ_k", ylabel="density", title="One token, one key: standard normal")
    left.legend(fontsize="small")
    n = levels["n_tokens"]
    right.plot(n, levels["bound"], "--", color=style.THEORY, label="Hoeffding's bound")
    right.plot(n, levels["exact"], color=style.WATERMARKED, label="exact, binomial")
    for name, marker, colour, shift in (("simulated", "o", style.WATERMARKED, 0.97), ("measured", "s", style.PLAIN, 1.03)):
        seen = levels[levels[f"{name}_high"] > 0]
        sides = _sides(seen, name, f"{name}_low", f"{name}_high")
        label = {"simulated": "simulated, 99%", "measured": "human text, 95%"}[name]
        right.errorbar(seen["n_tokens"] * shift, seen[name], yerr=sides, fmt=marker, markersize=4, capsize=2, color=colour, label=label)
    floor = max(1e-6, levels["exact"].min() / 3)
    right.set(
        yscale="log",
        xscale="log",
        xlabel="tokens K",
        ylabel="level",
        ylim=(floor, 1.5),
        title=f"λ' = {quantile:g}, α₀ = {alpha_0:g}: what is proved, and what is so",
    )
    right.set_xticks(list(n), [str(k) for k in n])
    right.xaxis.set_minor_locator(NullLocator())
    right.legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)


def price_and_power(prices: pd.DataFrame, lengths: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: divergence of each text (columns ``scheme, price``), mean in black. Right: share detected against tokens (``token_level_keys.by_length``)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1), width_ratios=[1, 1.5])
    sns.stripplot(prices, x="scheme", y="price", size=3.5, alpha=0.5, color=style.PLAIN, ax=left, jitter=0.2)
    sns.pointplot(prices, x="scheme", y="price", errorbar=("ci", 95), n_boot=500, seed=0, color="black", linestyle="none", capsize=0.15, ax=left)
    left.set(xlabel="", ylabel="KL from the base model, nats a token", title="The same price,", ylim=(0, None))
    for i, (scheme, look) in enumerate(LOOK.items()):
        rows = lengths[lengths["scheme"] == scheme]
        right.errorbar(rows["n_tokens"] * 1.03 ** (i - 1), rows["value"], yerr=_sides(rows), capsize=2, label=scheme, **look)
    right.axhline(level, color=style.THEORY, linestyle=":", linewidth=1)
    right.set(xscale="log", xlabel="tokens of response", ylabel=f"share detected at level {level}", ylim=(-0.02, 1.03), title="not the same power")
    ticks = sorted(lengths["n_tokens"].unique())
    right.set_xticks(ticks, [str(n) for n in ticks])
    right.xaxis.set_minor_locator(NullLocator())
    right.legend(fontsize="small")
    figure.tight_layout()
    return style.caption(figure, caption)


def choices(by_quantile: pd.DataFrame, by_alpha: pd.DataFrame, best: float, level: float, caption: str) -> Figure:
    """Left: level and power of the quantile test against λ'. Right: power at one level against α₀, each with its best λ' (``token_tests``)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1))
    left.errorbar(
        by_quantile["quantile"],
        by_quantile["value"],
        yerr=_sides(by_quantile),
        fmt="o",
        markersize=4,
        capsize=2,
        color=style.WATERMARKED,
        label="power",
    )
    left.plot(by_quantile["quantile"], by_quantile["exact"], color=style.PLAIN, label="level, exact")
    left.plot(by_quantile["quantile"], by_quantile["bound"], "--", color=style.THEORY, label="level, Hoeffding's bound")
    left.axhline(level, color=style.THEORY, linestyle=":", linewidth=1)
    left.axvline(best, color=style.THEORY, linestyle=":", linewidth=1)
    left.set(xlabel="λ'", ylabel="share detected", ylim=(-0.02, 1.03), title=f"λ' buys power with level: best for {level} is {best:.3g}")
    left.legend(fontsize="small", loc="upper left")
    right.errorbar(
        by_alpha["alpha_0"], by_alpha["value"], yerr=_sides(by_alpha), fmt="o", capsize=2, color=style.WATERMARKED, label=f"power at level {level}"
    )
    right.plot(by_alpha["alpha_0"], by_alpha["efficiency"], color=style.THEORY, label="efficiency φ(τ)²/(α₀(1 − α₀))")
    right.set(xlabel="α₀, level of one token's test", ylabel="share", ylim=(-0.02, 1.03), title="and no token test beats the sign")
    right.legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    return style.caption(figure, caption)


def positions(table: pd.DataFrame, caption: str) -> Figure:
    """Mean Γ_k along the text in several versions (``token_level_keys.by_position``), with its band."""
    figure, axes = plt.subplots(figsize=(8.4, 4.0))
    groups = table.groupby(["corruption", "fraction"], sort=False)
    for colour, ((name, fraction), rows) in zip(sns.color_palette("colorblind")[:4], groups, strict=False):
        label = f"{name}, {fraction:g}" if fraction else name
        axes.plot(rows["position"], rows["value"], marker="o", color=colour, label=label)
        axes.fill_between(rows["position"], rows["low"], rows["high"], alpha=0.15, color=colour, linewidth=0)
    axes.axhline(0, color=style.THEORY, linewidth=1)
    axes.set(xlabel="token of response", ylabel="mean Γ_k", title="A key belongs to a place: behind a lost token, none fits")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def survival(shares: pd.DataFrame, level: float, caption: str) -> Figure:
    """Share detected after each change, own key and plain text (``compared.shares``), a colour a scheme."""
    figure, axes = plt.subplots(figsize=(9.4, 4.2))
    cells = list(dict.fromkeys(zip(shares["corruption"], shares["fraction"], strict=True)))
    labels = [f"{name.replace(' at random', '')}\n{fraction:g}" if fraction else name.replace(" ", "\n", 1) for name, fraction in cells]
    indexed = shares.set_index(["scheme", "kind", "corruption", "fraction"]).sort_index()
    for i, (scheme, look) in enumerate(LOOK.items()):
        for kind, fill, shift in ((robustness.OWN, "full", 0), (robustness.PLAIN, "none", 0.07)):
            rows = indexed.loc[(scheme, kind)].loc[cells]
            x = np.arange(len(labels)) + 0.2 * (i - 1) + shift
            label = scheme if fill == "full" else None
            axes.errorbar(x, rows["value"], yerr=_sides(rows), linestyle="none", capsize=2, label=label, fillstyle=fill, markersize=5, **look)
    axes.errorbar([], [], fmt="o", fillstyle="none", color=style.THEORY, label=robustness.PLAIN)
    axes.axhline(level, color=style.THEORY, linestyle=":", linewidth=1)
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set(ylabel=f"share detected at level {level}", ylim=(-0.03, 1.03), title="At equal price: what survives")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(figure, caption)
