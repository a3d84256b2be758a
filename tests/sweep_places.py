"""A notebook whose cells wait, fail or kill on demand, for the tests of sweeps with real workers,
kernels and signals.

It waits in a cell x as long as there is a file ``hold-<x>``, so that a test can act at the right
moment.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
from small_notebooks import code, parameters, write

from gaussmark_lib.workbench import sweeps

PARAMETERS = """
x: int = 1
words: list[str] = []
"""
WORK = """
import os, time
from pathlib import Path
import pandas as pd
from gaussmark_lib.workbench import record
folder = Path({folder!r})
(folder / f"pid-{{x}}-{{os.getpid()}}").touch()
while (folder / f"hold-{{x}}").exists():
    time.sleep(0.05)
if (folder / f"fail-{{x}}").exists():
    raise RuntimeError(f"no {{x}}")
if (folder / f"kill-{{x}}").exists():
    os.kill(os.getppid(), 9)
gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
record.record({{"square": x * x, "x": 10 * x, "deep": {{"list": [x, 0.5]}}, "gpu": gpu}})
record.save_table(pd.DataFrame({{"n": [1, 2], "x": [x / 2, x / 3]}}), "rows")
"""
GRID = {"x": [4, 1, 3], "words": [["a", "b"]]}


class Place:
    """A folder with a notebook, and the files by which a test directs its cells."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notebook = write(
            folder / "demo.ipynb", parameters(PARAMETERS), code(WORK.format(folder=str(folder)))
        )
        (folder / "grid.yaml").write_text(json.dumps(GRID))
        self.started: list[subprocess.Popen] = []

    def set(self, what: str, *cells: int) -> None:
        for x in cells:
            (self.folder / f"{what}-{x}").touch()

    def unset(self, what: str) -> None:
        for path in self.folder.glob(f"{what}-*"):
            path.unlink()

    def kernels(self, x: int | str = "*") -> list[int]:
        return [int(path.name.split("-")[-1]) for path in self.folder.glob(f"pid-{x}-*")]

    def sweep(self, root: Path, grid: dict | None = None, **options) -> sweeps.Sweep:
        return sweeps.sweep(self.notebook, grid or GRID, root=root, progress=False, **options)

    def start(self, root: Path, *words: str) -> subprocess.Popen:
        """Start the command in its own session, as a terminal would."""
        command = [sys.executable, "-m", "gaussmark_lib.workbench.cli", "sweep", self.notebook]
        options = ["--grid", self.folder / "grid.yaml", "--records", root, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*command, *options], start_new_session=True, **pipes)
        self.started.append(process)
        return process


def until(condition, process: subprocess.Popen | None = None, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return result


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return all(
        not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        for process in processes
    )


def finish(process: subprocess.Popen, code: int) -> tuple[str, str]:
    printed, errors = process.communicate(timeout=90)
    assert process.returncode == code, errors
    return printed, errors


def same_files(root: Path, expected: sweeps.Sweep) -> None:
    (folder,) = root.glob("sweep-*")
    assert folder.name == expected.dir.name
    for name in ("results.parquet", "tables/rows.parquet"):
        assert (folder / name).read_bytes() == (expected.dir / name).read_bytes()
    assert json.loads((folder / "sweep.json").read_text())["status"] == "complete"
    assert len(list((root / "demo").glob("[!.]*"))) == 3
