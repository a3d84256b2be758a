"""Folders of sockets: those of killed processes are removed, those of living ones are not."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gaussmark_lib import paths
from gaussmark_lib.runs import sockets

FILE = paths.ROOT / "gaussmark_lib" / "runs" / "sockets.py"
OWNER = f"""
import runpy, sys
with runpy.run_path({str(FILE)!r})["folder"]() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner():
    """Another process with a folder of sockets."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.folder = Path(process.stdout.readline().strip())
        yield process
        process.kill()


def test_a_folder_is_there_as_long_as_it_is_used(temporary):
    with sockets.folder() as path:
        assert Path(path).parent == temporary
        assert Path(path).stat().st_mode & 0o777 == 0o700
        sockets.clean()
        assert Path(path).is_dir()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("cleaner", ["the next run", "make clean"])
def test_what_a_killed_run_left_is_removed_and_what_a_living_one_uses_is_not(
    temporary, owner, cleaner
):
    def clean():
        if cleaner == "make clean":
            subprocess.run([sys.executable, "-I", str(FILE)], check=True)
        else:
            with sockets.folder():
                pass

    (owner.folder / "kernel.json-ipc-1").touch()
    others = [temporary / "gaussmark-notes", temporary / f"{sockets.PREFIX}being-made"]
    for other in others:
        other.mkdir()
    clean()
    assert (owner.folder / "kernel.json-ipc-1").exists()
    owner.kill()
    owner.wait()
    assert owner.folder.exists()
    clean()
    assert sorted(temporary.iterdir()) == sorted(others)


def test_make_clean_leaves_what_a_running_process_writes(tmp_path):
    """A run, a tour and what was replaced, of this process and of one that has ended."""
    (tmp_path / "gaussmark_lib" / "runs").mkdir(parents=True)
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    shutil.copy(FILE, tmp_path / "gaussmark_lib" / "runs")
    ended = subprocess.Popen(["true"])
    ended.wait()
    places = [("00_x", ".ab12.partial"), ("00_x", ".ab12.old"), (".", ".tour-1.partial")]
    mine, left = (
        [
            tmp_path / "papermill_runs" / where / f"{name}-0123abcd-{pid}-f00ba4"
            for where, name in places
        ]
        for pid in (os.getpid(), ended.pid)
    )
    kept = [tmp_path / "papermill_runs" / "00_x" / "cd34", *mine]
    for folder in [*kept, *left, tmp_path / "papermill_runs" / "00_x" / "ef56.failed"]:
        folder.mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    there = {path for path in (tmp_path / "papermill_runs").rglob("*") if path.name != "00_x"}
    assert there == set(kept)


def test_make_clean_says_so():
    recipe = (paths.ROOT / "Makefile").read_text().partition("\nclean:")[2]
    assert "$(PYTHON) gaussmark_lib/runs/sockets.py" in recipe
