"""A record in a few rounded lines."""

import pytest

from gaussmark_lib.runs import ask, folder
from gaussmark_lib.sweeps import findings


def record(tmp_path, **results) -> folder.Run:
    return folder.Run(tmp_path, "id", {}, results, {})


def claim(name: str, outcome: str, value: float = 0.5) -> dict:
    estimate = {"value": value, "low": 0.4, "high": 0.6, "n": 9}
    return {"claim": name, "outcome": outcome, "expected": "-0.1 to 0.1"} | estimate


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, "90%"),
        ({"high": 1.1}, "0.90"),
        ({"unit": "nats"}, "0.90 nats"),
        ({"value": 0.9123}, "0.91"),  # no number of 40
        ({"value": 98 / 1920, "low": 0.04, "high": 0.06, "n": 1920}, "5.1%"),
    ],
)
def test_a_share_is_given_in_percent_and_a_ratio_is_not(tmp_path, changed, shown):
    share = {"value": 0.9, "low": 0.8, "high": 1.0, "n": 40, "unit": "", "sentence": "detected"}
    line = findings.headline(record(tmp_path, headline=share | changed))
    assert (line.name, line.value) == ("detected", shown)


@pytest.mark.parametrize("results", [{}, {"headline": "x"}, {"headline": {"value": "x"}}])
def test_no_headline(tmp_path, results):
    assert findings.headline(record(tmp_path, **results)) is None
    assert findings.headline(None) is None


def test_sigma_is_that_of_the_one_gaussmark_watermark(tmp_path):
    for results, sigma in (
        ({"σ": 0.15}, 0.15),
        ({"sigma": 1}, 1),
        ({"σ": {"GaussMark": 0.17, "rank-reduced": 0.2}}, 0.17),
        ({"σ": {"k = 128": 0.2}}, None),
        ({"σ": [0.1, 0.2]}, None),
        ({"σ": True}, None),
        ({}, None),
    ):
        assert findings.sigma(record(tmp_path, **results)) == sigma
    assert findings.sigma(None) is None


def test_what_did_not_hold_comes_first_with_the_verdict_of_the_larger_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ask, "reference", lambda name: record(tmp_path, claims=[claim("power", "held", 0.55)])
    )
    claims = [
        claim("level", "held"),
        claim("price", "too little data"),
        claim("power", "not held"),
        {"claim": "no verdict"},
    ]
    lines = findings.verdicts(record(tmp_path, claims=claims), "00_x")
    assert [line.name for line in lines] == ["power", "level", "price"]
    assert (lines[0].verdict, lines[0].expected) == ("✗ not held", "−0.1 to 0.1")
    assert lines[0].reference == "held: 0.55 (0.40 to 0.60), n = 9"
    assert lines[1].reference == ""
