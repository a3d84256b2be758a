"""A sweep: a notebook over a grid of parameters, one run for each combination, on as many processes
or machines as there are.

    done = sweeps.sweep("02", {"sigma": [0.05, 0.1], "seed": [0, 1]})
    done.results, done.failed, done.dir

Each is a run like any other (``runs.run``) with its record in the usual place. So a sweep keeps no
state: started again, after a crash, after a Ctrl-C or with a finer grid, it looks for the records
and does what is missing. At the end it leaves

    papermill_runs/sweep-<id>/    results.parquet  tables/*.parquet  sweep.json

where the id is a hash of its runs' ids.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.notebook import Notebook, Question
from gaussmark_lib.sweeps import grid as grids

if TYPE_CHECKING:
    import pandas as pd

    from gaussmark_lib.sweeps.jobs import Outcome


@dataclass(frozen=True)
class Failure:
    """A run without an answer: its values of the parameters that vary, the reason in one line, and
    the traceback if a cell raised.
    """

    run_id: str
    params: dict[str, Any]
    reason: str
    traceback: str


@dataclass(frozen=True)
class Sweep:
    """A sweep that went over all its runs."""

    dir: Path
    runs: dict[str, dict[str, Any]]  # id → every parameter's value, in the grid's order
    cached: int  # how many were answered from their records
    failed: list[Failure]
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
        grid: name → values to try, see ``gaussmark_lib.sweeps.grid``.
        params: values that are the same in every run.
        root: where records lie; ``papermill_runs`` by default.
        place: ``workers=``, ``scheduler=`` or ``cluster=``, and ``gpus_per_run=``, see
            ``gaussmark_lib.sweeps.places.executor``.

    Raises:
        ParameterError: a grid that cannot be swept over.
        GaussMarkError: no record can be kept there, there is no such place to run, or nothing there
            has the GPUs.
        KeyboardInterrupt: after everything that runs is stopped; finished runs keep their records.
    """
    source, root = notebooks.load(notebook), files.records(root)
    started, code = datetime.now(UTC), source.code
    rows = grids.runs(source, grid, params)
    jobs = [Question(source, values, source.run_id(values, code), code) for values in rows]
    runs = {job.id: job.values for job in jobs}
    target = root / f"sweep-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"
    with records.hidden(target):
        pass  # before any work: a table can be kept there
    known = {job.id: run for job in jobs if (run := records.load(job.target(root)))}
    missing = [job for job in jobs if job.id not in known]
    outcomes = _run(missing, len(jobs), root, progress, place) if missing else {}
    late = {job.id: run for job in missing if (run := records.load(job.target(root)))}
    answers = known | late
    varying = grids.varying(rows)
    varied = {job.id: {name: job.values[name] for name in varying} for job in jobs}
    failed = {
        run_id: _failure(run_id, varied[run_id], outcomes[run_id], root)
        for run_id in runs
        if run_id not in answers
    }
    facts = {
        "notebook": source.name,
        "status": "failed" if failed else "complete",
        "grid": dict(grid),
        "params": dict(params or {}),
        "code": code,
        "runs": [
            {"run": run_id, "params": varied[run_id]}
            | _end(answers.get(run_id), failed.get(run_id))
            for run_id in runs
        ],
        **records.circumstances(started),
    }
    from gaussmark_lib.sweeps import tables  # here, because workers need no pandas

    with records.written(target, replace=True) as partial:
        records.write(partial, "sweep", facts)
        tables.write(partial, runs, answers, varying)
    summary = tables.summary(runs, answers, varying)
    return Sweep(target, runs, len(known), list(failed.values()), summary)


def _run(
    missing: list[Question], n_runs: int, root: Path, progress: bool, place: Mapping[str, Any]
) -> "dict[str, Outcome]":
    from gaussmark_lib.sweeps import jobs  # here, because a sweep may be done already

    n_done = n_runs - len(missing)
    with jobs.progress(n_runs, n_done, "runs", "the same command", shown=progress) as bar:
        outcomes = jobs.run_all(missing, n_runs, root=root, bar=bar, **place)
    return {job.id: outcome for job, outcome in zip(missing, outcomes, strict=True)}


def _end(run: records.Run | None, failure: Failure | None) -> dict[str, Any]:
    """How a run ended. Its time is only in sweep.json, because no two sweeps agree on it."""
    if failure:
        return {"status": "failed", "error": failure.reason}
    return {"status": "complete", "seconds": run.status["seconds"]}


def _failure(run_id: str, varied: dict[str, Any], outcome: "Outcome", root: Path) -> Failure:
    reason = outcome.error or (
        f"its worker says that it is complete, and there is no record in {root}; do all machines"
        " share that folder?"
    )
    return Failure(run_id, varied, reason, outcome.traceback)
