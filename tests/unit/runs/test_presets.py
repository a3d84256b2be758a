"""Preset files are found by name, and YAML means what it looks like."""

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
