"""The cards at the top of the tour's page: what a reader who knows nothing yet asks first, each
answered by one notebook's headline.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gaussmark_lib.runs.folder import Run
from gaussmark_lib.sweeps import findings

QUESTIONS = {  # the notebook whose headline answers it
    "Does it work?": "03_detectability",
    "What survives an edit?": "06_robustness",
    "At what price?": "05_quality",
    "How often is an unmarked text called marked?": "02_level_check",
}
BESIDE = {
    "02_level_check": "12_one_key_in_production"
}  # a level over keys, and what the worst of many keys does


@dataclass(frozen=True)
class Card:
    """``basis`` is the interval, n and σ; ``beside`` is what a reader has to know besides, from the
    notebook ``elsewhere``.
    """

    question: str
    notebook: str
    value: str
    words: str
    basis: str
    beside: str = ""
    elsewhere: str = ""


def of(runs: Mapping[str, Run]) -> list[Card]:
    """The cards of those questions whose notebook has a headline."""
    return [card for question, name in QUESTIONS.items() if (card := _card(question, name, runs))]


def _card(question: str, name: str, runs: Mapping[str, Run]) -> Card | None:
    run = runs.get(name)
    if not (line := findings.headline(run)):
        return None
    sigma, elsewhere = findings.sigma(run), BESIDE.get(name, "")
    basis = line.basis if sigma is None else f"{line.basis} · at σ = {sigma:.3g}"
    return Card(
        question,
        name,
        line.value,
        _words(run, line.name),
        basis,
        _worse(run, runs.get(elsewhere)),
        elsewhere,
    )


def _words(run: Run, name: str) -> str:
    """The headline's sentence as it stands behind its number: 97% *of* texts; and a rise of the
    cross-entropy as one of the perplexity.
    """
    found = run.results["headline"]
    if findings.is_share(found):
        return f"of {name.removeprefix('of ').replace(' that raise ', ' raise ')}"
    if found.get("unit") == "nats a token" and "cross-entropy" in name:
        factor = math.expm1(found["value"])
        return (
            f"{name}: about {abs(100 * factor):.2g}% {'more' if factor > 0 else 'less'} perplexity"
        )
    return name


def _worse(run: Run, other: Run | None) -> str:
    """What one fixed key can do, where its rate lies above the rate over keys by more than both
    intervals.
    """
    line = findings.headline(other)
    rates = [each.results["headline"] for each in (run, other)] if line else []
    if (
        len(rates) < 2
        or not all(map(findings.is_share, rates))
        or rates[1]["low"] <= rates[0]["high"]
    ):
        return ""
    return f"One fixed key can be far worse: {line.said}"
