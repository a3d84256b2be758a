"""What a notebook found, held against what was expected; and what it checked.

A *finding* is a quantity whose value nobody could have told, with its interval and a range that was
chosen before the measurement. Its outcome is recorded and never stops a run:

    held             the whole interval lies in the range
    not held         no part of it does
    at the edge      the interval straddles an end of the range, and n is at least the planned one
    too little data  the same in a smaller run

A *check* is a theorem, or something true by construction. It is no finding, and it does stop a run.
:func:`report` records both and returns one folded table, in which a small run stands beside the
record in git that the notebook rests on (``papermill_runs/reference``).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
from IPython.display import HTML

from gaussmark_lib import errors as doors
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.record import record as keep
from gaussmark_lib.runs import ask
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.stats import Estimate

HELD, NOT_HELD, EDGE, OPEN = "held", "not held", "at the edge", "too little data"
PLANNED = 250  # n that decides: of pairs in a reference run, at least
FEWEST_KEYS = 5  # for an interval that resamples keys
NEAREST = (
    1 / 50
    # of the half-width: an estimate that is closer to the end of its range is at the end, for all
    # that
    # can be known
)


@dataclass(frozen=True)
class Finding:
    """A sentence that names a quantity, its estimate, and the range that was expected.

    >>> print(finding("measured over predicted ψ", Estimate(0.97, 0.91, 1.02, 400), most=1.2))
    Held: measured over predicted ψ is 0.97 (0.91 to 1.02), n = 400; expected at most 1.2.
    """

    sentence: str
    estimate: Estimate
    least: float
    most: float
    planned: int

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
        return f"{self.outcome.capitalize()}: {is_what}"

    def row(self) -> dict[str, str | float | int | None]:
        """As it is recorded: ``claim, outcome, value, low, high, n, expected``."""
        numbers = {
            name: number if math.isfinite(number) else None
            for name, number in self.estimate.row().items()
        }
        return (
            {"claim": self.sentence, "outcome": self.outcome}
            | numbers
            | {"expected": self.expected}
        )


def finding(
    sentence: str,
    estimate: Estimate,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    planned: int = PLANNED,
) -> Finding:
    """A quantity ("mean ψ over its prediction") with the range that was expected of it; planned:
    the n at which a truth in the middle of the range is decided.
    """
    return Finding(sentence, estimate, least, most, planned)


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
    of the notebook's reference record as a folded table.
    """
    keep({"claims": [f.row() for f in findings], "checks": list(checks), **results})
    reference = ask.reference(notebook)
    known = {row["claim"]: row for row in _claims(reference)}
    rows = [
        {
            "finding": f.sentence,
            "expected": f.expected,
            "this run": f"{f.outcome}: {f.estimate}",
            "reference run": _recorded(known.get(f.sentence)),
        }
        for f in findings
    ]
    counts = Counter(f.outcome for f in findings)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    checked = "".join(f"<li>Checked: {escape(one['check'])}</li>" for one in checks)
    return HTML(
        f"<details><summary>{len(findings)} findings: {outcomes or 'none'}; {len(checks)} checks"
        f" passed</summary>{pd.DataFrame(rows).to_html(index=False)}"
        f"<p>{_age(reference, notebook)}</p><ul>{checked}</ul></details>"
    )


def _recorded(row: dict | None) -> str:
    return f"{row['outcome']}: {_number(row)}" if row else "not recorded"


def _age(run: Run | None, notebook: str) -> str:
    if run is None:
        return "There is no reference run of this notebook."
    is_old = run.status.get("code") != notebooks.load(notebook).code
    return (
        f"Reference run: {run.status['finished'][:10]}, model {run.params.get('model', 'doclm')}"
        f"{', with an older version of this library' if is_old else ''}."
    )


# To be deleted with the last notebook that calls it: all below but _claims and _number.
@dataclass(frozen=True)
class Verdict:
    """A claim with its outcome. ``needed`` is the n that would decide it, where there is too little
    data and an n could.

    >>> estimate = Estimate(0.97, 0.91, 1.02, 48)
    >>> print(verdict("measured over predicted ψ", estimate, least=0.8, most=1.2))
    Held: measured over predicted ψ is 0.97 (0.91 to 1.02), n = 48; expected 0.8 to 1.2.
    >>> print(verdict("texts detected", Estimate(0.75, 0.6, 0.9, 40), least=0.7).outcome)
    too little data
    """

    claim: str
    outcome: str
    estimate: Estimate
    least: float
    most: float
    needed: int | None

    @property
    def expected(self) -> str:
        if math.isinf(self.most):
            return f"at least {self.least:.3g}"
        return (
            f"at most {self.most:.3g}"
            if math.isinf(self.least)
            else f"{self.least:.3g} to {self.most:.3g}"
        )

    def __str__(self) -> str:
        more = f" About {self.needed:,} would decide." if self.needed else ""
        if self.outcome == OPEN and not self.needed and not math.isnan(self.estimate.low):
            more = " It is at the end of that range, so no n is sure to decide."
        return (
            f"{self.outcome.capitalize()}: {self.claim} is {self.estimate}; expected"
            f" {self.expected}.{more}"
        )

    def row(self) -> dict[str, str | float | int | None]:
        """As it is recorded: ``claim, outcome, value, low, high, n, expected, needed``."""
        found = self.estimate
        numbers = {
            name: number if math.isfinite(number) else None for name, number in found.row().items()
        }
        return {
            "claim": self.claim,
            "outcome": self.outcome,
            **numbers,
            "expected": self.expected,
            "needed": self.needed,
        }


def verdict(
    claim: str, estimate: Estimate, *, least: float = -math.inf, most: float = math.inf
) -> Verdict:
    """Whether the estimate lies in [least, most], as far as its interval tells. ``claim`` names the
    quantity: "mean ψ over its prediction".

    Raises:
        GaussMarkError: no range at all, or one whose ends are in the wrong order.
    """
    if not (doors.is_number(least) and doors.is_number(most) and least < most) or (
        math.isinf(least) and math.isinf(most)
    ):
        raise GaussMarkError(
            f"expected least < most, at least one of them finite, got least={doors.shown(least)},"
            f" most={doors.shown(most)}"
        )
    value, low, high, n = estimate.value, estimate.low, estimate.high, estimate.n
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        return Verdict(claim, OPEN, estimate, least, most, None)
    if least <= low and high <= most:
        return Verdict(claim, HELD, estimate, least, most, None)
    if high < least or most < low:
        return Verdict(claim, NOT_HELD, estimate, least, most, None)
    if (
        value == high == 1 and 0 < low < least < 1
    ):  # the exact interval of n hits of n shrinks like 1/n: low = (α/2)^(1/n)
        return Verdict(
            claim, OPEN, estimate, least, most, math.ceil(n * math.log(low) / math.log(least))
        )
    if value == low == 0 and 0 < most < high < 1:
        return Verdict(
            claim, OPEN, estimate, least, most, math.ceil(n * math.log1p(-high) / math.log1p(-most))
        )
    ends = (
        ((value - low, value - least), (high - value, most - value))
        if least <= value <= most
        else _missed(estimate, least, most)
    )
    if any(distance <= NEAREST * width for width, distance in ends):
        return Verdict(claim, OPEN, estimate, least, most, None)
    needed = math.ceil(round(n * max(width / distance for width, distance in ends) ** 2, 6))
    return Verdict(claim, OPEN, estimate, least, most, max(n + 1, needed))


def _missed(estimate: Estimate, least: float, most: float) -> tuple[tuple[float, float]]:
    """The half-width towards the end of the range that the value lies beyond, and its distance to
    it.
    """
    if estimate.value < least:
        return ((estimate.high - estimate.value, least - estimate.value),)
    return ((estimate.value - estimate.low, estimate.value - most),)


def record(verdicts: Sequence[Verdict]) -> dict[str, list[dict]]:
    """For ``runs.record``: ``{"claims": [...]}``."""
    return {"claims": [verdict.row() for verdict in verdicts]}


def beside(verdicts: Sequence[Verdict], notebook: str) -> pd.DataFrame:
    """This run's verdicts next to those of the notebook's reference record: ``claim, expected, this
    run, outcome, reference, reference outcome``.
    """
    known = {row["claim"]: row for row in _claims(ask.reference(notebook))}
    rows = []
    for v in verdicts:
        large = known.get(v.claim)
        reference = {
            "reference": _number(large) if large else "none",
            "reference outcome": _with_n(large) if large else "none",
        }
        rows.append(
            {
                "claim": v.claim,
                "expected": v.expected,
                "this run": str(v.estimate),
                "outcome": _with_n(v.row()),
            }
            | reference
        )
    return pd.DataFrame(rows).set_index("claim")


def about_reference(notebook: str, n_keys: int | None = None) -> str:
    """On the notebook's reference record: its model and date, and whether today's code would
    compute it anew.

    With ``n_keys``, those of this run: a warning where they are too few for an interval that
    resamples them.
    """
    few = ""
    if n_keys is not None and n_keys < FEWEST_KEYS:
        few = (
            f" This run has {n_keys} {'key' if n_keys == 1 else 'keys'}: intervals over so few are"
            " rough and may be too narrow."
        )
    run = ask.reference(notebook)
    if run is None:
        return (
            "There is no reference record of this notebook: what its own run cannot decide stays"
            " open." + few
        )
    older = run.status.get("code") != notebooks.load(notebook).code
    age = " It was made by an older version of this library; a new run may differ." if older else ""
    return (
        f"The reference record was made on {run.status['finished'][:10]} with the model"
        f" {run.params.get('model', 'doclm')}.{age}{few}"
    )


def _claims(run: Run | None) -> list[dict]:
    return run.results.get("claims", []) if run else []


def _number(row: dict) -> str:
    return str(
        Estimate(
            *(math.nan if row[name] is None else row[name] for name in ("value", "low", "high")),
            row["n"],
        )
    )


def _with_n(row: dict) -> str:
    return (
        f"{row['outcome']}; about {row['needed']:,} would decide"
        if row.get("needed")
        else row["outcome"]
    )
