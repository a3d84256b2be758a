"""Runs side by side: hands them to an executor, and collects how each of them ended.

A run that fails, or whose process is killed, is an outcome like any other, and the others go on.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from gaussmark_lib import runs
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs.notebook import Question
from gaussmark_lib.sweeps import places

REFRESH = 2  # seconds after which the bar is drawn again, even if nothing has finished


class Outcome(NamedTuple):
    """How a run ended: ``error`` is empty if its record is complete; ``failed`` is the folder of a
    run that is not.
    """

    error: str = ""
    traceback: str = ""
    failed: Path | None = None


@contextmanager
def progress(n: int, n_done: int, unit: str, again: str, *, shown: bool) -> Iterator[tqdm]:
    """A bar; an interruption says what is done, and what goes on from there."""
    title = f"{n} {unit}"
    with tqdm(total=n, initial=n_done, desc=title, unit=f" {unit}", disable=not shown) as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {bar.n} of {title} are done, and {again} goes on from there"
            ) from None


def run_all(
    jobs: Sequence[Question],
    n_runs: int,
    *,
    root: Path,
    bar: tqdm,
    force: bool = False,
    **place: Any,
) -> list[Outcome]:
    """How each job ended, in the order of the jobs; ``bar`` moves on by one for each.

    Args:
        n_runs: of the whole sweep, those included that have their records already.
        root: where records lie, for the workers too.
        place: see ``places.executor``.

    GaussMarkError: no such place, or its scheduler went away.
    """
    n_failed = 0
    with places.executor(n_runs, **place) as executor:
        futures = [executor.submit(run_one, job, root, force) for job in jobs]
        names = {future: job.notebook.name for future, job in zip(futures, jobs, strict=True)}
        left = set(futures)
        while left:
            done, left = wait(left, REFRESH, FIRST_COMPLETED)
            n_failed += sum(bool(_outcome(future).error) for future in done)
            running = sorted({names[future] for future in left if future.running()})
            bar.set_postfix_str(", ".join([*running, f"{n_failed} failed"]), refresh=False)
            bar.update(len(done)) or bar.refresh()
        return [_outcome(future) for future in futures]


def run_one(job: Question, root: Path, force: bool) -> Outcome:
    """Runs one notebook, or finds its record. Expected problems come back as words, which travel
    between machines.
    """
    if job.notebook.run_id(job.values, job.notebook.code) != job.id:
        return Outcome(
            "its code or its model is not the same on this worker as where the sweep began, or has"
            " changed since; start again"
        )
    stop = places.slot.stop
    options = {"env": places.slot.env, "wanted": lambda: not stop.is_set()}
    try:
        runs.run(job, force=force, progress=False, root=root, **options)
    except runs.RunFailedError as error:
        return Outcome(error.reason, error.traceback, error.dir)
    except KeyboardInterrupt:
        return Outcome("interrupted")
    except GaussMarkError as error:
        return Outcome(str(error))
    return Outcome()


def _outcome(future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except CancelledError:
        raise GaussMarkError(
            "the scheduler went away; finished runs have their records, and the same command goes"
            " on from there"
        ) from None
    except Exception as error:  # the worker died, or could not load what it was sent
        return Outcome(f"{type(error).__name__}: {error}")
