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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import paths
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import versions
from gaussmark_lib.runs.notebook import Notebook, Question
from gaussmark_lib.sweeps import grid as grids

if TYPE_CHECKING:
    import pandas as pd

    from gaussmark_lib.sweeps.jobs import Outcome


@dataclass(frozen=True)
class Failure:
    """A run without an answer: its values of the parameters that vary, why in one line, and the
    traceback if its notebook shows one.
    """

    run_id: str
    params: dict[str, Any]
    reason: str
    traceback: str

    @property
    def why(self) -> str:
        return self.traceback or self.reason


@dataclass(frozen=True)
class Sweep:
    """A sweep that went over all its runs.

    Args:
        runs: run id → every parameter's value, in the grid's order.
        cached: how many of them were answered from their records.
        summary: what varied and the main numbers, in words, see ``tables.summary``.
    """

    dir: Path
    runs: dict[str, dict[str, Any]]
    cached: int
    failed: list[Failure]
    summary: "pd.DataFrame"

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
        RecordError: no table or record can be kept there; before anything runs, or after it if the
            disk fills up meanwhile.
        ClusterError: there is no such place, or nothing there has the GPUs.
        KeyboardInterrupt: after everything that runs is stopped; finished runs keep their records.
    """
    source, root = notebooks.load(notebook), paths.records(root)
    started, code = datetime.now(UTC), source.code
    rows = grids.runs(source, grid, params)
    runs = {source.run_id(values, code): values for values in rows}
    target = root / f"sweep-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"
    records.check(target)
    known = _answers(source, runs, root)
    outcomes = _run_missing(source, runs, known, root, progress, place)
    answers = known | _answers(source, outcomes, root)
    varying = grids.varying(rows)
    varied = {run: {name: values[name] for name in varying} for run, values in runs.items()}
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
        **versions.circumstances(started),
    }
    from gaussmark_lib.sweeps import tables  # here, because workers need no pandas

    with records.written(target, replace=True) as partial:
        records.write_json(partial / "sweep.json", facts)
        tables.write(partial, runs, answers, varying)
    summary = tables.summary(runs, answers, varying)
    return Sweep(target, runs, len(known), list(failed.values()), summary)


def _answers(source: Notebook, run_ids: Iterable[str], root: Path) -> dict[str, records.Run]:
    found = {run_id: records.load(root / source.name / run_id) for run_id in run_ids}
    return {run_id: run for run_id, run in found.items() if run}


def _run_missing(
    source: Notebook,
    runs: Mapping[str, dict[str, Any]],
    known: Mapping[str, Any],
    root: Path,
    progress: bool,
    place: Mapping[str, Any],
) -> "dict[str, Outcome]":
    missing = {run_id: values for run_id, values in runs.items() if run_id not in known}
    if not missing:
        return {}
    from gaussmark_lib.sweeps import jobs  # here, because a sweep may be done already

    root.mkdir(parents=True, exist_ok=True)
    code = source.code
    asked = [Question(source, values, run_id, code) for run_id, values in missing.items()]
    with jobs.progress(len(runs), len(known), "runs", "the same command", shown=progress) as bar:
        outcomes = jobs.run_all(asked, len(runs), root=root, bar=bar, **place)
    return dict(zip(missing, outcomes, strict=True))


def _end(run: records.Run | None, failure: Failure | None) -> dict[str, Any]:
    """How a run ended. Its time is only in sweep.json, because no two sweeps agree on it."""
    if failure:
        return {"status": "failed", "error": failure.reason}
    return {"status": "complete", "seconds": run.status.get("seconds")}


def _failure(run_id: str, varied: dict[str, Any], outcome: "Outcome", root: Path) -> Failure:
    from gaussmark_lib.sweeps import jobs

    reason = outcome.error or (
        f"its worker says that it is complete, and there is no record in {root}; do all machines"
        " share that folder?"
    )
    return Failure(run_id, varied, reason, jobs.traceback(outcome.failed))
