"""Figures of 05_quality: what the watermark costs."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib.experiments import layer_sigma_sweep
from gaussmark_lib.plots import intervals, style


def cross_entropy(nats: dict[str, np.ndarray], caption: str) -> Figure:
    """Each passage's change of cross-entropy against the base model's value, a colour a model. The first of ``nats`` is the base."""
    figure, axes = plt.subplots()
    (first, base), *others = nats.items()
    for (name, values), colour in zip(others, style.COLOURS, strict=False):
        change = values - base
        axes.plot(base, change, "o", markersize=4, alpha=0.55, color=colour, label=f"{name}: mean {change.mean():+.4f}")
        axes.axhline(change.mean(), color=colour, linewidth=1.2)
    axes.axhline(0, **style.THIN)
    axes.set(xlabel=f"{first}: nats a token of a passage", ylabel="change, nats a token")
    return style.caption(figure, caption, "The price is small beside the differences between passages")


def tasks(table: pd.DataFrame, chance: dict[str, float], caption: str) -> Figure:
    """Change of accuracy with its 95% interval, a row a task and model (rows of ``compare.table``), beside the margin that was called harmless."""
    figure, axes = plt.subplots(figsize=(6.8, 0.55 * len(table) + 1.9))
    labels = []
    for place, row in enumerate(table.itertuples()):
        colour = style.WATERMARKED if row.flagged else style.PLAIN
        intervals.bars(axes, place, table.iloc[[place]], "difference", horizontal=True, color=colour)
        beside = f", chance {chance[row.metric]:.0%}" if row.metric in chance else ""
        labels.append(f"{row.metric}, {row.model}\nbase {row.base:.1%}{beside}")
    axes.axvspan(-0.05, 0.05, color="0.92", zorder=0, label="margin ±5 points")
    axes.axvline(0, **style.THIN)
    axes.set(xlabel="change of accuracy")
    style.categories(axes, labels, room=0.6)
    axes.legend(loc="lower left")
    return style.caption(figure, caption, "Change of accuracy on the same items")


def _around_value(rows: pd.DataFrame) -> pd.DataFrame:
    """``value`` with the interval that ``compare.table`` gives for its ``difference`` from the base."""
    base = rows["value"] - rows["difference"]
    return rows.assign(low=base + rows["low"], high=base + rows["high"])


def two_sample(table: pd.DataFrame, caption: str) -> Figure:
    """A row a model (of ``compare.table``). Left: how surprising its MMD² is, as −log₁₀ p; right: the classifier's accuracy with its interval."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True)
    names = table["model"].unique()
    mmd, told = (table[table["metric"] == metric].set_index("model").loc[names] for metric in ("MMD²", "classifier"))
    colours = [style.WATERMARKED if flagged else style.PLAIN for flagged in mmd["flagged"]]
    left.barh(range(len(names)), -np.log10(mmd["p_value"]), color=colours, height=0.5)
    left.axvline(-np.log10(0.05), **style.THIN, label="p = 0.05")
    left.set(xlabel="MMD: −log₁₀ p (permutation)", title="Told apart by MMD?")
    intervals.bars(right, range(len(names)), _around_value(told), horizontal=True, color=style.PLAIN)
    right.axvline(0.5, **style.THIN, label="chance")
    right.set(xlabel="classifier: share of pairs told apart (95%)", title="By a trained classifier?", xlim=(0.3, 1.02))
    style.categories(left, names, room=0.6)
    return style.caption(figure, caption)


def diversity(varied: dict[str, pd.DataFrame], columns: dict[str, str], caption: str) -> Figure:
    """Mean of each measure with its 95% interval, a panel a measure, a point a model."""
    figure, panels = plt.subplots(1, len(columns), figsize=(2.8 * len(columns), 3.8), layout="constrained")
    long = pd.concat([table.assign(model=name) for name, table in varied.items()])
    for axes, (column, label) in zip(panels, columns.items(), strict=True):
        sns.pointplot(long, x="model", y=column, hue="model", errorbar=("ci", 95), n_boot=500, seed=0, linestyle="none", capsize=0.15, ax=axes)
        axes.set(xlabel="", ylabel=label)
        axes.set_xticks(range(len(varied)), list(varied), rotation=30, ha="right", fontsize="small")
    figure.suptitle("Text as varied as before, and as long")
    return style.caption(figure, caption)


def win_rates(table: pd.DataFrame, reference: str, caption: str) -> Figure:
    """Win rate with its 95% interval, a row a model; the band is the interval of ``reference``: the base model against itself."""
    figure, axes = plt.subplots(figsize=(6.4, 0.6 * len(table) + 1.9))
    band = table.set_index("model").loc[reference]
    axes.axvspan(0.5 + band["low"], 0.5 + band["high"], color="0.88", label=f"{reference}: its interval")
    intervals.bars(axes, range(len(table)), _around_value(table), horizontal=True)
    axes.axvline(0.5, **style.THIN)
    axes.set(xlabel="win rate against the base model")
    style.categories(axes, table["model"], room=0.7)
    axes.legend(loc="lower right")
    return style.caption(figure, caption, "A judge asked in both orders has no favourite")


def exchange(rates: pd.DataFrame, n_tokens: int, caption: str) -> Figure:
    """Δ cross-entropy against mean ψ, a line a weight, with 95% intervals (rows of ``exchange.rates``), beside ψ²/(2T); a panel a kind of text."""
    figure, panels = plt.subplots(1, 2, figsize=(10.2, 4.4), sharey=True)
    grid = np.linspace(0, 1.08 * rates["psi_high"].max(), 100)
    law = grid**2 / (2 * n_tokens)
    for axes, (text, title) in zip(panels, {"own": "On the model's own text: the law", "human": "On human text: what you pay"}.items(), strict=True):
        axes.fill_between(grid, 0.7 * law, 1.3 * law, color="0.9", label="within 30%")
        axes.plot(grid, law, color=style.THEORY, linewidth=1.4, label="ψ²/(2T)")
        for weight, rows in rates[rates["text"] == text].groupby("weight", sort=False):
            rows = rows.sort_values("psi")
            look = {"linestyle": "-", "linewidth": 1, "capsize": 2, "label": layer_sigma_sweep.short(weight)}
            intervals.bars(axes, rows["psi"], rows, "delta", xerr=intervals.sides(rows, "psi"), **look)
        axes.set(xlabel=f"mean ψ of {n_tokens} tokens", title=title)
    panels[0].set_ylabel("Δ cross-entropy, nats a token")
    return style.caption(figure, caption)
