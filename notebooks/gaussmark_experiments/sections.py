"""The findings of a notebook's further records, of single sections or pooled: a folded table, which
stands beside that of ``claims.report``.
"""

import pandas as pd
from IPython.display import HTML

from gaussmark_experiments import intervals
from gaussmark_lib import files
from gaussmark_lib.workbench import runs, words
from gaussmark_lib.workbench.answers import title
from gaussmark_lib.workbench.runs import folder

REFERENCES = files.RUNS / "reference"


def records(notebook: str) -> list[runs.Run]:
    """Return the records in git whose names begin with that of the notebook, without the records of
    the whole notebook.
    """
    whole = {run.id for run in runs.references(notebook)}
    name = notebook.lstrip("0123456789_")
    found = [
        folder.load(path)
        for path in sorted(REFERENCES.glob(f"{name}_*"))
        if path.is_dir() and path.name not in whole
    ]
    return [run for run in found if run]


def findings(notebook: str) -> pd.DataFrame:
    """Return the findings of :func:`records`: ``record, finding, expected, outcome``.

    Such a record also has findings of other sections, at the smallest sizes. So of several records
    with the same finding on the same model, only that with the largest n counts, and with fewer
    than ``intervals.FEWEST`` none.

    >>> "streams_bets" in set(findings("18_streams")["record"])
    True
    """
    rows = []
    sections = records(notebook)
    for run in [*runs.references(notebook), *sections]:
        for claim in run.results.get("claims", []):
            value, basis = words.estimate(claim)
            rows.append(
                {
                    "record": run.id,
                    "model": title(run),
                    "n": claim["n"],
                    "finding": claim["claim"],
                    "expected": claim["expected"],
                    "outcome": f"{words.outcome(claim)}: {value} {basis}",
                }
            )
    columns = ["record", "model", "n", "finding", "expected", "outcome"]
    table = pd.DataFrame(rows, columns=columns).sort_values("n", kind="stable")
    table = table.drop_duplicates(["model", "finding"], keep="last").sort_index()
    is_of_section = table["record"].isin([run.id for run in sections])
    is_enough = table["n"] >= intervals.FEWEST
    return table[is_of_section & is_enough].drop(columns=["model", "n"])


def folded(notebook: str) -> HTML:
    """Fold :func:`findings` into a line."""
    table = findings(notebook)
    n_records = table["record"].nunique()
    records_in_words = "a further record" if n_records == 1 else f"{n_records} further records"
    summary = f"{len(table)} findings of {records_in_words}"
    html = table.to_html(index=False, justify="left")
    return HTML(f"<details><summary>{summary}</summary>{html}</details>")
