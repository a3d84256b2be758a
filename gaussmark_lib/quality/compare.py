"""All measurements as one table: a row per metric and model, each model against the base, over the
same items.

    contenders = [Contender("base"), Contender("base, another seed", seed=1), Contender("vanilla",
    wm, key)] nats = cross_entropies(lm, contenders, passages) table(cross_entropy_rows(nats, …) +
    …)

The first contender is the base that the others are compared with. The base model with another seed
writes other texts: what a metric of texts says about this pair is what "no difference" looks like.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gaussmark_lib import generate, likelihood, models, perturb, stats
from gaussmark_lib.errors import HarnessError
from gaussmark_lib.quality import accuracy, diversity, harness, two_sample, win_rate
from gaussmark_lib.quality.verdict import Metric, sentence
from gaussmark_lib.tokens import Texts

CROSS_ENTROPY = Metric("cross-entropy", "nats/token", "higher", 0.03)
BITS = Metric("cross-entropy", "bits/character", "higher", 0.012)
WIN_RATE = Metric("win rate", "", "lower", 0.05)
MMD = Metric("MMD²", "", "either", None)
CLASSIFIER = Metric("classifier", "", "either", 0.1)
DIVERSITY = {
    name: Metric(name.replace("_", "-"), "", "either", 0.02)
    for name in ("distinct_1", "distinct_2", "seq_rep_4")
}
DIVERSITY["length"] = Metric("length at the end", "tokens", "either", 3.0)
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
    """A model to compare: the base model if it has no watermark. ``seed`` is of its sampling."""

    name: str
    wm: perturb.Watermark | None = None
    key: perturb.Key | None = None
    seed: int = 0

    def on(self, lm: models.LM) -> AbstractContextManager:
        return perturb.watermarked(lm.model, self.wm, self.key) if self.wm else nullcontext()


def under_each(
    lm: models.LM, contenders: Sequence[Contender], measurement: Callable[[models.LM], Any]
) -> dict[str, Any]:
    """``measurement(lm)`` by contender; those that differ only in their seed are the same model,
    and share one measurement.
    """
    measured: dict[tuple, Any] = {}
    for contender in contenders:
        if (contender.wm, contender.key) not in measured:
            with contender.on(lm):
                measured[contender.wm, contender.key] = measurement(lm)
    return {contender.name: measured[contender.wm, contender.key] for contender in contenders}


def cross_entropies(
    lm: models.LM, contenders: Sequence[Contender], passages: Texts, batch_size: int = 16
) -> dict[str, np.ndarray]:
    """Nats a token of each passage under each contender."""
    return under_each(
        lm,
        contenders,
        lambda now: likelihood.cross_entropy(now.model, passages, batch_size=batch_size),
    )


def evaluations(
    lm: models.LM, contenders: Sequence[Contender], tasks: harness.Tasks, **settings
) -> dict[str, harness.Evaluation]:
    """lm-evaluation-harness under each contender."""
    return under_each(lm, contenders, lambda now: harness.evaluate(now, tasks, **settings))


def write(
    lm: models.LM, contenders: Sequence[Contender], prompts: Texts, n_tokens: int, **settings
) -> dict[str, list[list[int]]]:
    """Each contender's continuations of the same prompts, from its own seed, sampled through end
    tokens.
    """
    written = {}
    for contender in contenders:
        with contender.on(lm):
            written[contender.name] = generate.sample(
                lm.model, prompts, n_tokens, seed=contender.seed, **settings
            )
    return written


def cross_entropy_rows(
    nats: Mapping[str, np.ndarray], n_tokens: Sequence[int], n_characters: Sequence[int]
) -> list[Row]:
    """Nats a token and bits a character of each model against the first, paired per passage."""
    bits = {
        name: likelihood.bits_per_character(values, n_tokens, n_characters)
        for name, values in nats.items()
    }
    first, *others = nats
    return [
        _paired_row(metric, name, values[first], values[name])
        for name in others
        for metric, values in ((CROSS_ENTROPY, nats), (BITS, bits))
    ]


def task_rows(evaluated: Mapping[str, harness.Evaluation], margin: float = 0.05) -> list[Row]:
    """Each task's first metric against the first model, paired per item: McNemar's test if items
    are right or wrong, the bootstrap otherwise.
    """
    (first, base), *others = evaluated.items()
    rows = []
    for name, other in others:
        for task in base.tasks:
            ours, theirs = base.of(task), other.of(task)
            if not ours.index.equals(theirs.index):
                raise HarnessError(f"{task}: expected the same items under {first} and {name}")
            paired = accuracy.paired if np.isin([ours, theirs], (0, 1)).all() else stats.paired
            rows.append(
                Row(Metric(task, "", "lower", margin), name, ours.mean(), paired(ours, theirs))
            )
    return rows


def text_rows(
    lm: models.LM, prompts: Texts, written: Mapping[str, list[list[int]]], *, seed: int = 0
) -> list[Row]:
    """Two-sample tests without the key, and diversity paired per prompt, of each model's texts
    against the first's.
    """
    ends = generate.end_tokens(lm.model)
    embedded = {
        name: two_sample.embed(lm.model, prompts, responses) for name, responses in written.items()
    }
    varied = {name: diversity.table(responses, ends) for name, responses in written.items()}
    first, *others = written
    rows = []
    for name in others:
        x, y = embedded[first], embedded[name]
        rows.append(Row(MMD, name, 0.0, two_sample.mmd(x, y, seed=seed)))
        rows.append(Row(CLASSIFIER, name, 0.5, two_sample.classifier(x, y, seed=seed)))
        for column, metric in DIVERSITY.items():
            pair = (varied[model][column].to_numpy(float) for model in (first, name))
            rows.append(_paired_row(metric, name, *pair))
    return rows


def judge_rows(
    lm: models.LM,
    prompts: Texts,
    written: Mapping[str, list[list[int]]],
    judge: win_rate.Judge,
    *,
    progress: bool = False,
) -> tuple[list[Row], dict[str, pd.DataFrame]]:
    """Win rates against the first model's texts, cut at their end tokens; and of each model the
    judge's answers (:func:`win_rate.compare`).
    """
    ends = generate.end_tokens(lm.model)
    read = {
        name: [lm.decode(diversity.until_end(response, ends)) for response in responses]
        for name, responses in written.items()
    }
    (_, base), *others = read.items()
    asked = [lm.decode(prompt) for prompt in prompts]
    answers = {
        name: win_rate.compare(judge, asked, other, base, progress=progress)
        for name, other in others
    }
    return [
        Row(WIN_RATE, name, 0.5, win_rate.summary(table)) for name, table in answers.items()
    ], answers


def _paired_row(metric: Metric, model: str, base: np.ndarray, other: np.ndarray) -> Row:
    return Row(metric, model, base.mean(), stats.paired(base, other))


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
