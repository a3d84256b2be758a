"""Kernels that begin with torch, transformers and their like imported: a server imports them once,
and forks a process for each kernel.

Importing takes a notebook seven seconds of its minute; a tour or a sweep starts many. The server
imports packages of others only, so a kernel never runs an older state of this library. It ends with
the process that asked for it, and so do its kernels. Used on Linux; elsewhere a process is not safe
to fork after such imports, and a kernel begins from nothing.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib.metadata import EntryPoint
from typing import Any, NoReturn

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

NAME = "gaussmark-forked"
PRELOADED = [
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "pandas",
    "scipy.stats",
    "seaborn",
    "sklearn.metrics",
    "torch",
    "datasets",
    "pydantic",
    "ipywidgets",
    "transformers.models.auto.modeling_auto",
    "transformers.modeling_utils",
    "transformers.generation",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
]
READ_AT_IMPORT = (
    "ATEN_",
    "CUDA_",
    "HF_",
    "LD_",
    "MKL_",
    "MPL",
    "OMP_",
    "OPENBLAS_",
    "PATH",
    "PYTHON",
    "TORCH",
    "TRANSFORMERS_",
)
_lock = threading.Lock()


def metadata(source: str) -> dict[str, Any]:
    """What a kernel's specification says so that jupyter_client starts it by :class:`Forked`;
    nothing where that is not safe, or not worth it.

    A notebook is taken to import torch where its ``source`` names it or the library's ``models``: a
    guess, on which only time depends.
    """
    if sys.platform != "linux" or not re.search(r"\b(torch|models)\b", source):
        return {}
    KernelProvisionerFactory.instance().provisioners[NAME] = EntryPoint(
        NAME, f"{__name__}:{Forked.__name__}", KernelProvisionerFactory.GROUP_NAME
    )
    return {"kernel_provisioner": {"provisioner_name": NAME}}


class Forked(LocalProvisioner):
    """Starts a kernel by asking the server; all else is as for a kernel that is a child of this
    process.
    """

    async def launch_kernel(self, cmd: list[str], **options: Any) -> dict[str, Any]:
        self.process = Process(Server.of_now().fork(cmd, str(options["cwd"]), options["env"]))
        self.pid = self.pgid = self.process.pid  # it leads its own session
        return self.connection_info


class Process:
    """What a provisioner asks of a ``subprocess.Popen``, for a process that is not our child: its
    exit status is not known to us.
    """

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 1
        return None

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.05)
        return 1

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # as Popen does
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Server:
    """The client's side of the server: a process to which each line says what kernel to fork, and
    which answers with its number.
    """

    current: "Server | None" = None

    def __init__(self):
        command = [
            sys.executable,
            "-P",
            __file__,
            # by its file, so that nothing of this library is imported; -P: its folder hides no
            # module
        ]
        self.environment = _read_at_import()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @classmethod
    def of_now(cls) -> "Server":
        """The running server; a new one where there is none, or where the environment says what
        packages read when they are imported.
        """
        with _lock:
            if (
                cls.current is None
                or cls.current.process.poll() is not None
                or cls.current.environment != _read_at_import()
            ):
                if cls.current:
                    cls.current.end()
                cls.current = cls()
            return cls.current

    def fork(self, command: list[str], folder: str, environment: dict[str, str]) -> int:
        with _lock:
            self.process.stdin.write(json.dumps([command, folder, environment]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            from gaussmark_lib.errors import (
                GaussMarkError,
            )  # here, because the server itself imports nothing of this library

            raise GaussMarkError(
                "expected a kernel, but the process that starts them ended while it imported its"
                " packages; its last words stand above"
            )
        return int(answer)

    def end(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def _read_at_import() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}


def serve() -> None:
    """The server: imports, then forks a kernel for each line of stdin, until the process that
    writes them is gone.
    """
    os.environ["JPY_PARENT_PID"] = str(
        os.getpid()
    )  # read when ipykernel is imported: a kernel ends with this process
    os.environ.setdefault(
        "MPLBACKEND", "module://matplotlib_inline.backend_inline"
    )  # read when matplotlib is imported
    for module in PRELOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no kernel stays as a zombie
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_kernel(*json.loads(line))
        print(pid, flush=True)
    os._exit(0)  # at once: nothing here needs to be ended


def _become_kernel(command: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """What the command ``python -m ipykernel_launcher …`` does, in this process."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # the server's stdout carries its answers
        os.environ |= environment | {"JPY_PARENT_PID": str(os.getppid())}
        os.chdir(folder)
        sys.path.insert(0, "")
        sys.argv = command[command.index("-m") + 1 :]
        sys.modules["ipykernel.kernelapp"].launch_new_instance(argv=sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    serve()
