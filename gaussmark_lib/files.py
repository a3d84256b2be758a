"""Where things lie in a checkout, and files that a user names.

A name can be anything, and reading must not block: neither on a pipe that no process writes to, nor
on a device that has no end. The exception is what a shell has opened for the command, such as
``/dev/stdin`` and the ``/dev/fd/…`` of ``--key <(pass show key)``. It is read as it comes.
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

OPENED = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # names of what a shell has opened


def records(root: str | Path | None) -> Path:
    """Return the folder of all records as an absolute path.

    If ``root`` is None, it is the folder that ``GAUSSMARK_RUNS`` names, or else ``papermill_runs``.
    """
    if root is None:
        root = os.environ.get("GAUSSMARK_RUNS", RUNS)
    return as_path(root, "no record can be kept there", GaussMarkError).absolute()


def as_path(name: Any, what: str, error: type[GaussMarkError]) -> Path:
    """Return the name of a file or folder as a path.

    Raise the error if the value is not a name, is empty, or contains a zero byte.

    >>> as_path("texts.csv", "a file of texts", GaussMarkError).suffix
    '.csv'
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
    """Make a folder next to a path, for what is renamed to that path once it is complete.

    Only its owner may enter the folder, and `make clean` knows its name.
    """
    prefix = f".{path.name}.partial-{os.getpid()}-"
    return tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, complete or not at all, even if the disk is full.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "answer.json", {"ψ": 3.5})
    ...     json.loads((Path(folder) / "answer.json").read_text(encoding="utf-8"))
    {'ψ': 3.5}
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def refuse_others(name: str | Path) -> None:
    """Raise OSError if the name is of something other than a file, or of nothing.

    >>> refuse_others(__file__)
    """
    mode = os.stat(name).st_mode
    is_opened = str(name).startswith(OPENED)
    if not stat.S_ISREG(mode) and not is_opened:
        raise OSError(errno.EINVAL, "expected a file, found something else", str(name))


def opener(name: str | Path, flags: int) -> int:
    """Open a file as the ``opener`` argument of ``open`` does, but check what it is beforehand.

    Raise OSError as :func:`refuse_others` does: opening a pipe would already block.
    """
    with suppress(FileNotFoundError):  # perhaps a new file is to be written
        refuse_others(name)
    return os.open(name, flags, 0o666)
