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

from tqdm.auto import tqdm

from gaussmark_lib import paths
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import versions
from gaussmark_lib.runs.notebook import Notebook
from gaussmark_lib.sweeps import grid as grids

if TYPE_CHECKING:
    import pandas as pd

    from gaussmark_lib.sweeps.worker import Outcome


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
        """One row a run."""
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
    gpus_per_run: int = 0,
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
        gpus_per_run: GPUs that a run has to itself.
        root: where records lie; ``papermill_runs`` by default.
        place: ``workers=``, ``scheduler=`` or ``cluster=``, see
            ``gaussmark_lib.sweeps.places.connect``.

    Raises:
        ParameterError: a grid that cannot be swept over.
        RecordError: no table or record can be kept there; before anything runs, or after it if the
            disk fills up meanwhile.
        ClusterError: no worker has the resources that the runs ask for, or a worker cannot take
            part.
        KeyboardInterrupt: after everything that runs is stopped; finished runs keep their records.
    """
    from gaussmark_lib.sweeps import (
        tables,
    )  # here, because workers import this package, and need no pandas

    source = notebooks.load(notebook)
    root = paths.records(root)
    started, code = datetime.now(UTC), source.code
    rows = grids.runs(source, grid, params)
    runs = {source.run_id(values, code): values for values in rows}
    target = root / f"sweep-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"
    records.check(target)
    answers = {run_id: run for run_id in runs if (run := records.load(root / source.name / run_id))}
    cached, outcomes = len(answers), {}
    with tqdm(
        total=len(runs),
        initial=cached,
        desc=source.name,
        unit=" runs",
        smoothing=0,
        disable=not progress,
    ) as bar:
        try:
            if missing := {
                run_id: values for run_id, values in runs.items() if run_id not in answers
            }:
                outcomes = _run(
                    source, missing, root, gpus_per_run, {"runs": len(runs), **place}, bar
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {bar.n} of {len(runs)} runs are done, and the same command goes on"
                " from there"
            ) from None
    answers = {run_id: run for run_id in runs if (run := records.load(root / source.name / run_id))}
    varying = grids.varying(rows)
    own = {run_id: {name: values[name] for name in varying} for run_id, values in runs.items()}
    failed = {
        run_id: _failure(run_id, own[run_id], outcomes.get(run_id), root)
        for run_id in runs
        if run_id not in answers
    }
    # how long a run took is only in sweep.json, because no two sweeps agree on it
    ends = {
        run_id: {"status": "complete", "seconds": run.status.get("seconds")}
        for run_id, run in answers.items()
    }
    ends |= {
        run_id: {"status": "failed", "error": failure.reason} for run_id, failure in failed.items()
    }
    facts = {
        "notebook": source.name,
        "status": "failed" if failed else "complete",
        "grid": dict(grid),
        "params": dict(params or {}),
        "code": code,
        "runs": [{"run": run_id, "params": own[run_id], **ends[run_id]} for run_id in runs],
        **versions.circumstances(started),
    }
    with records.written(target, replace=True) as partial:
        records.write_json(partial / "sweep.json", facts)
        tables.write(partial, runs, answers, varying)
    cached += sum(outcome.cached for outcome in outcomes.values())
    return Sweep(
        target, runs, cached, list(failed.values()), tables.summary(runs, answers, varying)
    )


def _run(
    source: Notebook,
    missing: dict[str, dict],
    root: Path,
    gpus_per_run: int,
    place: dict[str, Any],
    bar: tqdm,
) -> "dict[str, Outcome]":
    from gaussmark_lib.sweeps import (
        places,
        submit,
    )  # here, because Dask and papermill take seconds to import, and a sweep may be done already

    jobs = [submit.Job(source, values, run_id) for run_id, values in missing.items()]
    with places.connect(gpus_per_run=gpus_per_run, **place) as client:
        root.mkdir(parents=True, exist_ok=True)
        return dict(
            zip(
                missing,
                submit.run_all(client, jobs, root=root, gpus_per_run=gpus_per_run, bar=bar),
                strict=True,
            )
        )


def _failure(run_id: str, own: dict[str, Any], outcome: "Outcome | None", root: Path) -> Failure:
    from gaussmark_lib.runs import kernel

    if outcome is None or not outcome.error:
        return Failure(
            run_id,
            own,
            f"its worker says that it is complete, and there is no record in {root}; do all"
            " machines share that folder?",
            "",
        )
    try:
        traceback = kernel.traceback(outcome.failed / "notebook.ipynb") if outcome.failed else ""
    except (OSError, ValueError):  # stopped before its notebook was written, or run again meanwhile
        traceback = ""
    return Failure(run_id, own, outcome.error, traceback)
