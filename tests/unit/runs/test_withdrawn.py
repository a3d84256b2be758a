"""The list of withdrawn findings only grows, and says what the records said."""

import json
import math
import subprocess
from datetime import date

import pytest

from gaussmark_lib import files
from gaussmark_lib.workbench.runs.folder import OUTCOMES
from gaussmark_lib.workbench.runs.parameters import yaml

LIST = "papermill_runs/reference/withdrawn.yaml"
FIELDS = {"statement", "notebook", "record", "claim", "expected", "withdrawn", "why", "outcomes"}
ENTRIES = yaml((files.ROOT / LIST).read_text(encoding="utf-8"))


def git(*words: str) -> str | None:
    """What git prints; None where it fails, such as for a commit that a shallow clone lacks."""
    done = subprocess.run(["git", "-C", str(files.ROOT), *words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def test_every_entry_of_every_commit_is_still_there():
    commits = (git("log", "--format=%H", "--", LIST) or "").split()
    for commit in commits:
        text = git("show", f"{commit}:{LIST}")
        if text is not None:  # the commit that took the whole file away would have none
            gone = [entry["statement"] for entry in yaml(text) if entry not in ENTRIES]
            assert gone == [], f"of commit {commit}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["statement"][:40])
def test_an_entry_is_complete(entry):
    assert entry.keys() == FIELDS
    assert (files.NOTEBOOKS / f"{entry['notebook']}.ipynb").exists()
    assert isinstance(entry["withdrawn"]["date"], date)
    assert len(entry["why"]) > 40
    assert entry["outcomes"]
    for outcome in entry["outcomes"]:
        assert outcome["outcome"] in OUTCOMES
        assert outcome["date"] <= entry["withdrawn"]["date"]


def test_outcomes_are_those_of_the_records():
    n_compared = 0
    for entry in ENTRIES:
        for outcome in entry["outcomes"]:
            path = f"papermill_runs/reference/{entry['record']}/results.json"
            text = git("show", f"{outcome['commit']}:{path}")
            if text is None:
                continue
            claims = {claim["claim"]: claim for claim in json.loads(text)["claims"]}
            claim = claims[entry["claim"]]
            assert claim["outcome"] == outcome["outcome"]
            assert claim["expected"] == entry["expected"]
            assert claim["n"] == outcome["n"]
            for end in ("value", "low", "high"):
                assert math.isclose(claim[end], outcome[end], rel_tol=6e-4)
            n_compared += 1
    if not n_compared:
        pytest.skip("a clone without history")
    assert n_compared == sum(len(entry["outcomes"]) for entry in ENTRIES)
