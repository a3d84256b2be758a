"""What the watermark costs, by every measure in use. A table has one row per item, with its change
from the base model, so that all measures are summarised and drawn in the same way.

Items are dealt to the keys: item i (a passage, a question, a prompt) belongs to key i mod K. So no
measure describes a single key, and an interval that clusters by key holds for other keys, too. The
items of a named benchmark are few and known: there each key answers all of them.

The base model writes several draws. All contenders are compared with the same references. A further
draw, ``CONTROL``, is a contender itself, and no measure may detect it. ``STRONG`` is a watermark
that each measure should detect: a measure that does not is blind, and says nothing about the other
contenders.

The exchange rate is the price of a unit of ψ. To second order in σ a mean ψ over T tokens costs
ψ²/(2T) nats per token of the model's own text, whatever the weight. One key's change of the
cross-entropy also has a part linear in ξ, with mean 0 over keys; (Δ(ξ) + Δ(−ξ))/2 has the same
expectation without it. Prices follow the mean of ψ², and ψ differs from text to text with ‖G‖:
divided by (mean ψ)²/(2T), even the law itself gives 1 + cv², with cv the standard deviation of ‖G‖
divided by its mean.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML, Markdown
from matplotlib.figure import Figure
from torch import Tensor

from gaussmark_experiments import intervals
from gaussmark_experiments.measures import (
    benchmarks,
    compare,
    harness,
    reading,
    tasks,
    text_measures,
)
from gaussmark_experiments.measures import judge as judges
from gaussmark_experiments.measures.compare import (
    CONTROL,
    GAUSSMARK,
    STRONG,
)
from gaussmark_lib import (
    divergence,
    files,
    generate,
    likelihood,
    models,
    perturb,
    score,
    stats,
    texts,
    tokens,
)
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import answers, claims, record, runs, words
from gaussmark_lib.workbench.begin import pilot_prompts
from gaussmark_lib.workbench.pairs import Pairs, under_own_keys
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs.folder import Run
from gaussmark_lib.workbench.words import number

NOTEBOOK = "05_quality"
JUDGED = "quality_judged"  # records of sections 3 to 5, and of prices as temperatures
OF_TEXTS = ("classifier", "distinct_2", "length", "win rate")  # measures of sections 3 to 5
TYPICAL_PSI = 4.0  # finds 95% of the texts at a level of 0.01
TYPICAL_LENGTHS = (100, 500, 2_000)
RISE = "rise of the cross-entropy on human text"
# findings about written texts, which the records of JUDGED have
CLASSIFIED = "classifier's accuracy above chance"
WINS = "win rate above one half"
OVER_BASE = "win rate of GaussMark minus that of the base model"
OVER_DRAW = f"{OVER_BASE}'s further draw"
# finding → (what the closing sentences say of it, factor to the unit of the sentence)
COSTS = {
    RISE: ("human text costs {} nats per token", 1),
    "points of accuracy that GaussMark adds, over the benchmarks that can lose some": (
        "the accuracy in benchmarks changes by {} points",
        1,
    ),
    "share of the strong mark's change of accuracy, over the tasks that see it": (
        "GaussMark's change of accuracy is {} times the strong mark's",
        1,
    ),
    CLASSIFIED: (
        "a classifier without the key is {} points better than chance",
        100,
    ),
    WINS: ("the judge's win rate is {} points above one half", 100),
}
FEWEST_ITEMS = 30
ABOVE_CHANCE = 0.15  # accuracy above chance that the base model needs for a loss to show
Asked = harness.Asked | benchmarks.Asked
# Of measures that are not tasks: what their column ``change`` holds, with its unit.
QUANTITIES = {
    "cross-entropy": "change of the cross-entropy of human text (nats per token)",
    "classifier": "accuracy of the classifier minus one half",
    "distinct_2": "change of distinct_2",
    "length": "change of the length (tokens)",
    "win rate": "win rate minus one half",
}


class Pilot(NamedTuple):
    """Prompts of the pilot and the base model's plain texts, on which every σ is solved."""

    prompts: list[list[int]]
    plain: list[list[int]]


def pilot_of(
    lm: models.LM,
    text: str,
    prompt_tokens: int,
    n_tokens: int,
    n_texts: int,
    **sampling,
) -> Pilot:
    """Return the pilot that ``begin`` uses. ``n_texts`` matters only for a file, which may have no
    more texts.
    """
    prompts = pilot_prompts(lm, text, prompt_tokens, n_texts)
    return Pilot(prompts, generate.sample(lm.model, prompts, n_tokens, **sampling))


def solved(
    lm: models.LM,
    pilot: Pilot,
    wm: Watermark,
    psi: float,
    dtype: str | None,
) -> Watermark:
    """Return ``wm`` with the σ at which the pilot's texts have the median predicted ψ ``psi``."""
    # their order does not matter: only the median counts
    gradients = score.gradients(lm.model, pilot.prompts, pilot.plain, wm, dtype=dtype)
    sigma = stats.sigma_for_psi([gradient.norm for gradient in gradients], psi)
    return replace(wm, sigma=sigma)


def contenders(
    lm: models.LM,
    wm: Watermark,
    key: Key,
    pilot: Pilot,
    *,
    rank_dropped: int,
    psi: float,
    strong_psi: float,
    dtype: str | None = None,
) -> dict[str, Scheme]:
    """Return GaussMark, KGW-1 and KGW-2, ``STRONG``, and if ``rank_dropped`` is not 0, GaussMark
    without that many directions at a σ for the same ψ.
    """
    marks = dict(schemes.named(wm, key, [GAUSSMARK, "KGW-1", "KGW-2"]))
    if rank_dropped:
        # fewer directions have a smaller ‖G‖, and need a larger σ
        reduced = solved(lm, pilot, replace(wm, rank_dropped=rank_dropped), psi, dtype)
        marks["rank-reduced"] = GaussMark(reduced, key, "rank-reduced")
    # the same weight at a larger σ
    strong = solved(lm, pilot, wm, strong_psi, dtype)
    marks[STRONG] = GaussMark(strong, key, STRONG)
    return marks


def on_other_weights(
    lm: models.LM,
    weights: Sequence[str],
    key: Key,
    pilot: Pilot,
    psi: float,
    dtype: str | None = None,
) -> dict[str, Scheme]:
    """Return GaussMark on each of these weights, at a σ for the same ψ."""
    marks = {}
    for weight in weights:
        # σ = 1 is only where the solution starts
        wm = solved(lm, pilot, Watermark(weight, 1.0), psi, dtype)
        name = f"{GAUSSMARK}, {weight}"
        marks[name] = GaussMark(wm, key, name)
    return marks


def instructions(folder: str | Path, name: str, n: int, seed: int) -> list[str]:
    """Return n of the prompts in a file of JSON lines with a column ``prompt``. The seed chooses
    them.
    """
    path = Path(folder) / name
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines]
    except (OSError, ValueError, LookupError, TypeError) as error:
        expected = f"expected {path}, with a JSON object on each line and a column prompt"
        raise ParameterError(f"instructions: {expected}, got {error!r}") from None
    if len(prompts) < n:
        raise ParameterError(f"instructions: expected at least {n} in {path}, got {len(prompts)}")
    # by hash: the choice does not depend on the file's order
    return sorted(prompts, key=lambda prompt: _hash(f"{seed} {prompt}"))[:n]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def questions(text: str, n: int, least: int, seed: int) -> dict[str, dict]:
    """Build tasks of ``least`` to n items from this text, or from documentation if the text yields
    none.
    """
    for kind in (text, "docs"):
        n_pages = 4 * n if kind == "c4" else None  # c4 is too large to load as a whole
        min_chars = 400 if kind in texts.KINDS else 0
        corpus = texts.load(kind, n=n_pages, min_chars=min_chars)
        built = tasks.build(corpus, n, least=least, seed=seed)
        if built:
            break
    return built


def prepared(
    lm: models.LM,
    named: Sequence[str],
    made: Mapping[str, dict],
    *,
    reader: str,
    tasks_data: str | None,
    limit: int | None,
    batch_size: int,
) -> Asked:
    """Prepare the named tasks, or the tasks made from text if no task is named. The ``reader`` of
    named tasks is ``"harness"``, or ``"plain"`` for ``measures.benchmarks``.
    """
    if not named:  # tasks from text always go through the harness
        return harness.prepare(lm, made, limit=limit, batch_size=batch_size)
    if reader == "harness":
        return harness.prepare(
            lm,
            named,
            tasks_data=tasks_data,
            limit=limit,
            batch_size=batch_size,
        )
    if tasks_data is None:
        raise ParameterError("tasks_data: expected a folder of benchmarks for task_reader plain")
    return benchmarks.prepare(lm, named, tasks_data=tasks_data, limit=limit)


def judge_named(name: str, lm: models.LM, text: str, device: str | None) -> judges.Judge:
    """Return the judge ``"offline"``, ``"endpoint"``, or the language model of this name."""
    if name == "offline":
        return offline_judge(lm, text)
    if name == "endpoint":
        return judges.EndpointJudge.from_environment(cache=files.CACHE / "judge")
    judge = models.load(name, device=device)
    record.weights(judge)  # the record names the weights that judged
    return judges.ModelJudge(judge)


def offline_judge(lm: models.LM, text: str) -> judges.LikelihoodJudge:
    """Return the n-gram judge, fitted on human text that does not contain the prompts if there is
    such text.
    """
    # only these kinds have a split that no prompt comes from
    split = "train" if text in ("docs", "c4") else "heldout"
    n_pages = 600 if text == "c4" else None
    pages = texts.load(text, split=split, n=n_pages)["text"][:600]
    # a model's output can be wider than its tokenizer
    n_outputs = len(lm.model.get_output_embeddings().weight)
    vocabulary = max(len(lm.tokenizer), n_outputs)
    ngram = judges.Ngram([lm.encode(page) for page in pages], vocabulary)
    return judges.LikelihoodJudge(ngram, lm.encode)


def likelihoods(
    lm: models.LM,
    marks: dict[str, Scheme],
    keys: Sequence[Key],
    passages: Texts,
    batch_size: int,
) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the base model's nats per token of each human passage, and the changes under each
    mark on the weights (KGW acts only in the sampler).
    """
    base = likelihood.cross_entropy(lm.model, passages, batch_size=batch_size)  # of each passage
    tables = []
    for name, j, part in _under_each(lm, marks, keys):
        # under the key's noise, which the loop has put on the weights
        nats = likelihood.cross_entropy(lm.model, passages[part], batch_size=batch_size)
        tables.append(compare.changes("cross-entropy", name, j, nats - base[part]))
    return base, pd.concat(tables, ignore_index=True)


def answers_of(
    lm: models.LM,
    marks: dict[str, Scheme],
    keys: Sequence[Key],
    asked: Asked,
    guessing: Mapping[str, float] | None = None,
) -> tuple[dict[str, pd.Series], pd.DataFrame]:
    """Return each item's score under the base model, by task, and its changes under each mark on
    the weights, with ``item``.

    Without ``guessing`` (:func:`chance`), the items are dealt to the keys. With it, each key
    answers all items of the tasks that :func:`can_lose` accuracy, or of all tasks if none can.
    """
    base = _scores(asked)  # task → score of each item
    measured = list(base)
    if guessing is not None:
        measured = can_lose(base, guessing) or measured  # if all tasks are blind, all are measured
        if isinstance(asked, benchmarks.Asked):
            asked = asked.only(measured)
    tables = []
    for name, j, part in _under_each(lm, marks, keys):
        items = part if guessing is None else slice(None)
        scores = _scores(asked, items)
        for task in measured:
            of_task = scores[task]
            # Series align by item: a key may answer only some of them
            change = of_task - base[task][of_task.index]
            tables.append(compare.changes(task, name, j, change).assign(item=of_task.index))
    return base, pd.concat(tables, ignore_index=True)


def _scores(asked: Asked, part: slice = slice(None)) -> dict[str, pd.Series]:
    """Each item's score under the model as it is now, by task; the index is the item's number."""
    return _reader(asked).evaluate(asked, part)


def chance(asked: Asked) -> dict[str, float]:
    """Return the accuracy of guessing, by task."""
    return _reader(asked).chance(asked)


def _reader(asked: Asked) -> ModuleType:
    return benchmarks if isinstance(asked, benchmarks.Asked) else harness


def can_lose(base: Mapping[str, pd.Series], guessing: Mapping[str, float]) -> list[str]:
    """Return the tasks in which the base model's accuracy is at least ``ABOVE_CHANCE`` above
    chance. All other tasks are blind.
    """
    return [task for task in base if base[task].mean() - guessing[task] >= ABOVE_CHANCE]


def above_chance(base: Mapping[str, pd.Series], guessing: Mapping[str, float]) -> pd.DataFrame:
    """Return one row per benchmark: ``task, items, base`` (accuracy), ``chance``, ``blind``."""
    usable = can_lose(base, guessing)
    rows = [  # blind: an accuracy near chance cannot fall
        {
            "task": task,
            "items": len(scores),
            "base": scores.mean(),
            "chance": guessing[task],
            "blind": task not in usable,
        }
        for task, scores in base.items()
    ]
    return pd.DataFrame(rows)


def accuracy_findings(
    answered: pd.DataFrame,
    base: Mapping[str, pd.Series],
    guessing: Mapping[str, float],
) -> list[claims.Finding]:
    """State the change in points of accuracy that GaussMark makes, over keys and weights, and the
    loss that the strong mark makes, over the benchmarks that can lose some. There are no findings
    if all benchmarks are blind.
    """
    rows = answered[answered["measure"].isin(can_lose(base, guessing))]
    if rows.empty:
        return []
    points = rows.assign(change=100 * rows["change"])  # from shares to points
    is_ours = points["model"].str.startswith(GAUSSMARK)  # on any weight
    strong = points[points["model"] == STRONG]
    gain = compare.over_keys_and_items(points[is_ours])
    loss = compare.over_keys_and_items(strong.assign(change=-strong["change"]))
    of_gain = "points of accuracy that GaussMark adds, over the benchmarks that can lose some"
    of_loss = "points of accuracy that the strong mark costs, over the same benchmarks"
    return [
        claims.finding(of_gain, gain, least=-1.0, most=0.5, planned=500),
        claims.finding(of_loss, loss, least=3.0, planned=500),
    ]


def churn(answered: pd.DataFrame, base: Mapping[str, pd.Series], drop: float) -> pd.DataFrame:
    """Count GaussMark's changed answers, by task.

    Returns:
        ``task, base`` (accuracy), the numbers of ``compare.lost_and_gained``, and the power with
        which this many items show a loss of ``drop``.
    """
    rows = []
    ours = once(answered[answered["model"] == GAUSSMARK])  # McNemar's test needs independent items
    for task, change in ours.groupby("measure", sort=False)["change"]:
        counts = compare.lost_and_gained(change)
        n_changed = counts["lost"] + counts["gained"]
        # one more item and one more change, so that the share is never 0
        share = min(0.5, (n_changed + 1) / (counts["items"] + 1))
        power = compare.mcnemar_power(counts["items"], drop, share)
        rows.append(
            {
                "task": task,
                "base": base[task].mean(),
                **counts,
                f"power for {100 * drop:g} points": power,
            }
        )
    return pd.DataFrame(rows)


def once(answered: pd.DataFrame) -> pd.DataFrame:
    """Return each item of a task and model under its first key: McNemar's test needs independent
    items.
    """
    return answered.drop_duplicates(["measure", "model", "item"])


def references_and_texts(
    lm: models.LM,
    marks: dict[str, Scheme],
    keys: Sequence[Key],
    prompts: Texts,
    n_tokens: int,
    *,
    n_base: int,
    seed: int,
    temperatures: Sequence[float] = (),
    **sampling,
) -> tuple[list[list[list[int]]], dict[str, list[list[int]]]]:
    """Write ``n_base`` − 1 reference draws of the base model, and each contender's texts.

    ``CONTROL`` is one more draw, and so is the base model at each of the ``temperatures``. All have
    random numbers of their own, and one batch.
    """
    seeds = iter(range(10_000 * seed, 10_000 * (seed + 1)))  # no two draws share random numbers
    draws = [
        generate.sample(lm.model, prompts, n_tokens, seed=next(seeds), **sampling)
        for _ in range(n_base)
    ]
    texts_by_model = {CONTROL: draws.pop()}  # the last draw is no reference
    for temperature in temperatures:
        options = {**sampling, "temperature": temperature}
        texts_by_model[at_temperature(temperature)] = generate.sample(
            lm.model, prompts, n_tokens, seed=next(seeds), **options
        )
    keys_of_prompts = [keys[i % len(keys)] for i in range(len(prompts))]
    for name, scheme in marks.items():
        texts_by_model[name] = scheme.generate(
            lm.model,
            prompts,
            n_tokens,
            keys=keys_of_prompts,
            seed=next(seeds),
            **sampling,
        )
    return draws, texts_by_model


def at_temperature(temperature: float) -> str:
    """Name the base model at this temperature as a contender."""
    return f"base, temperature {temperature:g}"


def told_apart(
    lm: models.LM,
    prompts: Texts,
    references: Sequence[Texts],
    own: dict[str, Texts],
    n_keys: int,
) -> pd.DataFrame:
    """Train one classifier per contender and key (``text_measures.told_apart``). Return for each
    held-out text the share of right answers, minus ½.
    """
    of_references = [text_measures.embed(lm.model, prompts, draw) for draw in references]
    tables = []
    for name, responses in own.items():
        of_contender = text_measures.embed(lm.model, prompts, responses)
        for j in range(n_keys):
            # the texts of key j, and the references after the same prompts
            x = [draw[j::n_keys] for draw in of_references]
            y = of_contender[j::n_keys]
            right = text_measures.told_apart(x, y)  # 1 or 0 for each held-out text
            tables.append(compare.changes("classifier", name, j, right - 0.5))
    return pd.concat(tables, ignore_index=True)


def varied(
    lm: models.LM,
    references: Sequence[Texts],
    own: dict[str, Texts],
    n_keys: int,
) -> pd.DataFrame:
    """Return the changes of ``text_measures.diversity`` from the mean of the references, text by
    text.
    """
    ends = generate.end_tokens(lm.model)
    # (texts, measures), mean over the references
    base = np.mean([text_measures.diversity(draw, ends) for draw in references], axis=0)
    tables = []
    for name, responses in own.items():
        change = text_measures.diversity(responses, ends) - base  # a column per measure
        keys = np.arange(len(responses)) % n_keys  # text i belongs to key i mod K
        for measure in change:
            tables.append(compare.changes(measure, name, keys, change[measure]))
    return pd.concat(tables, ignore_index=True)


def judged(
    lm: models.LM,
    prompts: Texts,
    references: Sequence[Texts],
    own: dict[str, Texts],
    n_keys: int,
    judge: judges.Judge,
    typed: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the win rate of each text against the references, minus ½, with ``item``; and the
    judge's answers (``judges.compare``, with ``model``).

    Texts are read up to their end tokens. They follow the prompts as the user ``typed`` them (in a
    chat), or else as they read.
    """
    ends = generate.end_tokens(lm.model)
    if typed is None:
        questions = [lm.decode(prompt) for prompt in prompts]
    else:
        questions = [f"{text}\n\n" for text in typed[: len(prompts)]]

    def read(responses: Texts) -> list[str]:
        return [lm.decode(text_measures.until_end(ids, ends)) for ids in responses]

    # the texts of each reference
    base = [read(draw[: len(questions)]) for draw in references]
    tables = []
    for name, responses in own.items():
        candidates = read(responses[: len(questions)])
        for draw in base:
            answers = judges.compare(judge, questions, candidates, draw)
            tables.append(answers.assign(model=name))
    table = pd.concat(tables, ignore_index=True)
    # an item's win rate is its mean over the references that the judge decided
    wins = table.groupby(["model", "item"], sort=False)["score"].mean().dropna().reset_index()
    keys = wins["item"] % n_keys
    changes = compare.changes("win rate", wins["model"], keys, wins["score"] - 0.5)
    return changes.assign(item=wins["item"]), table


def win_rate_findings(judged: pd.DataFrame, temperatures: Sequence[float]) -> list[claims.Finding]:
    """State whether GaussMark's win rate lies between that of the base model's further draw and
    that of the base model at the lowest of the ``temperatures``. There are no findings without
    temperatures.
    """
    if not temperatures:
        return []
    lowest = min(temperatures)
    return [
        claims.finding(
            OVER_DRAW,
            win_rate_difference(judged, GAUSSMARK, CONTROL),
            most=0.0,
            planned=300,
        ),
        claims.finding(
            f"{OVER_BASE} at temperature {lowest:g}",
            win_rate_difference(judged, GAUSSMARK, at_temperature(lowest)),
            least=0.0,
            planned=300,
        ),
    ]


def win_rate_difference(judged: pd.DataFrame, model: str, other: str) -> stats.Estimate:
    """Subtract the win rates of two contenders, prompt by prompt, with an interval that clusters by
    key.
    """
    # a column per contender
    of_model = judged.pivot(index=["key", "item"], columns="model", values="change")
    difference = (of_model[model] - of_model[other]).dropna().rename("change")
    return compare.mean_change(difference.reset_index())


def win_rates_beside(findings: Sequence[claims.Finding], model: str) -> Markdown:
    """Say in each record and in this run whether GaussMark's win rate is above or below that of the
    base model's further draw, and of the base model at a higher temperature.
    """

    def in_words(rows: Sequence[Mapping]) -> str:
        sentences = []
        for row in rows:
            if not row["claim"].startswith(OVER_BASE):
                continue
            value, basis = words.estimate(row)
            sign = "above 0" if row["low"] > 0 else "below 0" if row["high"] < 0 else "not decided"
            sentences.append(f"{row['claim']}: **{sign}**, {value} {basis}.")
        return " ".join(sentences)

    sentences_by_run = {
        answers.title(run): in_words(run.results["claims"]) for run in runs.references(JUDGED)
    }
    recorded = {name: text for name, text in sentences_by_run.items() if text}
    here = in_words([finding.row() for finding in findings])
    return answers.listed(recorded, here or None, model)


def exchange(
    lm: models.LM,
    pairs: Pairs,
    human: Texts,
    documents: Sequence[str],
    wms: Sequence[Watermark],
    *,
    seed: int = 0,
    dtype: str | None = None,
    batch_size: int = 64,
) -> pd.DataFrame:
    """Measure ψ and the price for each weight, kind of text (``"own"`` or ``"human"``) and pair.

    Returns:
        ``weight, text``, the columns of ``score.score`` for a text under the pair's key,
        ``document`` (of the human text, to cluster by), and ``change``: (Δ(ξ) + Δ(−ξ))/2 of the
        cross-entropy of the model's own plain text, or of how the author went on. Pairs may share
        a key.
    """
    n_tokens = len(human[0])  # all human continuations are equally long
    plain = generate.sample(lm.model, pairs.prompts, n_tokens, seed=seed, batch_size=batch_size)
    continuations = {"own": plain, "human": human}
    tables = []
    for wm in wms:
        _, scores = under_own_keys(
            lm,
            pairs,
            [wm],
            n_tokens,
            dtype=dtype,
            seed=seed,
            batch_size=batch_size,
        )
        changes = even_changes(lm, pairs, continuations, wm)
        for text, change in changes.items():
            tables.append(scores.assign(text=text, document=documents, change=change))
    return pd.concat(tables, ignore_index=True)


def even_changes(
    lm: models.LM,
    pairs: Pairs,
    continuations: Mapping[str, Texts],
    wm: Watermark,
) -> dict[str, np.ndarray]:
    """Return (Δ(ξ) + Δ(−ξ))/2 of each text's cross-entropy after its pair's prompt under its pair's
    key, nats per token, by kind of text. The texts of a key are read together.
    """
    placed, keys = perturb.ready(lm.model, wm, pairs.keys)
    reader = tokens.Reader(lm.model)
    read = []  # (prompt, response) of all texts, kind after kind
    rows_of_key = defaultdict(list)  # key → rows of ``read``
    for responses in continuations.values():
        for i, pair in reader.pairs(pairs.prompts, responses).items():
            rows_of_key[keys[i]].append(len(read))
            read.append(pair)
    nats = -reading.log_p(lm.model, read)
    rise = np.zeros(len(read))
    for key, rows in rows_of_key.items():
        xis = [xi[0] for xi in perturb.drawn(placed, [key])]  # one matrix per weight
        for sign in (1, -1):
            with perturb.moved(placed, [sign * xi for xi in xis]):
                marked = -reading.log_p(lm.model, [read[row] for row in rows])
            rise[rows] += (marked - nats[rows]) / 2
    rise /= [len(response) for _, response in read]
    return dict(zip(continuations, np.split(rise, len(continuations)), strict=True))


def rates(table: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """Divide the price of :func:`exchange` by the law's, mean Δ / (mean ψ)²/(2T), per weight and
    kind of text.

    Returns:
        ``weight, text, psi, change, law, value, low, high, n``; ``law`` is 1 + cv². Intervals
        cluster by document; n counts documents.
    """

    def rate(rows: np.ndarray) -> float:
        psi, change = rows.mean(0)  # of a resampled table
        return change / stats.predicted_price(psi, n_tokens)

    rows = []
    for (weight, text), group in table.groupby(["weight", "text"], sort=False):
        measured = group[["psi", "change"]]
        norm = group["grad_norm"]
        law = (norm**2).mean() / norm.mean() ** 2  # 1 + cv²
        documents = group["document"].to_numpy()
        estimate = stats.interval(measured.to_numpy(), rate, cluster=documents)
        row = {
            "weight": weight,
            "text": text,
            **measured.mean(),
            "law": law,
        }
        rows.append(row | estimate.row())
    return pd.DataFrame(rows)


def rates_in_words(rates: pd.DataFrame) -> str:
    """Word the smallest and the largest rate on each kind of text."""
    by_text = rates.pivot(index="weight", columns="text", values="value")
    n_weights = len(by_text)
    low = by_text.min()
    high = by_text.max()
    law = rates["law"]
    n_lower = (by_text["human"] < by_text["own"]).sum()
    return (
        "The exchange rate is the measured price divided by ψ²/(2T). On the model's own text, it is"
        f" **{low['own']:.2f}** to **{high['own']:.2f}**. On human text, it is"
        f" **{low['human']:.2f}** to **{high['human']:.2f}** (smallest and largest rate of the"
        f" {n_weights} weights). The law itself gives 1 + cv², which is {law.min():.2f} to"
        f" {law.max():.2f}. The number of weights whose rate is lower on human text than on the"
        f" model's own text is {n_lower} of {n_weights}."
    )


def quantity(measure: str) -> str:
    """Name what the column ``change`` of a measure holds, with its unit."""
    return QUANTITIES.get(measure, f"change of accuracy in {measure}")


def in_words(changes: pd.DataFrame, measure: str) -> str:
    """Say how GaussMark changes a measure, or that the measure is blind."""
    return compare.sentence(changes, measure, quantity(measure))


def cost_table(changes: pd.DataFrame) -> pd.DataFrame:
    """Return the cost of GaussMark by every measure, one row per measure: ``mean of``, the mean for
    GaussMark with ``low, high, n``, the mean for the strong mark, and whether the measure sees the
    strong mark.
    """
    means = compare.summary(changes).set_index(["measure", "model"])
    seen = compare.seen(changes)
    rows = []
    for measure in changes["measure"].unique():
        ours = means.loc[(measure, GAUSSMARK)]
        rows.append(
            {
                "mean of": quantity(measure),
                GAUSSMARK: ours["value"],
                "low": ours["low"],
                "high": ours["high"],
                "n": ours["n"],
                STRONG: means.loc[(measure, STRONG), "value"],
                "sees the strong mark": "yes" if measure in seen else "no: blind",
            }
        )
    return pd.DataFrame(rows)


def with_references(changes: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return ``compare.summary`` of some measures, of the notebook's records and of this run, with
    the column ``run``. A record that has no more items than this run is left out of a measure.
    Measures of written texts are those of the records of ``JUDGED``.
    """
    here = compare.summary(changes[changes["measure"].isin(measures)])
    n_here = here.groupby("measure")["n"].max()

    def larger(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        is_larger = table["n"] > table["measure"].map(n_here)  # also False without the measure
        return table[is_larger]

    notebook = JUDGED if set(measures) <= set(OF_TEXTS) else NOTEBOOK
    return answers.beside(here, notebook, "quality", larger)


def in_all_runs(changes: pd.DataFrame, measures: Sequence[str], model: str) -> Markdown:
    """Say how GaussMark changes some measures in each record, and in this run with its model."""
    table = with_references(changes, measures)
    recorded = table[table["run"] != answers.THIS_RUN]
    found = {name: _means_in_words(of_run) for name, of_run in recorded.groupby("run", sort=False)}
    here = " ".join(in_words(changes, measure) for measure in measures)
    return answers.listed(found, here, model)


def _means_in_words(means: pd.DataFrame) -> str:
    """The means of GaussMark and of the strong mark by each measure of a record's summary."""
    sentences = []
    for measure, rows in means.groupby("measure", sort=False):
        by_model = rows.set_index("model")
        ours = intervals.of_row(by_model.loc[GAUSSMARK])
        strong = intervals.of_row(by_model.loc[STRONG])
        is_blind = not by_model.loc[STRONG, "differs"]
        blind = " So the measure is blind." if is_blind else ""
        sentences.append(
            f"**{measure}**: under GaussMark, the mean {quantity(measure)} is **{ours}**."
            f" Under the strong mark, the mean is {strong}.{blind}"
        )
    return " ".join(sentences)


def under_strong(changes: pd.DataFrame, measure: str) -> Callable[[Run], stats.Estimate | None]:
    """Return a function from a record to its mean change of a measure under the strong mark; None
    if the record has no more items than this run.
    """
    table = with_references(changes, [measure]).query("model == @STRONG")
    by_run = table.set_index("run")

    def of_record(run: Run) -> stats.Estimate | None:
        name = answers.title(run)
        return intervals.of_row(by_run.loc[name]) if name in by_run.index else None

    return of_record


def figure(
    changes: pd.DataFrame,
    name: str,
    measures: Sequence[str],
    caption: str,
    title: str,
) -> Figure:
    """Draw the mean change of each of these measures, a row per model, of the notebook's records
    and of this run. Save it in the record as ``name``. The caption ends with keys × items.
    """
    rows = changes[changes["measure"].isin(measures)]
    table = with_references(changes, measures)
    has_panels = len(measures) > 1  # a single measure is the axis of a single panel
    sizes = f"{compare.sizes(rows)} per contender"
    drawn = panels(
        table.assign(measure=table["measure"].map(quantity), model=table["model"].map(short)),
        "model",
        by="run",
        panel="measure" if has_panels else None,
        at={"no change": 0},
        ylabel="mean over items" if has_panels else quantity(measures[0]),
        title=title,
        caption=f"this run: {caption}; {sizes}; 95% intervals, clustered by key",
    )
    return record.save_figure(drawn, name)


def short(name: str) -> str:
    """Shorten the name of a weight, also inside the name of a contender.

    >>> short("GaussMark, model.layers.15.mlp.down_proj.weight")
    'GaussMark, block 15 down_proj'
    """
    return re.sub(r"model\.layers\.(\d+)\.\w+\.(\w+)\.weight", r"block \1 \2", name)


def draw_tasks(answered: pd.DataFrame, caption: str) -> Figure:
    """Draw how GaussMark and the strong mark change the accuracy in each task, in points, one panel
    per run: a record has other tasks than this run.
    """

    def of_tasks(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        return table[table["measure"].isin(run.table("tasks")["task"])]

    table = answers.beside(compare.summary(answered), NOTEBOOK, "quality", of_tasks)
    table = table[table["model"].isin([GAUSSMARK, STRONG])]
    ends = ["value", "low", "high"]
    table[ends] = 100 * table[ends]
    tasks_of_runs = table["measure"].str.replace("_", " ")
    drawn = panels(
        table.assign(task=tasks_of_runs),
        "task",
        by="model",
        panel="run",
        at={"no change": 0},
        ylabel="change of accuracy, in points (percent of the items)",
        title="How many points of accuracy does a mark cost?",
        caption=f"this run: {caption}; {compare.sizes(answered)} per mark; 95% intervals, "
        "clustered by key",
        sharey=False,
    )
    return record.save_figure(drawn, "tasks")


def churn_in_words(tasks: pd.DataFrame) -> str:
    """Word the answers that GaussMark changes in each task, and whether the comparison would show a
    loss of 5 points.
    """
    sentences = []
    for row in tasks.to_dict("records"):
        changed = row["lost"] + row["gained"]
        power = row["power for 5 points"]
        shows = "yes" if power >= 0.95 else "probably" if power >= 0.8 else "not reliably"
        sentences.append(
            f"{row['task']}: **{changed / row['items']:.0%}** of {row['items']:,} answers change"
            f" ({row['lost']} lost, {row['gained']} gained). Would it show a loss of 5 points?"
            f" {shows} (power {power:.2f})."
        )
    return " ".join(sentences)


@torch.no_grad()
def temperature_prices(
    lm: models.LM, passages: Texts, temperatures: Sequence[float], batch_size: int = 4
) -> pd.DataFrame:
    """Return what sampling at a temperature τ costs, at the places of human passages. With p the
    model's next token and p_τ ∝ p^(1/τ), in nats per token:

    ``value, low, high, n``: the mean of KL(p_τ ‖ p), to compare with ψ²/(2T), also a KL.
    ``change``: the mean of −Σ p_τ log p minus the entropy of p, as the cost over keys in 08.
    """
    kl_of_passages = []  # each (batch, temperatures)
    change_of_passages = []
    for batch in in_lists(passages, batch_size):
        # the first token has no prediction without a prompt, so it is the prompt
        pairs = [(ids[:1], ids[1:]) for ids in batch]
        inputs, is_token = divergence.laid_out(lm.model, pairs)
        log_p = wide(divergence.logits(lm.model, inputs, is_token.shape[1])).log_softmax(-1)
        kl, change = (torch.zeros(len(temperatures), len(batch)) for _ in range(2))
        entropy = torch.special.entr(log_p.exp()).sum(-1)  # (batch, places)
        for i, temperature in enumerate(temperatures):
            log_q = (log_p / temperature).log_softmax(-1)  # (batch, places, vocabulary)
            crossed = -(log_q.exp() * log_p).sum(-1)
            divergence_of_places = crossed - torch.special.entr(log_q.exp()).sum(-1)
            kl[i] = _mean_over_tokens(divergence_of_places, is_token)
            change[i] = _mean_over_tokens(crossed - entropy, is_token)
        kl_of_passages.append(kl.T)
        change_of_passages.append(change.T)
    kl_by_passage = torch.cat(kl_of_passages).double().numpy()
    changes = torch.cat(change_of_passages).double().mean(0).tolist()
    rows = [
        {"temperature": temperature, **stats.interval(column).row(), "change": change}
        for temperature, column, change in zip(temperatures, kl_by_passage.T, changes, strict=True)
    ]
    return pd.DataFrame(rows)


def _mean_over_tokens(values: Tensor, is_token: Tensor) -> Tensor:
    """The mean over the tokens of each text, without its padding."""
    return (values * is_token).sum(-1).cpu() / is_token.sum(-1).cpu()


def equal_temperature(temperature: pd.DataFrame, price: float) -> float:
    """Return the temperature whose KL is this price, from that of temperature 1.1: to first order,
    a KL grows like the square of the change.
    """
    is_tenth = np.isclose(temperature["temperature"], 1.1)
    of_tenth = temperature.loc[is_tenth, "value"].item()
    return 1 + 0.1 * float(np.sqrt(price / of_tenth))


def surprisal_changes(
    lm: models.LM, prompts: Texts, own: Mapping[str, Texts], references: Sequence[Texts]
) -> dict[str, np.ndarray]:
    """Return the cross-entropy of each contender's texts under the base model, minus the mean over
    reference draws after the same prompts: nats per token, one number per prompt.
    """

    def nats(responses: Texts) -> np.ndarray:
        return likelihood.cross_entropy(lm.model, responses, prompts=prompts)

    base = np.mean([nats(draw) for draw in references], axis=0)
    return {name: nats(responses) - base for name, responses in own.items()}


def equivalent_temperatures(
    lm: models.LM,
    prompts: Texts,
    change: Mapping[str, np.ndarray],
    plain: Sequence[Texts],
    cluster: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return the temperature at which plain text is as surprising as each contender's texts
    (``divergence.equivalent_temperature``): ``scheme, value, low, high, n``.

    Args:
        change: of :func:`surprisal_changes`, by contender.
        plain: draws of plain texts at temperature 1 after the prompts, which give the slope.
        cluster: a label for each prompt.
    """
    draws = [ids for of_draw in plain for ids in of_draw]
    found = divergence.surprisal(lm.model, [*prompts] * len(plain), draws)
    slopes = divergence.temperature_slopes(found).reshape(len(plain), -1).mean(0)  # (prompts,)
    rows = []
    for name, nats in change.items():
        estimate = divergence.equivalent_temperature(nats, slopes, cluster=cluster)
        rows.append({"scheme": name, **estimate.row()})
    return pd.DataFrame(rows)


def temperatures_with_intervals(equivalent: pd.DataFrame) -> list[str]:
    """Word each row of :func:`equivalent_temperatures`."""
    return [f"{row.value:.3f} ({row.low:.3f} to {row.high:.3f})" for row in equivalent.itertuples()]


def equivalents_in_words(equivalent: pd.DataFrame) -> str:
    """Word the temperature that costs as much as each contender."""
    in_words_of_rows = temperatures_with_intervals(equivalent)
    named = zip(equivalent["scheme"], in_words_of_rows, strict=True)
    listed = "; ".join(f"**{name}** {temperature}" for name, temperature in named)
    n = int(equivalent["n"].max())
    return f"Plain text is as surprising at temperature: {listed}. The intervals rest on n = {n}."


def equivalents_beside(equivalent: pd.DataFrame, model: str) -> Markdown:
    """Say in each record and in this run which temperature GaussMark costs, and then which each
    contender costs (:func:`equivalents_in_words`).
    """
    of_gaussmark = equivalent_of(GAUSSMARK)
    # they meet half way
    options = {"nearer to 1.01": (-np.inf, 1.055), "nearer to 1.1": (1.055, np.inf)}
    nearer = answers.answer(
        JUDGED,
        answers.from_table("equivalent", of_gaussmark),
        of_gaussmark(equivalent),
        options,
        heading="Temperature that is equivalent to GaussMark",
        model=model,
    )
    listed = answers.sentences(JUDGED, equivalents_in_words, model=model, equivalent=equivalent)
    # words between the lists, or Markdown joins them
    return Markdown(f"{nearer.data}\n\nOf all contenders:\n\n{listed.data}")


def equivalent_of(scheme: str) -> Callable[[pd.DataFrame], stats.Estimate]:
    """Return a function from :func:`equivalent_temperatures` to a scheme's row."""
    return lambda table: intervals.of_row(table.set_index("scheme").loc[scheme])


def temperatures_in_words(temperature: pd.DataFrame) -> str:
    """Word the price of temperature 1.1 next to the price of ψ = 4, the length at which both are
    equal, and the temperatures that cost as much as ψ = 4.
    """
    is_tenth = np.isclose(temperature["temperature"], 1.1)
    [tenth] = temperature[is_tenth].itertuples()
    short_text = TYPICAL_LENGTHS[0]
    price = stats.predicted_price(TYPICAL_PSI, short_text)
    outcome = "larger" if price > tenth.value else "smaller"
    equal_length = TYPICAL_PSI**2 / (2 * tenth.value)  # ψ²/(2T) solved for T
    equals = [
        f"{number(equal_temperature(temperature, stats.predicted_price(TYPICAL_PSI, n)), 2)}"
        f" in {n:,} tokens"
        for n in TYPICAL_LENGTHS
    ]
    return (
        f"**{outcome}**: ψ = {TYPICAL_PSI:g} in {short_text} tokens costs {price:.3f} nats per"
        f" token, temperature 1.1 costs {tenth.value:.3f} ({tenth.low:.3f} to {tenth.high:.3f})."
        f" Both cost the same in a text of {equal_length:,.0f} tokens. ψ = {TYPICAL_PSI:g} costs"
        f" as much as temperature {', '.join(equals)}. At temperature 1.1, the cross-entropy of the"
        f" written text also changes, by {tenth.change:+.3f} nats per token."
    )


def at_a_glance() -> HTML:
    """Return a table: what a mean ψ of 4 costs by the law ψ²/(2T), for texts of several lengths.
    For each record of the notebook, it has the law times the measured exchange rate on human text,
    and, if a record of the model has the prices of temperatures, the temperature that costs as
    much.
    """
    laws = [stats.predicted_price(TYPICAL_PSI, n) for n in TYPICAL_LENGTHS]
    table = {
        "tokens of a text, T": [f"{n:,}" for n in TYPICAL_LENGTHS],
        f"price of ψ = {TYPICAL_PSI:g}: ψ²/(2T), nats per token": [f"{x:.3f}" for x in laws],
        "perplexity is multiplied by": [f"{np.exp(x):.3f}" for x in laws],
    }
    judged_runs = {answers.title(run): run for run in runs.references(JUDGED)}
    for run in runs.references(NOTEBOOK):
        name = answers.title(run)
        rate = human_rate(run)
        if rate is not None:
            heading = f"{name}, human text: measured rate {rate.value:.2f} × the law"
            table[heading] = [
                f"{x * rate.value:.3f} ({x * rate.low:.3f} to {x * rate.high:.3f})" for x in laws
            ]
        if answers.has_table(judged_runs[name], "temperature"):
            prices = judged_runs[name].table("temperature")
            equals = [equal_temperature(prices, x) for x in laws]
            table[f"{name}: costs as much as temperature"] = [f"{x:.2f}" for x in equals]
    with pd.option_context("display.max_colwidth", None):
        return HTML(pd.DataFrame(table).to_html(index=False, justify="left"))


def human_rate(run: Run) -> stats.Estimate | None:
    """Return a record's exchange rate on human text, of its first weight."""
    beginning = "price divided by ψ²/(2T) on human text"
    for row in run.results.get("claims", []):
        if row["claim"].startswith(beginning):
            return answers.recorded(run, row["claim"])
    return None


def draw_rates(prices: pd.DataFrame, n_tokens: int, caption: str) -> Figure:
    """Draw the exchange rates (:func:`rates`) of the notebook's records and of this run."""

    def of_record(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        if "document" not in table:  # an older record: a document per pair
            table = table.assign(document=table["prompt"])
        return rates(table, run.params["n_tokens"])

    table = answers.beside(rates(prices, n_tokens), NOTEBOOK, "exchange", of_record)
    drawn = panels(
        table.assign(text=table["text"] + " text", weight=table["weight"].map(short)),
        "weight",
        by="text",
        panel="run",
        title="Is the price ψ²/(2T)?",
        ylabel="measured price divided by ψ²/(2T)",
        at={"ψ²/(2T)": 1},
        caption=f"this run: {caption}",
        sharey=False,
    )
    return record.save_figure(drawn, "exchange")


def cost_in_words(estimates: Mapping[str, stats.Estimate | None], psi: float, n_tokens: int) -> str:
    """Word what the watermark costs, from the headline and the findings of a run by name. A finding
    that the run lacks, or that rests on fewer than ``FEWEST_ITEMS`` items, is left out.
    """
    law = stats.predicted_price(psi, n_tokens)
    parts = [
        f"For ψ = {psi:g} in a text of {n_tokens} tokens, the law says {law:.3f} nats per token"
        " of the model's own text"
    ]
    for name, (sentence, factor) in COSTS.items():
        estimate = estimates.get(name)
        if estimate is None or estimate.n < FEWEST_ITEMS:
            continue
        in_unit = {
            "value": factor * estimate.value,
            "low": factor * estimate.low,
            "high": factor * estimate.high,
            "n": estimate.n,
        }
        value, basis = words.estimate(in_unit)
        parts.append(f"{sentence.format(f'**{value}**')} {basis}")
    return f"{'; '.join(parts)}."


def closing(
    findings: Sequence[claims.Finding], rise: stats.Estimate, psi: float, n_tokens: int, model: str
) -> Markdown:
    """Say what the watermark costs, in each record and in this run. What the record of ``JUDGED``
    says about written texts follows in a sentence of its own.
    """

    def cost_of(run: Run, names: Iterable[str]) -> str:
        estimates = {name: answers.recorded(run, name) for name in names}
        return cost_in_words(estimates, run.params["psi"], run.params["n_tokens"])

    judged_runs = {answers.title(run): run for run in runs.references(JUDGED)}
    found = {}
    for run in runs.references(NOTEBOOK):
        name = answers.title(run)
        found[name] = cost_of(run, COSTS)
        if judged_runs[name].id != run.id:
            found[name] += f" {cost_of(judged_runs[name], (CLASSIFIED, WINS))}"
    here = {finding.sentence: finding.estimate for finding in findings} | {RISE: rise}
    return answers.listed(found, cost_in_words(here, psi, n_tokens), model)


def readable(prompts: Sequence[str]) -> int:
    """Return the number of the first prompt that a reader can continue: it has no address of a page
    and no code, and it ends with a word. If there is none, return 0.

    >>> readable(["See http://a.org/b", "Use the `x_y", "It was a dark and"])
    2
    """
    for i, prompt in enumerate(prompts):
        pieces = prompt.split()
        has_code = re.search(r"://|www\.|[`<>{}\\|=_#*]", prompt)
        if pieces and not has_code and re.fullmatch(r"[^\W\d]+[,;:]?", pieces[-1]):
            return i
    return 0


def _under_each(
    lm: models.LM, marks: dict[str, Scheme], keys: Sequence[Key]
) -> Iterator[tuple[str, int, slice]]:
    """Each mark on the weights with each key: its name, the key's number, the key's items. The
    model carries the mark until the caller takes the next item.
    """
    for name, scheme in marks.items():
        if isinstance(scheme, GaussMark):  # KGW puts nothing on the weights
            for j, key in enumerate(keys):
                with perturb.watermarked(lm.model, scheme.wm, key):
                    yield name, j, slice(j, None, len(keys))
