"""A record's findings and checks, in words."""

import pytest

from gaussmark_lib.runs import ask, folder
from gaussmark_lib.sweeps import findings


def record(tmp_path, **results) -> folder.Run:
    return folder.Run(tmp_path, "id", {}, results, {})


def claim(name: str, outcome: str, value: float = 0.5) -> dict:
    estimate = {"value": value, "low": 0.4, "high": 0.6, "n": 9}
    return {"claim": name, "outcome": outcome, "expected": "-0.1 to 0.1"} | estimate


@pytest.mark.parametrize(
    ("results", "sigma"),
    [
        ({"σ": 0.15}, 0.15),
        ({"sigma": 1}, 1),
        ({"σ": {"GaussMark": 0.17, "rank-reduced": 0.2}}, 0.17),
        ({"σ": {"k = 128": 0.2}}, None),
        ({"σ": [0.1, 0.2]}, None),
        ({}, None),
    ],
)
def test_sigma_is_that_of_the_one_gaussmark_watermark(tmp_path, results, sigma):
    assert findings.sigma(record(tmp_path, **results)) == sigma


def test_what_did_not_hold_comes_first_with_the_verdict_of_the_larger_run(tmp_path, monkeypatch):
    large = record(tmp_path, claims=[claim("power", "at the edge", 0.55)])
    monkeypatch.setattr(ask, "reference", lambda name: large)
    outcomes = {"level": "held", "price": "too little data", "auc": "at the edge"}
    claims = [*map(claim, outcomes, outcomes.values()), claim("power", "not held"), {"claim": "?"}]
    run = record(tmp_path, claims=claims, checks=[{"check": "ψ is linear in ξ", "ok": True}])
    lines = findings.verdicts(run, "00_x")
    assert [line.name for line in lines] == ["power", "level", "auc", "price"]
    assert (lines[0].verdict, lines[0].expected) == ("✗ not held", "−0.1 to 0.1")
    assert lines[0].reference == "at the edge: 0.55 (0.40 to 0.60), n = 9"
    assert lines[1].reference == ""
    assert findings.checks(run) == ["ψ is linear in ξ"]
    assert findings.verdicts(None, "00_x") == findings.checks(None) == []
