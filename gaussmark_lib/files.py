"""Where things lie in a checkout, and files that somebody names.

A name can be anything, and reading must not wait: not for a pipe that nobody writes to, nor for the
end of a device. What a shell has opened for the command, ``/dev/stdin`` and ``/dev/fd/…`` as in
``--key <(pass show key)``, is read as it comes.
"""

import errno
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from gaussmark_lib.errors import GaussMarkError, shown

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXPERIMENTS = NOTEBOOKS / "gaussmark_experiments"  # what the notebooks measure and draw, a package
DATA = ROOT / "data"
RUNS = ROOT / "papermill_runs"
PRESETS = RUNS / "presets"
CACHE = Path(os.environ.get("GAUSSMARK_CACHE", DATA / "cache"))  # rebuilt on demand

OPENED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def records(root: str | Path | None) -> Path:
    """The folder of all records, absolute; where none is named, that of ``GAUSSMARK_RUNS``, or
    ``papermill_runs``.
    """
    root = os.environ.get("GAUSSMARK_RUNS", RUNS) if root is None else root
    return as_path(root, "no record can be kept there", GaussMarkError).absolute()


def as_path(name: Any, what: str, error: type[GaussMarkError]) -> Path:
    """The name of a file or folder as a path; the error for what is no name, an empty one, and one
    with a zero byte.
    """
    try:
        path = Path(name)
    except TypeError:
        raise error(
            f"{what}: expected the name of a file or folder, got a value of type"
            f" {type(name).__name__}"
        ) from None
    if not str(name) or "\0" in str(name):
        raise error(f"{what}: expected the name of a file or folder, got {shown(name)}")
    return path


def hidden_folder(path: Path) -> tempfile.TemporaryDirectory:
    """A folder beside a path, for what is renamed to it once it is complete; only its owner may
    enter it, and `make clean` knows its name.
    """
    prefix = f".{path.name}.partial-{os.getpid()}-"
    return tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Complete or not at all, on a full disk too."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def refuse_others(name: str | Path) -> None:
    """OSError for a name of something else than a file, and of nothing."""
    mode = os.stat(name).st_mode
    if not stat.S_ISREG(mode) and not str(name).startswith(OPENED):
        raise OSError(errno.EINVAL, "expected a file, found something else", str(name))


def opener(name: str | Path, flags: int) -> int:
    """For ``open``'s argument of this name: :func:`refuse_others` of what is there, before it is
    opened.
    """
    with suppress(FileNotFoundError):  # perhaps a new file is to be written
        refuse_others(name)
    return os.open(name, flags, 0o666)
