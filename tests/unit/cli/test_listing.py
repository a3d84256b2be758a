"""``gaussmark list``."""

import json

import pytest
import tiny_lm
import tracked
from command_lines import answer

from gaussmark_lib import files, weights
from gaussmark_lib.engine import packages
from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.cli import answers
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs import presets
from gaussmark_lib.workbench.sweeps import grid

LISTS = ["notebooks", "presets", "grids", "clusters", "records"]


@pytest.fixture(autouse=True)
def _committed(tmp_path, monkeypatch):
    """A wide terminal; the committed notebooks and presets, without a user's own beside them."""
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NOTEBOOKS", "PRESETS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(files, name, tmp_path / name)
        for file in getattr(tracked, name):
            (tmp_path / name / file.name).symlink_to(file)


def test_notebooks_presets_grids_and_clusters_are_listed(capsys):
    listed = {}
    for what in LISTS:
        lines = answer(capsys, "list", what)[1].splitlines()
        listed[what] = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert listed["notebooks"] == [path.stem for path in notebooks.numbered()]
    named = listed["presets"] + listed["grids"] + listed["clusters"]
    assert sorted(named) == sorted(path.stem for path in files.PRESETS.glob("*.yaml"))
    numbers = {path.stem[3:]: path.stem[:2] for path in notebooks.numbered()}
    for name in listed["grids"]:
        notebook = notebooks.load(numbers[name.removesuffix("_grid")])
        assert len(grid.runs(notebook, presets.read(name, "grid"))) > 1


def record(folder, **headline: object) -> None:
    folder.mkdir(parents=True)
    status = {"status": "complete", "started": "s", "finished": "2026-01-02T03:04:05", "seconds": 1}
    known = {"sentence": "texts found", "value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "unit": ""}
    contents = {"status": status, "params": {}, "results": {"headline": known | headline}}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_records_are_listed_with_their_headlines(tmp_path, capsys):
    record(tmp_path / "demo" / "1234")
    record(tmp_path / "demo" / "2", sentence="\x1b[2Ja\nb")
    (tmp_path / "demo" / "5678.failed").mkdir()
    (tmp_path / "sweep-9").mkdir()
    _, out, _ = answer(capsys, "list", "records", "--records", str(tmp_path))
    assert [line.rstrip() for line in out.splitlines()] == [
        "demo/1234  2026-01-02T03:04  texts found: 50% (25% to 75%), n = 8",
        r"demo/2     2026-01-02T03:04  \x1b[2Ja\nb: 50% (25% to 75%), n = 8",
    ]
    _, out, _ = answer(capsys, "list", "--records", str(tmp_path / "empty"))
    lists = [line for line in out.splitlines() if line in (*LISTS, "weights", "none")]
    assert lists == [*LISTS, "none"], "without the weights, which would load a model"


def test_a_table_fits_the_terminal_and_loses_no_word(capsys, monkeypatch):
    shown = {}
    for width in (80, 1000):
        monkeypatch.setenv("COLUMNS", str(width))
        shown[width] = answer(capsys, "list", "presets")[1]
    assert max(map(len, shown[80].splitlines())) <= 80
    assert shown[80].split() == shown[1000].split()
    answers.table([{"sigma": "\x1b[2J", "n": 7}, {"sigma": "0.25", "n": "failed"}], heading=True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["sigma    n", r"\x1b[2J  7", "0.25     failed"]
    monkeypatch.setenv("COLUMNS", "40")
    columns = {f"column {i}": "0 to 100" for i in range(8)}
    answers.table([{"scheme": "GaussMark, sharper"} | columns], heading=True)
    assert {"GaussMark,", "sharper"} <= set(capsys.readouterr().out.split())


def test_the_weights_of_a_model_are_listed_and_an_unknown_one_is_named(lm, tmp_path, capsys):
    code, out, _ = answer(capsys, "list", "weights", "--model", "tiny")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, list(rows)) == (0, weights.names(lm.model))
    shape = weights.Weight(lm.model, tiny_lm.WEIGHT).shape
    assert rows[tiny_lm.WEIGHT].strip() == " × ".join(map(str, shape))
    misspelt = tiny_lm.WEIGHT.replace("proj", "prj")
    words = ["key", "new", str(tmp_path / "k"), "--weight", misspelt, "--sigma", "0.1"]
    code, _, err = answer(capsys, *words)
    assert (code, "models." in err, tiny_lm.WEIGHT in err) == (cli.REFUSED, False, True)
    assert f"`gaussmark list weights --model MODEL` lists all {len(rows)}" in err


@pytest.mark.parametrize(("words", "inside"), [([], "detect"), (["key"], "users")])
def test_a_command_that_is_missing_gets_the_help(capsys, words, inside):
    code, out, err = answer(capsys, *words)
    assert (code, out, err) == (cli.REFUSED, "", answer(capsys, *words, "--help")[1])
    assert f"  {inside} " in err


def test_models_are_listed_with_licence_and_whether_they_are_installed(capsys, monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda entry: entry.name == "smollm2")
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = answer(capsys, "list", "models")
    doclm, smollm2, gemma = out.splitlines()
    assert "6.2 M parameters" in doclm
    assert "134.5 M parameters, llama, Apache-2.0" in smollm2
    assert "SmolLM2-135M-Instruct, 4-bit file, dequantised" in smollm2
    assert "not installed" not in smollm2
    assert "not installed: `make models`" in gemma
    assert "https://ai.google.dev/gemma/terms" in gemma
