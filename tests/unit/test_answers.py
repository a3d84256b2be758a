"""The larger runs of a notebook answer first."""

import math

import pandas as pd
import pytest

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import answers, runs
from gaussmark_lib.workbench.runs.folder import Run

OPTIONS = {"less": (-math.inf, 1.0), "more": (1.0, math.inf)}
STATEMENT = "price divided by the law"


def a_run(folder, model, value, low, high, n):
    folder.mkdir()
    pd.DataFrame({"x": [value]}).to_parquet(folder / "prices.parquet")
    claim = {"claim": STATEMENT, "value": value, "low": low, "high": high, "n": n}
    headline = {"sentence": "texts detected", "value": 0.5, "low": 0.4, "high": 0.6, "n": n}
    results = {"claims": [claim], "headline": headline}
    return Run(folder, folder.name, {"model": model}, results, {})


@pytest.fixture
def records(monkeypatch, tmp_path):
    records = [
        a_run(tmp_path / "a", "smollm2", 0.84, 0.8, 0.88, 300),
        a_run(tmp_path / "b", "doclm", 1.33, None, None, 3),
    ]
    monkeypatch.setattr(runs, "references", lambda notebook: records)
    return records


def test_the_real_model_speaks_first_and_an_undecided_run_says_so(records):
    estimate = Estimate(1.2, 0.7, 1.9, 16)
    said = answers.answer("05_quality", STATEMENT, estimate, OPTIONS, heading="Price / law").data
    heading, _, first, second, here = said.splitlines()
    assert heading == "Price / law:"
    assert first == "- **SmolLM2** (reference): **less**, 0.840 (0.800 to 0.880), n = 300"
    assert second == "- **doclm** (reference): 1.33 (n = 3, too few for an interval)"
    assert here.startswith("- this run: 1.2 (0.7 to 1.9), n = 16, too few to decide between")
    assert here.endswith("*less* and *more*")


def test_a_headline_and_a_function_of_the_record_are_statements_too(records):
    assert answers.recorded(records[0], "texts detected") == Estimate(0.5, 0.4, 0.6, 300)
    assert answers.recorded(records[0], "another statement") is None
    here = Estimate(2.0, 1.5, 2.5, 9)
    said = answers.answer("05_quality", lambda run: None, here, OPTIONS, model="doclm").data
    assert said == "- this run (doclm): **more**, 2.0 (1.5 to 2.5), n = 9"


def test_a_record_without_a_number_says_nothing(records):
    none = Estimate(math.nan, math.nan, math.nan, 9)
    said = answers.answer("05_quality", lambda _: none, Estimate(0.1, 0.0, 0.2, 9), OPTIONS).data
    assert "reference" not in said


def test_an_interval_between_two_ranges_makes_no_prediction_true():
    options = {"small": (0, 1), "large": (2, 3)}
    assert answers.true_options(Estimate(1.5, 1.2, 1.8, 50), options) == []


def test_one_prediction_is_refused(records):
    with pytest.raises(GaussMarkError, match="at least two predictions"):
        answers.answer("05_quality", STATEMENT, Estimate(1, 0, 2, 5), {"less": (0, 1)})


def test_tables_of_all_runs_become_one(records):
    table = answers.beside(pd.DataFrame({"x": [9.0]}), "05_quality", "prices")
    assert table["run"].tolist() == ["SmolLM2", "doclm", "this run"]
    assert table["x"].tolist() == [0.84, 1.33, 9.0]
    alone = answers.beside(pd.DataFrame({"x": [9.0]}), "05_quality", "no such table")
    assert alone["run"].tolist() == ["this run"]


def test_records_on_real_models_come_before_those_on_doclm():
    models = [run.params["model"] for run in runs.references("05_quality")]
    assert models == ["smollm2", "doclm"]


def test_a_statement_may_be_computed_from_the_table_of_a_record(records):
    def estimate(table):
        return Estimate(table["x"].mean(), 0.5, 0.9, 1)

    assert answers.from_table("prices", estimate)(records[0]).value == 0.84
    assert answers.from_table("no such table", estimate)(records[0]) is None
    assert answers.from_table("prices", lambda table: table["no such column"])(records[0]) is None


def test_each_run_has_its_line(records):
    table = answers.beside(pd.DataFrame({"x": [9.0]}), "05_quality", "prices")
    words = ["**SmolLM2** (reference): x is 0.84", "**doclm** (reference): x is 1.33"]
    for n_runs, wanted in ((2, words), (3, [*words, "this run: x is 9.0"])):
        said = answers.by_run(table[:n_runs], lambda rows: f"x is {rows['x'].iloc[0]}").data
        assert said.splitlines() == [f"- {line}" for line in wanted]


def test_a_caption_has_the_sizes_of_all_runs_that_have_its_table(records):
    (records[1].dir / "prices.parquet").unlink()
    for table, doclm in (("", "doclm: model doclm; "), ("prices", "")):
        said = answers.sizes("05_quality", "model {model}", table=table, model="mine")
        assert said == f"SmolLM2: model smollm2; {doclm}this run: model mine"


def test_the_same_words_are_said_of_each_run_that_has_the_tables(records):
    (records[1].dir / "prices.parquet").unlink()
    here = {"model": "doclm", "prices": pd.DataFrame({"x": [9.0]})}
    said = answers.sentences("05_quality", lambda prices: f"x is {prices.x.item():g}", **here).data
    assert said.splitlines() == [
        "- **SmolLM2** (reference): x is 0.84",
        "- this run (doclm): x is 9",
    ]
