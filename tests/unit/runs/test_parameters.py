"""A notebook's parameters are read without being run, and nothing that does not fit gets
through.
"""

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib.errors import ParameterError
from gaussmark_lib.workbench.runs import parameters

BAD = tomllib.loads(Path(__file__).with_name("bad_declarations.toml").read_text(encoding="utf-8"))
CELL = """# where the noise goes
sigma: float = 0.05  # (0, 1] standard deviation of the # noise
n_texts: int = 3  # [1, inf) texts
scheme: str = "a#b"  # {a#b, plain} which noise
weight: str | None = None  # name of the matrix

grid: list[float] = [1, 2.5,
    3]  # [0, 10] sigmas to try
greedy: bool = False"""


@pytest.fixture
def declared():
    return parameters.read(CELL, "00_demo")


def test_reads_names_defaults_help_and_limits(declared):
    defaults = {"sigma": 0.05, "n_texts": 3, "scheme": "a#b", "weight": None}
    defaults |= {"grid": [1.0, 2.5, 3.0], "greedy": False}
    assert {name: p.default for name, p in declared.items()} == defaults
    assert all(isinstance(item, float) for item in declared["grid"].default)
    assert declared["sigma"].help == "standard deviation of the # noise"
    assert declared["sigma"].allowed == "float in (0, 1]"
    assert declared["scheme"].allowed == "str, one of 'a#b', 'plain'"
    assert declared["greedy"].help == ""
    assert str(declared["n_texts"]) == "n_texts: int in [1, inf) = 3  # texts"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [*BAD.items(), ("a: int = " + "-" * 50_000 + "1", ""), ("a: int = " + "1" * 5000, "")],
)
def test_a_cell_that_is_no_declaration_is_refused(source, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=r"^00_demo: ") as error:
        parameters.read(source, "00_demo")
    assert complaint in str(error.value)
    assert not os.listdir(tmp_path), "reading runs nothing"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sigma", "1e-3", 0.001),
        ("sigma", "1", 1.0),
        ("n_texts", "3", 3),
        ("scheme", "plain", "plain"),
        ("scheme", "'plain'", "plain"),
        *[("weight", text, text) for text in ("model.layers.4", "3", "true", "a: b: 'c", "")],
        *[("weight", text, None) for text in ("None", "null")],
        ("grid", "[1, 2e-1]", [1.0, 0.2]),
        ("grid", "[]", []),
        ("greedy", "true", True),
        ("greedy", "False", False),
    ],
)
def test_what_is_typed_becomes_a_value_of_the_right_type(declared, name, text, value):
    found = parameters.check(declared, parameters.parse(declared, [(name, text)]))[name]
    assert (found, type(found)) == (value, type(value))


REFUSED = {
    "n_texts": ["true", "3.0", "'3'", "", "0", "[3]", "1e3", "1" * 5000],
    "sigma": ["0", "1.01", ".nan", ".inf", "'0.5'", "null", "1e999"],
    "greedy": ["1", "yes"],
    "grid": ["1", "[11]", "[1, true]", "[[1]]", "[.nan]", "!!python/object:x y"],
    "scheme": ["other"],
    "weight": ["\udcff"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_a_short_message(declared, name):
    for text in REFUSED[name]:
        with pytest.raises(ParameterError, match=name) as error:
            parameters.check(declared, parameters.parse(declared, [(name, text)]), "00_demo")
        assert len(str(error.value)) < 400


def test_all_problems_are_named_at_once_with_the_nearest_names(declared):
    values = {"sgima": 0.1, "zzzzzz": 1, "n_texts": 10**5000, "greedy": 1, "sigma": 0.5}
    with pytest.raises(ParameterError) as error:
        parameters.check(declared, values, "00_demo")
    long = "n_texts: expected int in [1, inf), got int of a length that cannot be shown"
    lines = str(error.value).splitlines()
    assert [line.strip() for line in lines if line.strip() != long] == [
        "00_demo cannot run with these parameters:",
        "sgima: no such parameter; did you mean sigma?",
        "zzzzzz: no such parameter; there are sigma, n_texts, scheme, weight, grid, greedy",
        "greedy: expected bool, got 1",
    ]


def test_values_are_complete_and_in_the_declared_order(declared):
    values = parameters.check(declared, {"greedy": True, "sigma": 1})
    assert list(values) == ["sigma", "n_texts", "scheme", "weight", "grid", "greedy"]
    assert isinstance(values["sigma"], float)
    with pytest.raises(ParameterError, match="sigma was given twice"):
        parameters.parse(declared, [("sigma", "1"), ("sigma", "0.5")])


@given(
    low=st.integers(-50, 50),
    width=st.integers(0, 50),
    value=st.integers(-120, 120),
    left=st.sampled_from("[("),
    right=st.sampled_from("])"),
)
def test_ranges_hold_exactly_what_they_say(low, width, value, left, right):
    limit = f"{left}{low}, {low + width}{right}"
    declared = parameters.read(f"x: int | None = None  # {limit} anything")
    above = low <= value if left == "[" else low < value
    below = value <= low + width if right == "]" else value < low + width
    assert declared["x"].fits(value) == (above and below)
    assert declared["x"].fits(None)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_survives_being_typed(value):
    assert parameters.read("x: float = 0.0  # anything")["x"].parse(repr(value)) == value


PLACES = "model: str = 'doclm'\ntext: str = 'docs'\nprompt: str = ''\nmy_file: str = ''"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *[("model", text, "m") for text in ("./m", "m/", "../here/m")],
        ("text", "a.jsonl", "a.jsonl"),
        ("my_file", "./a.jsonl", "a.jsonl"),
        *[("model", text, None) for text in ("doclm", "owner/name", "", "x" * 5000, "\0")],
        *[("text", text, None) for text in ("docs", "m")],
        ("prompt", "./m", None),
    ],
)
def test_a_path_is_seen_from_where_a_command_is_typed(tmp_path, monkeypatch, name, text, expected):
    here = tmp_path / "here"
    for folder in ("m", "doclm", "docs"):
        (here / folder).mkdir(parents=True)
    (here / "a.jsonl").touch()
    monkeypatch.chdir(here)
    wanted = str(here / expected) if expected else text
    assert parameters.parse(parameters.read(PLACES), [(name, text)]) == {name: wanted}
