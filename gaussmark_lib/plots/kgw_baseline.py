"""Figures of 08_kgw_baseline: schemes side by side, each in its colour (``style.SCHEMES``)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.corrupt import ALL_OR_NOTHING
from gaussmark_lib.experiments.kgw_baseline import LEVELS, PARTS
from gaussmark_lib.plots import intervals, style


def against_tokens(medians: pd.DataFrame, caption: str) -> Figure:
    """Median p against tokens, a line a scheme (columns ``scheme, n_tokens, value, low, high``),
    with the levels that are asked for.
    """
    figure, axes = plt.subplots(figsize=(8.0, 4.8))
    schemes = medians["scheme"].unique()
    for name, shift in zip(schemes, intervals.offsets(len(schemes), 0.012), strict=True):
        rows = medians[medians["scheme"] == name]
        intervals.bars(
            axes,
            rows["n_tokens"] * (1 + shift),
            rows,
            linestyle="-",
            markersize=5,
            capsize=2,
            label=name,
            **style.scheme(name),
        )
    for level in LEVELS:
        axes.axhline(level, **style.DOTTED)
    axes.set(
        yscale="log",
        ylim=(max(1e-30, medians["low"].min() / 10), 2),
        xlabel=style.TOKENS,
        ylabel="median p-value",
    )
    style.log_ticks(axes, medians["n_tokens"])
    style.legend_beside(axes)
    return style.caption(figure, caption, "How fast does the median p fall with the tokens?")


def tokens_needed(needed: pd.DataFrame, lengths: Sequence[int], caption: str) -> Figure:
    """Tokens for a true positive rate of one half, a row a level, a colour a scheme; an arrow where
    the longest texts are too short.

    An end that is not known (NaN) has neither bar nor arrow.
    """
    longest = lengths[-1]
    table = needed.assign(row=needed["level"].map("{:g}".format))
    within = table.assign(
        high=table["high"].clip(upper=longest),
        value=table["value"].where(table["value"] <= longest),
    )
    looks = style.schemes(table["scheme"].unique())
    figure, axes = plt.subplots(figsize=(8.0, 1.2 + 0.17 * len(table)))
    intervals.dodged(
        axes, within, "row", "scheme", looks, step=0.7 / len(looks), horizontal=True, markersize=6
    )
    places = {name: place for place, name in enumerate(table["row"].unique())}
    for scheme, shift in zip(looks, intervals.offsets(len(looks), 0.7 / len(looks)), strict=True):
        for row in table[
            (table["scheme"] == scheme) & np.isinf(table[["value", "high"]]).any(axis=1)
        ].itertuples():
            start = longest if row.value <= longest else np.fmin(row.low, longest)
            arrow = {"arrowstyle": "->", "color": looks[scheme]["color"]}
            axes.annotate(
                "",
                (1.25 * longest, places[row.row] + shift),
                (start, places[row.row] + shift),
                arrowprops=arrow,
            )
    style.categories(axes, list(places))
    style.log_ticks(axes, lengths)
    axes.axvline(longest, **style.THIN)
    axes.set(xlim=(0.9 * lengths[0], 1.3 * longest), ylabel="false positive rate")
    axes.set_xlabel(f"tokens (at {lengths[0]}: that or fewer; arrow: not within {longest})")
    style.legend_beside(axes)
    return style.caption(figure, caption, "Tokens at which half of the texts are detected")


def after_edits(summary: pd.DataFrame, figure_name: str, caption: str) -> Figure:
    """One figure of detection against the share of tokens edited, a panel an edit, a line a scheme,
    with intervals.
    """
    names, schemes = summary["corruption"].unique(), summary["scheme"].unique()
    columns = min(3, len(names))
    figure, panels = plt.subplots(
        -(-len(names) // columns),
        columns,
        figsize=(10.2, 3.3 * -(-len(names) // columns)),
        sharey=True,
        squeeze=False,
    )
    step = 0.04 * summary["fraction"].max() / len(schemes)
    for axes, name in zip(panels.flat, names, strict=False):
        for scheme, shift in zip(schemes, intervals.offsets(len(schemes), step), strict=True):
            rows = summary[
                (summary["corruption"] == name)
                & (summary["scheme"] == scheme)
                & (summary["figure"] == figure_name)
            ]
            rows = rows.sort_values("fraction")
            look = {
                "linestyle": "-",
                "markersize": 5,
                "capsize": 2,
                "label": scheme,
            } | style.scheme(scheme)
            intervals.bars(axes, rows["fraction"] + shift, rows, **look)
        whole = name in ALL_OR_NOTHING
        axes.set(title=f"{name} (all or nothing)" if whole else name, ylim=(-0.04, 1.04))
        axes.set_xlabel("0: as written; above 0: in full" if whole else "share of tokens edited")
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for row in panels:
        row[0].set_ylabel(figure_name)
    style.legend_beside(panels.flat[columns - 1])
    return style.caption(figure, caption, "What is left after edits?")


def in_parts(parts: pd.DataFrame, caption: str) -> Figure:
    """What the change of the cross-entropy is made of (rows of ``kgw_baseline.in_parts``): a row a
    scheme, a mark a part.
    """
    markers = {
        "price": ("o", style.COLOURS[7]),
        "change of entropy": ("d", style.COLOURS[0]),
        "Δ cross-entropy": ("|", "black"),
    }
    looks = {
        part: {
            "marker": markers[part][0],
            "color": markers[part][1],
            "markersize": 14 if markers[part][0] == "|" else 6,
        }
        for part in PARTS
    }
    figure, axes = plt.subplots(figsize=(8.0, 1.4 + 0.55 * parts["scheme"].nunique()))
    intervals.dodged(axes, parts, "scheme", "part", looks, step=0.22, horizontal=True)
    axes.axvline(0, **style.THIN)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlabel("nats a token (linear within ±0.1)")
    style.categories(axes, parts["scheme"].unique())
    style.legend_beside(axes)
    return style.caption(figure, caption, "Δ cross-entropy = price + change of entropy")


def pareto(table: pd.DataFrame, caption: str) -> Figure:
    """Evidence of a text against its price, both in nats, a point a scheme with both intervals, and
    the line on which they are equal.

    Columns: ``scheme``, ``evidence, evidence_low, evidence_high`` and ``nats, nats_low,
    nats_high``.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.8))
    parts = ["evidence", "evidence_low", "evidence_high"]
    shown = table.assign(**table[parts].clip(lower=0.05))  # a median p of one half or more has none
    for name, rows in shown.groupby("scheme", sort=False):
        look = {"markersize": 8, "label": name} | style.scheme(name)
        intervals.bars(
            axes, rows["nats"], rows, "evidence", xerr=intervals.sides(rows, "nats"), **look
        )
    both = shown[[*parts, "nats_low", "nats_high"]].to_numpy()
    ends = np.array([np.nanmin(both), np.nanmax(both)])
    axes.plot(ends, ends, **style.DASHED, label="a nat of evidence\nfor each nat paid")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="price: nats of distance from the base model, a text",
        ylabel="evidence of the median text, nats",
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, "What does a nat of price buy?")


def tails(realised: pd.DataFrame, caption: str, least: float = 3.0) -> Figure:
    """Realised over nominal level of two tests (columns ``test, level, value, low, high, n,
    expected``): computed, and measured with exact intervals at the levels at which at least
    ``least`` alarms are expected.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.0))
    for (test, rows), colour, shift in zip(
        realised.groupby("test", sort=False),
        (style.COLOURS[0], style.COLOURS[3]),
        (0.9, 1.11),
        strict=False,
    ):
        ratios = rows[["value", "low", "high", "expected"]].div(rows["level"], axis=0)
        axes.plot(rows["level"], ratios["expected"], "-", color=colour, label=f"{test}, computed")
        enough = rows["expected"] * rows["n"] >= least
        if enough.any():
            intervals.bars(
                axes,
                rows["level"][enough] * shift,
                ratios[enough],
                color=colour,
                label=f"{test}, measured",
            )
    axes.axhline(1, **style.THIN)
    axes.set(xlabel="nominal level", ylabel="realised over nominal level", ylim=(0, None))
    style.log_ticks(axes, realised["level"])
    style.legend_beside(axes)
    return style.caption(figure, caption, "Does the realised level equal the nominal one?")


def seconds(times: pd.DataFrame, caption: str) -> Figure:
    """Seconds of each task in each repeat (rows of ``speed.alternating`` with a column ``of``), a
    panel for each value of ``of``.
    """
    groups = list(times.groupby("of", sort=False))
    tallest = max(rows["task"].nunique() for _, rows in groups)
    figure, panels = plt.subplots(
        1, len(groups), figsize=(10, 1.4 + 0.3 * tallest), layout="constrained"
    )
    for axes, (of, rows) in zip(panels, groups, strict=True):
        medians = rows.groupby("task", sort=False)["seconds"].median()
        for place, task in enumerate(medians.index):
            each = rows[rows["task"] == task]["seconds"]
            axes.plot(
                each,
                [place] * len(each),
                linestyle="none",
                markersize=5,
                alpha=0.8,
                **style.scheme(task),
            )
        axes.plot(medians, range(len(medians)), "|", markersize=18, color="black", label="median")
        style.categories(axes, medians.index)
        axes.set(xlim=(0, 1.1 * rows["seconds"].max()), xlabel="seconds", title=of)
    style.legend_beside(panels[-1])
    return style.caption(figure, caption, "How long does each scheme take?")
