"""Hands runs to Dask workers and collects how each of them ended.

If a worker dies, Dask gives its run to another one, four times; the run there begins anew or finds
the record.
"""

import json
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker, as_completed
from distributed.comm import CommClosedError
from tqdm.auto import tqdm

from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs.notebook import Notebook
from gaussmark_lib.sweeps import worker
from gaussmark_lib.sweeps.worker import Outcome

POLL = 0.5  # seconds between two looks at what has finished
GONE = (
    "the scheduler went away; finished runs have their records, and the same command goes on from"
    " there"
)
REFRESH = 5  # seconds after which the bar is drawn again, even if nothing has finished


@dataclass(frozen=True)
class Job:
    """A notebook with checked values of all its parameters, and the id of that run."""

    source: Notebook
    values: Mapping[str, Any]
    run_id: str


def run_all(
    client: Client,
    jobs: list[Job],
    *,
    root: Path,
    bar: tqdm,
    gpus_per_run: int = 0,
    force: bool = False,
    at_a_time: int | None = None,
) -> list[Outcome]:
    """How each job ended, in the order of the jobs; ``bar`` moves on by one for each.

    Args:
        root: where records lie, for the workers too.
        at_a_time: hand out so many at a time, in their order, and name them in the bar; by default,
            Dask gets all of them at once.

    Raises:
        ClusterError: a worker that cannot take part, or a scheduler that went away.
    """
    _check_workers(client, jobs[0].source, root)
    resources = {"GPU": gpus_per_run} if gpus_per_run else None
    mark = secrets.token_hex(4)  # another sweep on the same scheduler may have the same runs
    waiting, running, outcomes = deque(range(len(jobs))), {}, {}
    finished, recorded, shown = as_completed(loop=client.loop), bar.n, 0.0
    while waiting or running:
        while waiting and len(running) < (at_a_time or len(jobs)):
            index = waiting.popleft()
            job = jobs[index]
            arguments = _without_outputs(job.source), job.values, job.run_id, root, force
            with _answering():
                future = client.submit(
                    worker.run_one,
                    *arguments,
                    key=f"{job.source.name}-{job.run_id}-{mark}",
                    resources=resources,
                )
            running[future] = index
            finished.add(future)
            shown = 0.0
        batch = finished.next_batch(block=False)
        for future in batch:
            outcomes[running.pop(future)] = _outcome(future)
        if batch or time.monotonic() - shown > REFRESH:
            shown = time.monotonic()
            names = ", ".join(jobs[index].source.name for index in running.values())
            bar.set_postfix_str(
                names if at_a_time else _counts(client, recorded, list(outcomes.values())),
                refresh=False,
            )
            bar.update(len(batch)) or bar.refresh()
        time.sleep(POLL)
    return [outcomes[index] for index in range(len(jobs))]


def _counts(client: Client, recorded: int, outcomes: list[Outcome]) -> str:
    recorded += sum(outcome.cached for outcome in outcomes)
    failed = sum(bool(outcome.error) for outcome in outcomes)
    with _answering():
        workers = len(client.nthreads())
    return f"{recorded} from record, {failed} failed, {workers} worker{'s'[: workers != 1]}"


def _outcome(future: Future) -> Outcome:
    try:
        return future.result()
    except (CancelledError, CommClosedError):
        raise ClusterError(GONE) from None
    except KilledWorker as error:
        return Outcome(
            f"its worker died {error.allowed_failures + 1} times, each time with this run; it may"
            " need more memory than there is"
        )
    except Exception as error:  # the worker could not even load what it was sent, for example
        return Outcome(f"{type(error).__name__}: {error}")


@contextmanager
def _answering() -> Iterator[None]:
    """While Dask is asked for something: a scheduler that dies then shows as a broken line or as no
    answer in time.
    """
    try:
        yield
    except OSError:
        raise ClusterError(GONE) from None


def _check_workers(client: Client, source: Notebook, root: Path) -> None:
    seen = root / f".sweep-{secrets.token_hex(6)}"
    seen.touch()
    try:
        with _answering():
            answers = client.run(
                worker.problem, _without_outputs(source), source.code, seen, on_error="return"
            )
    finally:
        seen.unlink()
    if problems := [f"worker {address} {answer}" for address, answer in answers.items() if answer]:
        raise ClusterError("\n  ".join(["these workers cannot take part:", *problems]))


@cache
def _without_outputs(source: Notebook) -> Notebook:
    """The same question as a much smaller file: committed notebooks have figures in them, and this
    goes out with every run.
    """
    content = json.loads(source.text)
    for cell in content["cells"]:
        if "outputs" in cell:
            cell["outputs"] = []
    return replace(source, text=json.dumps(content))
