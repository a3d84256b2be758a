"""The private folder in the temporary one where a kernel's sockets lie, and what killed runs left
of theirs.

A run holds a lock on a file in its folder for as long as its process lives, however that ends. So a
folder whose lock is free is nobody's. ``make clean`` runs this file alone, with any Python: it
imports nothing but the standard library.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, LOCK = "gaussmark-kernel-", "lock"


@contextmanager
def folder() -> Iterator[str]:
    """A new private folder, removed at the end, and with it those of runs that were killed."""
    clean()
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with (path / "new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (path / "new").rename(path / LOCK)  # it is never there without being held
            yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clean() -> None:
    """Removes the folders whose process is dead; one without a lock is just being made."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), (path / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    clean()
