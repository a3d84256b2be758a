"""A run: a question is asked, and the answer kept in a folder, its record, which is written under a
hidden name and renamed at the end.

    <notebook>/<id>/          notebook.ipynb  params.json  results.json  *.parquet  figures/*.png
                              status.json, which is written last
    <notebook>/<id>.failed/   what there is of a run that did not end; its status.json says why

So a folder named by an id is always a complete answer. ``make clean`` removes what a killed process
left hidden.
"""

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.record import RUN_DIR, WEIGHTS
from gaussmark_lib.workbench.runs.notebook import Notebook, Question, question

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("value", "low", "high", "n")  # of an estimate
# a reader should see first what did not come out as expected
OUTCOMES = {"not held": "✗", "held": "✓", "at the edge": "~", "too little data": "?"}
PACKAGES = ("gaussmark", "torch", "transformers", "numpy")
_log = logging.getLogger(__name__)


class Headline(NamedTuple):
    """The number that a notebook is about, in words; ``basis`` is its interval and n."""

    name: str
    value: str
    basis: str

    def __str__(self) -> str:
        return f"{self.value} {self.basis}"


@dataclass(frozen=True)
class Run:
    """A complete record. ``cached``: it was there before it was asked for."""

    dir: Path
    id: str
    params: dict[str, Any]  # every parameter's value
    results: dict[str, Any]  # what the notebook recorded
    status: dict[str, Any]  # when, how long and with which versions it ran
    cached: bool = True

    @property
    def headline(self) -> Headline | None:
        """What the notebook gave to ``record.headline``; a share of n trials is in percent."""
        if not (given := self.results.get("headline")):
            return None
        value, basis = words.estimate(given, as_percent=_is_share(given))
        return Headline(given["sentence"], f"{value} {given.get('unit') or ''}".strip(), basis)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The recorded findings with ``verdict``, ``expected``, ``value`` and ``basis`` in words:
        first the findings that did not hold, last the open ones.
        """
        findings = []
        for claim in self.results.get("claims", []):
            value, basis = words.estimate(claim)
            in_words = {
                "verdict": f"{OUTCOMES[claim['outcome']]} {words.outcome(claim)}",
                "expected": claim["expected"].replace("-", "−"),
                "value": value,
                "basis": basis,
            }
            findings.append(claim | in_words)
        return sorted(findings, key=lambda finding: [*OUTCOMES].index(finding["outcome"]))

    @property
    def numbers(self) -> dict[str, str]:
        """All other results but findings and checks, one line each: nested names are joined,
        estimates have intervals.
        """
        apart = ("headline", "claims", "checks")
        return dict(words.lines({k: v for k, v in self.results.items() if k not in apart}))

    def table(self, name: str) -> "pd.DataFrame":
        """A table that the notebook saved; GaussMarkError where it cannot be read."""
        import pandas as pd

        try:
            return pd.read_parquet(self.dir / f"{name}.parquet")
        except (OSError, ValueError) as error:
            raise GaussMarkError(
                f"{self.dir} has no table {name!r} that can be read: {error}; remove the folder to"
                " have its notebook run again"
            ) from None


def _is_share(estimate: dict[str, Any]) -> bool:
    """Whether it counts hits of n trials, which a ratio of two times does not."""
    value, low, high, n = map(estimate.get, NUMBERS)
    if estimate.get("unit") or None in (value, low, high, n) or not 0 <= low <= high <= 1:
        return False
    return abs(value * n - round(value * n)) < 1e-9 * n


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
    if not force and (known := load(target)):
        return known
    # a grammar of addresses, for schemas that have some; it takes three seconds to import
    sys.modules.setdefault("rfc3987_syntax", None)
    from gaussmark_lib.workbench.runs import kernel  # papermill takes two seconds to import

    begun = start()
    with hidden(target) as partial:
        try:
            file = partial / "notebook.ipynb"
            file.write_text(source.text, encoding="utf-8")
            files.write_json(partial / "params.json", asked.values)
            files.write_json(partial / "results.json", {})  # to which the notebook adds
            kernel.execute(
                file,
                asked.changed,
                folder=source.path.parent,
                env={**(env or {}), RUN_DIR: str(partial)},
                progress=progress and {"desc": source.name, "unit": "cell"},
                wanted=wanted,
            )
            outcome = {"status": "complete", "code": asked.code, "inputs": asked.inputs}
            outcome["weights"] = _weights(partial)
            files.write_json(partial / "status.json", outcome | circumstances(begun))
        except BaseException as error:
            raise _stopped(error, source.name, partial, failed(target), begun) from error
        place(partial, target, replace=force)
    shutil.rmtree(failed(target), ignore_errors=True)
    return replace(load(target), cached=False)


def _stopped(
    error: BaseException, name: str, partial: Path, kept: Path, begun: "Start"
) -> BaseException:
    """What to raise for a run that did not end, once its record is ``kept``."""
    from gaussmark_lib.workbench.runs import kernel

    stop = kernel.where_it_stopped(partial / "notebook.ipynb", error)
    has_failed = isinstance(error, Exception)
    status = {"status": "failed" if has_failed else "interrupted", **stop._asdict()}
    message = f"{name} {status['status']}: {stop}\nits record is {kept}"
    status["weights"] = _weights(partial)
    files.write_json(partial / "status.json", status | circumstances(begun))
    place(partial, kept, replace=True)
    if has_failed:
        return RunFailedError(message, str(stop), stop.traceback, kept)
    return type(error)(message)


def _weights(partial: Path) -> dict[str, dict[str, str | None]]:
    """What the notebook said of its models' weights (``record.weights``), for the status."""
    path = partial / WEIGHTS
    if not path.exists():
        return {}
    known = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return known


def reference(notebook: str) -> Run | None:
    """The record in git that a notebook's claims rest on, by the notebook's name with or without
    its number; None where there is none.
    """
    name = notebook.lstrip("0123456789_")
    return load(files.RUNS / "reference" / name) if name else None


def load(folder: Path) -> Run | None:
    """The complete record in a folder; None where there is none. A damaged one counts as none, and
    the log says so.
    """
    if not os.path.isdir(folder):
        return None
    try:
        status, params, results = (_read(folder, name) for name in ("status", "params", "results"))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        _log.warning("the record %s is damaged, and counts as none: %r", folder, error)
        return None
    has_ended = status.get("status") == "complete"
    return Run(folder, folder.name, params, results, status) if has_ended else None


def _read(folder: Path, name: str) -> dict[str, Any]:
    with open(folder / f"{name}.json", encoding="utf-8", opener=files.opener) as file:  # no pipe
        return dict(json.load(file))


def failed(target: Path) -> Path:
    """Where a run is kept that should have become ``target`` and did not end."""
    return target.with_name(f"{target.name}.failed")


@contextmanager
def hidden(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, for :func:`place`; what is left in it is removed.

    GaussMarkError where it, or what is written to it, cannot be kept.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.hidden_folder(target) as private:
            partial = Path(private, "record")  # with the permissions of any new folder
            partial.mkdir()
            yield partial
    except OSError as error:
        raise GaussMarkError(
            f"no record can be kept in {target.parent}: {error.strerror or error}; make room there,"
            " or name another folder"
        ) from None


def place(partial: Path, target: Path, *, replace: bool) -> None:
    """Renames ``partial`` to ``target``. A complete record that is there stays, unless it is to be
    replaced.
    """
    try:
        if replace or load(target) is None:
            with suppress(FileNotFoundError):
                target.rename(partial.with_name("old"))  # which is removed with the hidden folder
        partial.rename(target)
    except OSError:
        if load(target) is None:  # no other process was faster
            raise


class Start(NamedTuple):
    """When something began to run, and the checkout's commit then: it may change meanwhile."""

    time: datetime
    commit: str | None


def start() -> Start:
    return Start(datetime.now(UTC), commit())


def circumstances(begun: Start) -> dict[str, Any]:
    """When something ran that ends now, by which commit and with which versions, and on what kind
    of machine. No environment variables, host or user names: they may be secrets.
    """
    finished = datetime.now(UTC)
    return {
        "started": begun.time.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round((finished - begun.time).total_seconds(), 1),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "commit": begun.commit,
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The checkout's git commit, with ``-dirty`` if files differ from it. A copy without git takes
    it from ``GAUSSMARK_COMMIT``; without both it is None.
    """
    place = [f"--git-dir={files.ROOT / '.git'}", f"--work-tree={files.ROOT}"]
    command = ["git", *place, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("GAUSSMARK_COMMIT")
    return done.stdout.strip()
