"""The folder that a run leaves: written under a hidden name, renamed once it is complete.

    <notebook>/<id>/          notebook.ipynb  params.json  results.json  *.parquet  figures/*.png
                              status.json, which is written last
    <notebook>/<id>.failed/   the same of a run that did not end: the traceback in its notebook, the
                              reason in status.json

A folder named by an id is therefore always a complete answer. What a killed process leaves hidden
is removed by ``make clean``.
"""

import errno
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files, words
from gaussmark_lib.errors import RecordError
from gaussmark_lib.files import write_json as write_json

if TYPE_CHECKING:
    import pandas as pd

# of a complete status.json: the fields that readers print
FIELDS = {"started": str, "finished": str, "seconds": int | float}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A complete record: every parameter's value, what the notebook recorded, and when, how long
    and with which versions it ran.

    ``cached``: it was there before it was asked for.
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
        others = {name: value for name, value in self.results.items() if name != "headline"}
        return dict(words.lines(others))

    def table(self, name: str) -> "pd.DataFrame":
        """A table that the notebook saved; RecordError if there is none of that name, or if its
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
    made = lambda path: (path.stat().st_mtime_ns, path.name)  # noqa: E731
    return sorted(folder.glob("figures/*.png"), key=made)


def load(folder: Path) -> Run | None:
    """The complete record in a folder; None where there is none. A damaged one counts as none,
    which one line in the log tells.
    """
    try:
        return read(folder)
    except RecordError as error:
        _log.warning("%s; it counts as none", error)
        return None


def read(folder: Path) -> Run | None:
    """As ``load``, but a damaged record is a RecordError that says what is wrong with it."""
    if not os.path.isdir(folder):
        return None
    try:
        status = _object(folder / "status.json")
        if status.get("status") in ("failed", "interrupted"):
            return None
        wrong = [name for name, kind in FIELDS.items() if not isinstance(status.get(name), kind)]
        if wrong or status.get("status") != "complete":
            raise RecordError(f"its status.json lacks {', '.join(wrong) or 'the status'}")
        if not os.path.isfile(folder / "notebook.ipynb"):
            raise RecordError("it has no notebook.ipynb")
        params, results = (_object(folder / f"{name}.json") for name in ("params", "results"))
        return Run(folder, folder.name, params, results, status)
    except RecordError as error:
        raise RecordError(f"the record {folder} is damaged: {error}") from None


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


@contextmanager
def hidden(target: Path) -> Iterator[Path]:
    """A new folder on ``target``'s file system, for :func:`place`; what is left in it is removed.

    RecordError where no record can be kept. It comes before there is any work to lose.
    """
    try:
        if taken := [path for path in (target, failed(target)) if os.path.isfile(path)]:
            raise FileExistsError(errno.EEXIST, f"{taken[0].name} is a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        private = files.hidden_folder(target)
        partial = Path(private.name) / "record"  # with the permissions of any new folder
        partial.mkdir()
    except OSError as error:
        raise RecordError(
            f"no record can be kept in {target.parent}: {error.strerror}; make room there, or name"
            " another folder"
        ) from None
    with private:
        yield partial


def check(target: Path) -> None:
    """RecordError where :func:`hidden` would raise it, for what writes its record after hours."""
    with hidden(target):
        pass


@contextmanager
def written(target: Path, *, replace: bool) -> Iterator[Path]:
    """:func:`hidden` and :func:`place` around what writes a folder's files. An OSError becomes a
    RecordError.
    """
    with hidden(target) as partial:
        try:
            yield partial
        except OSError as error:
            raise RecordError(f"{target} could not be written: {error.strerror or error}") from None
        place(partial, target, replace=replace)


def place(partial: Path, target: Path, *, replace: bool) -> None:
    """Renames ``partial`` to ``target``. A complete record that is there already is kept, unless it
    is to be replaced.
    """
    while True:
        try:
            partial.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise RecordError(
                    f"the record {target} cannot be put in its place: {error.strerror}"
                ) from None
        if not replace and _is_complete(target):
            return
        with suppress(FileNotFoundError):  # another process was faster
            target.rename(tempfile.mkdtemp(dir=partial.parent))


def _is_complete(folder: Path) -> bool:
    try:
        return read(folder) is not None
    except RecordError:
        return False
