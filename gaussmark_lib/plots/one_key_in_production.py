"""Figures of 12_one_key_in_production."""

from itertools import cycle

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib.plots import intervals, style

LABELS = {"training": "docs (doclm's training)"}  # of kinds whose name does not say what they are


def per_key(rates: pd.DataFrame, level: float, caption: str) -> Figure:
    """Each key's rate of false alarms by kind, of ψ and of r (columns ``kind, statistic,
    rate``).
    """
    figure, axes = plt.subplots(figsize=(7.0, 4.4))
    axes.axvline(level, **style.THIN, label=f"level {level}")
    palette = {"ψ": style.WRONG_KEY, "innovation": style.PLAIN}
    rates = rates.replace({"kind": LABELS})
    sns.stripplot(
        rates,
        x="rate",
        y="kind",
        hue="statistic",
        dodge=True,
        alpha=0.3,
        size=3,
        jitter=0.3,
        palette=palette,
        legend=False,
        ax=axes,
    )
    for name, colour in palette.items():
        axes.plot(
            [], [], "o", color=colour, markersize=7, label=name
        )  # the dots themselves are too faint for a legend
    axes.set(xlabel="share of the kind's human texts that one key calls marked", ylabel="")
    return style.caption(
        figure, caption, "How far does one key's rate of false alarms lie from the level?"
    )


def law(spreads: pd.DataFrame, caption: str) -> Figure:
    """The measured spread over keys with its interval against the predicted one (columns ``value,
    low, high, predicted``, index kind).
    """
    figure, axes = plt.subplots(figsize=(5.0, 4.4))
    top = 1.1 * spreads[["value", "high", "predicted"]].max(axis=None)
    axes.plot([0, top], [0, top], **style.THIN, label="measured = predicted")
    open_ = {"markerfacecolor": "none", "markersize": 9, "markeredgewidth": 1.6}  # some coincide
    for kind, marker in zip(spreads.index, cycle("os^DvP*X"), strict=False):
        intervals.bars(
            axes,
            spreads.loc[[kind], "predicted"],
            spreads.loc[[kind]],
            marker=marker,
            label=LABELS.get(kind, kind),
            **open_,
        )
    axes.set(xlabel="predicted from the gradients' cosines", ylabel="measured over keys")
    style.legend_beside(axes)
    return style.caption(
        figure, caption, "Spread of one key's rate of false alarms (standard deviation)"
    )


def evidence(streams: pd.DataFrame, level: float, caption: str) -> Figure:
    """Running log E of each stream (columns ``stream, kind, place, log_e``), with the line of
    Ville's inequality.
    """
    figure, axes = plt.subplots()
    palette = dict(
        zip(
            streams["kind"].unique(),
            [style.PLAIN, style.WATERMARKED, *style.COLOURS[2:4], *style.COLOURS[5:]],
            strict=False,
        )
    )
    faint = max(0.1, min(0.5, 10 / streams["stream"].nunique()))
    for (_, kind), rows in streams.groupby(["stream", "kind"]):
        axes.plot(
            rows["place"] + 1,
            rows["log_e"] / np.log(10),
            color=palette[kind],
            alpha=faint,
            linewidth=0.9,
        )
    for kind, colour in palette.items():
        axes.plot([], [], color=colour, label=kind)
    axes.axhline(-np.log10(level), **style.DASHED, label=f"1/α, α = {level}")
    axes.set(xlabel="texts", ylabel="log₁₀ E")
    return style.caption(figure, caption, "When does the running evidence cross the line?")


def kept(by_place: pd.DataFrame, caption: str) -> Figure:
    """Innovation over ψ of marked texts by place in a stream of which all are marked (``first,
    last, value, low, high, theory, one_factor``).
    """
    figure, axes = plt.subplots()
    middle = (by_place["first"] + by_place["last"]) / 2
    axes.plot(
        middle, by_place["theory"], "x-", color=style.THEORY, label="theory: L⁻¹σ‖G‖ over σ‖G‖"
    )  # a line through one point is not seen
    axes.plot(
        middle,
        by_place["one_factor"],
        marker="+",
        **style.DOTTED,
        label="1/(1 + nc), c: the marked gradients' mean cosine",
    )
    intervals.bars(axes, middle, by_place, color=style.WATERMARKED, label="measured")
    axes.set(xlabel="place in the stream", ylabel="mean innovation over mean ψ")
    axes.set_ylim(min(0.7, float(by_place["low"].min()) - 0.05), 1.08)
    return style.caption(
        figure, caption, "What does a stream forget in which every text is marked?"
    )


def attack(forged: pd.DataFrame, climbs: np.ndarray, n_tried: int, caption: str) -> Figure:
    """Left: ψ of the best text so far (attacks × steps) against the questions. Right: ψ and
    innovation of the forged texts (columns ``psi, innovation``), beside N(0, 1).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0))
    queries = n_tried * np.arange(1, climbs.shape[1] + 1)
    left.plot(
        queries,
        climbs.T,
        color=style.WRONG_KEY,
        alpha=max(0.05, min(0.6, 5 / len(climbs))),
        linewidth=0.9,
    )
    left.plot(queries, climbs.mean(0), color=style.WRONG_KEY, linewidth=2.2, label="mean over keys")
    left.set(
        xlabel="questions asked",
        ylabel="ψ of the best text so far",
        title="How far does an asker climb?",
    )
    grid = np.linspace(-4, max(4.0, forged["psi"].max()), 300)
    right.plot(grid, norm.pdf(grid), **style.THIN, label="N(0, 1)")
    for name, label, colour in (
        ("psi", "ψ: a detector without memory", style.WRONG_KEY),
        ("innovation", "innovation: one with memory", style.PLAIN),
    ):
        values = forged[name].dropna()
        if len(values) >= 20:
            right.hist(
                values,
                bins=np.arange(np.floor(values.min()), values.max() + 0.5, 0.5),
                density=True,
                color=colour,
                alpha=0.45,
                label=label,
            )
        else:
            right.plot(
                values,
                np.full(len(values), 0.02 if name == "psi" else 0.05),
                "|",
                markersize=14,
                color=colour,
                label=label,
            )
    right.set(
        xlabel="statistic of the forged text",
        ylabel="density",
        title="What does a detector with memory say?",
    )
    style.legend_beside(right)
    return style.caption(figure, caption)


def family(rates: pd.DataFrame, level: float, caption: str) -> Figure:
    """The rate of any alarm in a batch, by kind and method (columns ``kind, method, value, low,
    high``).
    """
    figure, axes = plt.subplots()
    rates = rates.replace({"kind": LABELS})
    looks = dict(
        zip(rates["method"].unique(), ({"color": colour} for colour in style.COLOURS), strict=False)
    )
    intervals.dodged(axes, rates, "kind", "method", looks, step=0.15, horizontal=True)
    axes.axvline(level, **style.THIN)
    axes.set(xlabel="share of keys with any alarm in the batch")
    style.categories(axes, rates["kind"].unique())
    return style.caption(
        figure, caption, f"How often does a batch of human texts raise an alarm at {level}?"
    )
