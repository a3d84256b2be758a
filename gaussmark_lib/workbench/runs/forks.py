"""Kernels as forks, on Linux. Multiprocessing's fork server imports torch, transformers and similar
packages once; a plain kernel takes seven seconds for these imports. The server does not import any
module of this library, so a kernel always runs the library's present state. Without this file,
every kernel would be a new process.
"""

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import ModuleType
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

PRELOADED = [
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "scipy.stats",
    "seaborn",
    "sklearn.metrics",
    "torch",
    "datasets",
    "numba",
    "papermill",
    "pydantic",
    "ipywidgets",
    "transformers.models.auto.modeling_auto",
    "transformers.generation",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
]
# variables that these packages read when they are imported
READ_AT_IMPORT = ("ATEN", "HF_", "LD_", "MKL", "MPL", "OMP", "OPENBLAS", "PYTHON", "TORCH")
CONTEXT = multiprocessing.get_context("forkserver")
_lock = threading.Lock()
_of_server: dict[str, str] | None = None  # these variables, when the server began
_has_forked = False  # or else the server may still import


class Fork(CONTEXT.Process):
    """A kernel that is a fork, with those methods of ``Popen`` that a provisioner calls."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], folder: str, environment: dict[str, str]):
        super().__init__()
        self.command = command
        self.folder = folder
        self.environment = environment

    def run(self) -> None:
        """Do what ``python -m ipykernel_launcher …`` does, in this process."""
        import matplotlib
        from ipykernel.kernelapp import launch_new_instance

        # the server ends with the last process that holds this end, and its kernels with it
        os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which the server blocks
        os.chdir(self.folder)
        os.environ.update(self.environment)
        if threads := self.environment.get("OMP_NUM_THREADS"):
            import torch

            torch.set_num_threads(int(threads))  # the server may have another number
        if "MPLBACKEND" not in os.environ:
            matplotlib.use("module://matplotlib_inline.backend_inline")
        sys.path.insert(0, "")
        sys.argv = self.command[self.command.index("-m") + 1 :]
        parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends with the server
        launch_new_instance(argv=[*sys.argv[1:], parent])

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(self.pid, number)


class ForkProvisioner(LocalProvisioner):
    """Starts a kernel as a fork if the kernel may be a fork, or as a new process. It is also a new
    process if the server has other variables, or was killed.
    """

    may_fork = False
    is_wanted = True  # until the run is interrupted

    async def launch_kernel(self, cmd: list[str], **options: Any) -> dict[str, Any]:
        global _of_server, _has_forked
        _of_server = _of_server or _read_at_import(os.environ)
        if not self.may_fork or _read_at_import(options["env"]) != _of_server:
            return await super().launch_kernel(cmd, **options)
        fork = Fork(cmd, str(options["cwd"]), options["env"])
        CONTEXT.set_forkserver_preload(PRELOADED)
        # A terminal's Ctrl-C also reaches the server, which would print where it was. The start of
        # the resource tracker, which would start with the server, unblocks the signal.
        resource_tracker.ensure_running()
        usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with _lock, empty_main():
                fork.start()
        except (EOFError, OSError):  # the server does not answer; a later start makes a new one
            if not self.is_wanted:
                raise
            return await super().launch_kernel(cmd, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual_mask)
        _has_forked = True
        self.process = fork
        self.pid = self.pgid = fork.pid  # it leads its own session
        return self.connection_info


@contextmanager
def empty_main() -> Iterator[None]:
    """Replace ``__main__`` inside the ``with``: otherwise a fork imports the caller's script. No
    other module is touched, because other threads go on, and may import some.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def end_slow_server() -> None:
    """Kill the server if it has made no fork yet: a start would wait for its imports. A later start
    makes a new server.
    """
    pid = multiprocessing.forkserver._forkserver._forkserver_pid
    if pid is not None and not _has_forked:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: "any" if name.endswith("_NUM_THREADS") else text
        for name, text in environment.items()
        if name.startswith(READ_AT_IMPORT)
    }


def may_fork(source: str) -> bool:
    """Return whether a notebook with this source probably imports torch, and may be a fork here."""
    return (
        sys.platform == "linux"  # elsewhere, forks are not safe after such imports
        and bool(re.search(r"\b(torch|gaussmark_lib|gaussmark_experiments)\b", source))
        and not multiprocessing.current_process().daemon  # a daemon may have no children
    )
