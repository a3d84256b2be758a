"""A run: a question put to a notebook, and the record of its answer in
``papermill_runs/<notebook>/<id>``.

The same question again is answered from its record. If two processes ask the same question, both
run it, and the first record is kept.
"""

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.record import RUN_DIR
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.runs.notebook import Notebook, Question, question


class RunFailedError(RuntimeError):
    """A notebook that did not run to its end: ``reason`` says where and why, ``traceback`` is the
    cell's, ``dir`` the record of how far it came.
    """

    def __init__(self, message: str, reason: str, traceback: str, dir: Path):
        super().__init__(message)
        self.reason, self.traceback, self.dir = reason, traceback, dir


def run(
    notebook: str | Path | Notebook | Question,
    params: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    progress: bool = True,
    root: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Run:
    """A notebook's answer to these parameters, from its record or by running it.

    Args:
        notebook: number, name or path, or a question, which has its parameters.
        force: run it even if there is a record, which is replaced once the new one is complete.
        progress: whether to show a bar over the cells.
        root: where records lie; ``papermill_runs`` by default.
        env: added to the environment of its kernel; no part of the question.
        wanted: asked twice per second; once it says no, the run is interrupted.

    Raises:
        GaussMarkError: before anything starts: no such notebook, parameters that cannot be used, or
            no place for the record.
        RunFailedError: a cell raised, or the kernel died; ``<id>.failed`` has what there is.
        KeyboardInterrupt: after keeping it in the same way.
    """
    asked = question(notebook, params)
    target, source = asked.target(root), asked.notebook
    if not force and (known := records.load(target)):
        return known
    from gaussmark_lib.runs import kernel  # papermill takes two seconds to import

    started = datetime.now(UTC)
    with records.hidden(target) as partial:
        try:
            file = partial / "notebook.ipynb"
            file.write_text(source.text, encoding="utf-8")
            records.write(partial, "params", asked.values)
            records.write(partial, "results", {})  # to which the notebook adds
            kernel.execute(
                file,
                asked.changed,
                folder=source.path.parent,
                env={**(env or {}), RUN_DIR: str(partial)},
                progress=progress and {"desc": source.name, "unit": "cell"},
                wanted=wanted,
            )
            outcome = {"status": "complete", "code": asked.code}
            records.write(partial, "status", outcome | records.circumstances(started))
        except BaseException as error:
            raise _stopped(error, asked, partial, records.failed(target), started) from error
        records.place(partial, target, replace=force)
    shutil.rmtree(records.failed(target), ignore_errors=True)
    return replace(records.load(target), cached=False)


def _stopped(
    error: BaseException, asked: Question, partial: Path, kept: Path, started: datetime
) -> BaseException:
    """What to raise for a run that did not end, once its record is ``kept``."""
    from gaussmark_lib.runs import kernel

    stop = kernel.where_it_stopped(partial / "notebook.ipynb", error)
    has_failed = isinstance(error, Exception)
    status = {"status": "failed" if has_failed else "interrupted", **stop._asdict()}
    message = f"{asked.notebook.name} {status['status']}: {stop}"
    try:
        records.write(partial, "status", status | records.circumstances(started))
        records.place(partial, kept, replace=True)
        message += f"\nits record is {kept}"
    except (OSError, GaussMarkError) as problem:  # a disk that filled up, for example
        why = getattr(problem, "strerror", None) or problem
        message += f"\nno record of it could be kept: {why}"
    if has_failed:
        return RunFailedError(message, str(stop), stop.traceback, kept)
    return type(error)(message)


def reference(notebook: str) -> Run | None:
    """The record in git that a notebook's claims rest on, by the notebook's name with or without
    its number; None where there is none.
    """
    name = notebook.lstrip("0123456789_")
    return records.load(files.RUNS / "reference" / name) if name else None


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM raises KeyboardInterrupt, for the commands that leave
    records and processes behind; later ones are ignored, so that the clean-up can finish.
    """

    def stop(number: int, frame: object) -> None:
        for stopping in before:
            signal.signal(stopping, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for stopping, handler in before.items():
            signal.signal(stopping, handler)
