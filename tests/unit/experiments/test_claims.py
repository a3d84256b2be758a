import json
import math

import pytest

from gaussmark_lib import files, stats
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments import claims
from gaussmark_lib.runs import folder
from gaussmark_lib.stats import Estimate


@pytest.mark.parametrize(
    ("low", "high", "n", "outcome"),
    [
        (0.9, 1.1, 10, "held"),
        (0.8, 1.2, 10, "held"),
        (1.21, 1.4, 10, "not held"),
        (0.4, 0.79, 900, "not held"),
        (0.6, 1.1, 249, "too little data"),
        (0.6, 1.1, 250, "at the edge"),
        (1.1, 1.3, 900, "at the edge"),
        (math.nan, math.nan, 900, "too little data"),
    ],
)
def test_the_outcome_of_a_finding(low, high, n, outcome):
    found = claims.finding("x", Estimate(1.0, low, high, n), least=0.8, most=1.2)
    assert found.outcome == found.row()["outcome"] == outcome
    assert claims.finding("x", Estimate(1.0, 0.6, 1.1, 9), least=0.8, planned=8).outcome == (
        "at the edge"
    )


def test_a_check_that_fails_stops_the_run():
    assert claims.check("one is one", ok=True) == {"check": "one is one", "ok": True}
    with pytest.raises(AssertionError, match="expected that one is two"):
        claims.check("one is two", ok=False)


def test_the_report_is_recorded_and_shows_the_reference_beside(reference, tmp_path, monkeypatch):
    monkeypatch.setenv("GAUSSMARK_RUN_DIR", str(tmp_path))
    small = [claims.finding(name, Estimate(1.0, 0.2, 1.8, 5), least=0.5) for name in ("a", "b < c")]
    page = claims.report("06_robustness", small, [claims.check("1 < 2", ok=True)], texts=5).data
    assert "2 findings: 2 too little data; 1 checks passed" in page
    assert "held: 1 (0.9 to 1.1), n = 5,000" in page
    assert "not recorded" in page
    assert "b &lt; c" in page
    assert "1 &lt; 2" in page
    assert "2026-01-02, model doclm, with an older version" in page
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["checks"] == [{"check": "1 < 2", "ok": True}]
    assert results["texts"] == 5
    assert [claim["outcome"] for claim in results["claims"]] == ["too little data"] * 2
    assert results["claims"][0]["expected"] == "at least 0.5"


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome", "needed"),
    [
        (1.0, 0.9, 1.1, "held", None),
        (1.0, 0.8, 1.2, "held", None),
        (1.3, 1.21, 1.4, "not held", None),
        (0.5, 0.4, 0.79, "not held", None),
        (1.0, 0.6, 1.1, "too little data", 400),  # 0.4 below, where 0.2 may be: four times as many
        (1.1, 1.0, 1.3, "too little data", 400),  # 0.2 above, where 0.1 may be
        (1.3, 1.1, 1.5, "too little data", 400),  # outside, and 0.2 wide where 0.1 decides
        (0.6, 0.2, 0.9, "too little data", 225),
        (1.2, 1.1, 1.3, "too little data", None),  # at the very end of the range
        (1.2 + 1e-16, 1.1, 1.3, "too little data", None),  # or as near to it as rounding makes it
        (
            1.201,
            1.1,
            1.3,
            "too little data",
            None,
        ),  # so near that ten thousand times the data may not decide
        (1.0, math.nan, 1.1, "too little data", None),
    ],
)
def test_outcomes(value, low, high, outcome, needed):
    found = claims.verdict("a quantity", Estimate(value, low, high, 100), least=0.8, most=1.2)
    assert (found.outcome, found.needed) == (outcome, needed)


def test_the_n_that_would_decide_decides():
    """With intervals that shrink like 1/√n around the same value."""
    for value, half in ((0.95, 0.3), (0.7, 0.15), (1.35, 0.5), (1.1, 1.0)):
        found = claims.verdict(
            "x", Estimate(value, value - half, value + half, 50), least=0.8, most=1.2
        )
        shrunk = half * math.sqrt(50 / (found.needed + 1))
        again = claims.verdict(
            "x", Estimate(value, value - shrunk, value + shrunk, found.needed), least=0.8, most=1.2
        )
        assert found.outcome == "too little data" != again.outcome


def test_at_the_end_of_the_range_the_sentence_says_so():
    assert str(claims.verdict("x", Estimate(1.2, 1.1, 1.3, 9), most=1.2)).endswith(
        "at the end of that range, so no n is sure to decide."
    )
    assert str(claims.verdict("x", Estimate(1.2, math.nan, math.nan, 9), most=1.2)).endswith(
        "expected at most 1.2."
    )


def test_one_sided_claims():
    assert claims.verdict("x", Estimate(0.9, 0.8, 0.95, 9), least=0.75).outcome == "held"
    assert claims.verdict("x", Estimate(0.9, 0.8, 0.95, 9), most=0.75).outcome == "not held"
    assert claims.verdict("x", Estimate(0.9, 0.8, 0.95, 9), most=0.75).expected == "at most 0.75"


@pytest.mark.parametrize(
    "ends",
    [
        {},
        {"least": 1.0, "most": 1.0},
        {"least": 2.0, "most": 1.0},
        {"least": math.nan},
        {"most": "1"},
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_a_claim_needs_a_range(ends):
    with pytest.raises(GaussMarkError, match="expected least < most"):
        claims.verdict("x", Estimate(1.0, 0.0, 2.0, 9), **ends)


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """A reference record of 06 in which one claim is held."""
    monkeypatch.setattr(files, "RUNS", tmp_path)
    record = tmp_path / "reference" / "robustness"
    record.mkdir(parents=True)
    big = claims.verdict("a", Estimate(1.0, 0.9, 1.1, 5000), least=0.5)
    (record / "notebook.ipynb").write_text("{}")
    folder.write(record, "params", {"model": "doclm"})
    folder.write(record, "results", json.loads(json.dumps(claims.record([big]))))
    folder.write(
        record,
        "status",
        {
            "status": "complete",
            "started": "2026-01-02T03:04",
            "finished": "2026-01-02T03:05",
            "seconds": 60,
            "code": "of another day",
        },
    )
    return record


def test_small_runs_stand_beside_the_reference(reference):
    small = [claims.verdict(name, Estimate(1.0, 0.2, 1.8, 5), least=0.5) for name in ("a", "b")]
    table = claims.beside(small, "06_robustness")
    assert table.loc["a", "reference"] == "1 (0.9 to 1.1), n = 5,000"
    assert table.loc["a", "reference outcome"] == "held"
    assert table.loc["a", "outcome"].startswith("too little data; about ")
    assert table.loc["b", "reference"] == "none"


def test_it_says_when_the_reference_is_older(reference):
    said = claims.about_reference("06_robustness")
    assert "2026-01-02 with the model doclm" in said
    assert "older version" in said
    assert "2 keys: intervals over so few are rough" in claims.about_reference(
        "06_robustness", n_keys=2
    )
    assert claims.about_reference("06_robustness", n_keys=5) == said


def test_no_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RUNS", tmp_path)
    table = claims.beside(
        [claims.verdict("a", Estimate(1.0, 0.9, 1.1, 5), least=0.5)], "06_robustness"
    )
    assert table["reference"].tolist() == ["none"]
    assert "no reference record" in claims.about_reference("06_robustness")


@pytest.mark.parametrize(("n", "least"), [(3, 0.9), (12, 0.95)])
def test_of_hits_alone_so_many_decide_as_their_exact_interval_needs(n, least):
    """All of n detected: Clopper and Pearson's lower end is (α/2)^(1/n), which rises above
    ``least`` sooner than 1/√n would.
    """
    found = claims.verdict("x", stats.rate([True] * n), least=least)
    assert found.outcome == "too little data"
    assert (
        stats.rate([True] * found.needed).low >= least > stats.rate([True] * (found.needed - 1)).low
    )
    none = claims.verdict("x", stats.rate([False] * n), most=1 - least)
    assert none.needed == found.needed
