"""A run asks a question and keeps the answer in a folder, its record. The record is written under a
hidden name and renamed at the end.

    <notebook>/<id>/          notebook.ipynb  params.json  results.json  *.parquet  figures/*.png
                              status.json, which is written last
    <notebook>/<id>.failed/   files of a run that did not end; its status.json says why

So a folder named by an id is always a complete answer. ``make clean`` removes the hidden folders of
killed processes.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gaussmark_lib import files
from gaussmark_lib.engine.packages import version
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.record import RUN_DIR, WEIGHTS
from gaussmark_lib.workbench.runs.notebook import Notebook, Question, question

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("value", "low", "high", "n")  # of an estimate
# of the names of a notebook's records in git, by model: what a real model shows comes first
ENDINGS = ("_smollm2", "_gemma", "")
# record of some sections of a notebook → the notebook, whose records speak for the other models
SECTIONS = {
    "quality_judged": "quality",
    "kgw_baseline_correction": "kgw_baseline",
    "kgw_baseline_entropy": "kgw_baseline",
    "after_release_attacks": "after_release",
    "streams_bets": "streams",
}
RECORD_FILES = ("status", "params", "results")  # each a .json file; status is written last
# in the order of a report: a reader should see first what did not come out as expected
OUTCOMES = {"not held": "✗", "held": "✓", "at the edge": "~", "too little data": "?"}
PACKAGES = ("gaussmark", "torch", "transformers", "numpy")
_log = logging.getLogger(__name__)


class Headline(NamedTuple):
    """The number that a notebook is about, in words. ``basis`` is its interval and n."""

    name: str
    value: str
    basis: str

    def __str__(self) -> str:
        return f"{self.value} {self.basis}"


@dataclass(frozen=True)
class Run:
    """A complete record. ``cached``: the record existed before this call."""

    dir: Path
    id: str
    params: dict[str, Any]  # every parameter's value
    results: dict[str, Any]  # what the notebook recorded
    status: dict[str, Any]  # when, how long and with which versions it ran
    cached: bool = True

    @property
    def headline(self) -> Headline | None:
        """The number of ``record.headline``, if there is one; a share of n trials is in percent."""
        recorded = self.results.get("headline")
        if not recorded:
            return None
        value, basis = words.estimate(recorded, as_percent=is_share(recorded))
        unit = recorded.get("unit") or ""
        value_with_unit = f"{value} {unit}".strip()
        return Headline(name=recorded["sentence"], value=value_with_unit, basis=basis)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The recorded findings with ``verdict``, ``expected``, ``value`` and ``basis`` in words.
        Findings that did not hold come first, open findings last.
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
        order = list(OUTCOMES)
        return sorted(findings, key=lambda finding: order.index(finding["outcome"]))

    @property
    def numbers(self) -> dict[str, str]:
        """All results except headline, findings and checks, one line per result. Nested names are
        joined, estimates have intervals.
        """
        shown_elsewhere = ("headline", "claims", "checks")
        results = {
            name: result for name, result in self.results.items() if name not in shown_elsewhere
        }
        return dict(words.lines(results))

    def table(self, name: str) -> "pd.DataFrame":
        """Return a table that the notebook saved; GaussMarkError if it cannot be read."""
        import pandas as pd

        try:
            return pd.read_parquet(self.dir / f"{name}.parquet")
        except (OSError, ValueError) as error:
            raise GaussMarkError(
                f"{self.dir} has no table {name!r} that can be read: {error}; remove the folder to"
                " run its notebook again"
            ) from None


def is_share(estimate: dict[str, Any]) -> bool:
    """Whether the estimate counts hits of n trials. A ratio of two times does not."""
    value, low, high, n = (estimate.get(name) for name in NUMBERS)
    if estimate.get("unit") or None in (value, low, high, n):
        return False
    if not 0 <= low <= high <= 1:
        return False
    # value is hits / n, so value · n is a whole number up to rounding
    n_hits = value * n
    return abs(n_hits - round(n_hits)) < 1e-9 * n


class RunFailedError(RuntimeError):
    """A notebook that did not run to its end. ``reason`` says where and why, ``traceback`` is the
    cell's, and ``dir`` is the record of the cells that ran.
    """

    def __init__(self, message: str, reason: str, traceback: str, dir: Path):
        super().__init__(message)
        self.reason = reason
        self.traceback = traceback
        self.dir = dir


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
    """Return a notebook's answer to these parameters, from its record or by running the notebook.

    Args:
        notebook: number, name or path, or a question, which has its parameters.
        force: run the notebook even if there is a record. The new record replaces the old one once
            it is complete.
        progress: whether to show a bar over the cells.
        root: the folder of records; ``papermill_runs`` by default.
        env: added to the environment of the kernel; not part of the question.
        wanted: called twice per second; once it returns False, the run is interrupted.

    Raises:
        GaussMarkError: before anything starts: no such notebook, parameters that cannot be used, or
            no place for the record.
        RunFailedError: a cell raised, or the kernel died; ``<id>.failed`` has the incomplete
            record.
        KeyboardInterrupt: after keeping the incomplete record in the same way.
    """
    this_question = question(notebook, params)
    source = this_question.notebook
    target = this_question.target(root)
    if not force and (known_run := load(target)):
        return known_run
    # a grammar of addresses, for schemas that contain addresses; its import takes three seconds
    sys.modules.setdefault("rfc3987_syntax", None)
    from gaussmark_lib.workbench.runs import kernel  # papermill takes two seconds to import

    begun = start()
    with hidden(target) as partial:
        try:
            file = partial / "notebook.ipynb"
            file.write_text(source.text, encoding="utf-8")
            files.write_json(partial / "params.json", this_question.values)
            files.write_json(partial / "results.json", {})  # to which the notebook adds
            kernel.execute(
                file,
                this_question.changed,
                folder=source.path.parent,
                env={**(env or {}), RUN_DIR: str(partial)},
                progress=progress and {"desc": source.name, "unit": "cell"},
                wanted=wanted,
            )
            outcome = {
                "status": "complete",
                "code": this_question.code,
                "inputs": this_question.inputs,
                "weights": _weights(partial),
            }
            files.write_json(partial / "status.json", outcome | circumstances(begun))
        except BaseException as error:
            raise _stopped(error, source.name, partial, failed(target), begun) from error
        place(partial, target, replace=force)
    shutil.rmtree(failed(target), ignore_errors=True)
    return replace(load(target), cached=False)


def _stopped(
    error: BaseException, name: str, partial: Path, kept: Path, begun: "Start"
) -> BaseException:
    """Place the record of a run that did not end in ``kept``, and return what to raise."""
    from gaussmark_lib.workbench.runs import kernel

    stop = kernel.where_it_stopped(partial / "notebook.ipynb", error)
    has_failed = isinstance(error, Exception)
    outcome = "failed" if has_failed else "interrupted"
    message = f"{name} {outcome}: {stop}\nits record is {kept}"
    status = {"status": outcome, **stop._asdict(), "weights": _weights(partial)}
    files.write_json(partial / "status.json", status | circumstances(begun))
    place(partial, kept, replace=True)
    if has_failed:
        return RunFailedError(message, str(stop), stop.traceback, kept)
    return type(error)(message)


def _weights(partial: Path) -> dict[str, dict[str, str | None]]:
    """Remove and return what ``record.weights`` noted about the models, for the status."""
    path = partial / WEIGHTS
    if not path.exists():
        return {}
    hashes_by_model = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return hashes_by_model


def references(notebook: str) -> list[Run]:
    """Return the records in git that a notebook's claims rest on: on real models first, then on
    doclm. The notebook's name may have its number or not. It may be one of ``SECTIONS``.
    """
    records = []
    for ending in ENDINGS:
        record = reference(f"{notebook}{ending}")
        if record is None and notebook in SECTIONS:
            record = reference(f"{SECTIONS[notebook]}{ending}")
        if record:
            records.append(record)
    return records


def reference(notebook: str) -> Run | None:
    """Return the record in git of this name, or None if there is none. The name of a notebook, with
    or without its number, is the name of its record on doclm.
    """
    name = notebook.lstrip("0123456789_")
    return load(files.RUNS / "reference" / name) if name else None


def load(folder: Path) -> Run | None:
    """Return the complete record in a folder, or None if there is none. A damaged record counts as
    none, and the log says so. A folder without any file of a record is not damaged.
    """
    if not any(os.path.exists(folder / f"{name}.json") for name in RECORD_FILES):
        return None
    try:
        status, params, results = (_read(folder, name) for name in RECORD_FILES)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        _log.warning("the record %s is damaged, and counts as none: %r", folder, error)
        return None
    if status.get("status") != "complete":
        return None
    return Run(
        dir=folder,
        id=folder.name,
        params=params,
        results=results,
        status=status,
    )


def _read(folder: Path, name: str) -> dict[str, Any]:
    # this opener refuses a pipe, which would block
    with open(folder / f"{name}.json", encoding="utf-8", opener=files.opener) as file:
        return dict(json.load(file))


def failed(target: Path) -> Path:
    """Return the folder for a run that should have become ``target`` and did not end."""
    return target.with_name(f"{target.name}.failed")


@contextmanager
def hidden(target: Path) -> Iterator[Path]:
    """Make a new folder next to ``target``, for :func:`place`. Its remaining files are removed.

    GaussMarkError if the folder, or a file in it, cannot be written.
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
    """Rename ``partial`` to ``target``. A complete record that is there already stays, unless it is
    to be replaced.
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
    """When a run began, and the checkout's commit at that time: it may change during the run."""

    time: datetime
    commit: str | None


def start() -> Start:
    """Return the time and the commit now."""
    return Start(datetime.now(UTC), commit())


def circumstances(begun: Start) -> dict[str, Any]:
    """Describe a run that ends now: its times, commit, versions and kind of machine. Environment
    variables, host and user names are left out: they may be secrets.
    """
    finished = datetime.now(UTC)
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in PACKAGES}
    return {
        "started": begun.time.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round((finished - begun.time).total_seconds(), 1),
        "versions": versions,
        "platform": platform.platform(),
        "commit": begun.commit,
    }


def commit() -> str | None:
    """Return the checkout's git commit, with ``-dirty`` if files differ from it. A copy without git
    takes the commit from ``GAUSSMARK_COMMIT``; without both, return None.
    """
    command = [
        "git",
        f"--git-dir={files.ROOT / '.git'}",
        f"--work-tree={files.ROOT}",
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",  # no tags: the commit itself
        "--dirty",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("GAUSSMARK_COMMIT")
    return done.stdout.strip()
