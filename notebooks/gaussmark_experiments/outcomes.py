"""Every outcome that a reference record ever had, from the history of this repository.

    python -m gaussmark_experiments.outcomes        write papermill_runs/reference/outcomes.csv

A finding is named by its record, its sentence and its range. Each row is one measurement of it: the
first commit with these numbers, the seed of the run, and the outcome as it was recorded. A finding
that stands in no record today is in ``withdrawn.yaml``, with the reason; :func:`missing` returns
those that are not.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError

REFERENCES = "papermill_runs/reference"
TABLE = files.RUNS / "reference" / "outcomes.csv"
FINDING = ["record", "claim", "expected"]
NUMBERS = ["value", "low", "high", "n"]
COLUMNS = [*FINDING, "date", "commit", "seed", "outcome", *NUMBERS]


def git(*words: str, text: str | None = None) -> str:
    """Return what git prints. Raise GaussMarkError where it fails, as outside a repository."""
    done = subprocess.run(
        ["git", "-C", str(files.ROOT), *words], input=text, capture_output=True, text=True
    )
    if done.returncode:
        raise GaussMarkError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def versions() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield (date, commit, record, results) of each committed version of each record, the oldest
    first.
    """
    pattern = f"{REFERENCES}/*/results.json"
    history = git(
        "log", "--reverse", "--full-history", "--format=@%h %cs", "--name-only", "--", pattern
    )
    commit = date = ""
    for line in filter(None, history.splitlines()):
        if line.startswith("@"):
            commit, date = line[1:].split()
            continue
        content = _shown(commit, line)
        # a commit that removes a record has no version of it
        if content is not None:
            yield date, commit, Path(line).parent.name, content


def _shown(commit: str, path: str) -> dict[str, Any] | None:
    try:
        return json.loads(git("show", f"{commit}:{path}"))
    except GaussMarkError:
        return None


def recorded() -> pd.DataFrame:
    """Return every outcome in the history: the columns of ``COLUMNS``. The same numbers of a
    finding in later versions are the same measurement.
    """
    rows = []
    for date, commit, record, results in versions():
        params = _shown(commit, f"{REFERENCES}/{record}/params.json") or {}
        for row in results.get("claims", []):
            # the oldest records called an outcome a verdict
            found = {name: row.get(name) for name in ["claim", "expected", *NUMBERS]}
            found["outcome"] = row.get("outcome", row.get("verdict"))
            place = {"record": record, "date": date, "commit": commit, "seed": params.get("seed")}
            rows.append(place | found)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["seed"] = table["seed"].astype(str)  # a pooled record has several
    table[NUMBERS] = table[NUMBERS].map(lambda number: float(f"{number:.4g}"), na_action="ignore")
    return table.drop_duplicates([*FINDING, "outcome", *NUMBERS], ignore_index=True)


def standing() -> set[tuple[str, ...]]:
    """Return the findings that stand in a record of the working tree."""
    found = set()
    for path in TABLE.parent.glob("*/results.json"):
        rows = json.loads(path.read_text(encoding="utf-8")).get("claims", [])
        found |= {(path.parent.name, row["claim"], row["expected"]) for row in rows}
    return found


def listed(text: str) -> list[dict[str, Any]]:
    """Return the entries of a list of withdrawn findings."""
    return YAML(typ="safe").load(text)


def missing(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the findings of a table that stand in no record and are not listed as withdrawn."""
    text = TABLE.with_name("withdrawn.yaml").read_text(encoding="utf-8")
    withdrawn = {tuple(str(entry[name]) for name in FINDING) for entry in listed(text)}
    known = standing() | withdrawn
    findings = table[FINDING].drop_duplicates().itertuples(index=False, name=None)
    return [finding for finding in findings if finding not in known]


def main() -> int:
    table = recorded()
    table.to_csv(TABLE, index=False)
    print(f"{TABLE.relative_to(files.ROOT)}: {len(table)} outcomes")
    gone = missing(table)
    for finding in gone:
        print("neither in a record nor in withdrawn.yaml:", *finding, sep="\n    ")
    return int(bool(gone))


if __name__ == "__main__":
    sys.exit(main())
