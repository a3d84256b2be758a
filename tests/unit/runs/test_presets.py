"""Preset files are found by name, and YAML means what it looks like."""

import math
import time

import pytest
import tracked

from gaussmark_lib import paths
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import presets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PRESETS", tmp_path)
    (tmp_path / "large.yaml").write_text("x: 3\ny: 1e-3\n")
    return tmp_path


def test_presets_are_found_by_name_and_by_path(folder):
    expected = {"x": 3, "y": 0.001}
    assert (
        presets.read("large")
        == presets.read("large.yaml")
        == presets.read(folder / "large.yaml")
        == expected
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- 1\n- 2", "lines of `name: value`"),
        ("just words", "lines of"),
        ("", "lines of"),
        ("1: 2", "lines of"),
        ("x: 1\nx: 2", "given twice"),
        ("x: [", "read"),
    ],
)
def test_a_preset_that_is_none_is_refused(folder, content, complaint):
    (folder / "bad.yaml").write_text(content)
    with pytest.raises(ParameterError, match=complaint):
        presets.read("bad")


def test_a_missing_preset_is_named_with_what_there_is(folder):
    with pytest.raises(ParameterError, match=r"'lrage'; did you mean large\?"):
        presets.read("lrage")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("12:30", "12:30"),
        ("no", "no"),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
    ],
)
def test_yaml_means_what_it_looks_like(text, value):
    found = presets.load(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["{a: 1, a: 2}", "[1,", "a: b: c", "!!python/object/apply:os.system [x]", "a: 1\n---\nb: 2"],
)
def test_yaml_that_is_ambiguous_or_broken_is_an_error_in_one_line(text):
    with pytest.raises(ValueError, match=r".") as error:
        presets.load(text)
    assert "\n" not in str(error.value)


BOMB = "\n".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9) if i else 'ha'}]" for i in range(20))
HOSTILE = {
    "alias bomb": (BOMB, "stands for another place"),
    "alias of itself": ("&a [*a]", "stands for another place"),
    "deep lists": ("[" * 100_000, "at most 50 lists and mappings"),
    "deep dashes": ("- " * 100_000, "at most 50"),
    "deep mappings": ("{a: " * 100_000, "at most 50"),
    "digits": ("1" * 5000, "expected int of at most 100 characters"),
    "digits and a point": ("1" * 5000 + ".5", "expected float of at most"),
    "version": ("%YAML 1." + "1" * 5000 + "\n---\na", "cannot be read as YAML"),
    "character": (r'"\UFFFFFFFF"', "cannot be read as YAML"),
    "too long": ("a" * 600_000, "at most 500,000 characters"),
    **{
        text: (text, "expected (int|float|bool|null) of")
        for text in ("!!int abc", "!!int 3.0", "!!float x", "!!float 1:2", "!!bool x", "!!null x")
    },
    **{
        text: (text, "constructor for the tag")
        for text in (
            "!!timestamp 2026-01-01",
            "!!binary aaaa",
            "!!set {a}",
            "!!omap [a: 1]",
            "!mine x",
        )
    },
    **{
        text: (text, "expected a (mapping|sequence|scalar) node")
        for text in ("!!map 3", "!!seq 3", "!!int [1]", "!!str {a: 1}")
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_yaml_that_would_fill_the_memory_or_crash_is_refused_at_once(name):
    text, complaint = HOSTILE[name]
    started = time.process_time()
    with pytest.raises(ParameterError, match=complaint) as error:
        presets.load(text)
    assert time.process_time() - started < 5
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "text",
    ["1" * 400_000 + "x", "{" + ", ".join(f"a{i}: {i}" for i in range(5000)) + "}"],
    ids=["word", "mapping"],
)
def test_large_yaml_is_read_in_a_time_that_grows_with_its_length(text):
    started = time.process_time()
    assert presets.load(text)
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!str 3", "3"),
        ("!!int '3'", 3),
        ("!!float 3", 3.0),
        ("[.inf, -.INF]", [math.inf, -math.inf]),
    ],
)
def test_right_explicit_tags_and_infinity(text, value):
    found = presets.load(text)
    assert (found, type(found)) == (value, type(value))


def test_nan_is_read():
    assert all(map(math.isnan, presets.load("[.nan, .NaN, .NAN]")))


@pytest.mark.parametrize("name", ["", "x" * 300, "\0", "\ud800"])
def test_names_that_no_file_can_have(folder, name):
    with pytest.raises(
        ParameterError, match=r"no preset is called|preset: expected the name of a file"
    ):
        presets.read(name)


SHARED = "shared: true\nx: 3\nz: 4\nnotebooks:\n  '02': {y: 5, x: 6}\n"


def test_a_shared_preset_gives_each_notebook_what_it_knows_and_its_own(folder):
    (folder / "paper.yaml").write_text(SHARED)
    values = presets.read("paper")
    assert presets.taken(values, "01", {"x", "y"}) == ({"x": 3}, ["z"])
    assert presets.taken(values, "02", {"x", "y"}) == ({"x": 6, "y": 5}, ["z"])


def test_in_any_other_preset_nothing_is_skipped(folder):
    assert presets.taken(presets.read("large"), "01", {"x"}) == ({"x": 3, "y": 0.001}, [])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("shared: 1", "shared: expected true"),
        ("shared: true\nnotebooks: {'02': 3}", "a notebook's number"),
    ],
)
def test_a_shared_preset_that_is_none_is_refused(folder, line, complaint):
    (folder / "paper.yaml").write_text(line)
    with pytest.raises(ParameterError, match=complaint):
        presets.taken(presets.read("paper"), "02", {"x"})


SHARED_PRESETS = [path for path in tracked.PRESETS if "\nshared: true\n" in path.read_text()]


@pytest.mark.parametrize("notebook", tracked.NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("preset", SHARED_PRESETS, ids=lambda path: path.stem)
def test_a_papers_preset_fits_every_notebook(preset, notebook):
    notebook, values = notebooks.load(notebook), presets.read(preset)
    known, skipped = presets.taken(values, notebook.name[:2], notebook.parameters)
    checked = notebook.check(known)
    assert known.items() <= checked.items()
    assert not set(skipped) & set(notebook.parameters)
    assert set(values["notebooks"]) <= {path.stem[:2] for path in tracked.NOTEBOOKS}


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
    assert (
        values["n_prompts"],
        values["n_prompt"],
        values["n_tokens"],
        values["n_keys"],
        values["text"],
    ) == (1000, 200, 1000, 3, "c4")
