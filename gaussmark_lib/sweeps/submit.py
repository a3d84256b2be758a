"""Hands a sweep's cells to Dask workers and collects how each of them ended.

A worker that dies is Dask's business: it gives the cell to another one, four times, and the run there begins anew or finds the record.
"""

import json
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client, Future, KilledWorker, as_completed
from tqdm.auto import tqdm

from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs.notebook import Notebook
from gaussmark_lib.sweeps import worker
from gaussmark_lib.sweeps.worker import Outcome

POLL = 0.2  # seconds between two looks at what has finished
REFRESH = 5  # seconds after which the bar moves on, even if nothing has


def run_all(
    client: Client, source: Notebook, cells: Mapping[str, dict[str, Any]], *, root: Path, library: str, gpus_per_run: int, bar: tqdm
) -> dict[str, Outcome]:
    """Run id → how it ended, for all cells.

    Args:
        cells: run id → parameters.
        root: where records lie, for the workers too.
        library: the version of the library that the workers must have.
        bar: moved on by one for every cell.

    Raises:
        ClusterError: a worker that cannot take part, or a scheduler that went away.
    """
    source = _without_outputs(source)
    _check_workers(client, source, root, library)
    resources = {"GPU": gpus_per_run} if gpus_per_run else None
    mark = secrets.token_hex(4)  # another sweep on the same scheduler may have the same cells
    futures = {
        client.submit(worker.run_cell, source, values, run_id, root, key=f"{source.name}-{run_id}-{mark}", resources=resources): run_id
        for run_id, values in cells.items()
    }
    finished, outcomes, recorded, shown = as_completed(futures, loop=client.loop), {}, bar.n, 0.0
    while len(outcomes) < len(futures):
        batch = finished.next_batch(block=False)
        for future in batch:
            outcomes[futures[future]] = _outcome(future)
        if batch or time.monotonic() - shown > REFRESH:
            shown = time.monotonic()
            _show(bar, len(batch), recorded, list(outcomes.values()), len(client.scheduler_info()["workers"]))
        time.sleep(POLL)
    return outcomes


def _show(bar: tqdm, new: int, recorded: int, outcomes: list[Outcome], workers: int) -> None:
    recorded += sum(outcome.cached for outcome in outcomes)
    failed = sum(bool(outcome.error) for outcome in outcomes)
    bar.set_postfix_str(f"{recorded} from record, {failed} failed, {workers} worker{'s'[: workers != 1]}", refresh=False)
    bar.update(new) or bar.refresh()


def _outcome(future: Future) -> Outcome:
    try:
        return future.result()
    except CancelledError:
        raise ClusterError("the scheduler went away; finished cells have their records, and the same command goes on from there") from None
    except KilledWorker as error:
        return Outcome(f"its worker died {error.allowed_failures + 1} times, each time with this cell; it may need more memory than there is")
    except Exception as error:  # the worker could not even load what it was sent, for example
        return Outcome(f"{type(error).__name__}: {error}")


def _check_workers(client: Client, source: Notebook, root: Path, library: str) -> None:
    seen = root / f".sweep-{secrets.token_hex(6)}"
    seen.touch()
    try:
        answers = client.run(worker.problem, library, source.path.parent, seen, on_error="return")
    finally:
        seen.unlink()
    if problems := [
        f"worker {address} {answer}" if isinstance(answer, str) else f"worker {address}: {answer!r}" for address, answer in answers.items() if answer
    ]:
        raise ClusterError("\n  ".join(["these workers cannot take part:", *problems]))


def _without_outputs(source: Notebook) -> Notebook:
    """The same question as a much smaller file: committed notebooks have figures in them, and this goes out with every cell."""
    content = json.loads(source.text)
    for cell in content["cells"]:
        if "outputs" in cell:
            cell["outputs"] = []
    return replace(source, text=json.dumps(content))
