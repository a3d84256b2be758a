"""The list of withdrawn findings only grows, says what the records said, and leaves out none."""

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
    kept = pd.read_csv(outcomes.TABLE)
    assert outcomes.missing(kept) == []
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a checkout without history")
    history = outcomes.recorded()
    assert outcomes.missing(history) == []  # a record of the last commit may be new in the table
    assert set(kept["claim"]) <= set(history["claim"])
    of_finding = dict(list(history.groupby(outcomes.FINDING)))
    for entry in ENTRIES:
        rows = of_finding[entry["record"], entry["claim"], str(entry["expected"])]
        listed = pd.DataFrame(entry["outcomes"]).astype(dict.fromkeys(outcomes.NUMBERS, float))
        assert set(rows["outcome"]) == set(listed["outcome"])
        for name in outcomes.NUMBERS:
            distinct = [np.unique(table[name].dropna()) for table in (rows, listed)]
            np.testing.assert_allclose(*distinct, rtol=6e-4)
