"""A notebook's parameters are read without being run, and nothing that does not fit gets
through.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import parameters

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
    assert {name: p.default for name, p in declared.items()} == {
        "sigma": 0.05,
        "n_texts": 3,
        "scheme": "a#b",
        "weight": None,
        "grid": [1.0, 2.5, 3.0],
        "greedy": False,
    }
    assert all(isinstance(item, float) for item in declared["grid"].default)
    assert declared["sigma"].help == "standard deviation of the # noise"
    assert declared["sigma"].allowed == "float in (0, 1]"
    assert declared["scheme"].allowed == "str, one of 'a#b', 'plain'"
    assert declared["greedy"].help == ""
    assert str(declared["n_texts"]) == "n_texts: int in [1, inf) = 3  # texts"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("a = 1", "expected `name: type = literal"),
        ("def f(): pass", "expected `name: type = literal"),
        ("a: int", "expected `name: type = literal"),
        ("a.b: int = 1", "expected `name: type = literal"),
        ("a: int = 1; b: int = 2", "one parameter per line"),
        ("a: int = 1\na: int = 2", "declared twice"),
        ("a: int = 2 * 3", "expected a literal"),
        ("a: str = open('x').read()", "expected a literal"),
        ("a: int = 'x'", "the default 'x' is not int"),
        ("a: int = True", "the default True is not int"),
        ("a: int = 5  # [0, 1] b", "the default 5 is not int in [0, 1]"),
        ("a: str = 'x'  # {y, z} b", "the default 'x' is not str, one of 'y', 'z'"),
        ("a: str = 'x'  # [0, 1] b", "a range does not go with str"),
        ("a: int = 1  # [0, 1 b", "expected `# [low, high] help`"),
        ("a: int = 1  # [0, 1.2.3] b", "could not convert"),
        ("a: dict = {}", "cannot check the type dict"),
        ("a: 'int' = 1", "cannot check the type 'int'"),
        ("a: list = []", "cannot check the type list"),
        ("a: int = (", "is not Python"),
        ("%matplotlib inline", "is not Python"),
    ],
)
def test_a_cell_that_is_no_declaration_is_refused(source, complaint):
    with pytest.raises(ParameterError, match=r"^00_demo: ") as error:
        parameters.read(source, "00_demo")
    assert complaint in str(error.value)


def test_reading_runs_nothing(tmp_path):
    with pytest.raises(ParameterError):
        parameters.read(
            f"a: int = __import__('pathlib').Path({str(tmp_path / 'x')!r}).touch() or 1"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sigma", "1e-3", 0.001),
        ("sigma", "1", 1.0),
        ("n_texts", "3", 3),
        ("scheme", "plain", "plain"),
        ("weight", "model.layers.4.mlp.down_proj.weight", "model.layers.4.mlp.down_proj.weight"),
        ("weight", "3", "3"),
        ("weight", "true", "true"),
        ("weight", "a: b: 'c", "a: b: 'c"),
        ("weight", "", ""),
        ("scheme", "'plain'", "plain"),
        ("weight", "None", None),
        ("weight", "null", None),
        ("grid", "[1, 2e-1]", [1.0, 0.2]),
        ("grid", "[]", []),
        ("greedy", "true", True),
        ("greedy", "False", False),
    ],
)
def test_what_is_typed_becomes_a_value_of_the_right_type(declared, name, text, value):
    found = parameters.check(declared, parameters.parse(declared, [(name, text)]))[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[
            ("n_texts", text)
            for text in ("true", "3.0", "3.5", "'3'", "three", "", "0", "-1", "[3]", "1e3", ".nan")
        ],
        *[
            ("sigma", text)
            for text in ("0", "-0.1", "1.01", ".nan", ".inf", "true", "'0.5'", "null", "1e999")
        ],
        *[("greedy", text) for text in ("1", "0", "yes", "no", "on", "'true'")],
        *[
            ("grid", text)
            for text in ("1", "[11]", "[1, true]", "[a]", "[[1]]", "{a: 1}", "[.nan]", "[null]")
        ],
        ("scheme", "other"),
        ("scheme", "null"),
        ("grid", "!!python/object:os.system x"),
    ],
)
def test_what_does_not_fit_is_refused(declared, name, text):
    with pytest.raises(ParameterError, match=name):
        parameters.check(declared, parameters.parse(declared, [(name, text)]), "00_demo")


def test_all_problems_are_named_at_once_with_the_nearest_names(declared):
    with pytest.raises(ParameterError) as error:
        parameters.check(
            declared,
            {"sgima": 0.1, "n_text": 3, "zzzzzz": 1, "n_texts": 0, "greedy": 1, "sigma": 0.5},
            "00_demo",
        )
    assert str(error.value).splitlines() == [
        "00_demo cannot run with these parameters:",
        "  sgima: no such parameter; did you mean sigma?",
        "  n_text: no such parameter; did you mean n_texts?",
        "  zzzzzz: no such parameter; there are sigma, n_texts, scheme, weight, grid, greedy",
        "  n_texts: expected int in [1, inf), got 0",
        "  greedy: expected bool, got 1",
    ]


def test_values_are_complete_and_in_the_declared_order(declared):
    values = parameters.check(declared, {"greedy": True, "sigma": 1})
    assert list(values) == ["sigma", "n_texts", "scheme", "weight", "grid", "greedy"]
    assert values["sigma"] == 1.0
    assert isinstance(values["sigma"], float)


def test_a_name_given_twice_is_refused(declared):
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
    declared = parameters.read(
        f"x: int | None = None  # {left}{low}, {low + width}{right} anything"
    )
    inside = (low <= value if left == "[" else low < value) and (
        value <= low + width if right == "]" else value < low + width
    )
    assert declared["x"].fits(value) == inside
    assert declared["x"].fits(None)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_survives_being_typed(value):
    assert parameters.read("x: float = 0.0  # anything")["x"].parse(repr(value)) == value


PLACES = "model: str = 'doclm'\ntext: str = 'docs'\nprompt: str = ''\nmodels: list[str] = []"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *[("model", text, "HERE/m") for text in ("./m", "m", "m/", "../here/m", "HERE/m")],
        ("model", "./none", "HERE/none"),
        ("model", "..", "HERE/.."),
        ("models", "[./m, organisation/name]", ["HERE/m", "organisation/name"]),
        ("text", "a.jsonl", "HERE/a.jsonl"),
        ("prompt", "./m", "HERE/m"),
        *[("model", text, text) for text in ("doclm", "organisation/name", "none", "")],
        *[("text", text, text) for text in ("docs", "none.jsonl", "m")],
        *[
            ("prompt", text, text)
            for text in (
                ".",
                "m",
                "./configure is run first",
                "~/.bashrc is read",
                "and/or",
                "x" * 5000,
                "./" + "x y" * 5000,
            )
        ],
    ],
)
def test_a_path_is_seen_from_where_the_command_is_typed(
    tmp_path, monkeypatch, name, text, expected
):
    here = tmp_path / "here"
    (here / "m").mkdir(parents=True)
    (here / "doclm").mkdir()
    (here / "a.jsonl").touch()
    monkeypatch.chdir(here)
    declared = parameters.read(PLACES)
    whole = lambda value: (
        os.path.abspath(value.replace("HERE", str(here))) if "HERE" in value else value
    )  # noqa: E731
    wanted = [whole(item) for item in expected] if isinstance(expected, list) else whole(expected)
    assert parameters.parse(declared, [(name, text.replace("HERE", str(here)))]) == {name: wanted}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**5000, "int of a length that cannot be shown"),
        ("\udcff", r"'\\udcff'"),
        ([0] * 1000, r"\[0, 0, .*\.\.\.\]"),
    ],
    ids=["digits", "half", "long"],
)
def test_values_that_no_file_can_hold_or_no_line_can_show_are_refused_in_a_short_message(
    value, shown
):
    declared = parameters.read("x: int = 1  # [0, 5]\ns: str = ''")
    name = "s" if isinstance(value, str) else "x"
    with pytest.raises(
        ParameterError, match=rf"expected {'str' if name == 's' else 'int'}.*{shown}$"
    ) as error:
        parameters.check(declared, {name: value})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "literal",
    ["-" * 50_000 + "1", "(" * 500 + "1" + ")" * 500, "1" * 5000, "1\0"],
    ids=["signs", "brackets", "digits", "zero"],
)
def test_a_cell_that_would_crash_the_parser_is_refused(literal):
    with pytest.raises(ParameterError, match=r"^00_demo: .*(is not Python|expected a literal)"):
        parameters.read(f"a: int = {literal}", "00_demo")
