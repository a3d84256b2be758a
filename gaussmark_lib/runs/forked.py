"""Kernels that begin with torch, transformers and their like imported: multiprocessing's fork
server imports them once, and each kernel is a fork of it.

The imports take a plain kernel seven seconds. The server imports no module of this library, so a
kernel always runs the library's present state. Linux only: elsewhere a process is not safe to fork
after such imports.
"""

import multiprocessing
import os
import re
import sys
import threading
from types import ModuleType
from typing import Any
from unittest.mock import patch

from jupyter_client.provisioning import LocalProvisioner

PRELOADED = [
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "scipy.stats",
    "seaborn",
    "sklearn.metrics",
    "torch",
    "datasets",
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


def is_worth_it(source: str) -> bool:
    """Whether a notebook with this source is likely to import torch, and may be a fork here."""
    return (
        sys.platform == "linux"
        and bool(re.search(r"\b(torch|models)\b", source))
        and not multiprocessing.current_process().daemon  # which may have no children
    )


class Provisioner(LocalProvisioner):
    """Starts a kernel as a fork, or as a new process where the server has other variables."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> dict[str, Any]:
        global _of_server
        _of_server = _of_server or _read_at_import(os.environ)
        if _read_at_import(options["env"]) != _of_server:
            return await super().launch_kernel(cmd, **options)
        self.process = Kernel(cmd, str(options["cwd"]), options["env"])
        CONTEXT.set_forkserver_preload(PRELOADED)
        # with an empty __main__: the fork would import the caller's script
        with _lock, patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
            self.process.start()
        self.pid = self.pgid = self.process.pid  # it leads its own session
        return self.connection_info


class Kernel(CONTEXT.Process):
    """A kernel process, with what a provisioner asks of a ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], folder: str, environment: dict[str, str]):
        super().__init__()
        self.command, self.folder, self.environment = command, folder, environment

    def run(self) -> None:
        """What ``python -m ipykernel_launcher …`` does, in this process."""
        import matplotlib
        from ipykernel.kernelapp import launch_new_instance

        os.setsid()
        os.chdir(self.folder)
        os.environ.update(self.environment)
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
        os.kill(self.pid, number)


def _read_at_import(environment: Any) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(READ_AT_IMPORT)}
