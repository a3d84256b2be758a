"""Runs of notebooks: ask a question, keep the answer.

    answer = runs.run("00_first_watermark", {"sigma": 0.1})
    answer.results, answer.dir

The record of an answer is ``papermill_runs/<notebook>/<id>``, and the same question again is
answered from it. If two processes ask the same question, both run it, and the first record is kept.

==============  ==========================================================================
``notebook``    a notebook file as a question: cells, parameters, id
``parameters``  what the cell tagged ``parameters`` declares, checked
``presets``     YAML files of parameter values, and the paper's own numbers
``identity``    the versions of code, model and texts that are part of the id
``kernel``      the process that executes the cells
``folder``      the record that a run leaves: its files, and when and with what it ran
==============  ==========================================================================
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.record import RUN_DIR, headline, record, save_figure, save_table
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.runs.notebook import Notebook, Question, question
from gaussmark_lib.runs.presets import comparable

__all__ = [
    "Run",
    "RunFailedError",
    "comparable",
    "headline",
    "record",
    "reference",
    "run",
    "save_figure",
    "save_table",
]


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
            raise _stopped(error, source.name, partial, records.failed(target), started) from error
        records.place(partial, target, replace=force)
    shutil.rmtree(records.failed(target), ignore_errors=True)
    return replace(records.load(target), cached=False)


def _stopped(
    error: BaseException, name: str, partial: Path, kept: Path, started: datetime
) -> BaseException:
    """What to raise for a run that did not end, once its record is ``kept``."""
    from gaussmark_lib.runs import kernel

    stop = kernel.where_it_stopped(partial / "notebook.ipynb", error)
    has_failed = isinstance(error, Exception)
    status = {"status": "failed" if has_failed else "interrupted", **stop._asdict()}
    message = f"{name} {status['status']}: {stop}\n"
    try:
        records.write(partial, "status", status | records.circumstances(started))
        records.place(partial, kept, replace=True)
        message += f"its record is {kept}"
    except OSError as problem:  # a disk that filled up, for example
        message += f"no record of it could be kept: {problem.strerror}"
    if has_failed:
        return RunFailedError(message, str(stop), stop.traceback, kept)
    return type(error)(message)


def reference(notebook: str) -> Run | None:
    """The record in git that a notebook's claims rest on, by the notebook's name with or without
    its number; None where there is none.
    """
    name = notebook.lstrip("0123456789_")
    return records.load(files.RUNS / "reference" / name) if name else None
