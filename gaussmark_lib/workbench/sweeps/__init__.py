"""Many runs on many processes or machines: a notebook over a grid of parameters (a sweep), or all
notebooks (the tour); and several runs side by side.

    done = sweeps.sweep("02", {"sigma": [0.05, 0.1], "seed": [0, 1]})
    done.results, done.failed, done.dir

Each run is an ordinary run (``runs.run``), with its record in the usual place. So a sweep needs no
state: when it is started again, after a crash, after Ctrl-C or with a finer grid, it reads the
records and runs what is missing. At the end it writes

    papermill_runs/sweep-<id>/    results.parquet  tables/*.parquet  sweep.json

where the id is a hash of the ids of its runs.

==============  ==========================================================================
``grid``        the grid: the values to try, and the runs that they span
``jobs``        runs at the same time, here or on other machines, and how each of them ended
``tables``      the tables of a sweep, made only from its records
``comparison``  several runs side by side: parameters, findings, figures
``tour``        all numbered notebooks with their defaults, and a page about them
==============  ==========================================================================

To add a place to run on, add a branch to ``jobs.executor``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files
from gaussmark_lib.workbench.runs import folder as records
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.notebook import Notebook, Question
from gaussmark_lib.workbench.sweeps import grid as grids
from gaussmark_lib.workbench.sweeps import jobs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Sweep", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """A finished sweep."""

    dir: Path
    runs: dict[str, dict[str, Any]]  # id → every parameter's value, in the grid's order
    cached: int  # number of runs that had a record
    failed: list[dict[str, Any]]  # ``run, params, status, error`` of the runs without a record
    summary: "pd.DataFrame"  # see ``tables.summary``

    @property
    def results(self) -> "pd.DataFrame":
        """One row per run."""
        return self._read("results")

    def table(self, name: str) -> "pd.DataFrame":
        """Return the tables of this name that the runs saved, one below the other."""
        return self._read(f"tables/{name}")

    def _read(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.read_parquet(self.dir / f"{name}.parquet")


def sweep(
    notebook: str | Path | Notebook,
    grid: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    *,
    progress: bool = True,
    root: str | Path | None = None,
    **place: Any,
) -> Sweep:
    """Run a notebook for every combination in a grid that has no record, and write one table.

    Args:
        notebook: number, name or path of a notebook, or a loaded notebook.
        grid: name → values to try, see ``gaussmark_lib.workbench.sweeps.grid``.
        params: values that are the same in every run.
        root: folder of the records; ``papermill_runs`` by default.
        place: ``workers=``, ``scheduler=`` or ``cluster=``, and ``gpus_per_run=``, see
            ``gaussmark_lib.workbench.sweeps.jobs.executor``.

    Raises:
        ParameterError: if the grid is not valid.
        GaussMarkError: if records cannot be written, the place to run does not exist, or it does
            not have the GPUs.
        KeyboardInterrupt: after all present runs are stopped; finished runs keep their records.
    """
    source = notebooks.load(notebook)
    root = files.records(root)
    begun = records.start()
    rows = grids.runs(source, grid, params)
    code = source.code  # of the start, even if files change during the sweep
    questions = _questions(source, rows, code)
    runs = {job.id: job.values for job in questions}
    digest = hashlib.sha256(" ".join(runs).encode()).hexdigest()[:12]
    target = root / f"sweep-{digest}"
    with records.hidden(target):
        pass  # raises before any work if a table cannot be written there
    cached = _answers(questions, root)
    missing = [job for job in questions if job.id not in cached]
    outcomes = []
    if missing:
        n = len(questions)
        with jobs.progress(n, len(cached), "runs", "the same command", shown=progress) as bar:
            outcomes = jobs.run_all(missing, n, root=root, bar=bar, **place)
    answers = cached | _answers(missing, root)
    errors = {job.id: outcome.error for job, outcome in zip(missing, outcomes, strict=True)}
    varying = grids.varying(rows)
    facts_of_runs = [
        {
            "run": job.id,
            "params": {name: job.values[name] for name in varying},
            **_end(answers.get(job.id), errors.get(job.id), root),
        }
        for job in questions
    ]
    failed = [facts for facts in facts_of_runs if "error" in facts]
    facts = {
        "notebook": source.name,
        "status": "failed" if failed else "complete",
        "grid": dict(grid),
        "params": dict(params or {}),
        "code": code,
        "runs": facts_of_runs,
        **records.circumstances(begun),
    }
    from gaussmark_lib.workbench.sweeps import tables  # here, because workers need no pandas

    with records.hidden(target) as partial:
        files.write_json(partial / "sweep.json", facts)
        (partial / "tables").mkdir()
        for name, table in tables.tables(runs, answers, varying).items():
            table.to_parquet(partial / f"{name}.parquet")
        records.place(partial, target, replace=True)
    summary = tables.summary(runs, answers, varying)
    return Sweep(target, runs, len(cached), failed, summary)


def _questions(source: Notebook, rows: list[dict[str, Any]], code: str) -> list[Question]:
    """The runs of the rows; equal rows are the same run."""
    questions = {}
    for values in rows:
        run_id = source.run_id(values, code)
        questions[run_id] = Question(source, values, run_id, code)
    return list(questions.values())


def _answers(questions: list[Question], root: Path) -> dict[str, records.Run]:
    """The records of the runs that have one, by run id."""
    loaded = {job.id: records.load(job.target(root)) for job in questions}
    return {run_id: run for run_id, run in loaded.items() if run}


def _end(run: records.Run | None, error: str | None, root: Path) -> dict[str, Any]:
    """How a run ended."""
    if run:
        return {"status": "complete", "seconds": run.status["seconds"]}
    no_record = f"its worker reports success, but {root} has no record of it; share that folder"
    return {"status": "failed", "error": error or no_record}
