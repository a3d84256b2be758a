"""Preset files are found by name, and YAML means what it looks like."""

import math
import time

import pytest

from gaussmark_lib import paths
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import presets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PRESETS", tmp_path)
    (tmp_path / "large.yaml").write_text("x: 3\ny: 1e-3\n")
    return tmp_path


def test_presets_are_found_by_name_and_by_path(folder):
    expected = {"x": 3, "y": 0.001}
    assert presets.read("large") == presets.read("large.yaml") == presets.read(folder / "large.yaml") == expected


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
    with pytest.raises(ParameterError, match="'lrage'; there are large in"):
        presets.read("lrage")


@pytest.mark.parametrize(
    ("text", "value"), [("010", 10), ("12:30", "12:30"), ("no", "no"), ("1.", 1.0), ("-.5", -0.5), ("2026-01-01", "2026-01-01"), ("1_000", "1_000")]
)
def test_yaml_means_what_it_looks_like(text, value):
    found = presets.load(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "[1,", "a: b: c", "!!python/object/apply:os.system [x]", "a: 1\n---\nb: 2"])
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
    **{text: (text, "expected (int|float|bool|null) of") for text in ("!!int abc", "!!int 3.0", "!!float x", "!!float 1:2", "!!bool x", "!!null x")},
    **{text: (text, "constructor for the tag") for text in ("!!timestamp 2026-01-01", "!!binary aaaa", "!!set {a}", "!!omap [a: 1]", "!mine x")},
    **{text: (text, "expected a (mapping|sequence|scalar) node") for text in ("!!map 3", "!!seq 3", "!!int [1]", "!!str {a: 1}")},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_yaml_that_would_fill_the_memory_or_crash_is_refused_at_once(name):
    text, complaint = HOSTILE[name]
    started = time.monotonic()
    with pytest.raises(ParameterError, match=complaint) as error:
        presets.load(text)
    assert time.monotonic() - started < 5
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", ["1" * 400_000 + "x", "{" + ", ".join(f"a{i}: {i}" for i in range(5000)) + "}"], ids=["word", "mapping"])
def test_large_yaml_is_read_in_a_time_that_grows_with_its_length(text):
    started = time.monotonic()
    assert presets.load(text)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("text", "value"), [("!!str 3", "3"), ("!!int '3'", 3), ("!!float 3", 3.0), ("[.inf, -.INF]", [math.inf, -math.inf])])
def test_right_explicit_tags_and_infinity(text, value):
    found = presets.load(text)
    assert (found, type(found)) == (value, type(value))


def test_nan_is_read():
    assert all(map(math.isnan, presets.load("[.nan, .NaN, .NAN]")))


@pytest.mark.parametrize("name", ["", "x" * 300, "\0", "\ud800"])
def test_names_that_no_file_can_have(folder, name):
    with pytest.raises(ParameterError, match="no preset is called"):
        presets.read(name)
