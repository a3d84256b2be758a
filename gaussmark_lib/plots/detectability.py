"""Figures of 03_detectability."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style


def median_p(figures: pd.DataFrame, plain: pd.Series, caption: str) -> Figure:
    """Median p of watermarked text against length with its interval (``by_length``), and of plain
    text (a Series by length).
    """
    figure, axes = plt.subplots()
    rows = figures[figures["figure"] == "median p"]
    intervals.band(
        axes, rows["n_tokens"], rows, label="watermarked, its own key", color=style.WATERMARKED
    )
    axes.plot(plain.index, plain, marker="s", color=style.PLAIN, label="plain text")
    for level in (0.05, 0.01):
        axes.axhline(level, **style.DOTTED)
        axes.text(
            plain.index[0], level * 1.1, f"level {level}", color=style.THEORY, fontsize="small"
        )
    axes.set(yscale="log", xlabel=style.TOKENS, ylabel="median p-value")
    style.log_ticks(axes, figures["n_tokens"])
    return style.caption(figure, caption, "How does the median p-value fall with the length?")


def power(compared: pd.DataFrame, figures: pd.DataFrame, caption: str) -> Figure:
    """A panel a level: measured TPR with intervals, the predicted one (``against_prediction``), and
    false positives of plain text (``by_length``).
    """
    names = compared["figure"].unique()
    figure, panels = plt.subplots(
        1, len(names), figsize=(4.9 * len(names), 4.0), sharey=True, squeeze=False
    )
    for axes, name in zip(panels[0], names, strict=True):
        rows = compared[compared["figure"] == name]
        intervals.band(axes, rows["n_tokens"], rows, label="measured", color=style.WATERMARKED)
        axes.plot(
            rows["n_tokens"],
            rows["predicted"],
            "x--",
            color=style.THEORY,
            label="predicted from plain text",
        )
        false = figures[figures["figure"] == name.replace("TPR", "false positives")]
        axes.plot(
            false["n_tokens"],
            false["value"],
            "s:",
            color=style.PLAIN,
            label="plain text called watermarked",
        )
        axes.set(ylim=(-0.02, 1.02), xlabel=style.TOKENS, title=name)
        style.log_ticks(axes, compared["n_tokens"])
    panels[0, 0].set_ylabel("share of texts detected")
    panels[0, -1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(
        figure, caption, "How many texts are detected, and how many were predicted?"
    )


def roc(
    curves: dict[int, tuple[np.ndarray, np.ndarray]], aucs: pd.DataFrame, caption: str
) -> Figure:
    """ROC curves by length ({tokens: (ψ of plain text, ψ of watermarked text)}) beside AUC against
    length with its interval.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2))
    for colour, (n_tokens, (null, watermarked)) in zip(
        sns.color_palette("flare", len(curves)), curves.items(), strict=True
    ):
        points = stats.roc(null, watermarked)
        left.plot(
            points["fpr"],
            points["tpr"],
            color=colour,
            drawstyle="steps-post",
            label=f"{n_tokens} tokens",
        )
    left.plot([0, 1], [0, 1], **style.DOTTED)
    left.set(
        xlabel="plain texts called watermarked",
        ylabel="watermarked texts detected",
        title="ROC, by the threshold for ψ",
        aspect="equal",
    )
    left.legend(loc="lower right")
    intervals.band(right, aucs["n_tokens"], aucs, color=style.WATERMARKED)
    right.axhline(0.5, **style.DOTTED)
    right.set(
        xlabel=style.TOKENS,
        ylabel="area under the ROC",
        title="The area under it",
        ylim=(min(0.45, aucs["low"].min()), 1.01),
    )
    style.log_ticks(right, aucs["n_tokens"])
    return style.caption(figure, caption, "Does ψ tell watermarked texts from plain ones?")


def norms(table: pd.DataFrame, slope: float, caption: str) -> Figure:
    """‖G‖ and ‖G‖² of each text against length (columns ``n_tokens, grad_norm``), with the line
    ‖G‖² = slope · tokens.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.0))
    grid = np.linspace(0, table["n_tokens"].max(), 100)
    titles = "Does ‖G‖ grow like the root of the length?", "Does its square grow like the length?"
    for axes, power_of, name, title in zip(panels, (1, 2), ("‖G‖", "‖G‖²"), titles, strict=True):
        values = table["grad_norm"] ** power_of
        axes.scatter(
            table["n_tokens"], values, s=8, alpha=0.35, color=style.PLAIN, label="a plain text"
        )
        means = values.groupby(table["n_tokens"]).mean()
        axes.plot(means.index, means, "o-", color=style.PLAIN, label="mean")
        axes.plot(
            grid,
            (slope * grid) ** (power_of / 2),
            color=style.THEORY,
            linestyle="--",
            label=f"‖G‖² = {slope:.3g} · tokens",
        )
        axes.set(xlabel=style.TOKENS, ylabel=name, title=title)
    return style.caption(figure, caption)


def spread(table: pd.DataFrame, caption: str) -> Figure:
    """‖G‖ of many responses to few prompts (columns ``prompt, grad_norm``)."""
    figure, axes = plt.subplots()
    points = {"size": 4, "alpha": 0.6, "jitter": 0.25, "color": style.PLAIN}
    sns.stripplot(table, x="grad_norm", y="prompt", orient="y", ax=axes, **points)
    axes.set(xlabel="‖G‖", ylabel="prompt", xlim=(0, None))
    return style.caption(figure, caption, "‖G‖ of many responses to the same prompt")


def entropy(tokens: pd.DataFrame, texts: pd.DataFrame, caption: str) -> Figure:
    """Left: ‖∇ log p‖ of single tokens by the entropy before them. Right: ψ of whole texts by their
    mean entropy, a colour a temperature.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.0))
    left.scatter(
        tokens["entropy"], tokens["grad_norm"], s=9, alpha=0.35, color=style.PLAIN, label="a token"
    )
    bins = tokens.assign(
        bin=pd.qcut(tokens["entropy"], 6, labels=False, duplicates="drop")
    ).groupby("bin")
    rms = bins["grad_norm"].agg(lambda norm: np.sqrt(np.mean(norm**2)))
    left.plot(
        bins["entropy"].mean(),
        rms,
        "o-",
        color="black",
        label="root mean square of each sixth of the tokens",
    )
    left.set(
        xlabel="entropy before the token  [nats]\nof the base model at temperature 1",
        ylabel="‖∇ log p‖ of the token",
    )
    left.set_title("Has a token of low entropy a small gradient?")
    left.set_ylim(top=1.3 * tokens["grad_norm"].max())
    left.legend(loc="upper left")
    sns.scatterplot(texts, x="entropy", y="psi", hue="temperature", palette="flare", s=26, ax=right)
    means = texts.groupby("temperature")[["entropy", "psi"]].mean()
    right.plot(means["entropy"], means["psi"], "D-", color="black", markersize=7, label="mean")
    right.set(
        xlabel="mean entropy along the text  [nats]\nof the base model at temperature 1",
        ylabel="ψ under its own key",
    )
    right.set_title("Has a text of low entropy a small ψ?")
    right.set_ylim(top=texts["psi"].max() + 0.4 * np.ptp(texts["psi"]))
    right.legend(title="temperature", loc="upper left", ncols=2)
    return style.caption(figure, caption)
