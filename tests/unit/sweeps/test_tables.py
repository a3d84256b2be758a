"""The tables of a sweep, of records made by hand."""

import pandas as pd
import pytest

from gaussmark_lib.workbench.runs.folder import Run
from gaussmark_lib.workbench.sweeps import tables

PARAMS = {"first": {"x": 1, "seed": 0}, "second": {"x": 2, "seed": 0}, "third": {"x": 3, "seed": 0}}
ESTIMATE = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}
RESULTS = {"first": {"n": 1, "by": {"x": 2}, "x": 5}, "third": {"n": "many"}}


@pytest.fixture
def runs(tmp_path) -> dict[str, Run]:
    """Two of the three runs are complete."""
    scores = pd.DataFrame({"psi": [0.5, 1.5], "x": [7, 8]})
    for name in RESULTS:
        (tmp_path / name).mkdir()
        scores.to_parquet(tmp_path / name / "scores.parquet")
    return {
        name: Run(tmp_path / name, name, PARAMS[name], results, {})
        for name, results in RESULTS.items()
    }


def test_one_row_per_run_with_nested_names_joined_and_mixed_kinds_as_json(runs):
    table = tables.results(PARAMS, runs)
    assert table["run"].tolist() == ["first", "second", "third"]
    assert table["status"].tolist() == ["complete", "failed", "complete"]
    assert table["x"].tolist() == [1, 2, 3]
    assert table["by.x"].fillna(-1).tolist() == [2, -1, -1]
    assert table["result.x"].fillna(-1).tolist() == [5, -1, -1]
    assert table["n"].tolist()[::2] == ["1", '"many"']


def test_saved_tables_one_under_the_other_with_what_varies(runs):
    table = tables.saved(PARAMS, runs, ["x"])["scores"]
    assert table.columns.tolist() == ["run", "param.x", "psi", "x"]
    assert table["run"].tolist() == ["first", "first", "third", "third"]
    assert table["param.x"].tolist() == [1, 1, 3, 3]


def test_the_summary_has_what_varies_then_the_headline_then_what_differs(tmp_path):
    headline = {"headline": {"sentence": "texts found", "unit": "", **ESTIMATE}}
    results = {"first": {"same": 3, "rate": ESTIMATE}, "third": {"same": 3, "x": 7}}
    runs = {
        name: Run(tmp_path, name, PARAMS[name], recorded | headline, {})
        for name, recorded in results.items()
    }
    table = tables.summary(PARAMS, runs, ["x"])
    assert table.index.tolist() == ["first", "second", "third"]
    assert table.columns.tolist() == ["param.x", "headline", "rate", "x", "same"]
    assert table.attrs["headlines"] == ["texts found"]
    words = ["1", "50% (25% to 75%), n = 8", "0.5 (0.25 to 0.75), n = 8", "–", "3"]
    assert table.loc["first"].tolist() == words
    assert table.loc["second"].tolist() == ["2", "failed", "failed", "failed", "failed"]
    assert table.loc["third"].tolist()[-2:] == ["7", "3"]
    assert tables.summary(PARAMS, {}, ["x"]).columns.tolist() == ["x"]
