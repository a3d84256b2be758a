"""``gaussmark list``, ``--version``, and what is said of a misspelt name."""

import json
import os
from importlib import metadata

import pytest
import tiny_lm
import tracked
from command_lines import answer

from gaussmark_lib import cli, files, models, weights
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
        monkeypatch.setattr(files, name, tmp_path / name)
        for file in getattr(tracked, name):
            (tmp_path / name / file.name).symlink_to(file)


def first_words(text: str) -> list[str]:
    """Of the lines that begin something; what it goes on with is indented."""
    return [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]


@pytest.mark.usefixtures("committed")
def test_notebooks_presets_and_grids_are_listed(capsys):
    listed = {what: first_words(answer(capsys, "list", what)[1]) for what in listing.LISTS}
    assert listed["notebooks"] == [path.stem for path in notebooks.numbered()]
    assert listed["grids"] == presets.known("grid")
    assert listed["clusters"] == ["slurm"]
    named = listed["presets"] + listed["grids"] + listed["clusters"]
    assert sorted(named) == sorted(path.stem for path in files.PRESETS.glob("*.yaml"))
    numbers = {path.stem[3:]: path.stem[:2] for path in notebooks.numbered()}
    for name in listed["grids"]:
        notebook = notebooks.load(numbers[name.removesuffix("_grid")])
        assert len(grid.runs(notebook, presets.read(name, "grid"))) > 1


def record(folder, headline: object, **results: object) -> None:
    folder.mkdir(parents=True)
    status = {"status": "complete", "started": "s", "finished": "2026-01-02T03:04:05", "seconds": 1}
    contents = {"status": status, "params": {}, "results": {"headline": headline, **results}}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "notebook.ipynb").touch()


HEADLINE = {"sentence": "texts found", "value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "unit": ""}


def test_records_are_listed_with_their_headlines(tmp_path, capsys):
    record(tmp_path / "demo" / "1234", HEADLINE)
    (tmp_path / "demo" / "5678.failed").mkdir()
    (tmp_path / "sweep-9").mkdir()
    _, out, _ = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert [line.rstrip() for line in out.splitlines()] == [
        "demo/1234  2026-01-02T03:04  texts found: 50% (25% to 75%), n = 8",
        "sweep-9    a table of runs",
    ]
    _, out, _ = answer(capsys, "list", "--records", str(tmp_path / "empty"))
    lists = [line for line in out.splitlines() if line in (*listing.LISTS, "weights", "none")]
    assert lists == [*listing.LISTS, "none"], "without the weights, which would load a model"


def test_a_record_from_elsewhere_may_hold_anything(tmp_path, capsys):
    record(tmp_path / "demo" / "1", HEADLINE | {"sentence": "\x1b[2Ja\nb", "n": "\x1b[31m"})
    record(tmp_path / "demo" / "2", [1], **{"\x1b[31m": 1})
    (tmp_path / "demo" / "3").mkdir()
    os.mkfifo(tmp_path / "demo" / "3" / "status.json")
    code, out, err = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert (code, err, "\x1b" in out) == (0, "", False)
    assert [line.split()[0] for line in out.splitlines()] == ["demo/1", "demo/2"]


def test_a_table_fits_the_terminal_and_loses_no_word(capsys, monkeypatch):
    said = {}
    for width in (80, 1000):
        monkeypatch.setenv("COLUMNS", str(width))
        said[width] = answer(capsys, "list", "presets")[1]
    assert max(map(len, said[80].splitlines())) <= 80
    assert said[80].split() == said[1000].split()
    listing.show([{"sigma": "0.1", "n": 7}, {"sigma": "0.25", "n": "failed"}], heading=True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["sigma  n", "0.1    7", "0.25   failed"]


def test_the_weights_of_a_model_are_listed_and_an_unknown_one_is_told_how(
    tmp_path, capsys, monkeypatch
):
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    code, out, _ = answer(capsys, "list", "weights", "--model", "tiny")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, list(rows)) == (0, models.watermarkable(lm.model))
    shape = weights.Weight(lm.model, tiny_lm.WEIGHT).shape
    assert rows[tiny_lm.WEIGHT].strip() == " × ".join(map(str, shape))
    misspelt = tiny_lm.WEIGHT.replace("proj", "prj")
    words = ["key", "new", str(tmp_path / "k"), "--weight", misspelt, "--sigma", "0.1"]
    code, _, err = answer(capsys, *words)
    assert (code, "models." in err) == (cli.REFUSED, False)
    assert tiny_lm.WEIGHT in err, "the nearest names"
    assert f"`gaussmark list weights --model MODEL` lists all {len(rows)}" in err


@pytest.mark.parametrize(("words", "inside"), [([], "detect"), (["key"], "users")])
def test_a_command_that_is_missing_gets_the_help(capsys, words, inside):
    code, out, err = answer(capsys, *words)
    assert (code, out) == (cli.REFUSED, "")
    assert err == answer(capsys, *words, "--help")[1]
    assert f"  {inside} " in err


def test_the_version(capsys):
    code, out, err = answer(capsys, "--version")
    assert (code, err) == (0, "")
    gaussmark, torch = map(metadata.version, ("gaussmark", "torch"))
    assert out.startswith(f"gaussmark {gaussmark} (torch {torch}, transformers ")


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["detct"], "No such command 'detct'. Did you mean 'detect'?"),
        (["key", "shwo"], "Did you mean 'show'?"),
        (["list", "notebook"], "did you mean notebooks?"),
        (["run", "00", "--foce"], "No such option: --foce (Possible options: --check, --force)"),
        (["run", "06_robustnes"], "did you mean 06_robustness?"),
        (["run", "00", "--preset", "level_check_referenc"], "did you mean level_check_reference"),
        (["sweep", "02", "--grid", "levl_check_grid"], "did you mean level_check_grid?"),
        (["run", "00", "--param", "sgima", "1"], "did you mean sigma?"),
    ],
)
def test_what_a_misspelt_name_may_have_meant(capsys, words, meant):
    code, out, err = answer(capsys, *words)
    assert (code, out) == (cli.REFUSED, "")
    assert meant in err
