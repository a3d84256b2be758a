"""Runs a notebook's cells in a kernel that uses this interpreter and has always ended afterwards.

"python3" is looked up by name among the machine's kernels, so a notebook may end up in another
environment than the one it was started from; and a Ctrl-C in the middle of an event loop leaves its
tasks behind. So the kernel here is made from ``sys.executable`` and talks over ipc (sockets in a
private folder: no port to collide on, none that another user can reach), and papermill runs in a
thread of its own: an interruption kills the kernel, papermill sees it die, and ends as it does for
any dead kernel.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop, run_sync

from gaussmark_lib.runs import forked, sockets

SKIP_TAG = "nbval-skip"  # exercises: they fail until a reader has solved them
logging.getLogger("papermill").addHandler(
    logging.NullHandler()
)  # what goes wrong is raised; without a handler it is printed as well


class Kernel(AsyncKernelManager):
    """One kernel process of this interpreter, with an environment and a working directory of its
    own.
    """

    def __init__(self, private: str, env: dict[str, str], folder: Path, source: str):
        super().__init__(transport="ipc", connection_file=os.path.join(private, "kernel.json"))
        self.launch = {"env": env, "cwd": str(folder)}
        self.source = source
        self.clients: list[AsyncKernelClient] = []

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict() | {"metadata": forked.metadata(self.source)})

    async def start_kernel(self, **options: Any) -> None:
        await super().start_kernel(**(options | self.launch))

    def client(self, **options: Any) -> AsyncKernelClient:
        self.clients.append(super().client(**options))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            client.stop_channels()
        await self.shutdown_kernel()

    def kill(self) -> None:
        """Ends the process and whatever it started; from any thread, at any time, any number of
        times.
        """
        with suppress(AttributeError, ProcessLookupError):  # not started yet, or gone already
            os.killpg(
                self.provisioner.process.pid, signal.SIGKILL
            )  # a kernel leads its own process group


def execute(
    path: Path,
    parameters: Mapping[str, Any],
    *,
    folder: Path,
    env: Mapping[str, str],
    progress: dict | bool,
    wanted: Callable[[], bool],
) -> None:
    """Executes the notebook at ``path`` in place, and saves it after every cell.

    Args:
        parameters: injected after the cell tagged ``parameters``.
        folder: where the cells run; the caller's own working directory stays as it is.
        env: added to the environment of the kernel, and of nothing else.
        progress, wanted: as for ``runs.run``; a caller that cannot receive a Ctrl-C has ``wanted``
            say no.

    Raises:
        papermill.PapermillExecutionError: a cell raised.
        nbclient.exceptions.DeadKernelError: the kernel died, for lack of memory for example.
        KeyboardInterrupt: as it came in the caller's thread, or because the answer is not wanted
            any more.
    """
    with sockets.folder() as private, ThreadPoolExecutor(1) as pool:
        kernel = Kernel(private, {**os.environ, **env}, folder, path.read_text(encoding="utf-8"))
        job = pool.submit(_execute, kernel, path, dict(parameters), progress)
        try:
            while wait([job], timeout=0.5).not_done:
                if not wanted():
                    raise KeyboardInterrupt("not wanted any more")
            job.result()
        except BaseException:
            while wait([job], timeout=0.1).not_done:
                kernel.kill()  # again and again: the thread may be just about to start it
            raise


def _execute(kernel: Kernel, path: Path, parameters: dict[str, Any], progress: dict | bool) -> None:
    name = str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
    patience = {
        "start_timeout": 300,
        "iopub_timeout": 60,
    }  # seconds; a busy machine is slow, and a dead kernel is seen at once
    settings = {
        "kernel_name": "python3",
        "language": "python",
        "km": kernel,
        "skip_cells_with_tag": SKIP_TAG,
        "progress_bar": progress,
    }
    try:
        notebook = papermill.execute_notebook(name, name, parameters, **settings, **patience)
    finally:
        run_sync(kernel.stop)()
        ensure_event_loop().close()
    notebook.metadata.papermill.update(
        input_path=path.name, output_path=path.name
    )  # the folder will get another name
    nbformat.write(notebook, path)
    if notebook.metadata.papermill.exception:  # sys.exit(0), which papermill takes for success
        raise RuntimeError("a cell left the notebook before its end")


def mark_stopped(path: Path, error: BaseException) -> tuple[str | None, str]:
    """Marks in the notebook the cell where an error stopped it; returns its first line (None if no
    cell had begun) and the reason.

    Papermill calls cells complete that never ran, and knows nothing of a dead kernel or an
    interruption.
    """
    name, text = (
        getattr(error, "ename", type(error).__name__),
        getattr(error, "evalue", str(error)),
    )  # of the cell's own error, if it raised one
    reason = f"{name}: {text}" if text else name
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return None, reason
    begun = [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not begun:
        return None, reason
    stopped = notebook.cells[begun[-1]]
    for cell in notebook.cells[begun[-1] :]:
        cell.metadata.papermill["status"] = "failed" if cell is stopped else "pending"
    if not any(output.output_type == "error" for output in stopped.outputs):
        stopped.outputs.append(
            nbformat.v4.new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
        )
    notebook.metadata.papermill.update(input_path=path.name, output_path=path.name)
    with suppress(OSError):  # a full disk is what stopped it, and why must still be said
        nbformat.write(notebook, path)
    return stopped.source.strip().partition("\n")[0], reason


def traceback(path: Path) -> str:
    """The last traceback that the notebook at ``path`` shows, without colours; empty if there is
    none.
    """
    from nbconvert.filters import (
        strip_ansi,
    )  # here, because it takes a second and most runs do not fail

    cells = nbformat.read(path, as_version=4).cells
    errors = [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    return strip_ansi("\n".join(errors[-1].traceback)) if errors else ""
