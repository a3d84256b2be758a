"""Kernels forked from a server that has imported what takes long."""

import os
import signal
import sys
import time

import pytest
from small_notebooks import code, write

from gaussmark_lib.runs import forked, kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")


@pytest.fixture(scope="module", autouse=True)
def _one_server():
    yield
    if forked.Server.current:
        forked.Server.current.end()


def _said(folder, source: str, **env: str) -> str:
    """What a notebook of one cell prints."""
    import nbformat

    path = write(folder / "one.ipynb", code(f"{source}  # worth it: torch"))
    kernel.execute(path, {}, folder=folder, env=env, progress=False, wanted=lambda: True)
    return nbformat.read(path, as_version=4).cells[-1].outputs[0].text.strip()


def test_a_kernel_has_torch_and_nothing_of_this_library(tmp_path):
    said = _said(
        tmp_path,
        "import sys\nprint('torch' in sys.modules, [name for name in sys.modules if"
        " name.startswith('gaussmark')])",
    )
    assert said == "True []"


def test_kernels_of_one_server_are_processes_with_an_environment_and_a_folder_of_their_own(
    tmp_path,
):
    source = (
        "import os\nprint(os.getpid(), os.getppid(), os.getpgid(0), os.environ['GAUSSMARK_TEST'],"
        " os.getcwd())"
    )
    first, second = (_said(tmp_path, source, GAUSSMARK_TEST=value).split() for value in ("a", "b"))
    assert first[0] == first[2] != second[0] == second[2], "each leads a process group"
    assert first[1] == second[1] == str(forked.Server.of_now().process.pid)
    assert (first[3], second[3], second[4]) == ("a", "b", str(tmp_path))


def test_what_is_read_at_import_makes_a_new_server(monkeypatch):
    before = forked.Server.of_now()
    assert forked.Server.of_now() is before
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert forked.Server.of_now() is not before


@pytest.mark.slow
def test_a_server_that_died_is_replaced(tmp_path):
    forked.Server.of_now().end()
    assert _said(tmp_path, "print(1)") == "1"


@pytest.mark.slow
def test_kernels_end_with_their_server(tmp_path):
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(tmp_path / "kernel.json")]
    process = forked.Process(forked.Server.of_now().fork(command, str(tmp_path), dict(os.environ)))
    assert process.poll() is None
    deadline = time.monotonic() + 30
    while not (tmp_path / "kernel.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(forked.Server.current.process.pid, signal.SIGKILL)
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.poll() is not None


def test_a_notebook_that_needs_no_torch_begins_from_nothing():
    assert forked.metadata("from gaussmark_lib import runs") == {}
    assert forked.metadata("from gaussmark_lib import models")
