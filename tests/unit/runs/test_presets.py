"""Preset files are found by name, YAML means what it looks like, and the paper's numbers are
complete.
"""

import math
import re
import time

import pytest
import tracked

from gaussmark_lib import files
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs import presets
from gaussmark_lib.workbench.runs.parameters import yaml

KGW = "KGW-1", "KGW-2"
MODEL = "meta-llama/Llama-3.1-8B"
SHARED = "shared: true\nx: 3\nz: 4\nnotebooks:\n  '02': {y: 5, x: 6}\n  03: {y: 7}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PRESETS", tmp_path)
    (tmp_path / "large.yaml").write_text("x: 3\ny: 1e-3\n")
    return tmp_path


def test_presets_are_found_by_name_and_by_path(folder):
    for name in ("large", "large.yaml", folder / "large.yaml"):
        assert presets.read(name) == {"x": 3, "y": 0.001}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- 1\n- 2", "lines of `name: value`"),
        ("just words", "lines of"),
        ("", "lines of"),
        ("1: 2", "lines of"),
        ("x: 1\nx: 2", "duplicate key"),
        ("x: [", "cannot be read as YAML"),
    ],
)
def test_a_preset_that_is_none_is_refused(folder, content, complaint):
    (folder / "bad.yaml").write_text(content)
    with pytest.raises(ParameterError, match=complaint):
        presets.read("bad")


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10), ("12:30", "12:30"), ("no", "no"), ("1e-3", 0.001), ("!!str 3", "3")],
)
def test_yaml_means_what_it_looks_like(text, value):
    found = yaml(text)
    assert (found, type(found)) == (value, type(value))


BOMB = "\n".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9) if i else 'ha'}]" for i in range(20))
HOSTILE = {
    "alias bomb": BOMB,
    "alias of itself": "&a [*a]",
    "deep lists": "[" * 90_000,
    "digits": "1" * 5000,
    "too long": "a" * 100_001,
    "tag": "!!int abc",
    "two documents": "a: 1\n---\nb: 2",
    "code": "!!python/object/apply:os.system [x]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_yaml_that_would_fill_the_memory_or_crash_is_refused_at_once(name):
    started = time.process_time()
    with pytest.raises(ParameterError) as error:
        yaml(HOSTILE[name])
    assert time.process_time() - started < 15
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_shared_preset_gives_each_notebook_what_it_knows_and_its_own(folder):
    (folder / "paper.yaml").write_text(SHARED)
    values = presets.read("paper")
    assert presets.taken(values, "01", {"x", "y"}) == ({"x": 3}, ["z"])
    assert presets.taken(values, "02", {"x", "y"}) == ({"x": 6, "y": 5}, ["z"])
    assert presets.taken(values, "03", {"y"}) == ({"y": 7}, ["x", "z"]), "03 is YAML's 3"
    of_one = presets.read("large")
    assert presets.taken(of_one, "01", {"x"}) == (of_one, []), "nothing is skipped"


SHARED_PRESETS = [path for path in tracked.PRESETS if "\nshared: true\n" in path.read_text()]


@pytest.mark.parametrize("preset", SHARED_PRESETS, ids=lambda path: path.stem)
def test_a_papers_preset_fits_every_notebook(preset):
    values = presets.read(preset)
    for notebook in map(notebooks.load, tracked.NOTEBOOKS):
        known, skipped = presets.taken(values, notebook.name[:2], notebook.parameters)
        assert known.items() <= notebook.check(known).items()
        assert not set(skipped) & set(notebook.parameters)


# model → weight, σ², and k where it is rank-reduced (arXiv:2501.13941, the tables of selected
# settings)
PAPER = {
    "llama-3.1-8b": ("model.layers.28.mlp.up_proj.weight", 3e-4, None),
    "mistral-7b": ("model.layers.20.mlp.up_proj.weight", 1e-5, None),
    "phi-3.5-mini": ("model.layers.20.mlp.down_proj.weight", 1e-3, None),
    "llama-3.1-8b-lowrank": ("model.layers.29.mlp.down_proj.weight", 1e-4, 512),
    "mistral-7b-lowrank": ("model.layers.30.mlp.up_proj.weight", 1e-5, 1024),
    "phi-3.5-mini-lowrank": ("model.layers.31.mlp.gate_up_proj.weight", 3e-4, 1024),
}


@pytest.mark.parametrize(("name", "setting"), PAPER.items())
def test_the_papers_settings(name, setting):
    values = presets.read(name)
    assert (values["weight"], values.get("rank_dropped")) == (setting[0], setting[2])
    assert values["sigma"] ** 2 == pytest.approx(setting[1], rel=1e-4)
    sizes = [values[name] for name in ("n_prompts", "prompt_tokens", "n_tokens", "n_keys")]
    assert (sizes, values["text"]) == ([1000, 200, 1000, 3], "c4")


def test_every_row_of_the_papers_numbers_is_a_number_with_its_place():
    quantities = set()
    for model in yaml(presets.PAPER.read_text())["models"].values():
        rows = [(row["quantity"], row["scheme"]) for row in model["numbers"]]
        assert len(rows) == len(set(rows))
        assert {scheme for _, scheme in rows} == {"base", "GaussMark", "rank-reduced", *KGW}
        quantities.add(frozenset(quantity for quantity, _ in rows))
        for row in model["numbers"]:
            assert re.fullmatch(r"(Table|Figure) \d+: \w+", f"{row['where']}: {row['unit'][:3]}")
            assert len(row.keys() & {"value", "low", "most"}) == 1
            assert row.get("low", 0) < row.get("high", 1)
            assert 0 < row.get("error", 1e-9) < row.get("value", 1)
    assert len(quantities) == 1, "the same of all three models"


def test_beside_a_measured_number_stand_the_papers_for_its_model_or_for_all():
    (row,) = runs.comparable(MODEL, "cross-entropy", "GaussMark").to_dict("records")
    assert (row["model"], math.isnan(row["most"])) == ("Llama-3.1-8B", True)
    assert (row["value"], row["error"]) == (2.2331, 0.0145)
    assert runs.comparable("doclm", "win rate", "GaussMark")["value"].tolist() == [0.45, 0.5, 0.49]
    bounds = runs.comparable("doclm", "max/min of ‖G‖", "base")
    assert bounds["value"].isna().all()
    assert bounds["most"].tolist()[-1] == 40


OTHERS = [path for path in tracked.PRESETS if path not in SHARED_PRESETS]
OF_ONE_NOTEBOOK = [path.stem for path in OTHERS if presets._kind(path) == "preset"]


@pytest.mark.parametrize("name", OF_ONE_NOTEBOOK)
def test_a_preset_fits_the_notebook_that_it_is_named_after(name):
    of_name = [path for path in tracked.NOTEBOOKS if name.startswith(path.stem[3:])]
    assert of_name, "no notebook has this name"
    notebook = notebooks.load(max(of_name, key=lambda path: len(path.stem)))
    values = presets.read(name)
    assert values.items() <= notebook.check(values).items()
