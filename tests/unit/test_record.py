"""What a notebook hands on, with a run around it and without one."""

import json
import os
import pickle
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure
from PIL import Image

from gaussmark_lib import record, stats
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.plots import style


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv(record.RUN_DIR, str(tmp_path))
    return tmp_path


@pytest.fixture
def figure():
    figure, axes = plt.subplots()
    axes.plot([1, 2], [0.5, 1])
    axes.set(title="Power grows with ψ", xlabel="σ (weight units)", ylabel="TPR")
    style.caption(figure, "n = 64 texts, seed 0")
    yield figure
    plt.close("all")


def test_numbers_become_plain_json(run_dir):
    record.record(
        {
            "float64": np.float64(0.25),
            "int32": np.int32(3),
            "bool": np.bool_(True),
            "array": np.arange(3),
            "tensor": torch.tensor([1.5]),
            "scalar": torch.tensor(2),
            "series": pd.Series([1.0, 2.0]),
            "nested": {"a": (1, "two", None)},
            "größe": "ψ",
        }
    )
    assert json.loads((run_dir / "results.json").read_text()) == {
        "float64": 0.25,
        "int32": 3,
        "bool": True,
        "array": [0, 1, 2],
        "tensor": [1.5],
        "scalar": 2,
        "series": [1.0, 2.0],
        "nested": {"a": [1, "two", None]},
        "größe": "ψ",
    }


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), r"results\['a'\] is nan; record None"),
        (np.float32("inf"), "is inf"),
        (np.array([1, np.nan]), r"results\['a'\]\[1\] is nan"),
        ({"b": [float("-inf")]}, r"results\['a'\]\['b'\]\[0\] is -inf"),
        (pd.NA, "NAType"),
        (pd.DataFrame({"a": [1]}), "save_table"),
        ({1: 2}, "expected names, got the key 1"),
        (object(), "got object"),
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
    with pytest.raises(GaussMarkError, match="recorded already: a"):
        record.record({"a": 3, "c": 4})
    assert json.loads((run_dir / "results.json").read_text()) == {"a": 1, "b": 2}


def test_results_are_utf_8_whatever_the_locale_is(run_dir):
    program = "from gaussmark_lib.runs import record; record({chr(963): 0.1}); record({'x': 1})"
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program], env=plain, check=True)
    assert json.loads((run_dir / "results.json").read_text(encoding="utf-8")) == {"σ": 0.1, "x": 1}


def test_tables_come_back_as_they_were(run_dir):
    table = pd.DataFrame({"key_id": ["a", "b"], "psi": [1.5, np.nan]})
    assert record.save_table(table, "scores") is table
    pd.testing.assert_frame_equal(pd.read_parquet(run_dir / "scores.parquet"), table)


def test_a_figure_carries_its_words_and_is_shown_once(run_dir, figure):
    for number in set(plt.get_fignums()) - {figure.number}:
        plt.close(number)  # of another test
    assert record.save_figure(figure, "power") is figure
    assert not plt.get_fignums(), "an open figure would be shown a second time"
    with Image.open(run_dir / "figures" / "power.png") as image:
        assert image.text["Title"] == "Power grows with ψ"
        assert image.text["Comment"] == "n = 64 texts, seed 0"
        assert (
            image.text["Description"]
            == "Power grows with ψ, TPR against σ (weight units). n = 64 texts, seed 0."
        )


def test_the_description_of_a_figure_has_no_holes(run_dir):
    figure, (left, right, empty) = plt.subplots(1, 3)
    left.plot([1], label="right key")
    left.set(title="Does it fall?", ylabel="median p", xlabel="")
    left.legend()
    right.set(title="Measured,", xlabel="σ ")
    empty.set_axis_off()
    figure.suptitle("What survives?")
    figure.text(0, 0, "8 texts,\nseed 0")
    record.save_figure(figure, "survival")
    with Image.open(run_dir / "figures" / "survival.png") as image:
        assert (
            image.text["Description"]
            == "What survives? Does it fall? median p. Measured, σ. Legend: right key. 8 texts,"
            " seed 0."
        )
        assert image.text["Comment"] == "8 texts, seed 0"


def test_a_notebook_keeps_the_description_beside_the_image(figure):
    shown = record.save_figure(figure, "power", alt="A rising line.")
    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type(Figure, lambda figure: "a drawing")
    assert formatter.format(pickle.loads(pickle.dumps(shown)))[1] == {
        "image/png": {"alt": "A rising line."}
    }


def test_a_figure_can_be_described_better(run_dir, figure):
    record.save_figure(figure, "power", alt="A rising line.")
    with Image.open(run_dir / "figures" / "power.png") as image:
        assert image.text["Description"] == "A rising line."


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


def test_estimates_are_recorded_by_their_fields_wherever_they_stand(run_dir):
    estimate = stats.Estimate(0.75, 0.194, 0.994, 4)
    fields = {"value": 0.75, "low": 0.194, "high": 0.994, "n": 4}
    record.record(
        {
            "power": estimate,
            "by": {"KGW": [estimate]},
            "paired": stats.Paired(estimate, np.float64(0.5), 2),
        }
    )
    assert json.loads((run_dir / "results.json").read_text()) == {
        "power": fields,
        "by": {"KGW": [fields]},
        "paired": {"change": fields, "p_value": 0.5, "n_equal": 2},
    }
    with pytest.raises(GaussMarkError, match=r"results\['a'\]\['low'\] is nan"):
        record.record({"a": stats.Estimate(1.0, float("nan"), 2.0, 3)})


def test_an_estimate_without_an_interval_is_recorded_without_its_ends(run_dir):
    estimate = stats.Estimate(1.5, float("nan"), float("nan"), 2)
    record.record({"ratios": {"many over one": estimate}})
    record.headline("time over time", estimate)
    fields = {"value": 1.5, "low": None, "high": None, "n": 2}
    expected = {
        "ratios": {"many over one": fields},
        "headline": {"sentence": "time over time", **fields, "unit": ""},
    }
    assert json.loads((run_dir / "results.json").read_text()) == expected


def test_a_notebook_has_one_headline(run_dir):
    record.headline("texts detected", stats.Estimate(0.75, 0.194, 0.994, 4))
    expected = {
        "sentence": "texts detected",
        "value": 0.75,
        "low": 0.194,
        "high": 0.994,
        "n": 4,
        "unit": "",
    }
    assert json.loads((run_dir / "results.json").read_text()) == {"headline": expected}
    with pytest.raises(GaussMarkError, match="recorded already: headline"):
        record.headline("again", stats.Estimate(0.75, 0.194, 0.994, 4))
