"""What survives: to be deleted with the last figure that calls it."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from gaussmark_lib.experiments.robustness import OWN, PLAIN
from gaussmark_lib.plots import intervals, style


def survival(axes: Axes, shares: pd.DataFrame, looks: Mapping[str, Mapping], level: float) -> None:
    """Share detected after each change (``compared.shares`` with a column ``label``), a look a
    scheme: own key filled, plain text empty.
    """
    own, plain = (shares[shares["kind"] == kind] for kind in (OWN, PLAIN))
    intervals.dodged(axes, own, "label", "scheme", looks, markersize=5, capsize=2)
    intervals.dodged(
        axes,
        plain,
        "label",
        "scheme",
        looks,
        aside=0.06,
        markersize=5,
        capsize=2,
        fillstyle="none",
        label=None,
    )
    axes.errorbar([], [], fmt="o", fillstyle="none", color=style.THEORY, label=PLAIN)
    axes.axhline(level, **style.DOTTED)
    labels = shares["label"].unique()
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set(ylabel=f"share detected at level {level}", ylim=(-0.03, 1.03), title="What survives?")
