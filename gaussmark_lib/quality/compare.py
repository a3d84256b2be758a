"""Each item's change from the base model as one row, so that all measures are summed up alike; and
what may be said of it, in a sentence.

Several keys have items of their own, and intervals cluster by key: they speak for other keys, too.
``CONTROL`` is the base model once more, which no measure may find; ``STRONG`` is a mark that each
measure should find: one that does not is blind, and says nothing of the others.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from gaussmark_lib import models, perturb, stats
from gaussmark_lib.quality import accuracy, harness
from gaussmark_lib.quality import verdict as verdicts
from gaussmark_lib.quality.verdict import Metric

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


# To be deleted with the last notebook that calls it: all below.
CROSS_ENTROPY = Metric("cross-entropy", "nats per token", "higher", 0.03)
NUMBERS = ["base", "value", "difference", "low", "high", "n", "p_value"]
COLUMNS = ["metric", "unit", "model", *NUMBERS, "flagged", "verdict"]


class Row(NamedTuple):
    """One comparison: a model's change from the base model's value, by one metric."""

    metric: Metric
    model: str
    base: float
    test: stats.Paired


@dataclass(frozen=True)
class Contender:
    """A model to compare: the base model if it has no watermark."""

    name: str
    wm: perturb.Watermark | None = None
    key: perturb.Key | None = None

    def on(self, lm: models.LM) -> AbstractContextManager:
        return perturb.watermarked(lm.model, self.wm, self.key) if self.wm else nullcontext()


def evaluations(
    lm: models.LM, contenders: Sequence[Contender], tasks: harness.Tasks, **settings
) -> dict[str, harness.Evaluation]:
    """lm-evaluation-harness under each contender."""
    evaluated = {}
    for contender in contenders:
        with contender.on(lm):
            evaluated[contender.name] = harness.evaluate(lm, tasks, **settings)
    return evaluated


def task_rows(evaluated: Mapping[str, harness.Evaluation], margin: float = 0.05) -> list[Row]:
    """Each task's first metric against the first model, paired per item: McNemar's test if items
    are right or wrong, the bootstrap otherwise.
    """
    (_, base), *others = evaluated.items()
    rows = []
    for name, other in others:
        for task in base.tasks:
            ours, theirs = base.of(task), other.of(task)
            paired = accuracy.paired if np.isin([ours, theirs], (0, 1)).all() else stats.paired
            rows.append(
                Row(Metric(task, "", "lower", margin), name, ours.mean(), paired(ours, theirs))
            )
    return rows


def table(rows: Sequence[Row], level: float = 0.05) -> pd.DataFrame:
    """The rows with a verdict each; ``flagged`` where p is below the level, as one in 1/level is by
    chance.
    """
    records = []
    for metric, model, base, test in rows:
        numbers = [base, base + test.change.value, *astuple(test.change), test.p_value]
        verdict = test.p_value < level, verdicts.sentence(metric, test, level)
        records.append([metric.name, metric.unit, model, *numbers, *verdict])
    return pd.DataFrame(records, columns=COLUMNS)
