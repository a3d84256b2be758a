"""The folder of a run: whole or hidden, and its numbers as a reader wants them."""

import os
from pathlib import Path

import pytest

from gaussmark_lib.runs import folder as records


def _run(results: dict) -> records.Run:
    return records.Run(Path("somewhere"), "id", {}, results, {})


def test_numbers_for_a_reader():
    values = {"p_value": 3.21987e-5, "n": 12345, "few": 999, "ok": True, "none": None, "by": {"α": 0.5, "β": [1, 2.5]}, "many": list(range(20))}
    values["found"] = {"level": 0.05, "value": 0.93751, "low": 0.69771, "high": 1.0, "n": 16}
    assert _run(values).numbers == {
        "p_value": "3.22e-05",
        "n": "12,345",
        "few": "999",
        "ok": "yes",
        "none": "–",
        "by · α": "0.5",
        "by · β": "1, 2.5",
        "many": "20 values",
        "found": "0.9375 (0.6977 to 1), level = 0.05, n = 16",
    }


@pytest.mark.parametrize(
    ("unit", "expected"), [("", "0.9375 (0.85 to 0.98), n = 60"), ("nats per token", "0.9375 nats per token (0.85 to 0.98), n = 60")]
)
def test_the_headline_is_a_sentence_and_a_number_with_its_interval(unit, expected):
    found = {"sentence": "texts detected", "value": 0.93751, "low": 0.85, "high": 0.98, "n": 60, "unit": unit}
    run = _run({"headline": found, "n": 3})
    assert run.headline == ("texts detected", expected)
    assert run.numbers == {"n": "3"}, "it is not said twice"
    assert _run({"n": 3}).headline is None


def _complete(folder: Path, who: str) -> Path:
    records.write_json(folder / "status.json", {"status": "complete"})
    records.write_json(folder / "params.json", {"who": who})
    return folder


def test_a_record_is_replaced_only_if_it_is_to_be(tmp_path):
    target = tmp_path / "demo" / "id"
    for who, replace, kept in [("first", False, "first"), ("second", False, "first"), ("third", True, "third")]:
        records.finish(_complete(records.begin(target), who), target, replace=replace)
        assert records.load(target).params == {"who": kept}
        assert [path.name for path in target.parent.iterdir()] == ["id"]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path, monkeypatch):
    target = tmp_path / "demo" / "id"
    mine = records.begin(target)
    dead = mine.with_name(mine.name.replace(f"-{os.getpid()}-", "-4194305-"))  # above Linux's largest process number
    other_machine = mine.with_name(dead.name.replace(records._machine(), "00000000"))
    dead.mkdir()
    other_machine.mkdir()
    second = records.begin(target)
    assert set(target.parent.iterdir()) == {mine, other_machine, second}
