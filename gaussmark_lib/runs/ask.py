"""A run: a question put to a notebook, and the record of its answer in
``papermill_runs/<notebook>/<id>``.

The same question again is answered from its record. If two processes ask the same question, both
run it, and the first record is kept. A process runs one notebook at a time; any number of processes
may run notebooks side by side.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gaussmark_lib import files, paths
from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import versions
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.runs.inside import RUN_DIR
from gaussmark_lib.runs.notebook import Notebook


class RunFailedError(RuntimeError):
    """A notebook that did not run to its end; ``reason`` says where and why, ``dir`` is the record
    of how far it came.
    """

    def __init__(self, message: str, reason: str, dir: Path):
        super().__init__(message)
        self.reason = reason
        self.dir = dir


def run(
    notebook: str | Path | Notebook,
    params: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    progress: dict | bool = True,
    root: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Run:
    """A notebook's answer to these parameters, from its record or by running it.

    Args:
        notebook: number, name or path, or one that is loaded already.
        force: run it even if there is a record, which is replaced once the new one is complete.
        progress: whether to show a bar over the cells, or tqdm's options for it.
        root: where records lie; ``papermill_runs`` by default.
        env: added to the environment of its kernel; no part of the question.
        wanted: asked twice a second; once it says no, the run is interrupted.

    Raises:
        GaussMarkError: before anything starts: no such notebook, or parameters that cannot be used.
        RecordError: before anything starts: the record cannot be kept there; or after a run that
            failed and could not be kept.
        RunFailedError: a cell raised, or the kernel died; what there is was kept in
            ``<id>.failed``.
        KeyboardInterrupt: after keeping it in the same way.
    """
    source, values, target = _question(notebook, params, root)
    if not force and (known := records.load(target)):
        return known
    from gaussmark_lib.runs import (
        kernel,
    )  # here, because papermill takes two seconds to import and notebooks import this module too

    changed = {
        name: value for name, value in values.items() if value != source.parameters[name].default
    }
    bar = progress and {"desc": source.name, "unit": "cell"} | (
        progress if isinstance(progress, dict) else {}
    )
    started = datetime.now(UTC)
    partial = records.begin(
        target, {"params.json": records.as_json(values), "notebook.ipynb": source.text}
    )
    file = partial / "notebook.ipynb"
    try:
        kernel.execute(
            file,
            changed,
            folder=source.path.parent,
            env={**(env or {}), RUN_DIR: str(partial)},
            progress=bar,
            wanted=wanted,
        )
        if not (
            partial / "results.json"
        ).exists():  # nothing was recorded; a record without this file is damaged
            records.write_json(partial / "results.json", {})
        records.write_json(
            partial / "status.json",
            {"status": "complete", "code": source.code, **versions.circumstances(started)},
        )
    except BaseException as error:
        cell, reason = kernel.mark_stopped(file, error)
        raise _stopped(
            source.name, error, cell, reason, partial, records.failed(target), started
        ) from error
    records.finish(partial, target, replace=force)
    shutil.rmtree(records.failed(target), ignore_errors=True)
    return replace(records.read(target), cached=False)


def _stopped(
    name: str,
    error: BaseException,
    cell: str | None,
    reason: str,
    partial: Path,
    kept: Path,
    started: datetime,
) -> BaseException:
    """What to raise for a run that did not end, once the record of how far it came is ``kept``."""
    outcome = "failed" if isinstance(error, Exception) else "interrupted"
    where = f"in cell `{cell}`: {reason}" if cell else reason
    message = f"{name} {outcome}: {where}"
    try:
        records.write_json(
            partial / "status.json",
            {"status": outcome, "error": reason, "cell": cell, **versions.circumstances(started)},
        )
        records.finish(partial, kept, replace=True)
    except (OSError, RecordError) as problem:  # a disk that filled up, for example
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            partial.parent.rmdir()  # unless there are other records
        message = (
            f"{message}\nno record of it could be kept:"
            f" {getattr(problem, 'strerror', None) or problem}"
        )
        return RecordError(message) if outcome == "failed" else type(error)(message)
    message = f"{message}\nits record is {kept}"
    return RunFailedError(message, where, kept) if outcome == "failed" else type(error)(message)


def find(
    notebook: str | Path | Notebook,
    params: Mapping[str, Any] | None = None,
    *,
    root: str | Path | None = None,
) -> Run | None:
    """The record that answers exactly this question, if there is one."""
    return records.load(_question(notebook, params, root)[-1])


def reference(notebook: str) -> Run | None:
    """The record in git that a notebook's claims rest on, by the notebook's name with or without
    its number; None where there is none.
    """
    name = files.named(notebook, "no such notebook", RecordError).name.lstrip("0123456789_")
    return records.load(paths.RUNS / "reference" / name) if name else None


def _question(
    notebook: str | Path | Notebook, params: Mapping[str, Any] | None, root: str | Path | None
) -> tuple[Notebook, dict[str, Any], Path]:
    source = notebooks.load(notebook)
    values = source.check(params or {})
    return source, values, paths.records(root) / source.name / source.run_id(values)
