"""References are stamped only where old and new code agree, and pooled from what commits have."""

import json
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from gaussmark_experiments import after_release, references
from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import record, runs


def test_answers_differ_in_names_outcomes_and_numbers_beyond_a_millionth():
    old = {"claims": [{"value": 1.0, "outcome": "held", "n": 3}], "sigma": 0.5}
    close = {"claims": [{"value": 1.0 + 9e-7, "outcome": "held", "n": 3}], "sigma": 0.5}
    assert list(references.differences(old, close)) == []
    far = {"claims": [{"value": 1.001, "outcome": "not held", "n": 4}]}
    assert list(references.differences(old, far)) == [
        "results.claims[0].n: 3 and 4",
        "results.claims[0].outcome: held and not held",
        "results.claims[0].value: 1.0 and 1.001",
        "results.sigma: 0.5 and None",
    ]
    assert list(references.differences([1], [1, 2])) == ["results: [1] and [1, 2]"]


def test_every_reference_is_a_notebooks():
    for name, run in references.records().items():
        assert run is not None, f"{name} is damaged"
        assert name.startswith(references.notebook_of(run).name[3:])


@pytest.fixture(scope="module")
def pooled():
    return references.records()[references.POOLED]


def test_the_pooled_record_says_what_its_tables_say(pooled, tmp_path, monkeypatch):
    monkeypatch.setenv(record.RUN_DIR, str(tmp_path))
    record.record(after_release.pooled(pooled.table("releases"), pooled.table("served")))
    again = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert list(references.differences(pooled.results, again)) == []
    assert pooled.table("releases")["release"].nunique() == pooled.params["n_releases"] == 36
    assert len({source["seed"] for source in pooled.status["pooled"]}) == 3


def test_the_pooled_tables_are_those_of_the_commits_that_it_names(pooled, tmp_path):
    commits = [source["record in"] for source in pooled.status["pooled"]]
    try:
        tables = references.tables_of(references.records_of(commits, tmp_path))
    except GaussMarkError:
        pytest.skip("a clone without history")
    for name, table in zip(("releases", "served"), tables, strict=True):
        pd.testing.assert_frame_equal(pooled.table(name), table, check_dtype=False)


TABLE = Path(__file__).with_name("papers_claims.toml").read_text(encoding="utf-8")
CLAIMS = tomllib.loads(TABLE)["claims"]


def claims_table() -> str:
    page = (files.RUNS / "README.md").read_text(encoding="utf-8")
    return page.partition("## The paper's claims")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("name", "beginning", "decimals", "unit"), CLAIMS)
def test_the_papers_claims_have_the_figures_of_the_records(name, beginning, decimals, unit):
    results = references.records()[name].results
    rows = [row for row in results["claims"] if row["claim"].startswith(beginning)]
    estimate = rows[0] if beginning else results["headline"]
    number, low, high = (_number(unit * estimate[x], decimals) for x in ("value", "low", "high"))
    lines = [line for line in claims_table().splitlines() if f"reference/{name}/" in line]
    assert any(f"({low} to {high}" in line.replace("0.", ".") for line in lines), (low, high)
    assert any(number in line.replace("0.", ".") for line in lines), number


def test_the_table_names_every_item_of_the_paper_and_its_records_exist():
    table = claims_table()
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    outcomes = ("**confirmed**", "**contradicted**", "**undecidable**", "not recorded yet")
    assert [row[0] for row in rows if not row[2].startswith(outcomes)] == []
    for item in ("Fig. 1", "Fig. 2b", "Fig. 3", "Fig. 4", "Fig. 6", "Table 1", "Table 3", "KGW"):
        assert any(item in row[0] for row in rows), item
    links = re.findall(r"\]\((reference/[^)]+)\)", table)
    assert links
    assert [link for link in links if not (files.RUNS / link).exists()] == []


def _number(value: float, decimals: int) -> str:
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{decimals}f}").replace("-", "−")


def test_notebook_14_prints_the_pooled_figures(pooled):
    """In its outputs: the cells read the record, and their prose has no number of its own."""
    text = (files.NOTEBOOKS / "14_after_release.ipynb").read_text(encoding="utf-8")
    texts, nats = pooled.results["texts"], pooled.results["nats"]
    rows = [texts[name] for name in ("4 bits", "fine-tuned, 40 steps", "half the base", "shrunk")]
    rows += [nats[name] for name in ("half the base", "mean with 3 siblings", "shrunk")]
    assert [row for row in rows if str(Estimate(**row)) not in text] == []


def test_the_record_of_a_section_speaks_for_its_model_and_the_notebooks_for_the_others():
    ids = [run.id for run in runs.references("quality_judged")]
    assert ids == ["quality_judged_smollm2", "quality"]
    assert [run.id for run in runs.references("05_quality")] == ["quality_smollm2", "quality"]
