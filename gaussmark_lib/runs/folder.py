"""The folder that a run leaves: written under a hidden name, renamed when it is whole.

    <notebook>/<id>/          notebook.ipynb  params.json  results.json  status.json  *.parquet  figures/*.png
    <notebook>/<id>.failed/   the same of a run that did not end: the traceback in its notebook, the reason in status.json

A folder named by an id is therefore always a complete answer. The name of a hidden one has the machine and the process that writes it,
so that the next run beside it recognises what a killed process left, and removes it.
"""

import errno
import hashlib
import json
import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import paths

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("gaussmark", "torch", "transformers", "numpy")


@dataclass(frozen=True)
class Run:
    """A complete record: every parameter's value, what the notebook recorded, and when, how long and with which versions it ran.

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
        """The results without the headline, one line each: nested names joined, estimates with their intervals, four digits, long lists counted."""
        return dict(_lines({name: value for name, value in self.results.items() if name != "headline"}))

    @property
    def headline(self) -> tuple[str, str] | None:
        """What ``runs.headline`` recorded: the quantity, and its value with interval, unit and n, as in ``0.93 (0.85 to 0.98), n = 60``."""
        if not (found := self.results.get("headline")):
            return None
        value, low, high, n = (_words(found[name]) for name in ("value", "low", "high", "n"))
        return found["sentence"], " ".join(filter(None, [value, found["unit"], f"({low} to {high}), n = {n}"]))

    def table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.read_parquet(self.dir / f"{name}.parquet")


def figures(folder: Path) -> list[Path]:
    """A record's figures, in the order in which they were made."""
    return sorted(folder.glob("figures/*.png"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def _lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        rest = "".join(f", {key.replace('_', ' ')} = {_words(item)}" for key, item in value.items() if key not in ("value", "low", "high"))
        yield name, f"{_words(value['value'])} ({_words(value['low'])} to {_words(value['high'])}){rest}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lines(item, f"{name} · {key}" if name else key)
    elif isinstance(value, list) and len(value) > 8:
        yield name, f"{len(value)} values"
    else:
        yield name, _words(value)


def _words(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(map(_words, value))
    return str(value)


def load(folder: Path) -> Run | None:
    """The complete record in a folder; None where there is no folder, or anything else in it."""
    try:
        status, params = (json.loads((folder / name).read_text()) for name in ("status.json", "params.json"))
        results = json.loads((folder / "results.json").read_text()) if (folder / "results.json").exists() else {}
    except (OSError, ValueError):
        return None
    return Run(folder, folder.name, params, results, status) if status.get("status") == "complete" else None


def begin(target: Path) -> Path:
    """A new hidden folder beside ``target``, of this process alone; those of processes that are dead are removed."""
    for left in _abandoned(target.parent):
        shutil.rmtree(left, ignore_errors=True)
    partial = _hidden(target, "partial")
    partial.mkdir(parents=True)
    return partial


def finish(partial: Path, target: Path, *, replace: bool) -> None:
    """Renames ``partial`` to ``target``. A complete record that is there already is kept, unless it is to be replaced."""
    while True:
        try:
            partial.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if not replace and load(target):
            shutil.rmtree(partial)
            return
        old = _hidden(target, "old")
        with suppress(FileNotFoundError):  # someone else was faster
            target.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _hidden(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}-{_machine()}-{os.getpid()}-{secrets.token_hex(3)}")


def _abandoned(folder: Path) -> list[Path]:
    """Hidden folders whose process is gone. Only this machine's: nobody can know that of another's."""
    return [path for what in ("partial", "old") for path in folder.glob(f".*.{what}-{_machine()}-*-*") if not _alive(path.name.split("-")[-2])]


def _alive(pid: str) -> bool:
    import psutil  # here, because it is needed only if something was left

    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE  # dead, and waiting for whoever adopted it
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # someone else's
        return True


@cache
def _machine() -> str:
    """A hash for "where process numbers mean the same": the host, since its last start, in the same container."""
    words = [platform.node()]
    with suppress(OSError):  # Linux only
        words += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def circumstances(started: datetime) -> dict[str, Any]:
    """Everything about a run that is no part of its question. No environment variables, host or user names: they may be secrets."""
    finished = datetime.now(UTC)
    return {
        "started": started.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round((finished - started).total_seconds(), 1),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
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
    return subprocess.run(["git", "-C", str(paths.ROOT), *words], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
