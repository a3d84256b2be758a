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
:func:`report` records both and returns a folded table, which shows a small run next to the record
in git that the notebook rests on (``papermill_runs/reference``).
"""

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from typing import Any

import pandas as pd
from IPython.display import HTML

from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import runs, words
from gaussmark_lib.workbench.record import record as keep
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.folder import Run

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
        excludes_law``.
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
        }


finding = Finding  # notebooks call it by this name


def check(sentence: str, ok: bool) -> dict[str, str | bool]:
    """Assert what is proved or true by construction, for the list ``checks`` of :func:`report`. A
    check of random numbers should fail in at most one run of 10,000.
    """
    assert ok, f"expected that {sentence}, but it does not hold here"
    return {"check": sentence, "ok": True}


def report(
    notebook: str, findings: Sequence[Finding], checks: Sequence[dict] = (), **results: Any
) -> HTML:
    """Record ``claims``, ``checks`` and further results. Return the findings of this run and of the
    notebook's reference record as folded tables: first the decided findings, then the undecided.
    """
    claims = [finding.row() for finding in findings]
    keep({"claims": claims, "checks": list(checks), **results})
    reference = runs.reference(notebook)
    recorded = reference.results.get("claims", []) if reference else []
    recorded_by_sentence = {row["claim"]: row for row in recorded}

    counts = Counter(finding.outcome for finding in findings)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "none"
    summary = f"{len(findings)} findings: {outcomes}; checks passed: {len(checks)}"

    decided = [finding for finding in findings if finding.outcome in (HELD, NOT_HELD)]
    undecided = [finding for finding in findings if finding not in decided]
    # a small run leaves much undecided, which should not hide what it decides
    tables = ""
    if decided:
        tables += _table(decided, recorded_by_sentence)
    if undecided:
        tables += f"<p>Not decided in this run:</p>{_table(undecided, recorded_by_sentence)}"

    checked = "".join(f"<li>Checked: {escape(check['check'])}</li>" for check in checks)
    return HTML(
        f"<details><summary>{summary}</summary>{tables}"
        f"<p>{_age(reference, notebook)}</p><ul>{checked}</ul></details>"
    )


def larger(notebook: str, figure: str) -> HTML:
    """Show the saved figure of this name in the notebook's reference record, for a section whose
    answer needs more pairs than a quick run has. Show nothing if the record has no such figure.
    """
    reference = runs.reference(notebook)
    if reference is None:
        return HTML("")
    path = reference.dir / "figures" / f"{figure}.png"
    if not path.exists():
        return HTML("")
    title = f"The same figure in the reference record of {reference.params['model']}, at larger n"
    # inside the page, so that the notebook shows it wherever it lies
    base64_png = b64encode(path.read_bytes()).decode()
    source = f"data:image/png;base64,{base64_png}"
    return HTML(f'<p>{title}:</p><img style="width:100%" alt="{title}" src="{source}">')


def _table(findings: Sequence[Finding], recorded_by_sentence: Mapping[str, dict]) -> str:
    rows = []
    for finding in findings:
        expected = finding.expected
        if finding.is_too_wide:
            expected += f" ({NO_TEST})"
        row = {
            "finding": finding.sentence,
            "expected": expected,
            "this run": _outcome(finding.row()),
            "reference run": _outcome(recorded_by_sentence.get(finding.sentence)),
        }
        rows.append(row)
    return pd.DataFrame(rows).to_html(index=False, justify="left")


def _outcome(row: dict | None) -> str:
    if row is None:
        return "not recorded"
    value, basis = words.estimate(row)
    return f"{words.outcome(row)}: {value} {basis}"


def _age(run: Run | None, notebook: str) -> str:
    if run is None:
        return "This notebook has no reference run."
    date = run.status["finished"][:10]
    sentence = f"Reference run: {date}, model {run.params.get('model', 'doclm')}"
    if run.status.get("code") != notebooks.load(notebook).code:
        sentence += ", with an older version of this library"
    return f"{sentence}."
