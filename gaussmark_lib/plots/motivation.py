"""Figures of 01_motivation."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN
from gaussmark_lib.plots import intervals, style

WIDE = (8.6, 3.7)  # two panels
KINDS = {OWN: ("watermarked with this key", style.WATERMARKED), PLAIN: ("plain text", style.PLAIN)}


def log_ratio(table: pd.DataFrame, caption: str) -> Figure:
    """The log likelihood ratio of each text against its gradient form (columns ``kind, first_order,
    log_ratio``), nats a text.
    """
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for kind, (label, colour) in KINDS.items():
        rows = table[table["kind"] == kind]
        axes.scatter(
            rows["first_order"], rows["log_ratio"], s=18, alpha=0.6, color=colour, label=label
        )
    axes.axline((0, 0), slope=1, **style.THIN, label="equal")
    axes.set(
        xlabel="gradient form: ⟨ξ, G⟩ − σ²‖G‖²/2, nats", ylabel="log p_{θ+ξ}(y) − log p_θ(y), nats"
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, "Does the gradient know the likelihood ratio?")


def fresh_keys(table: pd.DataFrame, names: dict[int, str], caption: str) -> Figure:
    """Densities over keys of ⟨ξ, G⟩ and of ψ (columns ``text, inner, psi``), a colour a text."""
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    for (text, name), colour in zip(names.items(), style.COLOURS, strict=False):
        rows = table[table["text"] == text]
        for axes, column in ((left, "inner"), (right, "psi")):
            sns.histplot(
                rows[column],
                bins=min(20, int(len(rows) ** 0.5)),
                stat="density",
                element="poly",
                fill=False,
                color=colour,
                ax=axes,
                label=name,
            )
    style.normal_density(right)
    left.set(xlabel="⟨ξ, G⟩, nats", title="The inner product")
    right.set(xlabel="ψ = ⟨ξ, G⟩/(σ‖G‖)", ylabel="", title="Divided by its standard deviation")
    handles, labels = right.get_legend_handles_labels()
    right.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(
        figure, caption, "How large is ψ of a key that has nothing to do with the text?"
    )


def language_model(table: pd.DataFrame, caption: str) -> Figure:
    """Measured ψ and price (nats a token) of a language model against the prediction made from
    unwatermarked text.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    intervals.bars(
        left, table["predicted"], table, "psi", color=style.WATERMARKED, label="right key"
    )
    intervals.bars(
        left, table["predicted"], table, "wrong_psi", color=style.WRONG_KEY, label="wrong key"
    )
    x = np.linspace(0, table["predicted"].max() * 1.1, 100)
    left.plot(x, x, **style.THIN, label="as predicted")
    left.set(xlabel="predicted ψ = σ · median‖G‖ of plain text", ylabel="mean ψ", title="Strength")
    intervals.bars(
        right, table["predicted_price"], table, "price", color=style.WATERMARKED, label="measured"
    )
    top = table["predicted_price"].max() * 1.1
    right.plot([0, top], [0, top], **style.THIN, label="as predicted")
    right.locator_params(axis="x", nbins=5)
    right.set(
        xlabel="predicted price = ψ²/(2T), nats a token",
        ylabel="price, nats a token",
        title="Price",
    )
    return style.caption(figure, caption, "Do strength and price follow the prediction?")


def entropy(table: pd.DataFrame, caption: str) -> Figure:
    """Length of the gradient against entropy: of a coin, in closed form, and of a language model's
    texts (columns ``entropy, per_token``).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    q = np.linspace(1e-4, 1 - 1e-4, 400)
    left.plot(
        -q * np.log(q) - (1 - q) * np.log(1 - q), 2 * np.sqrt(q * (1 - q)), color=style.THEORY
    )
    left.set(
        xlabel="entropy, nats a toss",
        ylabel="√E(gradient²)",
        title="A coin: √(4q(1 − q))",
        xlim=(0, None),
        ylim=(0, None),
    )
    right.scatter(table["entropy"], table["per_token"], s=18, color=style.PLAIN)
    right.set(
        xlabel="mean entropy, nats a token",
        ylabel="‖G‖/√T",
        title="Plain texts of the language model",
        ylim=(0, 1.1 * table["per_token"].max()),
    )
    return style.caption(figure, caption, "Is a gradient longer where the model is less sure?")
