"""A tour with real workers, kernels and a real signal."""

import os
import signal
import subprocess
import sys

import pytest
from small_notebooks import code, markdown, parameters, write
from sweep_places import family, finish, gone, until

from gaussmark_lib import cli, paths

WAITING = """
import os, time
from pathlib import Path
folder = Path({folder!r})
(folder / f"{name}-{{os.getpid()}}-{{os.environ.get('OMP_NUM_THREADS')}}").touch()
while {wait} and (folder / "hold").exists():
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_tour_with_real_workers_is_interrupted_and_taken_up(tmp_path, monkeypatch):
    for name, wait in [("00_a", True), ("01_b", True), ("02_c", False)]:
        cell = code(WAITING.format(folder=str(tmp_path), name=name, wait=wait))
        write(
            tmp_path / "notebooks" / f"{name}.ipynb", markdown("# T\n\nclaim"), parameters(), cell
        )
    (tmp_path / "hold").touch()
    source = f"""
import sys
from pathlib import Path
from gaussmark_lib import cli, paths
paths.NOTEBOOKS = Path({str(tmp_path / "notebooks")!r})
if __name__ == "__main__":
    sys.exit(cli.main(["tour", "--workers", "2", "--records", {str(tmp_path / "runs")!r}]))
"""
    (tmp_path / "start.py").write_text(source)
    command = [sys.executable, str(tmp_path / "start.py")]
    options = {
        "env": os.environ | {"PYTHONPATH": str(paths.ROOT)},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    process = subprocess.Popen(command, start_new_session=True, **options)
    until(lambda: list(tmp_path.glob("00_a-*")) and list(tmp_path.glob("01_b-*")), process)
    processes = family(process)
    process.send_signal(signal.SIGTERM)
    _, errors = finish(process, cli.INTERRUPTED)
    until(lambda: gone(processes), seconds=20)
    assert errors.splitlines()[-1].startswith("gaussmark: interrupted; 0 of 3 notebooks are done")
    assert all(path.name.endswith(".failed") for path in (tmp_path / "runs").glob("*/[!.]*")), (
        "nothing half-written"
    )

    (tmp_path / "hold").unlink()
    printed, _ = finish(subprocess.Popen(command, **options), 0)
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["00_a", "01_b", "02_c"]
    assert len(list(tmp_path.glob("*-*-*"))) == 5
