"""A notebook's measured numbers beside those that the paper printed."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib.plots import intervals, style
from gaussmark_lib.stats import Estimate

Panel = tuple[Estimate, pd.DataFrame]  # what was measured, and ``runs.published.comparable``'s rows


def figure(panels: Mapping[str, Panel], here: str, caption: str) -> Figure:
    """A panel a quantity: the estimate of this run on top, the paper's models below; an arrow from
    zero where the paper gives only a bound.

    Args:
        panels: the quantity, with its unit, → (estimate, the paper's rows).
        here: name of the model of this run.
    """
    n_rows = 1 + max(len(rows) for _, rows in panels.values())
    size = (3.2 + 2.6 * len(panels), 1.6 + 0.35 * n_rows)
    drawn, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
    for ax, (quantity, (measured, rows)) in zip(axes[0], panels.items(), strict=True):
        _panel(ax, measured, rows, Path(here).name)
        ax.set(xlabel=textwrap.fill(quantity, 32))
    if len(panels) == 1:  # with several, their common title comes first
        drawn.tight_layout()
    tables = ", ".join(
        dict.fromkeys(place for _, rows in panels.values() for place in rows["where"])
    )
    source = (
        f"Paper: {tables} of Block, Rakhlin and Sekhari"
        f" (2025){_intervals([rows for _, rows in panels.values()])}."
    )
    return style.caption(
        drawn, f"{caption} {source}", "What was measured here, and what the paper reports"
    )


def _intervals(panels: Sequence[pd.DataFrame]) -> str:
    """What the caption says of the paper's intervals, if any is drawn."""
    drawn = [
        rows
        for rows in panels
        if np.isfinite(rows[["low", "high"]].to_numpy(float)).all(axis=1).any()
    ]
    if not drawn:
        return ""
    return "; 95% intervals from its standard errors" + " (of a difference: unpaired)" * any(
        rows["less"].notna().any() for rows in drawn
    )


def _panel(axes: Axes, measured: Estimate, rows: pd.DataFrame, here: str) -> None:
    at = 1 + rows.index.to_numpy()
    intervals.bars(axes, [0], measured, horizontal=True, color=style.WATERMARKED)
    exact = rows["value"].notna()
    intervals.bars(axes, at[exact], rows[exact], horizontal=True, color=style.THEORY)
    for place, bound in zip(at[~exact], rows.loc[~exact, "most"], strict=True):
        axes.annotate(
            "", (0, place), (bound, place), arrowprops={"arrowstyle": "<-", "color": style.THEORY}
        )
        axes.annotate(
            f"at most {bound:g}",
            (bound, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
        axes.set_xlim(right=max(axes.get_xlim()[1], 1.5 * bound), left=min(0.0, axes.get_xlim()[0]))
    axes.axvline(0, **style.DOTTED) if axes.get_xlim()[0] < 0 else None
    style.categories(axes, [f"{here}, this run", *(f"{model}, paper" for model in rows["model"])])
