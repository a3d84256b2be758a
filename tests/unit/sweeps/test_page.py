"""A record's findings, in words."""

from gaussmark_lib.workbench.runs import folder
from gaussmark_lib.workbench.sweeps import tour


def record(tmp_path, **results) -> folder.Run:
    return folder.Run(tmp_path, "id", {}, results, {})


def claim(name: str, outcome: str, value: float = 0.5) -> dict:
    estimate = {"value": value, "low": 0.4, "high": 0.6, "n": 9}
    return {"claim": name, "outcome": outcome, "expected": "-0.1 to 0.1"} | estimate


def test_what_did_not_hold_comes_first_with_the_verdict_of_the_larger_run(tmp_path):
    large = record(tmp_path, claims=[claim("power", "at the edge", 0.55)])
    outcomes = {"level": "held", "price": "too little data", "auc": "at the edge"}
    claims = [*map(claim, outcomes, outcomes.values()), claim("power", "not held")]
    run = record(tmp_path, claims=claims)
    lines = tour.verdicts(run, [large])
    assert [line["claim"] for line in lines] == ["power", "level", "auc", "price"]
    assert (lines[0]["verdict"], lines[0]["value"]) == ("✗ not held", "0.50")
    assert lines[0]["reference"]["verdict"] == "~ at the edge"
    assert lines[0]["reference"]["value"] == "0.55"
    assert lines[1]["reference"] is None
    assert [line["expected"] for line in lines] == ["−0.1 to 0.1"] * 4
    assert tour.verdicts(None, [large]) == []
    assert tour.verdicts(run, []) == [line | {"reference": None} for line in run.findings]


def test_the_first_larger_run_that_has_a_finding_speaks_and_its_model_is_named(tmp_path):
    real = folder.Run(tmp_path, "real", {"model": "smollm2"}, {"claims": [claim("a", "held")]}, {})
    claims = [claim("a", "not held"), claim("b", "held")]
    toy = folder.Run(tmp_path, "toy", {"model": "doclm"}, {"claims": claims}, {})
    lines = tour.verdicts(record(tmp_path, claims=claims), [real, toy])
    models = {line["claim"]: line["reference"]["model"] for line in lines}
    assert models == {"a": "SmolLM2", "b": "doclm"}
