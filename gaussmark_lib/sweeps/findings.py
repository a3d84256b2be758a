"""What became of a notebook's expectations, in words: of each finding whether it held, with its
interval and n.
"""

import math
from typing import Any, NamedTuple

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


class Finding(NamedTuple):
    """One quantity. ``reference`` is the same finding of the notebook's recorded large run."""

    name: str
    value: str
    basis: str  # interval and n
    outcome: str
    expected: str
    reference: str

    @property
    def verdict(self) -> str:
        return OUTCOMES[self.outcome]


def verdicts(run: Run | None, notebook: str) -> list[Finding]:
    """All of the notebook's findings: first those that did not hold, last those that are open."""
    claims = sorted(_claims(run), key=lambda claim: [*OUTCOMES].index(claim["outcome"]))
    large = {
        claim["claim"]: claim for claim in _claims(ask.reference(notebook) if claims else None)
    }
    return [
        Finding(
            claim["claim"],
            *words.estimate(claim),
            claim["outcome"],
            str(claim.get("expected", "")).replace("-", "−"),
            _in_words(large.get(claim["claim"])),
        )
        for claim in claims
    ]


def _claims(run: Run | None) -> list[dict[str, Any]]:
    claims = (run.results.get("claims") if run else None) or []
    return [claim for claim in claims if claim.get("outcome") in OUTCOMES]


def _in_words(claim: dict[str, Any] | None) -> str:
    return f"{claim['outcome']}: {' '.join(words.estimate(claim))}" if claim else ""


def checks(run: Run | None) -> list[str]:
    """The theorems that the notebook checked, as sentences; a notebook in which one fails stops."""
    return [str(check["check"]) for check in (run.results.get("checks") if run else None) or []]


def sigma(run: Run | None) -> float | None:
    """The σ of the notebook's GaussMark watermark, where it recorded exactly one."""
    results = run.results if run else {}
    given = results.get("σ", results.get("sigma"))
    given = given.get("GaussMark") if isinstance(given, dict) else given
    return given if type(given) in (int, float) and math.isfinite(given) else None
