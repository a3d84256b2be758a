"""A record in a few rounded lines."""

import json

import pytest

from gaussmark_lib import words
from gaussmark_lib.runs import ask, folder
from gaussmark_lib.sweeps import findings


def record(tmp_path, **results) -> folder.Run:
    return folder.Run(tmp_path, "id", {}, results, {})


def claim(name: str, outcome: str, value: float = 0.5) -> dict:
    return {
        "claim": name,
        "outcome": outcome,
        "value": value,
        "low": 0.4,
        "high": 0.6,
        "n": 9,
        "expected": "-0.1 to 0.1",
        "needed": None,
    }


@pytest.mark.parametrize(
    ("value", "low", "high", "n", "percent", "said"),
    [
        (0.9666666, 0.8666666, 1.0, 30, True, "97% (87% to 100%), n = 30"),
        (0.0510416, 0.0416293, 0.0618532, 1920, True, "5.1% (4.2% to 6.2%), n = 1,920"),
        (2.7738560, 1.9046942, 3.3918825, 18, False, "2.8 (1.9 to 3.4), n = 18"),
        (-0.004, -0.3, 0.2, 8, False, "0.00 (−0.30 to 0.20), n = 8"),
        (1.07, 0.78, 11.2, 8, False, "1.1 (0.8 to 11.2), n = 8"),
        (252.332, 252.332, 252.332, 42, False, "252 (252 to 252), n = 42"),
        (0.958645, None, None, 4, False, "0.959 (n = 4, too few for an interval)"),
        (12345.6, None, None, 6, False, "12,346 (no interval), n = 6"),
        (0.5, None, None, 4, True, "50.0% (n = 4, too few for an interval)"),
        (1.0, 1.0, 1.0, 84, True, "100% (100% to 100%), n = 84"),
        (3.21e-9, None, None, None, False, "3.21 × 10^−9 (no interval)"),
        (None, None, None, 12, False, "none (no number), n = 12"),
    ],
)
def test_numbers_are_rounded_to_what_their_interval_has_use_for(value, low, high, n, percent, said):
    assert (
        " ".join(
            words.estimate({"value": value, "low": low, "high": high, "n": n}, as_percent=percent)
        )
        == said
    )


def test_a_share_is_given_in_percent_and_a_ratio_is_not(tmp_path):
    shares = {
        "sentence": "texts detected",
        "value": 0.9,
        "low": 0.8,
        "high": 1.0,
        "n": 40,
        "unit": "",
    }
    assert findings.headline(record(tmp_path, headline=shares)).value == "90%"
    assert findings.headline(record(tmp_path, headline=shares | {"high": 1.1})).value == "0.90"
    assert (
        findings.headline(record(tmp_path, headline=shares | {"unit": "nats"})).value == "0.90 nats"
    )
    assert (
        findings.headline(record(tmp_path, headline=shares | {"value": 0.9123})).value == "0.91"
    ), "no number of 40"
    assert (
        findings.headline(
            record(
                tmp_path,
                headline=shares | {"value": 98 / 1920, "low": 0.04, "high": 0.06, "n": 1920},
            )
        ).value
        == "5.1%"
    )
    assert findings.headline(record(tmp_path)) is None
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


def test_what_did_not_hold_comes_first_and_lines_alike_are_shown_once(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ask, "reference", lambda name: record(tmp_path, claims=[claim("power", "held", 0.55)])
    )
    alike = [
        claim(f"{kind}: alarms of the innovations over keys", "held")
        for kind in ("docs", "source", "tables")
    ]
    run = record(
        tmp_path,
        claims=[
            *alike,
            claim("price", "too little data"),
            claim("power", "not held"),
            {"claim": "no verdict"},
        ],
    )
    lines = findings.verdicts(run, "00_x")
    assert [line.name for line in lines] == ["power", *(row["claim"] for row in alike), "price"]
    assert [line.name for line in findings.chosen(lines)] == [
        "power",
        "docs: alarms of the innovations over keys",
        "price",
    ]
    assert lines[0].verdict == "✗ not held"
    assert lines[0].expected == "−0.1 to 0.1"
    assert lines[0].reference == "held: 0.55 (0.40 to 0.60), n = 9"
    assert lines[1].reference == ""


def test_numbers_have_no_lists_words_or_repetitions(tmp_path):
    head = {"value": 0.9, "low": 0.8, "high": 1.0, "n": 40}
    run = record(
        tmp_path,
        headline=head | {"sentence": "x", "unit": ""},
        sigma=0.1,
        weight="w",
        detected=head,
        p_value=3.21e-5,
        trace=[1, 2],
        power={"at 0.05": 0.9, "at 0.01": head | {"value": 0.85}},
    )
    assert json.dumps(run.results)
    assert [(line.name, line.value) for line in findings.numbers(run, 6)] == [
        ("power, at 0.01", "0.85"),
        ("p value", "3.21 × 10^−5"),
        ("power, at 0.05", "0.900"),
    ]
    assert len(findings.numbers(run, 2)) == 2
