"""Models over the same items: which contender differs from the base model, and by how much?

    contenders = [Contender("base"), Contender("vanilla", wm, key)]
    table(task_rows(evaluations(lm, contenders, tasks)))

The first contender is the base that the others are compared with.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from gaussmark_lib import models, perturb, stats
from gaussmark_lib.quality import accuracy, harness
from gaussmark_lib.quality.verdict import Metric, sentence

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
        verdict = test.p_value < level, sentence(metric, test, level)
        records.append([metric.name, metric.unit, model, *numbers, *verdict])
    return pd.DataFrame(records, columns=COLUMNS)
