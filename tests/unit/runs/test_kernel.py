"""A kernel that dies is named, with its likely reason, in whatever way and whenever it dies."""

import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from jupyter_core.utils import run_sync
from small_notebooks import code, parameters, write

from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import forks, kernel

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    pytest.mark.usefixtures("same_library"),
]

TORCH = "# torch"  # makes it a fork, on Linux
PLAIN = "# none"
DIES_LATER = """
import os, threading, time
def later(*_): threading.Timer(0.03, os.kill, [os.getpid(), 9]).start()
get_ipython().events.register("post_run_cell", later)
"""


@pytest.fixture(params=[PLAIN, TORCH])
def kind(request, monkeypatch):
    """Both kinds of kernels."""
    if request.param == TORCH and sys.platform != "linux":
        pytest.skip("kernels are forks on Linux only")
    monkeypatch.setattr(forks, "_of_server", None)  # whatever variables another test began with
    return request.param


@pytest.fixture
def started(monkeypatch):
    """``started(action)``: called with each kernel's process as soon as it is there."""

    def put(action):
        start = kernel.Kernel.start_kernel

        async def start_and_act(self, **options):
            await start(self, **options)
            action(self.provisioner.process)

        monkeypatch.setattr(kernel.Kernel, "start_kernel", start_and_act)

    return put


WAITS = "open('began', 'w').close(); import time; time.sleep(60)"


def _once_it_waits(folder: Path, action) -> None:
    """Calls ``action()`` as soon as a notebook in this folder is in a cell that ``WAITS``."""

    def act():
        while not (folder / "began").exists():
            time.sleep(0.05)
        time.sleep(1)  # so that the memory in use is read at least once more
        action()

    threading.Thread(target=act, daemon=True).start()


def _reason(folder: Path, *sources: str) -> str:
    """Why a notebook with these cells failed."""
    notebook = write(folder / "demo.ipynb", parameters(), *map(code, sources))
    with pytest.raises(runs.RunFailedError) as caught:
        runs.run(notebook, progress=False, root=folder / "runs")
    status = json.loads((caught.value.dir / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["error"] in caught.value.reason
    return caught.value.reason


def test_both_kinds_are_tested(tmp_path, kind, started):
    processes = []
    started(processes.append)
    hears = "import signal\nassert 2 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  "
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(hears + kind))
    runs.run(notebook, progress=False, root=tmp_path / "runs")
    assert [isinstance(process, forks.Fork) for process in processes] == [kind == TORCH]


@pytest.mark.parametrize(
    ("death_of_cell", "said"),
    [
        ("os.kill(os.getpid(), 9)", "killed by signal 9); this is usually a lack of memory: up to"),
        ("os.kill(os.getpid(), 15); os.wait()", "killed by signal 15); another process, or"),
        ("os.kill(os.getpid(), 11)", "killed by signal 11); a compiled library crashed in it."),
        ("os._exit(3)", "exit code 3); a cell, or a library that it uses, ended the process"),
    ],
)
def test_a_kernel_that_dies_in_a_cell(tmp_path, kind, death_of_cell, said):
    reason = _reason(tmp_path, kind, f"import os; {death_of_cell}", "never = 1")
    assert reason.startswith(f"in cell `import os; {death_of_cell}`: the kernel died ({said}")


def test_a_kernel_that_dies_between_two_cells(tmp_path, kind):
    reason = _reason(tmp_path, kind, DIES_LATER, "time.sleep(9)")
    assert "in cell `time.sleep(9)`: the kernel died (killed by signal 9)" in reason


@pytest.mark.parametrize("seconds", [0, 0.5])
def test_a_kernel_that_dies_while_it_starts(tmp_path, kind, started, seconds):
    def kill(process):
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)

    started(kill)
    assert _reason(tmp_path, kind).startswith("the kernel died while it started (killed by sig")


def test_a_kernel_that_does_not_answer_is_not_called_dead(tmp_path, started, monkeypatch):
    monkeypatch.setattr(kernel, "START_TIMEOUT", 1)
    started(lambda process: os.kill(process.pid, signal.SIGSTOP))
    assert _reason(tmp_path, PLAIN) == "RuntimeError: Kernel didn't respond in 1 seconds"


def test_an_error_of_a_cell_is_told_before_the_death_of_its_kernel(tmp_path):
    dies_late = DIES_LATER.replace("0.03", "0.5")  # seconds: a busy machine is slow
    assert "ZeroDivisionError" in _reason(tmp_path, dies_late + "1 / 0")


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux only")
def test_the_fork_server_may_be_killed(tmp_path, monkeypatch):
    def kill_server(*_):
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)

    monkeypatch.setattr(forks, "_of_server", None)
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(TORCH))
    runs.run(notebook, {"x": 2}, progress=False, root=tmp_path / "runs")
    kill_server()  # the next kernel is another process, or a fork of another server
    runs.run(notebook, {"x": 3}, progress=False, root=tmp_path / "runs")
    runs.run(notebook, {"x": 4}, progress=False, root=tmp_path / "runs")
    _once_it_waits(tmp_path, kill_server)
    reason = _reason(tmp_path, TORCH, WAITS)
    assert "the kernel died (exit code 255); the process that kernels are forked from was" in reason


def test_a_server_that_does_not_answer_is_done_without(tmp_path, started, monkeypatch):
    def none(self):
        raise EOFError("unexpected EOF")

    processes = []
    started(processes.append)
    monkeypatch.setattr(forks, "_of_server", None)
    monkeypatch.setattr(forks.Fork, "start", none)
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(TORCH))
    assert not runs.run(notebook, progress=False, root=tmp_path / "runs").cached
    assert [isinstance(process, forks.Fork) for process in processes] == [False]


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux only")
def test_an_interrupted_start_does_not_wait_for_the_imports_of_the_server(monkeypatch):
    def none(self):
        raise EOFError("unexpected EOF")

    server = subprocess.Popen(["sleep", "600"])
    made = SimpleNamespace(_forkserver_pid=server.pid)
    monkeypatch.setattr(multiprocessing.forkserver, "_forkserver", made)
    interrupted = kernel.Kernel("", {}, Path(), TORCH)
    monkeypatch.setattr(forks, "_has_forked", True)  # other kernels may live in it
    interrupted.kill()
    assert server.poll() is None
    monkeypatch.setattr(forks, "_has_forked", False)
    interrupted.kill()
    assert server.wait(10) == -signal.SIGKILL
    monkeypatch.setattr(forks, "_of_server", None)
    monkeypatch.setattr(forks.Fork, "start", none)
    with pytest.raises(EOFError):
        run_sync(interrupted.provisioner.launch_kernel)([], cwd="", env=dict(os.environ))


def test_a_signal_to_a_fork_that_has_ended_is_no_error(monkeypatch):
    """As of a ``subprocess.Popen``, for which a provisioner takes it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(forks.Fork, "pid", ended.pid)
    forks.Fork([], "", {}).send_signal(signal.SIGTERM)


def test_the_most_memory_in_use_is_told(tmp_path, monkeypatch, started):
    """Also when it is free again: a process that is gone has none."""
    readings = iter([3, 2**34, *[5] * 1000])
    monkeypatch.setattr(kernel, "memory_in_use", lambda: next(readings))
    started(lambda process: _once_it_waits(tmp_path, lambda: os.kill(process.pid, 9)))
    reason = _reason(tmp_path, PLAIN, WAITS)
    total = psutil.virtual_memory().total / 2**30
    assert f"lack of memory: up to 16.0 of {total:.1f} GiB were in use" in reason
    assert "Choose a smaller model, a smaller batch, or another dtype" in reason


def test_the_start_of_a_fork_leaves_the_modules_of_other_threads():
    script = sys.modules["__main__"]
    with forks.empty_main():
        assert sys.modules["__main__"] is not script
        sys.modules["imported meanwhile"] = script
    assert sys.modules["__main__"] is script
    assert sys.modules.pop("imported meanwhile") is script


def test_memory_in_use():
    assert 0 < kernel.memory_in_use() < psutil.virtual_memory().total
