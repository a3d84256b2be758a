"""What a notebook hands on, with a run around it and without one."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from gaussmark_lib import stats
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import record

NAN = float("nan")


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv(record.RUN_DIR, str(tmp_path))
    return tmp_path


@pytest.fixture
def figure():
    figure, axes = plt.subplots()
    axes.plot([1, 2], [0.5, 1])
    axes.set(title="Power grows with ψ", xlabel="σ (weight units)", ylabel="TPR")
    figure.text(0, 0, "n = 64 texts, seed 0")
    yield figure
    plt.close("all")


def _results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_numbers_become_plain_json(run_dir):
    given = {
        "float64": (np.float64(0.25), 0.25),
        "int32": (np.int32(3), 3),
        "bool": (np.bool_(True), True),
        "array": (np.arange(3), [0, 1, 2]),
        "tensor": (torch.tensor([1.5]), [1.5]),
        "scalar": (torch.tensor(2), 2),
        "series": (pd.Series([1.0, 2.0]), [1.0, 2.0]),
        "nested": ({"a": (1, "two", None)}, {"a": [1, "two", None]}),
        "größe": ("ψ", "ψ"),
    }
    record.record({name: value for name, (value, _) in given.items()})
    assert _results(run_dir) == {name: plain for name, (_, plain) in given.items()}


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (NAN, r"results\['a'\] is nan; record None"),
        (np.array([1, np.nan]), r"results\['a'\]\[1\] is nan"),
        ({"b": [float("-inf")]}, r"results\['a'\]\['b'\]\[0\] is -inf"),
        (pd.NA, "NAType"),
        (pd.DataFrame({"a": [1]}), "save_table"),
        ({1: 2}, "expected names, got the key 1"),
        (stats.Estimate(1.0, NAN, 2.0, 3), r"results\['a'\]\['low'\] is nan"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(
    tmp_path, monkeypatch, recording, value, complaint
):
    if recording:
        monkeypatch.setenv(record.RUN_DIR, str(tmp_path))
    with pytest.raises(GaussMarkError, match=complaint):
        record.record({"fine": 1, "a": value})
    assert not list(tmp_path.iterdir())


def test_recording_twice_adds_and_never_replaces(run_dir):
    record.record({"a": 1})
    record.record({"b": 2})
    with pytest.raises(GaussMarkError, match="already recorded: a"):
        record.record({"a": 3, "c": 4})
    assert _results(run_dir) == {"a": 1, "b": 2}


@pytest.mark.parametrize(("low", "high", "ends"), [(0.2, 0.9, (0.2, 0.9)), (NAN, NAN, (None,) * 2)])
def test_estimates_are_recorded_by_their_fields_and_one_is_the_headline(run_dir, low, high, ends):
    estimate = stats.Estimate(0.75, low, high, 4)
    record.record({"by": {"KGW": [estimate]}})
    record.headline("texts detected", estimate)
    fields = {"value": 0.75, "low": ends[0], "high": ends[1], "n": 4}
    headline = {"sentence": "texts detected", **fields, "unit": ""}
    assert _results(run_dir) == {"by": {"KGW": [fields]}, "headline": headline}
    with pytest.raises(GaussMarkError, match="already recorded: headline"):
        record.headline("again", estimate)


def test_tables_come_back_as_they_were(run_dir):
    table = pd.DataFrame({"key_id": ["a", "b"], "psi": [1.5, np.nan]})
    assert record.save_table(table, "scores") is table
    pd.testing.assert_frame_equal(pd.read_parquet(run_dir / "scores.parquet"), table)


def test_a_figure_carries_its_words_and_is_shown_once(run_dir, figure):
    assert record.save_figure(figure, "power") is figure
    assert figure.number not in plt.get_fignums(), "an open figure would be shown a second time"
    with Image.open(run_dir / "figures" / "power.png") as image:
        words = "Power grows with ψ, TPR against σ (weight units). n = 64 texts, seed 0."
        assert image.text["Description"] == words


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b"])
def test_names_are_plain(run_dir, figure, name):
    with pytest.raises(GaussMarkError, match="plain file name"):
        record.save_figure(figure, name)
    with pytest.raises(GaussMarkError, match="plain file name"):
        record.save_table(pd.DataFrame(), name)
    assert not list(run_dir.rglob("*"))


def test_without_a_run_nothing_is_written(tmp_path, monkeypatch, figure):
    monkeypatch.delenv(record.RUN_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    record.record({"a": 1})
    record.record({"a": 1})  # a cell that is run twice
    table = pd.DataFrame({"a": [1]})
    assert record.save_table(table, "t") is table
    assert record.save_figure(figure, "f") is figure
    assert not list(tmp_path.iterdir())
