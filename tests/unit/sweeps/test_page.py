"""A record's findings, in words."""

from gaussmark_lib import runs
from gaussmark_lib.runs import folder
from gaussmark_lib.sweeps import tour


def record(tmp_path, **results) -> folder.Run:
    return folder.Run(tmp_path, "id", {}, results, {})


def claim(name: str, outcome: str, value: float = 0.5) -> dict:
    estimate = {"value": value, "low": 0.4, "high": 0.6, "n": 9}
    return {"claim": name, "outcome": outcome, "expected": "-0.1 to 0.1"} | estimate


def test_what_did_not_hold_comes_first_with_the_verdict_of_the_larger_run(tmp_path, monkeypatch):
    large = record(tmp_path, claims=[claim("power", "at the edge", 0.55)])
    monkeypatch.setattr(runs, "reference", lambda name: large)
    outcomes = {"level": "held", "price": "too little data", "auc": "at the edge"}
    claims = [*map(claim, outcomes, outcomes.values()), claim("power", "not held")]
    run = record(tmp_path, claims=claims)
    lines = tour.verdicts(run, "00_x")
    assert [line["claim"] for line in lines] == ["power", "level", "auc", "price"]
    assert (lines[0]["verdict"], lines[0]["value"]) == ("✗ not held", "0.50")
    assert (lines[0]["reference"]["verdict"], lines[0]["reference"]["value"]) == (
        "~ at the edge",
        "0.55",
    )
    assert lines[1]["reference"] is None
    assert tour.verdicts(None, "00_x") == []
