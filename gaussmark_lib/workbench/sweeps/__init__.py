"""Many runs: a notebook over a grid of parameters (a sweep) or all notebooks (the tour), on many
processes or machines.

    done = sweeps.sweep("02", {"sigma": [0.05, 0.1], "seed": [0, 1]})
    done.results, done.failed, done.dir

Each is a run like any other (``runs.run``) with its record in the usual place. So a sweep keeps no
state: started again, after a crash, after a Ctrl-C or with a finer grid, it looks for the records
and does what is missing. At the end it leaves

    papermill_runs/sweep-<id>/    results.parquet  tables/*.parquet  sweep.json

where the id is a hash of its runs' ids.

==============  ==========================================================================
``grid``        the grid: the values to try, and the runs that they span
``jobs``        runs side by side, here or on other machines, and how each of them ended
``tables``      the tables of a sweep, made of its records alone
``tour``        all numbered notebooks with their defaults, and one page about them
==============  ==========================================================================

A new place to run on is a branch of ``jobs.executor``.
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
    """A sweep that went over all its runs."""

    dir: Path
    runs: dict[str, dict[str, Any]]  # id → every parameter's value, in the grid's order
    cached: int  # how many were answered from their records
    failed: list[dict[str, Any]]  # of those without an answer: ``run, params, status, error``
    summary: "pd.DataFrame"  # see ``tables.summary``

    @property
    def results(self) -> "pd.DataFrame":
        """One row per run."""
        return self._read("results")

    def table(self, name: str) -> "pd.DataFrame":
        """The tables of this name that its runs saved, one under the other."""
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
    """Runs a notebook for everything in a grid that has no record yet, and writes one table over
    all of them.

    Args:
        notebook: number, name or path, or one that is loaded already.
        grid: name → values to try, see ``gaussmark_lib.workbench.sweeps.grid``.
        params: values that are the same in every run.
        root: where records lie; ``papermill_runs`` by default.
        place: ``workers=``, ``scheduler=`` or ``cluster=``, and ``gpus_per_run=``, see
            ``gaussmark_lib.workbench.sweeps.jobs.executor``.

    Raises:
        ParameterError: a grid that cannot be swept over.
        GaussMarkError: no record can be kept there, there is no such place to run, or nothing there
            has the GPUs.
        KeyboardInterrupt: after everything that runs is stopped; finished runs keep their records.
    """
    source, root = notebooks.load(notebook), files.records(root)
    begun = records.start()
    code = source.code
    rows = grids.runs(source, grid, params)
    of_rows = (Question(source, values, source.run_id(values, code), code) for values in rows)
    asked = list({job.id: job for job in of_rows}.values())  # each once
    runs = {job.id: job.values for job in asked}
    target = root / f"sweep-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"
    with records.hidden(target):
        pass  # before any work: a table can be kept there
    known = _answers(asked, root)
    missing = [job for job in asked if job.id not in known]
    n, outcomes = len(asked), []
    if missing:
        with jobs.progress(n, len(known), "runs", "the same command", shown=progress) as bar:
            outcomes = jobs.run_all(missing, n, root=root, bar=bar, **place)
    answers = known | _answers(missing, root)
    varying = grids.varying(rows)
    lost = f"its worker says that it is complete, and it has no record in {root}; share that folder"
    ends = {
        job.id: {"status": "failed", "error": outcome.error or lost}
        for job, outcome in zip(missing, outcomes, strict=True)
    }
    for run_id, run in answers.items():  # with their times, which no two sweeps agree on
        ends[run_id] = {"status": "complete", "seconds": run.status["seconds"]}
    of_runs = [
        {"run": job.id, "params": {name: job.values[name] for name in varying}, **ends[job.id]}
        for job in asked
    ]
    failed = [run for run in of_runs if "error" in run]
    facts = {
        "notebook": source.name,
        "status": "failed" if failed else "complete",
        "grid": dict(grid),
        "params": dict(params or {}),
        "code": code,
        "runs": of_runs,
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
    return Sweep(target, runs, len(known), failed, summary)


def _answers(asked: list[Question], root: Path) -> dict[str, records.Run]:
    return {job.id: run for job in asked if (run := records.load(job.target(root)))}
