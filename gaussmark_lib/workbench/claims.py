"""What a notebook found, held against what was expected; and what it checked.

A *finding* is a quantity whose value nobody could have told, with its interval and a range that was
chosen before the measurement. Its outcome is recorded and never stops a run:

    held             the whole interval lies in the range
    not held         no part of it does
    at the edge      the interval straddles an end of the range, and n is at least the planned one
    too little data  the same in a smaller run

A finding may have a *law*, the value that theory predicts. The record says whether the interval
excludes the law, because a range around a law can hold although the law does not: "held, but
differs from 1". A range that is more than ``TOO_WIDE`` times as wide as the interval is no test,
and the report says so.

A *check* is a theorem, or something true by construction. It is no finding, and it does stop a run.
:func:`report` records both and returns one folded table, in which a small run stands beside the
record in git that the notebook rests on (``papermill_runs/reference``).
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

HELD, NOT_HELD, EDGE, OPEN = "held", "not held", "at the edge", "too little data"
PLANNED = 250  # n that decides: of pairs in a reference run, at least
NO_TEST = "no test: the range is more than ten times as wide as the interval"
TOO_WIDE = 10  # a range of so many times the interval's width hardly can fail


@dataclass(frozen=True)
class Finding:
    """A quantity ("mean ψ divided by its prediction"), its estimate, and the range that was
    expected of it; planned: the n at which a truth in the middle of the range is decided; law: the
    value that theory predicts, if there is one.

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
        low, high = self.estimate.low, self.estimate.high
        if self.law is None or math.isnan(low):
            return None
        return not low <= self.law <= high

    @property
    def is_too_wide(self) -> bool:
        """Whether the range is so wide beside the interval that it hardly can fail."""
        width = self.estimate.high - self.estimate.low
        return math.isfinite(self.most - self.least) and self.most - self.least > TOO_WIDE * width

    @property
    def outcome(self) -> str:
        low, high = self.estimate.low, self.estimate.high
        if self.least <= low and high <= self.most:
            return HELD
        if high < self.least or self.most < low:
            return NOT_HELD
        is_planned = self.estimate.n >= self.planned and not math.isnan(low)
        return EDGE if is_planned else OPEN

    @property
    def expected(self) -> str:
        if math.isinf(self.most):
            return f"at least {self.least:.3g}"
        if math.isinf(self.least):
            return f"at most {self.most:.3g}"
        return f"{self.least:.3g} to {self.most:.3g}"

    def __str__(self) -> str:
        is_what = f"{self.sentence} is {self.estimate}; expected {self.expected}."
        return f"{words.outcome(self.row()).capitalize()}: {is_what}"

    def row(self) -> dict[str, str | float | int | None]:
        """As it is recorded: ``claim, outcome, value, low, high, n, expected`` and ``law,
        excludes_law``.
        """
        numbers = {
            name: number if math.isfinite(number) else None
            for name, number in self.estimate.row().items()
        }
        return (
            {"claim": self.sentence, "outcome": self.outcome}
            | numbers
            | {"expected": self.expected, "law": self.law, "excludes_law": self.excludes_law}
        )


finding = Finding  # what notebooks call


def check(sentence: str, ok: bool) -> dict[str, str | bool]:
    """Asserts what is proved or true by construction, for the list ``checks`` of :func:`report`.
    One that is drawn at random should be wrong in one run of 10,000 at most.
    """
    assert ok, f"expected that {sentence}, but it does not hold here"
    return {"check": sentence, "ok": True}


def report(
    notebook: str, findings: Sequence[Finding], checks: Sequence[dict] = (), **results: Any
) -> HTML:
    """Records ``claims``, ``checks`` and further results, and returns the findings of this run and
    of the notebook's reference record as folded tables: those that are decided, and apart from them
    those that are not.
    """
    keep({"claims": [f.row() for f in findings], "checks": list(checks), **results})
    reference = runs.reference(notebook)
    recorded = reference.results.get("claims", []) if reference else []
    known = {row["claim"]: row for row in recorded}
    decided = [f for f in findings if f.outcome in (HELD, NOT_HELD)]
    open_ones = [f for f in findings if f not in decided]
    apart = f"<p>Not decided in this run:</p>{_table(open_ones, known)}" if open_ones else ""
    counts = Counter(f.outcome for f in findings)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    checked = "".join(f"<li>Checked: {escape(one['check'])}</li>" for one in checks)
    return HTML(
        f"<details><summary>{len(findings)} findings: {outcomes or 'none'}; checks passed:"
        f" {len(checks)}</summary>{_table(decided, known) if decided else ''}{apart}"
        f"<p>{_age(reference, notebook)}</p><ul>{checked}</ul></details>"
    )


def larger(notebook: str, figure: str) -> HTML:
    """The saved figure of this name in the notebook's reference record, for a section whose answer
    needs more pairs than a quick run has; empty where the record has none.
    """
    reference = runs.reference(notebook)
    path = reference and reference.dir / "figures" / f"{figure}.png"
    if not path or not path.exists():
        return HTML("")
    title = f"The same figure in the reference record of {reference.params['model']}, at larger n"
    source = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"
    return HTML(f'<p>{title}:</p><img style="width:100%" alt="{title}" src="{source}">')


def _table(findings: Sequence[Finding], known: Mapping[str, dict]) -> str:
    rows = [
        {
            "finding": f.sentence,
            "expected": f"{f.expected} ({NO_TEST})" if f.is_too_wide else f.expected,
            "this run": _outcome(f.row()),
            "reference run": _outcome(known.get(f.sentence)),
        }
        for f in findings
    ]
    return pd.DataFrame(rows).to_html(index=False, justify="left")


def _outcome(row: dict | None) -> str:
    return f"{words.outcome(row)}: {' '.join(words.estimate(row))}" if row else "not recorded"


def _age(run: Run | None, notebook: str) -> str:
    if run is None:
        return "There is no reference run of this notebook."
    is_old = run.status.get("code") != notebooks.load(notebook).code
    return (
        f"Reference run: {run.status['finished'][:10]}, model {run.params.get('model', 'doclm')}"
        f"{', with an older version of this library' if is_old else ''}."
    )
