"""The list of withdrawn findings only grows, says what the records said, and leaves out none."""

import functools
import json
import subprocess

import numpy as np
import pandas as pd
import pytest

from gaussmark_experiments import outcomes
from gaussmark_lib import files
from gaussmark_lib.workbench.runs.folder import OUTCOMES

LIST = "papermill_runs/reference/withdrawn.yaml"
FIELDS = {"statement", "notebook", "record", "claim", "expected", "withdrawn", "why", "outcomes"}
ENTRIES = outcomes.listed((files.ROOT / LIST).read_text(encoding="utf-8"))


def git(*words):
    return subprocess.run(["git", "-C", files.ROOT, *words], capture_output=True, text=True)


@functools.cache
def claims_of(commit, record):
    shown = git("show", f"{commit}:{outcomes.REFERENCES}/{record}/results.json").stdout
    return {row["claim"]: row for row in json.loads(shown)["claims"]}


def test_every_entry_of_every_commit_is_still_there():
    for commit in git("log", "--format=%H", "--", LIST).stdout.split():
        done = git("show", f"{commit}:{LIST}")
        if not done.returncode:  # a commit that a shallow clone lacks
            entries = outcomes.listed(done.stdout)
            gone = [entry["statement"] for entry in entries if entry not in ENTRIES]
            assert gone == [], f"of commit {commit}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["statement"][:40])
def test_an_entry_is_complete(entry):
    assert entry.keys() - {"later_name"} == FIELDS
    assert (files.NOTEBOOKS / f"{entry['notebook']}.ipynb").exists()
    assert len(entry["why"]) > 40
    for outcome in entry["outcomes"]:
        assert outcome["outcome"] in OUTCOMES
        assert outcome["date"] <= entry["withdrawn"]["date"]


def test_every_outcome_in_the_history_stands_in_a_record_or_in_the_list():
    assert outcomes.missing(kept := pd.read_csv(outcomes.TABLE)) == []
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a checkout without history")
    history = outcomes.recorded()
    assert outcomes.missing(history) == []  # a record of the last commit may be new in the table
    assert set(kept["claim"]) <= set(history["claim"])
    for entry in ENTRIES:
        for outcome in entry["outcomes"]:
            row = claims_of(outcome["commit"], entry["record"])[entry["claim"]]
            assert row["outcome"] == outcome["outcome"]
            assert row["expected"] == str(entry["expected"])
            found = [pd.Series(one)[outcomes.NUMBERS].astype(float) for one in (row, outcome)]
            np.testing.assert_allclose(*found, rtol=6e-4)
