"""What a record says, in a few rounded lines with their interval and n: its headline, its verdicts,
and numbers where it has few of these.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from gaussmark_lib import words
from gaussmark_lib.runs import ask
from gaussmark_lib.runs.folder import Run

MOST, FEWEST = 6, 3  # lines of a notebook
# of two names of quantities, as difflib has it: "docs: alarms over keys" and "source: alarms over
# keys"
ALIKE = 0.8
ORDER = (
    "not held",
    "held",
    "too little data",
)  # a reader should see first what did not come out as expected
SHOWN = {"held": "✓ held", "not held": "✗ not held", "too little data": "? too little data"}


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

    @property
    def said(self) -> str:
        return f"{self.value} {self.basis}".strip()

    @property
    def verdict(self) -> str:
        return SHOWN.get(self.outcome, self.outcome)


def headline(run: Run | None) -> Line | None:
    """The number that the notebook is about; a share is given in percent."""
    found = run and run.results.get("headline")
    if not (_is_estimate(found) and "sentence" in found):
        return None
    value, basis = words.estimate(found, as_percent=is_share(found))
    return Line(found["sentence"], f"{value} {found.get('unit') or ''}".strip(), basis)


def sigma(run: Run | None) -> float | None:
    """The σ of the notebook's GaussMark watermark, where it recorded exactly one."""
    results = run.results if run else {}
    found = results.get("σ", results.get("sigma"))
    found = found.get("GaussMark") if isinstance(found, dict) else found
    return (
        found
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        else None
    )


def is_share(estimate: dict[str, Any]) -> bool:
    """Whether it is a part of n trials: without a unit, its interval in [0, 1], and n times it a
    whole number, which a ratio of two times is not.
    """
    low, high, n = (estimate.get(name) for name in ("low", "high", "n"))
    if (
        estimate.get("unit")
        or None in (estimate["value"], low, high, n)
        or not 0 <= low <= high <= 1
    ):
        return False
    return abs((count := estimate["value"] * n) - round(count)) < 1e-9 * n


def verdicts(run: Run | None, notebook: str) -> list[Line]:
    """All of the notebook's expectations and what became of them: first those that did not hold,
    last those that are open.
    """
    claims = [
        claim
        for claim in (run.results.get("claims") if run else None) or []
        if _is_estimate(claim) and claim.get("outcome") in ORDER
    ]
    large = ask.reference(notebook) if claims else None
    known = {
        claim.get("claim"): claim
        for claim in (large.results.get("claims") if large else None) or []
        if _is_estimate(claim)
    }
    lines = []
    for claim in sorted(claims, key=lambda claim: ORDER.index(claim["outcome"])):
        beside = known.get(claim["claim"])
        reference = f"{beside['outcome']}: {' '.join(words.estimate(beside))}" if beside else ""
        lines.append(
            Line(
                claim["claim"],
                *words.estimate(claim),
                claim["outcome"],
                str(claim.get("expected", "")).replace("-", "−"),
                reference,
            )
        )
    return lines


def chosen(lines: list[Line], most: int = MOST) -> list[Line]:
    """As many as a reader takes in. Of those with nearly the same name and outcome the first stands
    for the others while there are different ones.
    """
    first: list[Line] = []
    for line in lines:
        if not any(
            line.outcome == other.outcome
            and SequenceMatcher(None, line.name, other.name).ratio() > ALIKE
            for other in first
        ):
            first.append(line)
    taken = first[:most]
    return [
        line for line in lines if line in taken or (len(first) < FEWEST and line in lines[:FEWEST])
    ][:most]


def numbers(run: Run | None, most: int) -> list[Line]:
    """Recorded numbers, estimates with an interval first; no lists, words, or the headline
    again.
    """
    results = run.results if run else {}
    head = results.get("headline")
    found = [
        (name, item)
        for name, item in _flat(
            {k: v for k, v in results.items() if k not in ("headline", "claims", "σ", "sigma")}
        )
        if _new(item, head)
    ]
    found.sort(key=lambda pair: not _is_estimate(pair[1]))
    return [
        Line(
            name.replace("_", " "),
            *(words.estimate(item) if _is_estimate(item) else (words.number(item), "")),
        )
        for name, item in found[:most]
    ]


def _is_estimate(item: Any) -> bool:
    """An estimate as ``runs.record`` writes it; a record from elsewhere may hold anything."""
    if not (
        isinstance(item, dict)
        and {"value", "low", "high"} <= item.keys()
        and isinstance(item.get("n"), int | float | None)
    ):
        return False
    return all(
        item[name] is None or (isinstance(item[name], int | float) and math.isfinite(item[name]))
        for name in ("value", "low", "high")
    )


def _flat(results: dict[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in results.items():
        own = f"{name}, {key}" if name else key
        if _is_estimate(item) or (isinstance(item, int | float) and not isinstance(item, bool)):
            yield own, item
        elif isinstance(item, dict):
            yield from _flat(item, own)


def _new(item: Any, head: Any) -> bool:
    return not (
        _is_estimate(item)
        and _is_estimate(head)
        and item["value"] == head["value"]
        and item["low"] == head["low"]
    )
