"""A rival's protocol, taken apart: where the gradient is taken, what is known, and which threshold.

A text y, a key with noise ξ, and two evaluations of the model, at θ and at θ + ξ, give three
statistics:

    ψ at θ              ⟨ξ, G(θ)⟩ / (σ‖G(θ)‖),           G(θ) = ∇ log p_θ(y)
    ψ at θ + ξ          ⟨ξ, G(θ + ξ)⟩ / (σ‖G(θ + ξ)‖)
    likelihood ratio    log p_{θ+ξ}(y) − log p_θ(y), nats

Only the first has a distribution that is known in advance: N(0, 1) over keys. For the others, a
threshold that is the same for all texts comes from human texts. To second order in ξ, with the
Fisher information F of the text and s = √(ξᵀFξ), which is about the predicted ψ, and for human text
that is distributed like plain text of the model:

    mean and sd          human text          watermarked text
    ψ at θ               0,  1               s,  1
    ψ at θ + ξ           −s, 1               0,  1
    likelihood ratio     −s²/2, s            s²/2, s

In each row, the two means are s standard deviations apart. So to second order all three statistics
detect equally well, each with a threshold of its own. Beyond second order, they differ: near θ + ξ,
the length of the gradient depends on the key.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from gaussmark_experiments import intervals
from gaussmark_lib import models, perturb, score, stats
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.gradients import TextGradient, of_pairs
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.pairs import means

MARKED = "watermarked"
KNOWN = "prompt known"
UNKNOWN = "prompt unknown"
AT_THETA = "ψ at θ"
AT_MOVED = "ψ at θ + ξ"
RATIO = "likelihood ratio"
STATISTICS = (AT_THETA, AT_MOVED, RATIO)
EXACT = "N(0, 1)"
EMPIRICAL = "human texts"

# (statistic, threshold), from the rival's two tests to this project's, and the trap of notebook 02
TESTS = (
    (AT_MOVED, EMPIRICAL),
    (RATIO, EMPIRICAL),
    (AT_THETA, EMPIRICAL),
    (AT_THETA, EXACT),
    (AT_MOVED, EXACT),
)

# Steps from the rival's use of ψ, in this order; the prompt is unknown if nothing else is said.
TO_THETA = "gradient at θ, not at θ + ξ"
TO_RATIO = "then the ratio, not ψ at θ"
TO_BOTH = "both: the ratio, not ψ at θ + ξ"
TO_EXACT = "ψ at θ: exact threshold"
TO_KNOWN = "ψ at θ, exact: prompt known"
N_DRAWS = 2000  # of the bootstrap for thresholds from human texts
FIRST_RANK = 5  # the smallest k of a threshold for which a gain gets an interval
STEPS = {  # step → (prompt, statistic, threshold) after it and before it
    TO_THETA: (
        (UNKNOWN, AT_THETA, EMPIRICAL),
        (UNKNOWN, AT_MOVED, EMPIRICAL),
    ),
    TO_RATIO: (
        (UNKNOWN, RATIO, EMPIRICAL),
        (UNKNOWN, AT_THETA, EMPIRICAL),
    ),
    TO_BOTH: (
        (UNKNOWN, RATIO, EMPIRICAL),
        (UNKNOWN, AT_MOVED, EMPIRICAL),
    ),
    TO_EXACT: (
        (UNKNOWN, AT_THETA, EXACT),
        (UNKNOWN, AT_THETA, EMPIRICAL),
    ),
    TO_KNOWN: (
        (KNOWN, AT_THETA, EXACT),
        (UNKNOWN, AT_THETA, EXACT),
    ),
}


def measured(
    lm: models.LM,
    wm: Watermark,
    keys: Sequence[perturb.Key],
    marked: Sequence[tuple[Texts, Texts]],
    human: Mapping[str, tuple[Texts, Texts]],
    dtype: str | None = None,
) -> pd.DataFrame:
    """Return the three statistics of each key's own texts and of human texts.

    Args:
        marked: (prompts, responses) that each key's model wrote.
        human: two kinds of text → (prompts, responses), which are tested under every key.

    Returns:
        ``kind`` (``MARKED`` or a kind of human text), ``key`` (its number), ``text``, ``prompt``
        (``KNOWN`` or ``UNKNOWN``), and a column per statistic.
    """
    if len(human) < 2:
        raise ParameterError(f"other: expected another kind of text than {[*human]}")
    of_kinds = [(MARKED, [number], texts) for number, texts in enumerate(marked)]
    of_kinds += [(kind, range(len(keys)), texts) for kind, texts in human.items()]
    tables = []
    for kind, numbers, (prompts, responses) in of_kinds:
        tested_keys = [keys[number] for number in numbers]
        unknown = [lm.unknown_prompt()] * len(responses)
        for name, given in ((KNOWN, prompts), (UNKNOWN, unknown)):
            table = of_texts(lm, wm, tested_keys, given, responses, dtype)
            table["key"] = np.take(numbers, table["key"])
            tables.append(table.assign(kind=kind, prompt=name))
    return pd.concat(tables, ignore_index=True)


def of_texts(
    lm: models.LM,
    wm: Watermark,
    keys: Sequence[perturb.Key],
    prompts: Texts,
    responses: Texts,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Return the three statistics of each text under each key: ``key, text``, and a column for each
    of ``STATISTICS``.
    """
    placed, keys = perturb.ready(lm.model, wm, keys)
    at_theta = score.gradients(lm.model, prompts, responses, wm, dtype=dtype)
    log_p = {}  # text → log p_θ
    psis = {}  # text → ψ at θ under each key
    for gradient, values in score.statistics(at_theta, placed, keys):
        log_p[gradient.text] = gradient.log_lik
        psis[gradient.text] = values
    rows = []
    for number, key in enumerate(keys):
        with perturb.watermarked(lm.model, wm, key):
            at_moved = list(_at_moved(placed, prompts, responses, dtype))
        for gradient, [psi] in score.statistics(at_moved, placed, [key]):
            text = gradient.text
            ratio = gradient.log_lik - log_p[text]
            rows.append((number, text, psis[text][number], psi, ratio))
    return pd.DataFrame(rows, columns=["key", "text", *STATISTICS])


def _at_moved(
    wm: PlacedWatermark,
    prompts: Texts,
    responses: Texts,
    dtype: str | None,
) -> Iterator[TextGradient]:
    """The gradients of a model that carries a key's noise: what ``score`` refuses."""
    return of_pairs(wm, wm.reader.pairs(prompts, responses), dtype=dtype, perturbed=True)


def thresholds(table: pd.DataFrame, kind: str, level: float) -> pd.DataFrame:
    """Return the threshold of each statistic at a level: (prompts, statistics).

    It is the k-th largest value among the n pairs of a human text of this kind and a key,
    k = ⌊level · (n + 1)⌋, and at most k − 1 of these pairs lie above it. NaN if k is 0.
    """
    of_human = table[table["kind"] == kind].groupby("prompt")
    found = {}
    for prompt, rows in of_human:
        found[prompt] = {name: _threshold(rows[name].to_numpy(), level) for name in STATISTICS}
    return pd.DataFrame(found).T[list(STATISTICS)]


def _threshold(values: np.ndarray, level: float) -> float:
    k = _rank(level, len(values))
    return np.sort(values)[-k] if k else np.nan


def _rank(level: float, n: int) -> int:
    """k, the place of the threshold among n values, the largest first; 0 if there is none."""
    return int(level * (n + 1) + 1e-9)


def usable(levels: Sequence[float], n_pairs: int) -> list[float]:
    """Return the levels at which n pairs of a human text and a key set a threshold.

    Raises:
        ParameterError: there is none.

    >>> usable([0.05, 0.01], 90), usable([0.05, 0.01], 99)
    ([0.05], [0.05, 0.01])
    """
    possible = [level for level in levels if _rank(level, n_pairs)]
    if not possible:
        raise ParameterError(
            f"levels: expected at least one of 1/{n_pairs + 1} or more, got {[*levels]}; larger"
            f" levels, or more human texts or keys than these {n_pairs} pairs, set a threshold"
        )
    return possible


def detected(table: pd.DataFrame, kind: str, levels: Sequence[float]) -> pd.DataFrame:
    """Return whether each test detects each text, with thresholds from human texts of this kind.

    Returns:
        The rows of ``table`` for each of ``TESTS`` and each level, with ``statistic, threshold,
        level, hit`` (float). Human texts that set a threshold are left out where it is used. A
        level that is too small for the number of human texts is left out, too.
    """
    parts = []
    for level in levels:
        empirical = thresholds(table, kind, level)
        for statistic, threshold in TESTS:
            if threshold == EXACT:
                least = stats.threshold(level)
                rows = table
            else:
                least = table["prompt"].map(empirical[statistic])
                rows = table[table["kind"] != kind]
            hit = (table[statistic] >= least).astype(float)
            if np.isnan(least).any():
                continue
            columns = {"statistic": statistic, "threshold": threshold, "level": level}
            parts.append(rows.assign(hit=hit, **columns).drop(columns=list(STATISTICS)))
    return pd.concat(parts, ignore_index=True)


def rates(hits: pd.DataFrame) -> pd.DataFrame:
    """Return the share of texts that each test detects, with an interval clustered by key."""
    by = ["kind", "prompt", "statistic", "threshold", "level"]
    table = means(hits.assign(hit=hits["hit"] == 1), by, "hit", cluster="key")
    n_texts = hits.groupby(by, sort=False).size().to_numpy()
    return table.assign(test=table["statistic"] + ", " + table["threshold"], texts=n_texts)


def gain(
    table: pd.DataFrame,
    kind: str,
    level: float,
    new: tuple[str, str, str],
    old: tuple[str, str, str],
) -> stats.Estimate:
    """Return how much larger a share of the watermarked texts one test detects than another.

    The interval is over keys. If a test takes its threshold from human texts, this threshold is an
    estimate, too: a bootstrap draws the keys and the human texts again and, with them, the
    threshold. There is no interval if all draws agree, or if the k of the threshold is smaller than
    ``FIRST_RANK``, because then the draws lean to one side.

    Args:
        table: of :func:`measured`.
        kind: of the human texts that set the thresholds.
        new, old: (prompt, statistic, threshold) of each test.

    Raises:
        ParameterError: the human texts set no threshold at this level (:func:`usable`).
    """
    tests = (new, old)
    marked = [_grid(table, MARKED, test) for test in tests]
    human = [_grid(table, kind, test) for test in tests]

    def difference(keys: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """The difference of each of these keys: its mean over the key's texts."""
        shares = []
        for test, of_marked, of_human in zip(tests, marked, human, strict=True):
            least = stats.threshold(level)
            if test[2] == EMPIRICAL:
                drawn = of_human[keys][:, texts]
                is_there = ~np.isnan(drawn)
                least = _threshold(drawn[is_there], level)
            own = of_marked[keys]
            hits = np.where(np.isnan(own), np.nan, own >= least)
            share = np.nanmean(hits, axis=1)
            shares.append(share)
        by_new, by_old = shares
        return by_new - by_old

    n_keys, n_texts = human[0].shape
    rank = _rank(level, np.isfinite(human[0]).sum())
    is_estimated = EMPIRICAL in (new[2], old[2])
    if is_estimated and not rank:
        raise ParameterError(
            f"level {level:g}: expected more human texts or keys, because {n_keys} keys and"
            f" {n_texts} human texts set no threshold at this level"
        )
    of_keys = difference(np.arange(n_keys), np.arange(n_texts))
    if not is_estimated:
        return stats.interval(of_keys)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(N_DRAWS):
        keys = rng.integers(n_keys, size=n_keys)
        texts = rng.integers(n_texts, size=n_texts)
        drawn.append(difference(keys, texts).mean())
    value = float(of_keys.mean())
    if np.ptp(drawn) == 0 or rank < FIRST_RANK:
        return stats.Estimate(value, np.nan, np.nan, n_keys)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return stats.Estimate(value, float(low), float(high), n_keys)


def _grid(table: pd.DataFrame, kind: str, test: tuple[str, str, str]) -> np.ndarray:
    """A test's statistic for the texts of a kind, (keys, texts); NaN where a key has no text."""
    prompt, statistic, _ = test
    of_kind = table[table["kind"] == kind]
    rows = of_kind[of_kind["prompt"] == prompt]
    grid = rows.pivot(index="key", columns="text", values=statistic)
    return grid.to_numpy()


def steps(table: pd.DataFrame, kind: str, level: float) -> pd.DataFrame:
    """Return how many more watermarked texts each step detects on the way from the rival's use of ψ
    to this project's test and to the likelihood ratio: ``step``, and an estimate.

    Args:
        table: of :func:`measured`.
        kind: of the human texts that set the thresholds.
    """
    rows = []
    for step, (new, old) in STEPS.items():
        rows.append({"step": step, **gain(table, kind, level, new, old).row()})
    return pd.DataFrame(rows)


def steps_in_words(table: pd.DataFrame) -> str:
    """Say what the likelihood ratio gains over ψ at θ + ξ, and how much of this gain ψ at θ has,
    too, in one run's :func:`steps`.
    """
    shown = {}
    for row in table.to_dict("records"):
        value = words.number(row["value"], 3)
        low = words.number(row["low"], 3)
        high = words.number(row["high"], 3)
        interval = "no interval" if math.isnan(row["low"]) else f"{low} to {high}"
        shown[row["step"]] = f"{value} ({interval})"
    return (
        f"the ratio gains {shown[TO_BOTH]}: ψ at θ instead of ψ at θ + ξ gains"
        f" **{shown[TO_THETA]}**, and the ratio instead of ψ at θ **{shown[TO_RATIO]}**. For ψ at"
        f" θ, an exact threshold gains {shown[TO_EXACT]}, and then the prompt {shown[TO_KNOWN]}"
    )


def moments(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and the standard deviation of each statistic, as text, for each kind of text
    with the prompt and without it.
    """
    cells = table.groupby(["prompt", "kind"], sort=False)[list(STATISTICS)]
    mean = cells.mean().map("{:.2f}".format)
    deviation = cells.std().map("{:.2f}".format)
    return (mean + " ± " + deviation).reset_index()


def spreads_in_words(scores: pd.DataFrame) -> str:
    """Compare the spread of the likelihood ratio, without the prompt, of the two kinds of human
    text in the table of :func:`measured`. The first kind sets the thresholds.
    """
    _, kind, other = scores["kind"].unique()
    spreads = scores[scores["prompt"] == UNKNOWN].groupby("kind")[RATIO].std()
    return (
        f"standard deviation of the ratio, prompt unknown: {kind} **{spreads[kind]:.1f}**, {other}"
        f" **{spreads[other]:.1f}**"
    )


def claims_of(level: float) -> tuple[str, str, str]:
    """Return the sentences of three comparisons: the rival's two tests; the ratio and this
    project's test; with the prompt and without it.
    """
    detected_at = f"share detected at {level:g}"
    return (
        f"{detected_at} without the prompt: likelihood ratio less ψ at θ + ξ, both with thresholds "
        "from human texts",
        f"{detected_at} without the prompt: likelihood ratio with a threshold from human texts "
        "less ψ at θ with the exact threshold",
        f"{detected_at} by ψ at θ with the exact threshold: with the prompt less without it",
    )


def alarms_claim(level: float) -> str:
    """Return the sentence of the false alarms on another kind of text."""
    return (
        "share of human texts of another kind that are flagged by the likelihood ratio, less the "
        f"level {level:g}"
    )


def alarms_less_level(rows: pd.DataFrame, level: float) -> stats.Estimate:
    """Return the share of human texts that a test flags, less its level. The interval is that of
    the share (``stats.interval`` of hits), because few texts are flagged.

    Args:
        rows: of :func:`detected`, of one test.
    """
    share = stats.interval(rows["hit"] == 1, cluster=rows["key"])
    return intervals.less(share, level)


def keeps_level(hits: pd.DataFrame, level: float) -> bool:
    """Return whether the exact test flags no more human texts than chance allows: the 99.99%
    interval of their share, over keys, reaches down to the level.
    """
    share = stats.interval(hits["hit"] == 1, cluster=hits["key"], confidence=0.9999)
    return bool(share.low <= level)


def apart(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return how far apart human and watermarked texts lie, in standard deviations of human texts:
    ``prompt, statistic``, and an estimate with an interval, by a bootstrap over keys.
    """
    of_both = table[table["kind"].isin([MARKED, kind])]
    rows = []
    for prompt, cell in of_both.groupby("prompt", sort=False):
        is_marked = (cell["kind"] == MARKED).to_numpy(float)
        for name in STATISTICS:
            values = np.column_stack([is_marked, cell[name]])
            estimate = stats.interval(values, _distance, cluster=cell["key"])
            rows.append({"prompt": prompt, "statistic": name} | estimate.row())
    return pd.DataFrame(rows)


def _distance(rows: np.ndarray) -> float:
    """The difference of the means, from rows (is watermarked, value), in standard deviations."""
    is_marked = rows[:, 0] == 1
    values = rows[:, 1]
    human = values[~is_marked]
    return (values[is_marked].mean() - human.mean()) / human.std(ddof=1)
