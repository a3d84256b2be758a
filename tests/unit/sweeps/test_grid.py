"""A grid becomes runs, or one error that names everything wrong with it."""

import pytest
from small_notebooks import parameters, write

from gaussmark_lib.errors import ParameterError
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.sweeps import grid

PARAMETERS = """
sigma: float = 0.1  # (0, 1] noise
seed: int = 0
weights: list[str] = ["a"]
weight: str | None = None
"""


@pytest.fixture
def notebook(tmp_path):
    return notebooks.load(write(tmp_path / "demo.ipynb", parameters(PARAMETERS)))


def _problems(notebook, given, params=None) -> list[str]:
    with pytest.raises(ParameterError) as error:
        grid.runs(notebook, given, params)
    first, *lines = str(error.value).splitlines()
    assert first == "demo cannot be swept over this grid:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("given", "params", "expected"),
    [
        (  # the last name changes fastest
            {"seed": [7, 8], "sigma": [1, 0.5], "weight": "w"},
            None,
            [(1.0, 7, "a", "w"), (0.5, 7, "a", "w"), (1.0, 8, "a", "w"), (0.5, 8, "a", "w")],
        ),
        (  # runs that are written out are crossed with the rest
            {"runs": [{"sigma": 0.2, "weight": "w"}, {"sigma": 0.3}], "seed": [1, 2]},
            None,
            [(0.2, 1, "a", "w"), (0.2, 2, "a", "w"), (0.3, 1, "a", None), (0.3, 2, "a", None)],
        ),
        (  # values for all runs give way to the grid
            {"seed": [1, 2]},
            {"seed": 9, "sigma": 0.5},
            [(0.5, 1, "a", None), (0.5, 2, "a", None)],
        ),
        ({"weights": [["b", "c"], []]}, None, [(0.1, 0, "bc", None), (0.1, 0, "", None)]),
    ],
)
def test_a_grid_spans_runs_in_its_order(notebook, given, params, expected):
    runs = grid.runs(notebook, given, params)
    assert [(r["sigma"], r["seed"], "".join(r["weights"]), r["weight"]) for r in runs] == expected


def test_what_varies(notebook):
    runs = grid.runs(notebook, {"seed": [7, 8], "sigma": [1], "weight": "w"})
    assert grid.varying(runs) == ["seed"]


def test_all_problems_are_named_at_once_and_each_once(notebook):
    tried = {"sgima": [0.1], "sigma": [0.1, 2, "x"], "seed": [1, True], "weight": []}
    problems = _problems(notebook, tried, {"seeds": 3})
    assert problems[0].startswith("weight: no value to try")
    assert sorted(problems[1:]) == [
        "seed: expected int, got True",
        "seeds: no such parameter; did you mean seed?",
        "sgima: no such parameter; did you mean sigma?",
        "sigma: expected float in (0, 1], got 'x'",
        "sigma: expected float in (0, 1], got 2",
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "it is empty"),
        ({"sigma": {"low": 0}}, "sigma: expected float in (0, 1], got {'low': 0}"),
        ({"weights": ["b", "c"]}, "weights: expected a list of values, each list[str]"),
        ({"runs": []}, "runs: expected a list of runs"),
        ({"runs": [1, 2]}, "runs: expected a list of runs"),
        ({"runs": {"seed": 1}}, "runs: expected a list of runs"),
        ({"seed": [1], "runs": [{"seed": 2}, {"sigma": 0.1}]}, "seed: given in a run and"),
    ],
)
def test_a_grid_that_is_none(notebook, given, problem):
    (found,) = _problems(notebook, given)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({"seed": range(1000), "sigma": range(1000), "weight": range(1000)}, "1,000,000,000"),
        ({"runs": [{}] * 200, "seed": range(51)}, "10,200"),
    ],
)
def test_a_grid_of_millions_is_counted_and_not_built(notebook, given, n):
    with pytest.raises(ParameterError, match=f"expected at most 10,000 runs, got {n};"):
        grid.runs(notebook, {name: list(values) for name, values in given.items()})
