"""All measurements as one table: a row a metric and model, each model against the base, over the same items.

    contenders = [Contender("base"), Contender("base, another seed", seed=1), Contender("vanilla", wm, key)]
    nats = cross_entropies(lm, contenders, passages)
    table(cross_entropy_rows(nats, …) + …)

The first contender is what the others are compared with. The base model with another seed writes other texts and is the same model: what a metric of
texts says about that pair is what "no difference" looks like.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gaussmark_lib import generate, likelihood, models, perturb, stats
from gaussmark_lib.quality import accuracy, diversity, harness, two_sample, win_rate
from gaussmark_lib.quality.verdict import Metric, sentence

CROSS_ENTROPY = Metric("cross-entropy", "nats/token", "higher", 0.03)
BITS = Metric("cross-entropy", "bits/character", "higher", 0.012)
WIN_RATE = Metric("win rate", "", "lower", 0.05)
MMD = Metric("MMD²", "", "either", None)
CLASSIFIER = Metric("classifier", "", "either", 0.1)
DIVERSITY = {
    "distinct_1": Metric("distinct-1", "", "either", 0.02),
    "distinct_2": Metric("distinct-2", "", "either", 0.02),
    "seq_rep_4": Metric("seq-rep-4", "", "either", 0.02),
    "length": Metric("length at the end", "tokens", "either", 3.0),
}
COLUMNS = ["metric", "unit", "model", "base", "value", "difference", "low", "high", "n", "p_value", "flagged", "verdict"]


@dataclass(frozen=True)
class Contender:
    """A model to compare: the base model if it has no watermark. ``seed`` is of its sampling."""

    name: str
    wm: perturb.Watermark | None = None
    key: perturb.Key | None = None
    seed: int = 0

    @contextmanager
    def on(self, lm: models.LM) -> Iterator[models.LM]:
        with perturb.watermarked(lm.model, self.wm, self.key) if self.wm else nullcontext():
            yield lm


def each(lm: models.LM, contenders: Sequence[Contender], measure: Callable[[models.LM], Any]) -> dict[str, Any]:
    """``measure(lm)`` under every contender that is a different model; contenders that differ in their seed alone share it."""
    found: dict[tuple, Any] = {}
    for contender in contenders:
        if (contender.wm, contender.key) not in found:
            with contender.on(lm):
                found[contender.wm, contender.key] = measure(lm)
    return {contender.name: found[contender.wm, contender.key] for contender in contenders}


def cross_entropies(lm: models.LM, contenders: Sequence[Contender], passages: Sequence[Sequence[int]], batch_size: int = 16) -> dict[str, np.ndarray]:
    """Nats a token of each passage under each contender."""
    return each(lm, contenders, lambda now: likelihood.cross_entropy(now.model, passages, batch_size=batch_size))


def evaluations(
    lm: models.LM, contenders: Sequence[Contender], tasks: Mapping[str, dict] | Sequence[str], **settings
) -> dict[str, harness.Evaluation]:
    """lm-evaluation-harness under each contender."""
    return each(lm, contenders, lambda now: harness.evaluate(now, tasks, **settings))


def write(lm: models.LM, contenders: Sequence[Contender], prompts: Sequence[Sequence[int]], n_tokens: int, **settings) -> dict[str, list[list[int]]]:
    """Each contender's continuations of the same prompts, from its own seed, sampled through end tokens."""
    found = {}
    for contender in contenders:
        with contender.on(lm):
            found[contender.name] = generate.sample(lm.model, prompts, n_tokens, seed=contender.seed, **settings)
    return found


def cross_entropy_rows(nats: Mapping[str, np.ndarray], n_tokens: Sequence[int], n_characters: Sequence[int]) -> list[dict]:
    """Nats a token and bits a character of each model against the first, paired per passage."""
    (_, base), *others = nats.items()
    rows = []
    for name, other in others:
        rows.append(_row(CROSS_ENTROPY, name, stats.paired(base, other), base.mean(), other.mean()))
        bits = [likelihood.bits_per_character(values, n_tokens, n_characters) for values in (base, other)]
        rows.append(_row(BITS, name, stats.paired(*bits), bits[0].mean(), bits[1].mean()))
    return rows


def task_rows(found: Mapping[str, harness.Evaluation], margin: float = 0.05) -> list[dict]:
    """Each task's first metric against the first model, paired per item: McNemar's test if items are right or wrong, the bootstrap otherwise."""
    (first, base), *others = found.items()
    rows = []
    for name, other in others:
        for task in base.tasks:
            ours, theirs = base.of(task), other.of(task)
            if not ours.index.equals(theirs.index):
                raise ValueError(f"{task}: expected the same items under {first} and {name}")
            binary = np.isin(ours, (0, 1)).all() and np.isin(theirs, (0, 1)).all()
            test = accuracy.paired(ours, theirs) if binary else stats.paired(ours, theirs)
            rows.append(_row(Metric(task, "", "lower", margin), name, test, ours.mean(), theirs.mean()))
    return rows


def text_rows(
    lm: models.LM, prompts: Sequence[Sequence[int]], written: Mapping[str, list[list[int]]], *, permutations: int = 999, seed: int = 0
) -> list[dict]:
    """Two-sample tests without the key, and diversity paired per prompt, of each model's texts against the first's."""
    ends = generate.end_tokens(lm.model)
    embedded = {name: two_sample.embed(lm.model, prompts, responses) for name, responses in written.items()}
    varied = {name: diversity.table(responses, ends) for name, responses in written.items()}
    (first, base), *others = embedded.items()
    rows = []
    for name, other in others:
        mmd = two_sample.mmd(base, other, permutations=permutations, seed=seed)
        rows.append(_row(MMD, name, mmd | {"mean": mmd["mmd2"], "low": math.nan, "high": math.nan}, 0.0, mmd["mmd2"]))
        told = two_sample.classifier(base, other, seed=seed)
        rows.append(
            _row(
                CLASSIFIER,
                name,
                told | {f: told[k] - 0.5 for f, k in (("mean", "accuracy"), ("low", "low"), ("high", "high"))},
                0.5,
                told["accuracy"],
            )
        )
        for column, metric in DIVERSITY.items():
            ours, theirs = varied[first][column].to_numpy(float), varied[name][column].to_numpy(float)
            rows.append(_row(metric, name, stats.paired(ours, theirs), ours.mean(), theirs.mean()))
    return rows


def judge_rows(
    judge: win_rate.Judge, lm: models.LM, prompts: Sequence[Sequence[int]], written: Mapping[str, list[list[int]]], *, progress: bool = False
):
    """Win rates against the first model's texts, cut at their end tokens; and the judge's answers, a table a model.

    Returns:
        (rows, answers): ``answers`` maps a model to :func:`win_rate.compare`'s table.
    """
    ends = generate.end_tokens(lm.model)
    read = {name: [lm.decode(diversity.until_end(response, ends)) for response in responses] for name, responses in written.items()}
    (_, base), *others = read.items()
    asked = [lm.decode(prompt) for prompt in prompts]
    rows, answers = [], {}
    for name, other in others:
        answers[name] = win_rate.compare(judge, asked, other, base, progress=progress)
        found = win_rate.summary(answers[name])
        shift = {f: None if found[k] is None else found[k] - 0.5 for f, k in (("mean", "win_rate"), ("low", "low"), ("high", "high"))}
        same = sum(ours == theirs for ours, theirs in zip(base, other, strict=True))
        rows.append(_row(WIN_RATE, name, found | shift | {"n_equal": same if same == len(base) else -1}, 0.5, found["win_rate"]))
    return rows, answers


def _row(metric: Metric, model: str, found: dict, base: float, value: float | None) -> dict:
    return {"metric": metric, "model": model, "base": base, "value": value, "difference": found["mean"]} | {
        name: found[name] for name in ("low", "high", "n", "p_value", "n_equal") if name in found
    }


def table(rows: Sequence[dict], level: float = 0.05) -> pd.DataFrame:
    """The rows with a verdict each; ``flagged`` where p is below the level, of which one in 1/level is by chance."""
    found = []
    for row in rows:
        metric: Metric = row["metric"]
        flagged = row["p_value"] is not None and row["p_value"] < level
        found.append(row | {"metric": metric.name, "unit": metric.unit, "flagged": flagged, "verdict": sentence(metric, row, level)})
    return pd.DataFrame(found, columns=COLUMNS)
