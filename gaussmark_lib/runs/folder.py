"""The folder that a run leaves: written under a hidden name, renamed when it is whole.

    <notebook>/<id>/          notebook.ipynb  params.json  results.json  status.json  *.parquet  figures/*.png
    <notebook>/<id>.failed/   the same of a run that did not end: the traceback in its notebook, the
    reason in status.json

A folder named by an id is therefore always a complete answer. The name of a hidden one has the
machine and the process that writes it, so that the next run beside it recognises what a killed
process left, and removes it.
"""

import errno
import hashlib
import json
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files, words
from gaussmark_lib.errors import RecordError

if TYPE_CHECKING:
    import pandas as pd

FIELDS = {
    "started": str,
    "finished": str,
    "seconds": int | float,
}  # of a complete status.json: those that readers print
LEAST_FREE = 16 * 2**20  # bytes on the disk; a record with figures takes one or two million
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A complete record: every parameter's value, what the notebook recorded, and when, how long
    and with which versions it ran.

    ``cached`` says that it was there before it was asked for.
    """

    dir: Path
    id: str
    params: dict[str, Any]
    results: dict[str, Any]
    status: dict[str, Any]
    cached: bool = True

    @property
    def numbers(self) -> dict[str, str]:
        """The results without the headline, one line each: nested names joined, estimates with
        their intervals, four digits, long lists counted.
        """
        return dict(
            words.lines({name: value for name, value in self.results.items() if name != "headline"})
        )

    @property
    def headline(self) -> tuple[str, str] | None:
        """What ``runs.headline`` recorded: the quantity, and its value with interval, unit and n,
        as in ``0.93 (0.85 to 0.98), n = 60``.
        """
        found = self.results.get("headline")
        if not (
            isinstance(found, dict)
            and {"sentence", "value", "low", "high", "n", "unit"} <= found.keys()
        ):
            return None
        value, low, high, n = (words.of(found[name]) for name in ("value", "low", "high", "n"))
        return found["sentence"], " ".join(
            filter(None, [value, found["unit"], f"({low} to {high}), n = {n}"])
        )

    def table(self, name: str) -> "pd.DataFrame":
        """A table that the notebook saved; RecordError if it saved none of that name, or if the
        file is damaged.
        """
        import pandas as pd

        try:
            return pd.read_parquet(self.dir / f"{name}.parquet")
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{self.dir} has no whole table {name!r}: {error}; remove the folder to have its"
                " notebook run again"
            ) from None


def figures(folder: Path) -> list[Path]:
    """A record's figures, in the order in which they were made."""
    return sorted(
        folder.glob("figures/*.png"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )


def load(folder: Path) -> Run | None:
    """The complete record in a folder; None where there is none. A damaged one counts as none,
    which one line in the log says.
    """
    folder = files.named(folder, "no such record", RecordError)
    if not os.path.isdir(folder):
        return None
    try:
        return read(folder)
    except RecordError as error:
        _log.warning("%s; it counts as none", error)
        return None


def read(folder: Path) -> Run | None:
    """As ``load``, but a damaged record is a RecordError that says what is wrong with it."""
    folder = files.named(folder, "no such record", RecordError)
    try:
        status = _object(folder / "status.json")
        if status.get("status") in ("failed", "interrupted"):
            return None
        wrong = [name for name, kind in FIELDS.items() if not isinstance(status.get(name), kind)]
        if wrong or status.get("status") != "complete":
            raise RecordError(f"its status.json lacks {', '.join(wrong) or 'the status'}")
        if not os.path.isfile(folder / "notebook.ipynb"):
            raise RecordError("it has no notebook.ipynb")
        return Run(
            folder,
            folder.name,
            _object(folder / "params.json"),
            _object(folder / "results.json"),
            status,
        )
    except RecordError as error:
        raise RecordError(f"the record {folder} is damaged: {error}") from None


def _is_complete(folder: Path) -> bool:
    try:
        return read(folder) is not None
    except RecordError:
        return False


def _object(path: Path) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=files.opener) as file:
            content = json.loads(file.read())
    except OSError as error:
        raise RecordError(f"its {path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise RecordError(f"its {path.name} is not whole JSON") from None
    if not isinstance(content, dict):
        raise RecordError(f"its {path.name} should be an object, and is {json.dumps(content)[:40]}")
    return content


def failed(target: Path) -> Path:
    """Where a run is kept that should have become ``target`` and did not end."""
    return target.with_name(f"{target.name}.failed")


def begin(target: Path, files: Mapping[str, str] | None = None) -> Path:
    """A new hidden folder beside ``target``, of this process alone, with its first files; those of
    processes that are dead are removed.

    RecordError where no record can be kept. It comes before there is any work to lose, and leaves
    nothing behind.
    """
    for place in (target, failed(target)):
        if os.path.lexists(place) and not os.path.isdir(place):
            raise RecordError(
                f"expected the folder of a record at {place}, or nothing, found a file; move it"
                " away"
            )
    partial = _hidden(target, "partial")
    new = _missing(target)
    try:
        for left in _abandoned(target.parent):
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir(parents=True)
        disk = shutil.disk_usage(partial)
        if disk.total and disk.free < LEAST_FREE:
            raise OSError(
                errno.ENOSPC,
                f"expected {LEAST_FREE >> 20} MiB of free space, found {disk.free / 2**20:.1f}",
            )
        for name, text in (files or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_empty(new)
        raise RecordError(
            f"no record can be kept in {target.parent}: {error.strerror}; make room there, or name"
            " another folder"
        ) from None
    return partial


def check(target: Path) -> None:
    """RecordError where ``begin`` would raise it, for what writes its record only after hours.
    Nothing is left either way.
    """
    new = _missing(target)
    shutil.rmtree(begin(target))
    _remove_empty(new)


def _missing(target: Path) -> list[Path]:
    return [folder for folder in target.parents if not os.path.exists(folder)]


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # something is in it by now
            folder.rmdir()


@contextmanager
def written(target: Path, *, replace: bool) -> Iterator[Path]:
    """``begin`` and ``finish`` around what writes a folder's files; without them, nothing is left.
    An OSError becomes a RecordError.
    """
    partial = begin(target)
    try:
        yield partial
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise RecordError(f"{target} could not be written: {error.strerror or error}") from None
        raise
    finish(partial, target, replace=replace)


def finish(partial: Path, target: Path, *, replace: bool) -> None:
    """Renames ``partial`` to ``target``. A complete record that is there already is kept, unless it
    is to be replaced.
    """
    while True:
        try:
            partial.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                shutil.rmtree(partial, ignore_errors=True)
                raise RecordError(
                    f"the record {target} cannot be put in its place: {error.strerror}"
                ) from None
        if not replace and _is_complete(target):
            shutil.rmtree(partial)
            return
        old = _hidden(target, "old")
        with suppress(FileNotFoundError):  # someone else was faster
            target.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _hidden(target: Path, what: str) -> Path:
    return target.with_name(
        f".{target.name}.{what}-{_machine()}-{os.getpid()}-{secrets.token_hex(3)}"
    )


def _abandoned(folder: Path) -> list[Path]:
    """Hidden folders whose process is gone. Only this machine's: nobody can know that of
    another's.
    """
    return [
        path
        for what in ("partial", "old")
        for path in folder.glob(f".*.{what}-{_machine()}-*-*")
        if not _alive(path.name.split("-")[-2])
    ]


def _alive(pid: str) -> bool:
    import psutil  # here, because it is needed only if something was left

    try:
        return (
            psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
        )  # dead, and waiting for whoever adopted it
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # someone else's
        return True


@cache
def _machine() -> str:
    """A hash for "where process numbers mean the same": the host, since its last start, in the same
    container.
    """
    words = [platform.node()]
    with suppress(OSError):  # Linux only
        words += [
            Path("/proc/sys/kernel/random/boot_id").read_text(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, on a full disk too."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(as_json(content), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
