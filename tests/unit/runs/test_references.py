"""References are stamped only where old and new code agree, and pooled from what commits have."""

import json
import subprocess

import pandas as pd
import pytest
import references

from gaussmark_experiments import after_release
from gaussmark_lib import files
from gaussmark_lib.workbench import record, words
from gaussmark_lib.workbench.runs import notebook as notebooks


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


def test_the_pooled_tables_are_those_of_the_commits_that_it_names(pooled):
    commits = [source["record in"] for source in pooled.status["pooled"]]
    try:
        tables = references.tables_of(commits)
    except subprocess.CalledProcessError:
        pytest.skip("a clone without history")
    for name, table in zip(("releases", "served"), tables, strict=True):
        pd.testing.assert_frame_equal(pooled.table(name), table, check_dtype=False)


def test_security_prints_the_pooled_figures(pooled):
    """The page is read where it lies, so its numbers are typed."""
    page = (files.ROOT / "SECURITY.md").read_text(encoding="utf-8")
    texts, nats = pooled.results["texts"], pooled.results["nats"]
    phrases = [
        f"rounding to 4 bits leaves {_short(texts['4 bits'])}",
        f"singular values leaves {_short(texts['shrunk'])}",
        f"for {_short(nats['shrunk'], 4)} nats per token of human text",
    ]
    assert [phrase for phrase in phrases if phrase not in page] == []


def test_security_prints_the_worst_keys():
    page = (files.ROOT / "SECURITY.md").read_text(encoding="utf-8")
    records = references.records()
    toy = records["one_key_in_production"]
    real = records["one_key_in_production_smollm2"]
    level = records["level_check_smollm2"]
    worst = toy.results["audit"]["source"]["max ψ"]
    real_worst = max(
        real.results["audit"]["source"]["max ψ"], level.results["spread"]["source"]["largest"]
    )
    n_keys = real.params["n_keys"] + level.params["n_fixed_keys"]
    assert f"flags {words.percent(worst, 0)} of 150 files of source code on doclm" in page
    assert f"({toy.params['n_keys']:,} keys)" in page
    assert f"{words.percent(real_worst, 0)} on SmolLM2 ({n_keys} keys" in page


def test_notebook_14_prints_the_pooled_figures(pooled):
    cells = notebooks.load("14_after_release").cells
    text = "\n".join(cell.source for cell in cells if cell.kind == "markdown")
    texts, nats = pooled.results["texts"], pooled.results["nats"]
    phrases = [
        f"rounding to 4 bits leaves {_short(texts['4 bits'])} of ψ",
        f"40 steps of fine-tuning {_short(texts['fine-tuned, 40 steps'])}",
        f"that is {_short(pooled.results['student'])} in its texts",
        f"gives back {_short(_negative(nats['half the base']), 3)} nats per token",
        f"leaves {_short(texts['half the base'])} of ψ",
        f"siblings {_short(_negative(nats['mean with 3 siblings']), 3)}",
        f"and {_short(texts['mean with 3 siblings'])}",
        f"a shrunk matrix leaves {_short(texts['shrunk'])} of ψ",
        f"for {_short(nats['shrunk'], 4)} nats per token",
    ]
    assert [phrase for phrase in phrases if phrase not in text] == []


def _negative(estimate: dict) -> dict:
    return {"value": -estimate["value"], "low": -estimate["high"], "high": -estimate["low"]}


def _short(estimate: dict, decimals: int = 2) -> str:
    """Such as ``.92 (.88 to .97)``."""
    value, low, high = (
        f"{estimate[name]:.{decimals}f}".replace("0.", ".", 1).replace("-", "−")
        for name in ("value", "low", "high")
    )
    return f"{value} ({low} to {high})"
