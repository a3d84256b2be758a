"""Figures of 05_quality: what the watermark costs."""

from collections.abc import Iterable
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gaussmark_lib.plots import intervals, style

CONTROLS = {  # what is no scheme of ``style.SCHEMES``, and the positive controls
    "base": {"color": "0.25", "marker": "|"},
    "base, another seed": {"color": style.PLAIN, "marker": "o"},
    "GaussMark, strong": {"color": style.COLOURS[3], "marker": ">"},
    "destroyed": {"color": "0.55", "marker": "X"},
}


def _look(name: str) -> dict[str, str | tuple]:
    """Colour and marker of a contender, the same in all figures of this notebook."""
    return CONTROLS.get(name) or style.scheme(name)


def _rows(
    axes: Axes, table: pd.DataFrame, names: Iterable[str], column: str = "difference"
) -> None:
    """A row a model, each in its colour."""
    places = {name: place for place, name in enumerate(names)}
    for _, row in table.iterrows():
        intervals.bars(
            axes,
            places[row["model"]],
            row.to_frame().T,
            column,
            horizontal=True,
            **_look(row["model"]),
        )


def cross_entropy(nats: dict[str, np.ndarray], caption: str) -> Figure:
    """Each passage's change of cross-entropy against the base model's value, a panel a model. The
    first of ``nats`` is the base.
    """
    (first, base), *others = nats.items()
    figure, panels = plt.subplots(
        1, len(others), figsize=(4.6 * len(others), 3.7), sharey=True, squeeze=False
    )
    for axes, (name, values) in zip(panels[0], others, strict=True):
        change, look = values - base, _look(name)
        axes.plot(base, change, look["marker"], markersize=4, alpha=0.6, color=look["color"])
        axes.axhline(change.mean(), color=look["color"], linewidth=1.2)
        axes.axhline(0, **style.THIN)
        axes.set(
            xlabel=f"{first} model: nats a token of a passage",
            title=f"{name}: mean change {change.mean():+.4f}",
        )
    panels[0, 0].set_ylabel("change, nats a token")
    return style.caption(figure, caption, "By how much does a passage’s cross-entropy change?")


def tasks(table: pd.DataFrame, chance: dict[str, float], caption: str) -> Figure:
    """Change of accuracy with its 95% interval, a panel a task, a row a model (rows of
    ``compare.table``), beside the margin stated beforehand.
    """
    names = table["model"].unique()
    groups = list(table.groupby("metric", sort=False))
    figure, panels = plt.subplots(
        1,
        len(groups),
        figsize=(3.4 * len(groups) + 1.4, 0.42 * len(names) + 2),
        sharey=True,
        squeeze=False,
    )
    for axes, (task, rows) in zip(panels[0], groups, strict=True):
        axes.axvspan(-0.05, 0.05, color="0.92", zorder=0, label="margin ±5 points")
        _rows(axes, rows, names)
        axes.axvline(0, **style.THIN)
        beside = f", chance {chance[task]:.0%}" if task in chance else ""
        axes.set(
            xlabel="change of accuracy", title=f"{task}\nbase {rows['base'].iloc[0]:.0%}{beside}"
        )
    style.categories(panels[0, 0], names, room=0.6)
    style.legend_beside(panels[0, -1])
    return style.caption(figure, caption, "Does the accuracy in the tasks change?")


def _around_value(rows: pd.DataFrame) -> pd.DataFrame:
    """``value`` with the interval that ``compare.table`` gives for its ``difference`` from the
    base.
    """
    base = rows["value"] - rows["difference"]
    return rows.assign(low=base + rows["low"], high=base + rows["high"])


def two_sample(table: pd.DataFrame, caption: str) -> Figure:
    """A row a model (of ``compare.table``). Left: how surprising its MMD² is, as −log₁₀ p; right:
    the classifier's accuracy with its interval.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.4, 0.42 * table["model"].nunique() + 2), sharey=True
    )
    names = table["model"].unique()
    mmd, told = (
        table[table["metric"] == metric].set_index("model").loc[names].reset_index()
        for metric in ("MMD²", "classifier")
    )
    for place, row in mmd.iterrows():
        left.barh(place, -np.log10(row["p_value"]), color=_look(row["model"])["color"], height=0.5)
    left.axvline(-np.log10(0.05), **style.THIN)
    left.set(xlabel="MMD: −log₁₀ p (permutation; line: p = 0.05)", title="Told apart by MMD?")
    _rows(right, _around_value(told), names, "value")
    right.axvline(0.5, **style.THIN, label="chance")
    right.set(
        xlabel="classifier: share of pairs told apart (95%)",
        title="By a trained classifier?",
        xlim=(-0.02, 1.02),
    )
    style.categories(left, names, room=0.6)
    style.legend_beside(right)
    return style.caption(figure, caption)


def diversity(varied: dict[str, pd.DataFrame], columns: dict[str, str], caption: str) -> Figure:
    """Mean of each measure with its 95% interval, a panel a measure, a row a model."""
    figure, panels = plt.subplots(
        1,
        len(columns),
        figsize=(2.7 * len(columns) + 1, 0.42 * len(varied) + 1.8),
        sharey=True,
        squeeze=False,
    )
    for axes, (column, label) in zip(panels[0], columns.items(), strict=True):
        for place, (name, table) in enumerate(varied.items()):
            low, high = _bootstrap(table[column].dropna().to_numpy(float))
            mean = pd.DataFrame({"value": [table[column].mean()], "low": [low], "high": [high]})
            intervals.bars(axes, place, mean, horizontal=True, **_look(name))
        axes.set(xlabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(3))
    style.categories(panels[0, 0], list(varied), room=0.6)
    return style.caption(figure, caption, "Are the texts as varied, and as long?")


def _bootstrap(values: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean."""
    draws = np.random.default_rng(0).choice(values, (500, len(values)))
    return tuple(np.quantile(draws.mean(1), [0.025, 0.975]))


def win_rates(table: pd.DataFrame, reference: str, caption: str) -> Figure:
    """Win rate with its 95% interval, a row a model; the band is the interval of ``reference``: the
    base model against itself.
    """
    figure, axes = plt.subplots(figsize=(7, 0.45 * len(table) + 1.9))
    band = table.set_index("model").loc[reference]
    axes.axvspan(
        0.5 + band["low"], 0.5 + band["high"], color="0.88", label=f"{reference}: its interval"
    )
    _rows(axes, _around_value(table), list(table["model"]), "value")
    axes.axvline(0.5, **style.THIN)
    axes.set(xlabel="win rate against the base model")
    style.categories(axes, table["model"], room=0.7)
    style.legend_beside(axes)
    return style.caption(figure, caption, "Which texts does the judge prefer?")


def exchange(rates: pd.DataFrame, n_tokens: int, caption: str) -> Figure:
    """Δ cross-entropy against mean ψ, a line a weight, with 95% intervals (rows of
    ``exchange.rates``), beside ψ²/(2T); a panel a kind of text.

    The weights are named as the table names them.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10.2, 4.4), sharey=True)
    grid = np.linspace(0, 1.08 * rates["psi_high"].max(), 100)
    law = grid**2 / (2 * n_tokens)
    for axes, (text, title) in zip(
        panels, {"own": "On the model's own text", "human": "On human text"}.items(), strict=True
    ):
        axes.fill_between(grid, 0.7 * law, 1.3 * law, color="0.9", label="within 30%")
        axes.plot(grid, law, color=style.THEORY, linewidth=1.4, label="ψ²/(2T)")
        of_text = rates[rates["text"] == text].groupby("weight", sort=False)
        for (weight, rows), marker, colour in zip(
            of_text, cycle("osD^vP*X"), cycle(style.OTHERS), strict=False
        ):
            rows = rows.sort_values("psi")
            look = {
                "linestyle": "-",
                "linewidth": 1,
                "capsize": 2,
                "marker": marker,
                "color": colour,
                "label": weight,
            }
            intervals.bars(
                axes, rows["psi"], rows, "delta", xerr=intervals.sides(rows, "psi"), **look
            )
        axes.set(xlabel=f"mean ψ of {n_tokens} tokens", title=title)
    panels[0].set_ylabel("Δ cross-entropy, nats a token")
    style.legend_beside(panels[1])
    return style.caption(figure, caption, "What does a mean ψ cost?")
