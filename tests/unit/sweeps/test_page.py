"""A record's findings, in words."""

from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import folder
from gaussmark_lib.workbench.runs import notebook as notebooks
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
    lines = tour.verdicts(run, large)
    assert [line["claim"] for line in lines] == ["power", "level", "auc", "price"]
    assert (lines[0]["verdict"], lines[0]["value"]) == ("✗ not held", "0.50")
    assert (lines[0]["reference"]["verdict"], lines[0]["reference"]["value"]) == (
        "~ at the edge",
        "0.55",
    )
    assert lines[1]["reference"] is None
    assert [line["expected"] for line in lines] == ["−0.1 to 0.1"] * 4
    assert tour.verdicts(None, large) == []
    assert tour.verdicts(run, None) == [line | {"reference": None} for line in run.findings]


def test_a_page_on_another_model_says_on_which_model_the_larger_runs_are(tmp_path, monkeypatch):
    estimate = {"sentence": "texts found", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    headline = {"headline": estimate | {"unit": ""}}
    large = folder.Run(tmp_path, "large", {"model": "doclm"}, headline, {})
    monkeypatch.setattr(runs, "reference", lambda name: large)
    status = {"seconds": 1}
    pages = {}
    for model in ("smollm2", "doclm"):
        run = folder.Run(tmp_path, "here", {"model": model}, headline, status)
        source = notebooks.Notebook(tmp_path / "00_x.ipynb", "", (), {})
        job = notebooks.Question(source, {"model": model}, "here", "code")
        pages[model] = tour.html([tour.Stop("00_x", "A title", job=job, run=run)])
    assert "“Larger run” is on <b>doclm</b>" in pages["smollm2"]
    assert "smollm2 (SmolLM2-135M-Instruct, 4-bit file, dequantised)" in pages["smollm2"]
    assert "larger run, on doclm" in pages["smollm2"]
    assert "Larger run” is on" not in pages["doclm"]
    assert "larger run</th>" in pages["doclm"]
