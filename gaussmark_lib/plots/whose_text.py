"""Figures of 13_whose_text."""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style

KINDS = {
    "own key": style.WATERMARKED,
    "another user's key": style.WRONG_KEY,
    "human texts": style.PLAIN,
}


def naming(curve: pd.DataFrame, measured: pd.DataFrame, n_users: int, caption: str) -> Figure:
    """Share named rightly against ψ: a line for each number of base noises (``n_base, psi, share,
    nats``), and the measured texts on theirs.

    Dotted: the ψ at which the capacity is the cost of a name, ln N; for large m and N the share
    goes from 0 to 1 there.
    """
    figure, axes = plt.subplots(figsize=(7.4, 4.4))
    for (n_base, rows), colour in zip(curve.groupby("n_base"), style.COLOURS, strict=False):
        axes.plot(rows["psi"], rows["share"], color=colour, label=f"theory, {n_base:,} base noises")
        if (rows["nats"] >= np.log(n_users)).any():
            axes.axvline(
                np.interp(np.log(n_users), rows["nats"], rows["psi"]),
                **style.DOTTED | {"color": colour},
            )
    if (curve["nats"] >= np.log(n_users)).any():
        axes.plot([], [], **style.DOTTED, label="capacity = ln N, in the line's colour")
    intervals.bars(
        axes, measured["psi"], measured, color="black", zorder=5, label="measured, by length"
    )
    for row in measured.itertuples():
        axes.annotate(
            f"{row.n_tokens} tokens",
            (row.psi, row.value),
            xytext=(8, -4),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set(
        xlabel="mean ψ under the author's own key", ylabel="share named rightly", ylim=(-0.03, 1.05)
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, f"How much ψ does a name among {n_users:,} cost?")


def nobodys(table: pd.DataFrame, caption: str) -> Figure:
    """Observed against expected quantiles of the p-value over all users, exact and Bonferroni's, of
    texts that no user wrote.
    """
    figure, axes = plt.subplots(figsize=(5.6, 4.8))
    exact = stats.qq(table["p_family"])
    axes.fill_between(
        exact["expected"],
        exact["low"],
        exact["high"],
        color="0.88",
        label=f"95% pointwise, n = {len(table):,}",
    )
    axes.plot([1e-4, 1], [1e-4, 1], **style.THIN)
    axes.plot(
        exact["expected"], exact["observed"], ".-", linewidth=0.8, markersize=4, label="exact"
    )
    bound = stats.qq(table["bonferroni"])
    axes.plot(
        bound["expected"],
        bound["observed"],
        ".-",
        linewidth=0.8,
        markersize=4,
        label="Bonferroni's bound",
    )
    low = 0.5 / len(table)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, 1.2),
        ylim=(low / 2, 1.2),
        xlabel="expected quantile of a uniform p",
        ylabel="observed p",
    )
    axes.legend(loc="upper left")
    return style.caption(figure, caption, "p over all users, for texts that no user wrote")


def costs(
    table: pd.DataFrame, per_key: float, n_base: int, megabytes: float, caption: str
) -> Figure:
    """Seconds to test one text for all users against their number: by the codebook, measured, and
    by independent keys, N times one's.
    """
    figure, axes = plt.subplots(figsize=(6.6, 4.0))
    n = np.geomspace(10, table["n_users"].max(), 50)
    axes.plot(
        n,
        per_key * n,
        color=style.PLAIN,
        label=f"independent keys, {per_key * 1000:.2g} ms each; noises {megabytes / 1000:,.1f} GB",
    )
    axes.plot(
        table["n_users"],
        table["seconds"],
        "o-",
        color=style.WATERMARKED,
        label=f"codebook, {n_base:,} base noises",
    )
    axes.set(
        xscale="log", yscale="log", xlabel="users", ylabel="seconds a text, beside its gradient"
    )
    axes.legend(loc="upper left")
    return style.caption(figure, caption, "What does it cost to try every user?")


def authors(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ of n texts together, by kind, with 95% intervals over users; the prediction σ‖ΣG‖ of
    marked texts.
    """
    figure, axes = plt.subplots(figsize=(6.8, 4.2))
    for kind, colour in KINDS.items():
        rows = table[table["kind"] == kind].groupby("n_texts")["psi"]
        several = pd.DataFrame([{"n_texts": n} | stats.mean(psi).row() for n, psi in rows])
        intervals.bars(axes, several["n_texts"], several, linestyle="-", color=colour, label=kind)
    predicted = table[table["kind"] == "own key"].groupby("n_texts")["predicted"].mean()
    axes.plot(
        predicted.index, predicted, "x--", color=style.THEORY, label="σ‖ΣG‖ of the author's texts"
    )
    axes.axhline(0, **style.THIN)
    style.log_ticks(axes, table["n_texts"])
    axes.set(xlabel="texts tested together", ylabel="ψ of their summed gradient")
    style.legend_beside(axes)
    return style.caption(figure, caption, "How does ψ grow with the number of an author's texts?")


def scan(
    rates: pd.DataFrame,
    marked: pd.DataFrame,
    true: tuple[int, int],
    n_tokens: int,
    level: float,
    caption: str,
) -> Figure:
    """Left: share of pairs below the level, by test, of marked and of human texts. Right: the span
    that the scan found in each, 60 at most.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2))
    looks = dict(
        zip(
            rates["kind"].unique(),
            ({"color": style.WATERMARKED}, {"color": style.PLAIN}),
            strict=True,
        )
    )
    intervals.dodged(left, rates, "test", "kind", looks, horizontal=True)
    left.axvline(level, **style.DOTTED)
    left.set(
        xlabel=f"share with p ≤ {level}",
        xlim=(-0.02, 1.02),
        title="Which test finds a marked span?",
    )
    style.categories(left, rates["test"].unique())
    shown = marked.head(60).sort_values(["start", "end"])
    right.axvspan(*true, color="0.88", label="marked")
    found = shown["scan, exact"] <= level
    for chosen, look, sign in ((found, "-", "≤"), (~found, ":", ">")):
        places = np.flatnonzero(chosen)
        right.hlines(
            places,
            shown["start"][chosen],
            shown["end"][chosen],
            color=style.WATERMARKED,
            linestyle=look,
            label=f"p {sign} {level}",
        )
    right.set(
        xlim=(0, n_tokens),
        xlabel=style.TOKENS,
        ylabel="text" if len(shown) == len(marked) else f"the first {len(shown)} texts",
        yticks=[],
        title="Where does the scan find it?",
    )
    style.legend_beside(right)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return style.caption(figure, caption)
