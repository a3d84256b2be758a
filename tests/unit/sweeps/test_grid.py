"""A grid becomes runs, or one error that names everything wrong with it."""

import pytest
from small_notebooks import parameters, write

from gaussmark_lib import cli, paths
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import presets
from gaussmark_lib.sweeps import grid

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


def _runs(notebook, given, params=None) -> list[tuple]:
    return [tuple(run.values()) for run in grid.runs(notebook, given, params)]


def test_a_product_in_the_order_it_is_written_the_last_name_fastest(notebook):
    runs = _runs(notebook, {"seed": [7, 8], "sigma": [1, 0.5], "weight": "w"})
    assert runs == [
        (1.0, 7, ["a"], "w"),
        (0.5, 7, ["a"], "w"),
        (1.0, 8, ["a"], "w"),
        (0.5, 8, ["a"], "w"),
    ]
    assert grid.varying(grid.runs(notebook, {"seed": [7, 8], "sigma": [1], "weight": "w"})) == [
        "seed"
    ]


def test_values_that_are_lists(notebook):
    runs = _runs(notebook, {"weights": [["b", "c"], [], ["d"]]})
    assert [weights for _, _, weights, _ in runs] == [["b", "c"], [], ["d"]]
    assert _problems(notebook, {"weights": ["b", "c"]}) == [
        "weights: expected a list of values, each list[str], got one value; write [['b', 'c']]"
    ]


def test_runs_that_are_written_out_are_crossed_with_the_rest(notebook):
    given = {"runs": [{"sigma": 0.2, "weight": "w"}, {"sigma": 0.3}], "seed": [1, 2]}
    expected = [
        (0.2, 1, ["a"], "w"),
        (0.2, 2, ["a"], "w"),
        (0.3, 1, ["a"], None),
        (0.3, 2, ["a"], None),
    ]
    assert _runs(notebook, given) == expected


def test_values_for_the_whole_sweep_give_way_to_the_grid(notebook):
    assert _runs(notebook, {"seed": [1, 2]}, {"seed": 9, "sigma": 0.5}) == [
        (0.5, 1, ["a"], None),
        (0.5, 2, ["a"], None),
    ]


def test_all_problems_are_named_at_once_and_each_once(notebook):
    problems = _problems(
        notebook,
        {"sgima": [0.1], "sigma": [0.1, 2, "x"], "seed": [1, True], "weight": []},
        {"seeds": 3},
    )
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
        ({"sigma": []}, "sigma: no value to try"),
        (
            {"sigma": {"low": 0, "high": 1}},
            "sigma: expected float in (0, 1], got {'high': 1, 'low': 0}",
        ),
        ({"sigma": [1, 1.0]}, "runs 1 and 2 are the same: {'sigma': 1.0}"),
        ({"sigma": [0.1], "runs": [{"seed": 1}, {"seed": 1}]}, "runs 1 and 2 are the same"),
        (
            {"runs": [{"seed": 0}, {"sigma": 0.1}]},
            "runs 1 and 2 are the same",
        ),  # both are the defaults
        ({"runs": []}, "runs: expected a list of runs"),
        ({"runs": [1, 2]}, "runs: expected a list of runs"),
        ({"runs": {"seed": 1}}, "runs: expected a list of runs"),
        ({"seed": [1], "runs": [{"seed": 2}]}, "seed: given both in a run and beside the runs"),
    ],
)
def test_a_grid_that_is_none(notebook, given, problem):
    (found,) = _problems(notebook, given)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({"seed": range(1000), "sigma": range(1000), "weight": range(1000)}, "1,000,000,000"),
        ({"runs": [{}] * 10_001}, "10,001"),
        ({"runs": [{}] * 200, "seed": range(51)}, "10,200"),
        ({"seed": range(10**6), "sigma": []}, "1,000,000"),
    ],
)
def test_a_grid_of_millions_is_counted_and_not_built(notebook, monkeypatch, given, n):
    monkeypatch.setattr(
        notebooks.Notebook, "check", lambda *arguments: pytest.fail("a run was checked")
    )
    with pytest.raises(ParameterError, match=f"expected at most 10,000 runs, got {n};"):
        grid.runs(notebook, {name: list(values) for name, values in given.items()})


@pytest.mark.parametrize("text", ["", "- 1", "sigma: [1", "sigma: [1]\nsigma: [2]", "1: [2]"])
def test_a_file_that_is_no_grid(tmp_path, text):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ParameterError, match=r"the grid .*grid\.yaml"):
        presets.read(tmp_path / "grid.yaml", "grid")


def test_a_file_that_is_not_there():
    with pytest.raises(
        ParameterError,
        match=r"no grid is called 'level_check_gird'; did you mean level_check_grid\?",
    ):
        presets.read("level_check_gird", "grid")


def test_the_example_fits_its_notebook():
    assert (
        len(
            grid.runs(
                notebooks.load("02"), presets.read(paths.PRESETS / "level_check_grid.yaml", "grid")
            )
        )
        == 6
    )


@pytest.mark.parametrize(
    ("notebook", "preset"),
    [
        ("20", "train_doclm"),
        ("04", "layer_sigma_sweep_map"),
        ("04", "layer_sigma_sweep_gpu"),
        ("07", "low_rank"),
        ("09", "token_level_keys_large"),
    ],
)
def test_the_presets_fit_their_notebooks(notebook, preset):
    notebooks.load(notebook).check(presets.read(preset))


@pytest.mark.parametrize(
    ("notebook", "example", "n"),
    [("02", "level_check_grid", 6), ("04", "layer_sigma_sweep_grid", 6)],
)
def test_the_example_grids_fit_their_notebooks(notebook, example, n):
    assert len(grid.runs(notebooks.load(notebook), presets.read(example, "grid"))) == n


def test_a_parameter_that_the_grid_sets_for_some_runs_is_not_given_twice(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("runs:\n- {n_texts: 64}\n- {n_texts: 128}\n")
    assert (
        cli.main(["sweep", "02", "--grid", str(tmp_path / "grid.yaml"), "-p", "n_texts", "20"])
        == cli.REFUSED
    )
    assert "n_texts: given by -p and by the grid" in capsys.readouterr().err
