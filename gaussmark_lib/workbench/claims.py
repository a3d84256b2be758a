"""What a notebook found, compared with what was expected; and what it checked.

A *finding* is a quantity whose value theory does not fix, with its interval and a range that was
chosen before the measurement. Its outcome is recorded and never stops a run:

    held             the whole interval lies in the range
    not held         the whole interval lies outside of the range
    at the edge      the interval contains an end of the range, and n is at least the planned n
    too little data  the same in a smaller run

A finding may have a *law*, the value that theory predicts. The record says whether the interval
excludes the law, because a range around a law can hold although the law does not: "held, but
differs from 1". A range that is more than ``TOO_WIDE`` times as wide as the interval does not test
anything, and the report says so.

A *check* is a theorem, or true by construction. It is not a finding, and it does stop a run.
:func:`report` records both and returns a folded table, which shows a small run next to the records
in git that the notebook rests on (``papermill_runs/reference``).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from typing import Any

import pandas as pd
from IPython.display import HTML
from scipy.stats import binom

from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import runs, words
from gaussmark_lib.workbench.answers import THIS_RUN, title
from gaussmark_lib.workbench.plots import show
from gaussmark_lib.workbench.record import record as keep
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.folder import Run

Counts = int | pd.Series
CHANCE = 1e-4  # of a check to fail although the level is true
HELD = "held"
NOT_HELD = "not held"
EDGE = "at the edge"
OPEN = "too little data"
PLANNED = 250  # n that decides: a reference run has at least this many pairs
NO_TEST = "no test: the range is more than ten times as wide as the interval"
TOO_WIDE = 10  # a range that is wider than this many intervals can hardly fail


@dataclass(frozen=True)
class Finding:
    """A quantity ("mean ψ divided by its prediction"), its estimate, and the expected range.

    Args:
        planned: the n at which a true value in the middle of the range is decided.
        law: the value that theory predicts, if there is one.

    >>> print(finding("measured divided by predicted ψ", Estimate(0.97, 0.91, 1.02, 400), most=1.2))
    Held: measured divided by predicted ψ is 0.97 (0.91 to 1.02), n = 400; expected at most 1.2.
    >>> print(finding("the ratio", Estimate(0.86, 0.82, 0.89, 400), least=0.8, most=1.2, law=1))
    Held, but differs from 1: the ratio is 0.86 (0.82 to 0.89), n = 400; expected 0.8 to 1.2.
    """

    sentence: str
    estimate: Estimate
    _: KW_ONLY
    least: float = -math.inf
    most: float = math.inf
    planned: int = PLANNED
    law: float | None = None

    @property
    def excludes_law(self) -> bool | None:
        """Whether the law lies outside the interval; None without a law or an interval."""
        low = self.estimate.low
        high = self.estimate.high
        if self.law is None or math.isnan(low):
            return None
        return not low <= self.law <= high

    @property
    def is_too_wide(self) -> bool:
        """Whether the range is so wide, compared with the interval, that it can hardly fail."""
        width_of_interval = self.estimate.high - self.estimate.low
        width_of_range = self.most - self.least
        return math.isfinite(width_of_range) and width_of_range > TOO_WIDE * width_of_interval

    @property
    def outcome(self) -> str:
        """One of ``HELD``, ``NOT_HELD``, ``EDGE`` and ``OPEN``."""
        low = self.estimate.low
        high = self.estimate.high
        # without an interval its ends are NaN, and both comparisons are False
        if self.least <= low and high <= self.most:
            return HELD
        if high < self.least or self.most < low:
            return NOT_HELD
        is_planned = self.estimate.n >= self.planned and not math.isnan(low)
        return EDGE if is_planned else OPEN

    @property
    def expected(self) -> str:
        """The range in words."""
        if math.isinf(self.most):
            return f"at least {self.least:.3g}"
        if math.isinf(self.least):
            return f"at most {self.most:.3g}"
        return f"{self.least:.3g} to {self.most:.3g}"

    def __str__(self) -> str:
        outcome = words.outcome(self.row()).capitalize()
        return f"{outcome}: {self.sentence} is {self.estimate}; expected {self.expected}."

    def row(self) -> dict[str, str | float | int | None]:
        """Return the row that is recorded: ``claim, outcome, value, low, high, n, expected, law,
        excludes_law, no_test``.
        """
        # JSON has no NaN and no infinity
        numbers = {
            name: number if math.isfinite(number) else None
            for name, number in self.estimate.row().items()
        }
        return {
            "claim": self.sentence,
            "outcome": self.outcome,
            **numbers,
            "expected": self.expected,
            "law": self.law,
            "excludes_law": self.excludes_law,
            "no_test": self.is_too_wide,
        }


finding = Finding  # notebooks call it by this name


def check(sentence: str, ok: bool) -> dict[str, str | bool]:
    """Assert what is proved or true by construction, for the list ``checks`` of :func:`report`. A
    check of random numbers should fail in at most one run of 10,000.
    """
    assert ok, f"expected that {sentence}, but it does not hold here"
    return {"check": sentence, "ok": True}


def keeps_level(sentence: str, n_alarms: Counts, n: Counts, level: float | Sequence[float]) -> dict:
    """Check that ``n_alarms`` false alarms of ``n`` independent keys are not too many for a level.
    (Too few are not checked.) Of several numbers, none may be too large.

    >>> keeps_level("the test keeps its level", n_alarms=9, n=100, level=0.05)
    {'check': 'the test keeps its level', 'ok': True}
    """
    tails = binom.sf(n_alarms - 1, n, level)  # the probabilities of so many, or more
    return check(sentence, bool(tails.min() > CHANCE))


def report(
    notebook: str, findings: Sequence[Finding], checks: Sequence[dict] = (), **results: Any
) -> HTML:
    """Record ``claims``, ``checks`` and further results. Return the findings as a folded table: of
    the notebook's records in git, a real model first, and of this run.
    """
    own_rows = [finding.row() for finding in findings]
    keep({"claims": own_rows, "checks": list(checks), **results})
    references = runs.references(notebook)
    rows_by_run = {title(run): run.results.get("claims", []) for run in references}
    counts = [f"{name}, reference: {_counts(rows)}" for name, rows in rows_by_run.items()]
    counts.append(f"{THIS_RUN}: {_counts(own_rows)}; checks passed: {len(checks)}")

    checked = "".join(f"<li>Checked: {escape(check['check'])}</li>" for check in checks)
    ages = "".join(f"<li>{_age(run, notebook)}</li>" for run in references)
    return HTML(
        f"<details><summary>Findings. {'. '.join(counts)}</summary>"
        f"{_table(findings, rows_by_run)}<ul>{ages}{checked}</ul></details>"
    )


def _counts(rows: Sequence[Mapping]) -> str:
    """How many findings have each outcome, in words."""
    counts = Counter("no test" if row.get("no_test") else row["outcome"] for row in rows)
    return ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "no findings"


def larger(notebook: str, figure: str) -> HTML:
    """Show the saved figure of this name in the first of the notebook's records that has it, for a
    section whose answer needs more pairs than a quick run has. Show nothing if none has it.
    """
    for run in runs.references(notebook):
        path = run.dir / "figures" / f"{figure}.png"
        if not path.exists():
            continue
        about = f"The same figure in the reference record of {title(run)}, at larger n"
        n_pooled = len(run.status.get("pooled", []))
        if n_pooled:  # the record's numbers have more pairs than its figure
            about += f" (the first of the {n_pooled} runs that are pooled in this record)"
        picture = show.saved(path, colours=32)
        alt = escape(picture.alt or about)
        return HTML(f'<p>{about}:</p><img style="width:100%" alt="{alt}" src="{picture.source}">')
    return HTML("")


def _table(findings: Sequence[Finding], rows_by_run: Mapping[str, Sequence[dict]]) -> str:
    """The findings as an HTML table: first those of this run, then those of records alone."""
    expected_by_sentence = {finding.sentence: finding.expected for finding in findings}
    too_wide = {finding.sentence for finding in findings if finding.is_too_wide}
    for recorded_rows in rows_by_run.values():
        for row in recorded_rows:
            expected_by_sentence.setdefault(row["claim"], row["expected"])
    all_runs = {f"{name}, reference": rows for name, rows in rows_by_run.items()}
    all_runs[THIS_RUN] = [finding.row() for finding in findings]

    table = []
    for sentence, expected in expected_by_sentence.items():
        in_words = f"{expected} ({NO_TEST})" if sentence in too_wide else expected
        cells = {"finding": sentence, "expected": in_words}
        for name, rows in all_runs.items():
            of_sentence = [row for row in rows if row["claim"] == sentence]
            cells[name] = _outcome(of_sentence[0], expected) if of_sentence else "not measured"
        table.append(cells)
    return pd.DataFrame(table).to_html(index=False, justify="left")


def _outcome(row: Mapping, expected: str) -> str:
    """Return the outcome of a finding in words, with its range if this is not the expected one."""
    value, basis = words.estimate(row)
    outcome = f"{words.outcome(row)}: {value} {basis}"
    return outcome if row["expected"] == expected else f"{outcome}; its range was {row['expected']}"


def _age(run: Run, notebook: str) -> str:
    date = run.status["finished"][:10]
    sentence = f"Reference run on {title(run)}: {date}"
    if run.status.get("code") != notebooks.load(notebook).code:
        sentence += ", with an older version of this library"
    return f"{sentence}."
