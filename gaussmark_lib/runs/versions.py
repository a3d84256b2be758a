"""With which versions a run was made, when, and on what kind of machine: what is recorded of it and
no part of its question.
"""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gaussmark_lib import paths

PACKAGES = ("gaussmark", "torch", "transformers", "numpy")


def circumstances(started: datetime) -> dict[str, Any]:
    """The circumstances of what began then and ends now. No environment variables, host or user
    names: they may be secrets.
    """
    finished = datetime.now(UTC)
    return {
        "started": started.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round((finished - started).total_seconds(), 1),
        "versions": {"python": platform.python_version(), **{name: of(name) for name in PACKAGES}},
        "platform": platform.platform(),
        "commit": commit(),
    }


def commit() -> str | None:
    """The checkout's git commit, with ``-dirty`` if files differ from it; None outside of git."""
    with suppress(OSError, subprocess.SubprocessError):
        if Path(_git("rev-parse", "--show-toplevel")).resolve() == paths.ROOT:
            return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    return None


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(paths.ROOT), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.strip()


def of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
