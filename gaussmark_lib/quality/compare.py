"""Each item's change from the base model as one row, so that all measures are summed up alike; and
what may be said of it, in a sentence.

Several keys have items of their own, and intervals cluster by key: they speak for other keys, too.
``CONTROL`` is the base model once more, which no measure may find; ``STRONG`` is a mark that each
measure should find: one that does not is blind, and says nothing of the others.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from gaussmark_lib import stats

GAUSSMARK, CONTROL, STRONG = "GaussMark", "base, another draw", "strong mark"


def changes(measure: str, model, key, change) -> pd.DataFrame:
    """One row per item: ``measure, model, key`` (the key's number), ``change``."""
    columns = {"change": np.asarray(change, float), "model": model, "key": key}
    return pd.DataFrame(columns).assign(measure=measure)


def mean_change(rows: pd.DataFrame, confidence: float = 0.95) -> stats.Estimate:
    """Mean change with an interval that clusters by key; n counts items."""
    change = rows["change"].to_numpy()
    estimate = stats.interval(change, cluster=rows["key"], confidence=confidence)
    return replace(estimate, n=len(change))


def summary(changes: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """:func:`mean_change` of each measure and model, and whether its interval leaves out 0."""
    groups = changes.groupby(["measure", "model"], sort=False)
    table = pd.DataFrame(
        {"measure": measure, "model": model} | mean_change(rows, confidence).row()
        for (measure, model), rows in groups
    )
    return table.assign(differs=(table["low"] > 0) | (table["high"] < 0))


def sentence(changes: pd.DataFrame, measure: str) -> str:
    """What a measure says of GaussMark, and whether it can see the strong mark."""
    rows = changes[changes["measure"] == measure]
    gaussmark = mean_change(rows[rows["model"] == GAUSSMARK])
    strong = summary(rows).set_index("model").loc[STRONG]
    sees = "this measure can see a mark" if strong["differs"] else "**this measure is blind here**"
    return (
        f"**{measure}**: GaussMark changes it by {gaussmark}. The strong mark changes it by"
        f" {strong['value']:.3g} ({strong['low']:.3g} to {strong['high']:.3g}), so {sees}."
    )


def control_holds(changes: pd.DataFrame, confidence: float = 0.9999) -> bool:
    """No measure finds ``CONTROL``, which is the base model itself."""
    control = changes[changes["model"] == CONTROL]
    return not summary(control, confidence)["differs"].any()
