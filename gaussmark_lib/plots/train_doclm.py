"""Figures of 20_train_doclm."""

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.plots import style


def sources(corpus: pd.DataFrame, caption: str) -> Figure:
    """Characters of prose of each package (columns ``source``, ``text``), the 15 largest first."""
    package = corpus["source"].str.split("/").str[0].str.removesuffix(".py")
    sizes = (
        (corpus["text"].str.len().groupby(package).sum() / 1e6)
        .sort_values(ascending=False)
        .head(15)
    )
    figure, axes = plt.subplots()
    sns.barplot(x=sizes.to_numpy(), y=sizes.index, color=style.PLAIN, ax=axes)
    axes.set(xlabel="prose (million characters)", ylabel="")
    return style.caption(figure, caption, "Where does the text come from?")


def curves(curves: dict[str, pd.DataFrame], caption: str) -> Figure:
    """Training and held-out loss (nats per token) against tokens seen, log axis, a colour a run
    (frames with ``tokens, loss, held_out``).
    """
    figure, axes = plt.subplots()
    for colour, (name, curve) in zip(style.COLOURS, curves.items(), strict=False):
        axes.plot(
            curve["tokens"],
            curve["loss"],
            color=colour,
            linewidth=1,
            alpha=0.6,
            label=f"{name}, training",
        )
        axes.plot(
            curve["tokens"],
            curve["held_out"],
            color=colour,
            linestyle="--",
            marker=".",
            label=f"{name}, held out",
        )
    axes.set(xscale="log", xlabel="tokens seen", ylabel="loss (nats per token)")
    return style.caption(figure, caption, "What do training and held-out text cost?")
