"""What a Dask worker does: check that it can take part, and run one notebook.

Expected problems are not raised here, because Dask would have to pickle them. They come back as
words, in an ``Outcome``.
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
from gaussmark_lib.runs.notebook import Notebook


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``error`` is empty if its record is complete; ``failed`` is the folder of a
    run that is not.
    """

    error: str = ""
    failed: Path | None = None
    cached: bool = False


def run_one(
    source: Notebook, values: dict[str, Any], run_id: str, root: Path, force: bool = False
) -> Outcome:
    """Runs one notebook, or finds its record; stops when the answer is not wanted any more."""
    if source.run_id(values) != run_id:
        return Outcome(
            "its code or its model is not the same on this worker as where the sweep began, or has"
            " changed since; start again"
        )
    try:
        return Outcome(
            cached=runs.run(
                source, values, force=force, progress=False, root=root, wanted=_wanted()
            ).cached
        )
    except runs.RunFailedError as error:
        return Outcome(error.reason, error.dir)
    except KeyboardInterrupt:  # Dask would end its worker
        return Outcome("interrupted")
    except GaussMarkError as error:
        return Outcome(str(error))


def problem(source: Notebook, code: str, seen: Path) -> str:
    """Why this worker cannot take part; empty if it can.

    ``code`` is the version of the notebook's code where the sweep began, ``seen`` a file that it
    has just written among its records.
    """
    if (mine := source.code) != code:
        return (
            f"has version {mine} of the code of {source.name}, expected {code}: use the same"
            " checkout"
        )
    missing = [path for path in (source.path.parent, seen) if not path.exists()]
    return (
        f"does not see {missing[0]}: notebooks and records must lie in a folder that all machines"
        " share"
        if missing
        else ""
    )


def dask_setup(worker: Worker) -> None:
    """Preloaded by workers on the sweep's own machine: a signal that goes to all processes is for
    the sweep, which then stops them in order.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which kernels would inherit


def _wanted() -> Callable[[], bool]:
    """Whether the task that runs in this thread is wanted still: Dask marks it as cancelled, but
    cannot stop a thread.
    """
    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return (
            worker.status in WORKER_ANY_RUNNING and task is not None and task.state != "cancelled"
        )

    return wanted
