"""Figures of 07_low_rank."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib.experiments.low_rank import top
from gaussmark_lib.plots import intervals, style
from gaussmark_lib.plots.robustness import survival


def _looks(names: Iterable[str]) -> dict[str, dict]:
    """The vanilla scheme in its colour, projections in shades of the rank-reduced scheme's, the
    darker the more is dropped.
    """
    names = list(names)
    reduced = [name for name in names if name != "GaussMark"]
    shades = sns.light_palette(style.scheme("rank-reduced")["color"], len(reduced) + 2)[2:]
    colours = dict(zip(reduced, shades, strict=True)) | {
        "GaussMark": style.scheme("GaussMark")["color"]
    }
    markers = dict(zip(names, cycle("osD^vPX*"), strict=False))
    return {
        name: {"color": colours[name], "marker": markers[name], "label": name} for name in names
    }


def spectrum(
    singular_values: np.ndarray,
    norms: Mapping[str, pd.DataFrame],
    shape: Sequence[int],
    caption: str,
) -> Figure:
    """Left: the weight's singular values. Right: share of ‖G‖² in the top-k directions against k/d,
    mean and range over texts, a line a side.

    Each side is drawn against its own d (of the weight's ``shape``, d_out × d_in), of which the
    weight has min(shape) directions; dotted: of ‖θ‖².
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9))
    d = len(singular_values)
    energy = (singular_values**2).cumsum() / (singular_values**2).sum()
    left.plot(np.arange(1, d + 1), singular_values, color=style.THEORY)
    left.set(
        xlabel="number of the direction",
        ylabel="singular value of the weight",
        title="Does the weight have strong directions?",
        ylim=(0, None),
    )
    for (side, table), colour in zip(norms.items(), style.OTHERS, strict=False):
        of_side = top(shape, side)[1]
        shares = table.groupby("rank_dropped")["share"].agg(value="mean", low="min", high="max")
        intervals.band(
            right,
            shares.index / of_side,
            shares,
            marker="",
            color=colour,
            label=f"of ‖G‖², {of_side} {side} directions",
        )
        right.plot(
            np.arange(1, d + 1) / of_side,
            energy,
            color=colour,
            linestyle=":",
            label=f"of the weight's ‖θ‖², {side}",
        )
    right.plot([0, 1], [0, 1], color=style.THEORY, linewidth=0.8)
    right.set(
        xlabel="k/d: share of the side's directions",
        ylabel="share in the top k",
        title="Does the gradient favour them?",
        ylim=(0, 1.02),
    )
    return style.caption(figure, caption)


def misuses(null: pd.DataFrame, detected: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: distribution of ψ of human text by statistic (``low_rank.misuses``), and Φ. Right:
    shares detected (``statistic, kind, value…``).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9))
    kinds = detected["kind"].unique()
    names = null["statistic"].unique()
    looks = {
        name: {"color": colour, "marker": marker}
        for name, colour, marker in zip(names, style.OTHERS, "osD", strict=False)
    }
    for name, look in looks.items():
        left.ecdf(null.loc[null["statistic"] == name, "psi"], color=look["color"], linewidth=1.4)
    intervals.dodged(right, detected, "kind", "statistic", looks, step=0.15)
    grid = np.linspace(-4, 4, 200)
    left.plot(grid, norm.cdf(grid), **style.DASHED, label="N(0, 1)")
    left.set(
        xlabel="ψ of human text, fresh keys",
        ylabel="share of ψ at or below",
        title="Under the null",
    )
    left.legend(loc="upper left")
    style.legend_beside(right)
    right.axhline(level, **style.DOTTED)
    right.set(
        xticks=range(len(kinds)),
        xticklabels=kinds,
        xlim=(-0.5, len(kinds) - 0.5),
        ylim=(-0.03, 1.03),
    )
    right.set(ylabel="share detected", title=f"At the threshold for level {level}")
    return style.caption(figure, caption, "Does the test notice a misuse of the projection?")


def power(compared: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ of the longest texts against k, measured with intervals and predicted
    (``low_rank.against_prediction``), all at one σ.
    """
    figure, axes = plt.subplots(figsize=(7, 3.9))
    longest = compared[compared["n_tokens"] == compared["n_tokens"].max()]
    intervals.bars(
        axes,
        longest["rank_dropped"],
        longest,
        "psi",
        color=style.WATERMARKED,
        label="measured, 95%",
    )
    axes.plot(
        longest["rank_dropped"],
        longest["predicted_psi"],
        "x--",
        color=style.THEORY,
        label="σ · mean ‖PG‖ of plain text",
    )
    axes.axhline(0, **style.THIN)
    axes.set(
        xlabel="k directions dropped", ylabel=f"mean ψ of {longest['n_tokens'].iloc[0]} tokens"
    )
    return style.caption(figure, caption, "How does ψ fall with k, at the same σ?")


def by_length(compared: pd.DataFrame, caption: str) -> Figure:
    """TPR at several levels against tokens, a panel a k (``low_rank.against_prediction`` with a
    column ``level``); dashed: predicted.
    """
    ranks = sorted(compared["rank_dropped"].unique())
    figure, panels = plt.subplots(
        1, len(ranks), figsize=(max(6.0, 2.9 * len(ranks)), 3.3), sharey=True, squeeze=False
    )
    levels = compared["level"].unique()
    step = 0.02 * np.ptp(compared["n_tokens"])
    for axes, rank in zip(panels[0], ranks, strict=True):
        for level, colour, shift in zip(
            levels, style.OTHERS, intervals.offsets(len(levels), step), strict=False
        ):
            rows = compared[(compared["rank_dropped"] == rank) & (compared["level"] == level)]
            intervals.bars(
                axes,
                rows["n_tokens"] + shift,
                rows,
                "tpr",
                capsize=2,
                markersize=5,
                color=colour,
                label=f"TPR at {level:g}",
            )
            axes.plot(rows["n_tokens"], rows["predicted_power"], "--", color=colour, linewidth=1)
        axes.set(xlabel=style.TOKENS, ylim=(-0.02, 1.03), title=f"k = {rank}")
    panels[0, 0].set_ylabel("share detected (dashed: predicted)")
    style.legend_beside(panels[0, -1])
    return style.caption(figure, caption, "How many texts are detected at each k?")


def against_sigma(
    median_p: pd.DataFrame, tasks: pd.DataFrame, level: float, caption: str
) -> Figure:
    """Against σ², a line a k: the median p-value (``low_rank.over_sigma``), and the change of
    accuracy in each task (rows of ``compare.table`` with ``scheme, sigma``), a panel a task;
    dashed: the margin of 5 points.
    """
    names = list(dict.fromkeys(tasks["metric"])) if len(tasks) else []
    figure, panels = plt.subplots(
        1, 1 + len(names), figsize=(4.6 * (1 + len(names)) + 1.2, 3.9), squeeze=False
    )
    looks = _looks(median_p.sort_values("rank_dropped")["scheme"].unique())
    quantities = [("median p", median_p, "value")] + [
        (name, tasks[tasks["metric"] == name], "difference") for name in names
    ]
    for axes, (label, table, column) in zip(panels[0], quantities, strict=True):
        for (name, look), shift in zip(
            looks.items(), 1 + intervals.offsets(len(looks), 0.06), strict=True
        ):
            rows = table[table["scheme"] == name].sort_values("sigma")
            intervals.bars(
                axes,
                shift * rows["sigma"] ** 2,
                rows,
                column,
                linestyle="-",
                linewidth=1,
                capsize=2,
                markersize=5,
                **look,
            )
        if column == "value":
            axes.set(xscale="log", yscale="log", xlabel="σ²", ylabel=label)
            axes.axhline(level, **style.DOTTED)
        else:
            axes.set(xscale="log", xlabel="σ²", ylabel=f"change of accuracy, {label}")
            for margin in (-0.05, 0.05):
                axes.axhline(margin, **style.DASHED)
        style.few_log_ticks(axes.xaxis)
    style.legend_beside(panels[0, -1])
    return style.caption(
        figure,
        f"{caption}; points of one σ² are shifted sideways",
        "What does σ² buy, and what does it cost?",
    )


def cost(curve: pd.DataFrame, caption: str) -> Figure:
    """Δ cross-entropy of human text against σ², and against the law's price on the model's own text
    (``low_rank.cost_curve``), a line a rank.

    Costs on a logarithmic axis only where all their intervals lie above 0: it would cut the others
    off.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 4.1), sharey=True)
    curve = curve.sort_values("sigma", kind="stable").assign(variance=lambda t: t["sigma"] ** 2)
    looks = _looks(curve.sort_values("rank_dropped", kind="stable")["scheme"].unique())
    for (name, look), shift in zip(
        looks.items(), 1 + intervals.offsets(len(looks), 0.025), strict=True
    ):
        rows = curve[curve["scheme"] == name]
        for axes, x in ((left, rows["variance"]), (right, shift * rows["law"])):
            intervals.bars(
                axes, x, rows, "delta", linestyle="-", markersize=4, capsize=2, linewidth=1, **look
            )
    along = np.geomspace(
        curve["law"].min() * 0.8, curve["law"].max() * 1.2
    )  # no straight line where only one axis is logarithmic
    right.plot(along, along, **style.DASHED, label="as much as the law's price")
    positive = (curve["delta_low"].fillna(curve["delta"]) > 0).all()
    left.set(
        xscale="log",
        yscale="log" if positive else "linear",
        xlabel="σ²",
        ylabel="Δ cross-entropy of human text, nats a token",
    )
    left.set_title("At the same σ²")
    right.set(
        xscale="log",
        xlabel="½σ²‖PG‖²/T: price by the law, nats a token",
        title="At the same price by the law",
    )
    for axis in (left.xaxis, right.xaxis, *([left.yaxis] if positive else [])):
        style.few_log_ticks(axis)
    if not positive:
        for axes in (left, right):
            axes.axhline(0, **style.THIN)
    style.legend_beside(right)
    return style.caption(
        figure,
        f"{caption}; points on the right are shifted sideways",
        "What does the watermark cost on human text?",
    )


def equal_price(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Each scheme's mean over vanilla's with its 95% interval (rows of ``compared.ratios``), a
    colour a quantity.

    Not all quantities have all schemes, and one without a ratio is left out.
    """
    tables = {
        quantity: known
        for quantity, table in tables.items()
        if len(known := table.dropna(subset="value"))
    } or tables
    rows = pd.concat(
        [table.assign(quantity=quantity) for quantity, table in tables.items()], ignore_index=True
    )
    names = list(max(tables.values(), key=len)["scheme"])
    rows = rows.sort_values(
        "scheme",
        key=lambda column: column.map({name: place for place, name in enumerate(names)}),
        kind="stable",
    )
    figure, axes = plt.subplots(figsize=(7.6, 0.75 * len(names) + 1.4))
    looks = {
        quantity: {"marker": marker, "color": colour}
        for quantity, marker, colour in zip(tables, "osD^v", style.OTHERS, strict=False)
    }
    intervals.dodged(axes, rows, "scheme", "quantity", looks, horizontal=True)
    axes.axvline(1, **style.THIN)
    style.categories(axes, names)
    axes.set(xlabel="over the vanilla scheme's")
    style.legend_beside(axes)
    return style.caption(figure, caption, "At the σ of equal price")


def robustness(shares: pd.DataFrame, against: pd.DataFrame, level: float, caption: str) -> Figure:
    """Left: share detected by corruption, own key and plain text (``compared.shares``); right: mean
    ψ less vanilla's (``under_corruption``).

    Both with a column ``label`` for what was done.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.1))
    labels, schemes = shares["label"].unique(), shares["scheme"].unique()
    looks = {
        name: {part: look[part] for part in ("color", "marker")}
        for name, look in _looks(schemes).items()
    }
    survival(left, shares, looks, level)
    intervals.dodged(right, against[against["figure"] == "statistic"], "label", "scheme", looks)
    right.axhline(0, **style.THIN)
    right.set(ylabel=f"mean ψ less {schemes[0]}'s", title="By how much do they differ? (paired)")
    right.set_xticks(range(len(labels)), labels, fontsize="small")
    right.legend(*left.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.caption(figure, caption)


def sides(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ with its interval beside the predicted one, a row a scheme (``scheme, predicted_psi,
    psi, psi_low, psi_high``).
    """
    figure, axes = plt.subplots(figsize=(6.4, 0.5 * len(table) + 2.2))
    intervals.bars(
        axes,
        range(len(table)),
        table,
        "psi",
        horizontal=True,
        color=style.WATERMARKED,
        label="measured, 95%",
    )
    axes.plot(
        table["predicted_psi"],
        range(len(table)),
        "x",
        color=style.THEORY,
        markersize=8,
        label="predicted from plain text",
    )
    style.categories(axes, table["scheme"])
    axes.set(xlabel="mean ψ", xlim=(0, None))
    axes.legend(loc="lower left")
    return style.caption(figure, caption, "At equal price: from the left, the right, both sides")
