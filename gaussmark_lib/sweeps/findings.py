"""What a record says, in a few rounded lines with their interval and n: its headline, and what
became of its expectations.
"""

import math
from dataclasses import dataclass
from typing import Any

from gaussmark_lib import words
from gaussmark_lib.runs import ask
from gaussmark_lib.runs.folder import Run

# a reader should see first what did not come out as expected
OUTCOMES = {
    "not held": "✗ not held",
    "held": "✓ held",
    "at the edge": "~ at the edge",
    "too little data": "? too little data",
}


@dataclass(frozen=True)
class Line:
    """One quantity. ``reference`` is the same verdict of the notebook's recorded large run, in
    words.
    """

    name: str
    value: str
    basis: str  # interval and n
    outcome: str = ""
    expected: str = ""
    reference: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.basis}".strip()

    @property
    def verdict(self) -> str:
        return OUTCOMES[self.outcome]


def headline(run: Run | None) -> Line | None:
    """The number that the notebook is about; a share is given in percent."""
    given = run and run.results.get("headline")
    if not (_is_estimate(given) and "sentence" in given):
        return None
    value, basis = words.estimate(given, as_percent=_is_share(given))
    return Line(given["sentence"], f"{value} {given.get('unit') or ''}".strip(), basis)


def sigma(run: Run | None) -> float | None:
    """The σ of the notebook's GaussMark watermark, where it recorded exactly one."""
    results = run.results if run else {}
    given = results.get("σ", results.get("sigma"))
    given = given.get("GaussMark") if isinstance(given, dict) else given
    return given if type(given) in (int, float) and math.isfinite(given) else None


def verdicts(run: Run | None, notebook: str) -> list[Line]:
    """All of the notebook's expectations and what became of them: first those that did not hold,
    last those that are open.
    """
    claims = _claims(run)
    large = {
        claim["claim"]: claim for claim in _claims(ask.reference(notebook) if claims else None)
    }
    return [
        Line(
            claim["claim"],
            *words.estimate(claim),
            claim["outcome"],
            str(claim.get("expected", "")).replace("-", "−"),
            _in_words(large.get(claim["claim"])),
        )
        for claim in sorted(claims, key=lambda claim: [*OUTCOMES].index(claim["outcome"]))
    ]


def _claims(run: Run | None) -> list[dict[str, Any]]:
    claims = (run.results.get("claims") if run else None) or []
    return [claim for claim in claims if _is_estimate(claim) and claim.get("outcome") in OUTCOMES]


def _in_words(claim: dict[str, Any] | None) -> str:
    return f"{claim['outcome']}: {' '.join(words.estimate(claim))}" if claim else ""


def _is_share(estimate: dict[str, Any]) -> bool:
    """Whether it is a part of n trials: without a unit, its interval in [0, 1], and n times it a
    whole number, which a ratio of two times is not.
    """
    low, high, n = (estimate.get(name) for name in ("low", "high", "n"))
    if estimate.get("unit") or None in (estimate["value"], low, high, n):
        return False
    count = estimate["value"] * n
    return 0 <= low <= high <= 1 and abs(count - round(count)) < 1e-9 * n


def _is_estimate(item: Any) -> bool:
    """An estimate as ``runs.record`` writes it; a record from elsewhere may hold anything."""
    return (
        isinstance(item, dict)
        and {"value", "low", "high"} <= item.keys()
        and all(
            isinstance(item.get(name), int | float | None) and math.isfinite(item.get(name) or 0)
            for name in ("value", "low", "high", "n")
        )
    )
