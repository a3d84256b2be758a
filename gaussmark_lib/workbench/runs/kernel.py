"""Run a notebook's cells in a kernel that uses this interpreter and has always ended afterwards.

The kernel is made from ``sys.executable``, because "python3" may name another environment. It
communicates over ipc, in a private folder that no other user can reach. Papermill runs in a thread:
an interruption kills the kernel, and papermill ends as it does for any dead kernel.

On Linux, the kernel of a notebook that imports torch is a fork (``forks``).
"""

import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import papermill
import psutil
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop, run_sync
from nbclient.exceptions import DeadKernelError
from tqdm import tqdm

from gaussmark_lib.errors import GaussMarkError, KernelDiedError
from gaussmark_lib.workbench.runs import death
from gaussmark_lib.workbench.runs.forks import ForkProvisioner, end_slow_server, may_fork

START_TIMEOUT = 300  # seconds; a busy machine is slow, a dead kernel is seen at once
SKIP_TAG = "nbval-skip"  # exercises: they fail until a reader has solved them
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal
# errors are raised; without a handler papermill would print them as well
logging.getLogger("papermill").addHandler(logging.NullHandler())


class Provisioner(ForkProvisioner):
    """Remembers how the kernel ended.

    Attributes:
        exit_code: of a kernel that ended before it was asked to.
    """

    exit_code: int | None = None

    async def poll(self) -> int | None:
        code = await super().poll()
        if self.has_process and not self.parent.shutting_down:
            self.exit_code = code
        return code


class Kernel(AsyncKernelManager):
    """A kernel process of this interpreter, with its own environment and working directory."""

    def __init__(self, private: str, env: dict[str, str], folder: Path, source: str):
        super().__init__(transport="ipc", connection_file=os.path.join(private, "kernel.json"))
        self.launch = {"env": env, "cwd": str(folder)}
        self.clients: list[AsyncKernelClient] = []
        self.most_memory = 0  # bytes in use on this machine while it runs
        self.provisioner = Provisioner(kernel_spec=self.kernel_spec, parent=self)
        self.provisioner.may_fork = may_fork(source)

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())

    async def start_kernel(self, **options: Any) -> None:
        await super().start_kernel(**(options | self.launch))

    def client(self, **options: Any) -> AsyncKernelClient:
        self.clients.append(super().client(**options))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            client.stop_channels()
        if await self.is_alive():
            await self.shutdown_kernel()
        else:  # a dead kernel cannot be asked to shut down
            await self.cleanup_resources()

    def kill(self) -> None:
        """End the process and its children; from any thread, any number of times."""
        self.provisioner.is_wanted = False
        if self.provisioner.process is None:
            end_slow_server()
        with suppress(AttributeError, TypeError, ProcessLookupError):  # not started yet, or gone
            os.killpg(self.provisioner.process.pid, signal.SIGKILL)  # it leads a process group


def memory_in_use() -> int:
    """Return the bytes of this machine's memory that are not available to a new process."""
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def execute(
    path: Path,
    parameters: Mapping[str, Any],
    *,
    folder: Path,
    env: Mapping[str, str],
    progress: dict | bool,
    wanted: Callable[[], bool],
) -> None:
    """Execute the notebook at ``path`` in place, and save it after every cell.

    Args:
        parameters: injected after the cell tagged ``parameters``.
        folder: the working directory of the cells.
        env: added to the environment of the kernel.
        progress: tqdm's options for a bar over the cells.
        wanted: as for ``runs.run``.

    Raises:
        papermill.PapermillExecutionError: a cell raised.
        KernelDiedError: the kernel's process ended, for example for lack of memory.
        KeyboardInterrupt: raised in the caller's thread, or because the answer is no longer wanted.
    """
    private = tempfile.TemporaryDirectory(prefix="gaussmark-kernel-")
    with private, ThreadPoolExecutor(1) as pool:
        source = path.read_text(encoding="utf-8")
        kernel = Kernel(
            private=private.name,
            env={**os.environ, **env},
            folder=folder,
            source=source,
        )
        job = pool.submit(_execute, kernel, path, dict(parameters), progress)
        try:
            while wait([job], timeout=0.5).not_done:
                kernel.most_memory = max(kernel.most_memory, memory_in_use())
                if not wanted():
                    raise KeyboardInterrupt("no longer wanted")
                if sys.stderr.isatty():
                    for bar in list(tqdm._instances):
                        bar.refresh()  # its clock, inside a long cell
            job.result()
        except BaseException:
            while wait([job], timeout=0.1).not_done:
                kernel.kill()  # repeatedly: the thread may be just about to start the kernel
            raise


def _execute(kernel: Kernel, path: Path, parameters: dict[str, Any], progress: dict | bool) -> None:
    name = str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
    try:
        notebook = papermill.execute_notebook(
            name,
            name,
            parameters,
            kernel_name="python3",
            language="python",
            km=kernel,
            skip_cells_with_tag=SKIP_TAG,
            progress_bar=progress,
            start_timeout=START_TIMEOUT,
            iopub_timeout=60,
        )
    except (DeadKernelError, RuntimeError) as error:
        exit_code = kernel.provisioner.exit_code
        if exit_code is None:
            raise
        when = "" if isinstance(error, DeadKernelError) else " while it started"
        raise KernelDiedError(death.explained(exit_code, kernel.most_memory, when)) from error
    finally:
        run_sync(kernel.stop)()
        ensure_event_loop().close()
    # without the folder, whose name will change
    notebook.metadata.papermill.update(input_path=path.name, output_path=path.name)
    nbformat.write(notebook, path)
    # after sys.exit(0), papermill reports success
    if notebook.metadata.papermill.exception:
        raise RuntimeError("a cell left the notebook before its end")


class Stop(NamedTuple):
    """Why a notebook stopped, and the first line of the cell in which it stopped ("" if no cell
    began).
    """

    error: str
    cell: str
    traceback: str

    def __str__(self) -> str:
        return f"in cell `{self.cell}`: {self.error}" if self.cell else self.error


def where_it_stopped(path: Path, error: BaseException) -> Stop:
    """Return what stopped the notebook at ``path``: a cell's error, or the kernel's."""
    name = getattr(error, "ename", type(error).__name__)
    text = getattr(error, "evalue", str(error))
    reason = f"{name}: {text}" if text else name
    if isinstance(error, GaussMarkError):  # a sentence of this library, which needs no name
        reason = text
    traceback = "\n".join(getattr(error, "traceback", []))
    began = [
        cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]
    first_line = began[-1].strip().partition("\n")[0] if began else ""
    return Stop(reason, first_line, COLOURS.sub("", traceback))
