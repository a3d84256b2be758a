"""Figures of 09_token_level_keys."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.experiments import crossed
from gaussmark_lib.experiments.token_level_keys import HITS, ONE, SUM
from gaussmark_lib.plots import intervals, robustness, style

LOOK = {
    ONE: style.scheme("GaussMark"),
    SUM: style.scheme("token keys, sum"),
    HITS: style.scheme("token keys"),
}


def null(
    gammas: np.ndarray, levels: pd.DataFrame, quantile: float, alpha_0: float, caption: str
) -> Figure:
    """Left: Γ_k of human text beside N(0, 1). Right: level of the quantile test against K
    (``token_level_keys.levels``).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1))
    left.hist(
        gammas,
        bins=np.linspace(-4, 4, 41),
        density=True,
        color=style.PLAIN,
        alpha=0.6,
        label="Γ_k of human text",
    )
    style.normal_density(left)
    left.set(xlabel="Γ_k", ylabel="density", title="Γ_k under keys that no text knows")
    right.plot(
        levels["n_tokens"], levels["bound"], "--", color=style.THEORY, label="Hoeffding's bound"
    )
    right.plot(
        levels["n_tokens"], levels["exact"], color=style.WATERMARKED, label="exact, binomial"
    )
    looks = {
        "simulated": {"label": "simulated, 99%", "marker": "o", "color": style.WATERMARKED},
        "measured": {"label": "human text, 95%", "marker": "s", "color": style.PLAIN},
    }
    for (name, look), shift in zip(looks.items(), (0.97, 1.03), strict=True):
        seen = levels[levels[f"{name}_high"] > 0]
        intervals.bars(right, seen["n_tokens"] * shift, seen, name, markersize=4, capsize=2, **look)
    floor = max(1e-6, levels["exact"].min() / 3)
    right.set(yscale="log", xlabel="tokens K", ylabel="level", ylim=(floor, 1.5))
    right.set_title(f"Level against K, λ' = {quantile:g}, α₀ = {alpha_0:g}")
    style.log_ticks(right, levels["n_tokens"])
    style.legend_beside(right)
    return style.caption(figure, caption, "Is the level of the token test exact?")


def price_and_power(
    prices: pd.DataFrame, lengths: pd.DataFrame, level: float, caption: str
) -> Figure:
    """Left: divergence of each text (``scheme, key_id, prompt, price``), mean and 95% over prompts
    and keys in black.

    Right: share detected against tokens (``token_level_keys.by_length``).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1), width_ratios=[1, 1.5])
    sns.stripplot(
        prices, x="scheme", y="price", size=3.5, alpha=0.5, color=style.PLAIN, ax=left, jitter=0.2
    )
    for place, (_, rows) in enumerate(prices.groupby("scheme", sort=False)):
        intervals.bars(
            left,
            place,
            crossed.mean(rows, "price"),
            color="black",
            markersize=7,
            capsize=6,
            elinewidth=2,
        )
    left.set(
        xlabel="",
        ylabel="KL from the base model, nats a token",
        title="Price, each text and the mean",
        ylim=(0, None),
    )
    for i, (scheme, look) in enumerate(LOOK.items()):
        rows = lengths[lengths["scheme"] == scheme]
        intervals.bars(
            right,
            rows["n_tokens"] * 1.03 ** (i - 1),
            rows,
            linestyle="-",
            capsize=2,
            label=scheme,
            **look,
        )
    right.axhline(level, **style.DOTTED)
    right.set(
        xlabel=style.TOKENS,
        ylabel=f"share detected at level {level}",
        ylim=(-0.02, 1.03),
        title="Share detected against tokens",
    )
    style.log_ticks(right, lengths["n_tokens"])
    style.legend_beside(right)
    return style.caption(figure, caption, "What do token keys cost, and what do they detect?")


def choices(
    by_quantile: pd.DataFrame, by_alpha: pd.DataFrame, best: float, level: float, caption: str
) -> Figure:
    """Left: level and power of the quantile test against λ'. Right: power at one level against α₀,
    each with its best λ' (``token_tests``).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 4.1))
    intervals.bars(
        left,
        by_quantile["quantile"],
        by_quantile,
        markersize=4,
        capsize=2,
        color=LOOK[HITS]["color"],
        label="power",
    )
    left.plot(
        by_quantile["quantile"], by_quantile["exact"], color=style.PLAIN, label="level, exact"
    )
    left.plot(
        by_quantile["quantile"],
        by_quantile["bound"],
        "--",
        color=style.THEORY,
        label="level, Hoeffding's bound",
    )
    left.axhline(level, **style.DOTTED)
    left.axvline(best, **style.DOTTED)
    left.set(
        xlabel="λ'",
        ylabel="share detected",
        ylim=(-0.02, 1.03),
        title=f"Power and level against λ' (best at level {level}: {best:.3g})",
    )
    style.legend_below(left)
    intervals.bars(
        right,
        by_alpha["alpha_0"],
        by_alpha,
        capsize=2,
        color=LOOK[HITS]["color"],
        label=f"power at level {level}",
    )
    right.plot(
        by_alpha["alpha_0"],
        by_alpha["efficiency"],
        color=style.THEORY,
        label="efficiency φ(τ)²/(α₀(1 − α₀))",
    )
    right.set(
        xlabel="α₀, level of one token's test",
        ylabel="share",
        ylim=(-0.02, 1.03),
        title="Power against α₀, each at its best λ'",
    )
    style.legend_below(right)
    return style.caption(figure, caption)


def positions(table: pd.DataFrame, caption: str) -> Figure:
    """Mean Γ_k along the text in several versions (``token_level_keys.by_position``), with its
    intervals.
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.0))
    groups = list(table.groupby(["corruption", "fraction"], sort=False))
    width = np.ptp(table["position"]) / 100
    for colour, marker, shift, ((name, fraction), rows) in zip(
        style.OTHERS, "osDv", intervals.offsets(len(groups), width), groups, strict=False
    ):
        look = {
            "linestyle": "-",
            "color": colour,
            "marker": marker,
            "markersize": 5,
            "label": f"{name}, {fraction:g}" if fraction else name,
        }
        intervals.bars(axes, rows["position"] + shift, rows, **look)
    style.legend_beside(axes)
    axes.axhline(0, **style.THIN)
    axes.set(xlabel="token of response", ylabel="mean Γ_k")
    return style.caption(figure, caption, "Mean Γ_k along the text")


def survival(shares: pd.DataFrame, level: float, caption: str) -> Figure:
    """Share detected after each change, own key and plain text (``compared.shares``), a colour a
    scheme.
    """
    figure, axes = plt.subplots(figsize=(9.4, 4.2))
    cells = zip(shares["corruption"], shares["fraction"], strict=True)
    labels = [
        (
            f"{name.replace(' at random', '')}\n{fraction:g}"
            if fraction
            else name.replace(" ", "\n", 1)
        )
        for name, fraction in cells
    ]
    robustness.survival(axes, shares.assign(label=labels), LOOK, level)
    style.legend_beside(axes)
    return style.caption(figure, caption)
