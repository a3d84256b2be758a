"""What an experiment expects, held against what it measured: a verdict, which is printed and
recorded and never stops a run.

A claim is a range that was chosen before the measurement. With the estimate's interval [low, high]:

    held              the whole interval lies in the range not held          no part of it does too
    little data   otherwise; the interval shrinks like 1/√n, so about n·(half-width/distance to the
    range's end)² observations decide,
                      if the estimate stays where it is; for a share of 0 or 1, whose exact interval
                      shrinks like 1/n, fewer; where it stays closer to the range's end than a
                      fiftieth of the half-width, no n is named

A notebook's default run is small. Its claims rest on a record in git
(``papermill_runs/reference``), which :func:`beside` puts next to it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from gaussmark_lib import checks
from gaussmark_lib.errors import StatisticsError
from gaussmark_lib.runs import ask
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.stats import Estimate

HELD, NOT_HELD, OPEN = "held", "not held", "too little data"
FEWEST_KEYS = 5  # for an interval that resamples keys
NEAREST = (
    1 / 50
    # of the half-width: an estimate that is closer to the end of its range is at the end, for all
    # that
    # can be known
)


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
        StatisticsError: no range at all, or one whose ends are in the wrong order.
    """
    if not (checks.is_number(least) and checks.is_number(most) and least < most) or (
        math.isinf(least) and math.isinf(most)
    ):
        raise StatisticsError(
            f"expected least < most, at least one of them finite, got least={checks.shown(least)},"
            f" most={checks.shown(most)}"
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
