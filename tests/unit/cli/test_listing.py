"""``gaussmark list``, ``--version``, and what is said of a misspelt name."""

import json
import os
from importlib import metadata

import pytest
import tiny_lm
import tracked
from command_lines import answer

from gaussmark_lib import cli, models, paths
from gaussmark_lib.cli import listing
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import presets
from gaussmark_lib.sweeps import grid


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """The committed notebooks and presets, without a user's own beside them."""
    for name in ("NOTEBOOKS", "PRESETS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(paths, name, tmp_path / name)
        for file in getattr(tracked, name):
            (tmp_path / name / file.name).symlink_to(file)


def first_words(text: str) -> list[str]:
    """Of the lines that begin something; what it goes on with is indented."""
    return [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]


@pytest.mark.usefixtures("committed")
def test_notebooks_presets_and_grids_are_listed(capsys):
    _, out, _ = answer(capsys, "list", "notebooks")
    assert first_words(out) == [path.stem for path in notebooks.numbered()]
    assert "Robustness" in out
    listed = {
        what: first_words(answer(capsys, "list", what)[1])
        for what in ("presets", "grids", "clusters")
    }
    assert sorted(name for names in listed.values() for name in names) == sorted(
        path.stem for path in paths.PRESETS.glob("*.yaml")
    )
    assert listed["grids"] == presets.known("grid")
    assert listed["clusters"] == ["slurm"]
    assert listed["presets"] == sorted(listed["presets"], key=lambda name: f"{name}.yaml")
    assert "level_check_grid" in listed["grids"]


@pytest.mark.usefixtures("committed")
def test_a_grid_is_known_by_its_name():
    """Each that is listed spans several runs of its notebook, and no preset that is listed writes
    out runs.
    """
    numbers = {path.stem[3:]: path.stem[:2] for path in notebooks.numbered()}
    for name in presets.known("grid"):
        assert (
            len(
                grid.runs(
                    notebooks.load(numbers[name.removesuffix("_grid")]), presets.read(name, "grid")
                )
            )
            > 1
        )
    for name in presets.known():
        values = presets.read(name)
        assert not {grid.RUNS, "kind"} & values.keys()
    assert presets.known("cluster") == ["slurm"]


def test_records_are_listed_with_their_headlines(tmp_path, capsys):
    folder = tmp_path / "demo" / "1234"
    folder.mkdir(parents=True)
    headline = {
        "sentence": "texts found",
        "value": 0.5,
        "low": 0.25,
        "high": 0.75,
        "n": 8,
        "unit": "",
    }
    status = {"status": "complete", "started": "s", "finished": "2026-01-02T03:04:05", "seconds": 1}
    for name, content in {
        "status": status,
        "params": {},
        "results": {"headline": headline},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "notebook.ipynb").touch()
    (tmp_path / "demo" / "5678.failed").mkdir()
    (tmp_path / "demo" / "5678.failed" / "status.json").write_text(
        json.dumps(status | {"status": "failed"})
    )
    (tmp_path / "sweep-9").mkdir()
    _, out, _ = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert out.splitlines() == [
        "demo/1234  2026-01-02T03:04  texts found: 50% (25% to 75%), n = 8",
        "sweep-9    a table of runs",
    ]
    (folder / "results.json").write_text(
        json.dumps({"cells": 108, "words": "none", "power": headline, "r": 0.97})
    )
    _, out, _ = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert "no headline" in out
    _, out, _ = answer(capsys, "list", "--records", str(tmp_path / "empty"))
    assert [line for line in out.splitlines() if line in (*listing.LISTS, "none")] == [
        *listing.LISTS,
        "none",
    ]


@pytest.mark.parametrize("n", [[1], {"a": 1}, "many", "\x1b[31m"], ids=repr)
def test_a_record_from_elsewhere_may_hold_anything(tmp_path, capsys, n):
    folder = tmp_path / "demo" / "1234"
    folder.mkdir(parents=True)
    headline = {
        "sentence": "\x1b[2Jtexts\nfound",
        "value": 0.5,
        "low": 0.25,
        "high": 0.75,
        "n": n,
        "unit": "",
    }
    status = {"status": "complete", "started": "s", "finished": "2026-01-02T03:04:05", "seconds": 1}
    for name, content in {
        "status": status,
        "params": {},
        "results": {"headline": headline, "\x1b[31m": 1, "power": headline | {"n": 4}},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "notebook.ipynb").touch()
    other = tmp_path / "demo" / "5678"
    other.mkdir()
    os.mkfifo(other / "status.json")
    code, out, err = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert (code, err, "\x1b" in out) == (0, "", False)
    [line] = out.splitlines()
    assert line.startswith("demo/1234  2026-01-02T03:04  no headline")


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_longer_than_the_terminal_is_wide_and_no_word_is_lost(
    capsys, monkeypatch, width
):
    monkeypatch.setenv("COLUMNS", "1000")
    whole = [
        line
        for what in ("presets", "grids", "clusters")
        for line in answer(capsys, "list", what)[1].splitlines()
    ]
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [
        line
        for what in ("presets", "grids", "clusters")
        for line in answer(capsys, "list", what)[1].splitlines()
    ]
    assert max(map(len, lines)) <= width < max(map(len, whole))
    assert " ".join(lines).split() == " ".join(whole).split()
    assert not [line for line in lines if line.endswith(" =")], "a number stands beside its name"


def test_the_weights_of_a_model_are_listed_and_an_unknown_one_is_told_how(
    tmp_path, capsys, monkeypatch
):
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    code, out, _ = answer(capsys, "list", "weights", "--model", "tiny")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, list(rows)) == (0, models.watermarkable(lm.model))
    assert rows[tiny_lm.WEIGHT] == " × ".join(
        map(str, models.linear(lm.model, tiny_lm.WEIGHT).shape)
    )
    words = [
        "key",
        "new",
        str(tmp_path / "k"),
        "--weight",
        tiny_lm.WEIGHT.replace("proj", "prj"),
        "--sigma",
        "0.1",
    ]
    for named, command in (
        ([], "`gaussmark list weights`"),
        (
            ["--model", "my model"],
            "`gaussmark list weights --model 'my model'`",
        ),
    ):
        code, _, err = answer(capsys, *words, *named)
        assert (code, "models." in err) == (cli.REFUSED, False)
        assert tiny_lm.WEIGHT in err, "the nearest names"
        assert f"{command} lists all {len(rows)}" in err
    assert "weights\n" not in answer(capsys, "list", "--records", str(tmp_path))[1], (
        "that would load a model"
    )


@pytest.mark.parametrize(("words", "inside"), [([], "detect"), (["key"], "users")])
def test_a_command_that_is_missing_gets_the_help(capsys, words, inside):
    code, out, err = answer(capsys, *words)
    assert (code, out) == (cli.REFUSED, "")
    assert err == answer(capsys, *words, "--help")[1]
    assert f"    {inside} " in err
    assert "the following arguments are required" in answer(capsys, "run")[2], (
        "a command without its arguments is told which"
    )


def test_the_version(capsys):
    code, out, err = answer(capsys, "--version")
    assert (code, err) == (0, "")
    assert out.startswith(
        f"gaussmark {metadata.version('gaussmark')} (torch {metadata.version('torch')},"
        " transformers "
    )


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["detct"], "invalid choice: 'detct'; did you mean detect?"),
        (["key", "shwo"], "did you mean show?"),
        (["list", "notebook"], "did you mean notebooks?"),
        (["run", "00", "--foce"], "unrecognized arguments: --foce; did you mean --force?"),
        (["sweep", "02", "--grid", "x", "--worker=2", "--cluser", "y"], "did you mean --cluster?"),
        (["tour", "--record"], "expected one argument"),
        (["run", "06_robustnes"], "did you mean 06_robustness?"),
        (["run", "00", "--preset", "level_check_referenc"], "did you mean level_check_reference"),
        (["sweep", "02", "--grid", "levl_check_grid"], "did you mean level_check_grid?"),
        (
            ["sweep", "02", "--grid", "zzz"],
            "no grid is called 'zzz'; there are layer_sigma_sweep_grid, level_check_grid in",
        ),
        (["run", "00", "--param", "sgima", "1"], "did you mean sigma?"),
    ],
)
def test_what_a_misspelt_name_may_have_meant(capsys, words, meant):
    code, out, err = answer(capsys, *words)
    assert (code, out) == (cli.REFUSED, "")
    assert meant in err


def test_what_is_near_nothing_gets_the_whole_list(capsys):
    _, _, err = answer(capsys, "fly")
    assert "did you mean" not in err
    assert all(name in err for name in ("run", "generate", "detect", "list"))


def test_a_table_has_as_many_columns_as_there_is_room_for():
    rows = [
        {"sigma": "0.1", "headline": "1 (0.5 to 1)", "n": "7"},
        {"sigma": "0.25", "headline": "failed", "n": "failed"},
    ]
    assert list(listing.columns(rows, 100)) == [
        "sigma  headline      n",
        "0.1    1 (0.5 to 1)  7",
        "0.25   failed        failed",
    ]
    assert list(listing.columns(rows, 24)) == [
        "sigma  headline",
        "0.1    1 (0.5 to 1)",
        "0.25   failed",
        "and 1 more number a run, in results.parquet",
    ]
    assert list(listing.columns(rows, 1))[-1] == "and 2 more numbers a run, in results.parquet"
    assert list(listing.columns([{}], 80)) == []
    assert list(listing.columns([], 80)) == []
