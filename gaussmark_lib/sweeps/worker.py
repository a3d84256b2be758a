"""What a Dask worker does for a sweep: check that it is the right kind of worker, and run one cell.

Nothing that can be expected to go wrong is raised here: Dask would have to pickle it. It comes back as words, in an ``Outcome``.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.worker import WORKER_ANY_RUNNING

from gaussmark_lib import runs
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.notebook import Notebook


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: ``error`` is empty if its record is complete; ``failed`` is the folder of a run that is not."""

    error: str = ""
    failed: Path | None = None
    cached: bool = False


def run_cell(source: Notebook, values: dict[str, Any], run_id: str, root: Path) -> Outcome:
    """Runs one cell, or finds its record; stops when the sweep does not want it any more."""
    if source.run_id(values) != run_id:
        return Outcome("the library on this worker is another one than where the sweep began, or has changed since; start the sweep again")
    try:
        return Outcome(cached=runs.run(source, values, progress=False, root=root, wanted=_wanted()).cached)
    except runs.RunFailedError as error:
        return Outcome(error.reason, error.dir)
    except KeyboardInterrupt:  # Dask would end its worker
        return Outcome("interrupted")
    except GaussMarkError as error:
        return Outcome(str(error))


def problem(library: str, source_folder: Path, seen: Path) -> str:
    """Why this worker cannot take part in the sweep; empty if it can.

    Args:
        library: the version that the sweep began with.
        seen: a file that the sweep has just written among its records.
    """
    if (mine := notebooks.source_version()) != library:
        return f"has version {mine} of gaussmark_lib and data/, expected {library}: use the same checkout"
    for path in (source_folder, seen):
        if not path.exists():
            return f"does not see {path}: notebooks and records must lie in a folder that all machines share"
    return ""


def dask_setup(worker: Worker) -> None:
    """Preloaded by workers on the sweep's own machine: a signal that goes to all processes is for the sweep, which then stops them in order."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which kernels would inherit


def _wanted() -> Callable[[], bool]:
    """Whether the task that runs in this thread is wanted still: Dask marks it as cancelled, but cannot stop a thread."""
    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return worker.status in WORKER_ANY_RUNNING and task is not None and task.state != "cancelled"

    return wanted
