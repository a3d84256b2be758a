"""Runs a notebook's cells in a kernel that uses this interpreter and has always ended afterwards.

The kernel is made from ``sys.executable``, because "python3" may name another environment; it talks
over ipc, in a private folder that no other user can reach. Papermill runs in a thread: an
interruption kills the kernel, papermill sees it die, and ends as it does for any dead kernel.
"""

import logging
import os
import signal
import tempfile
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

from gaussmark_lib.runs import forked

SKIP_TAG = "nbval-skip"  # exercises: they fail until a reader has solved them
# what goes wrong is raised; without a handler it is printed as well
logging.getLogger("papermill").addHandler(logging.NullHandler())


class Kernel(AsyncKernelManager):
    """A kernel process of this interpreter, with its own environment and working directory."""

    def __init__(self, private: str, env: dict[str, str], folder: Path, source: str):
        super().__init__(transport="ipc", connection_file=os.path.join(private, "kernel.json"))
        self.launch = {"env": env, "cwd": str(folder)}
        self.clients: list[AsyncKernelClient] = []
        if forked.is_worth_it(source):
            self.provisioner = forked.Provisioner(kernel_spec=self.kernel_spec, parent=self)

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
        await self.shutdown_kernel()

    def kill(self) -> None:
        """Ends the process and whatever it started; from any thread, any number of times."""
        with suppress(AttributeError, TypeError, ProcessLookupError):  # not started yet, or gone
            os.killpg(self.provisioner.process.pid, signal.SIGKILL)  # it leads a process group


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
        folder: where the cells run.
        env: added to the environment of the kernel.
        progress, wanted: as for ``runs.run``.

    Raises:
        papermill.PapermillExecutionError: a cell raised.
        nbclient.exceptions.DeadKernelError: the kernel died, for lack of memory for example.
        KeyboardInterrupt: as it came in the caller's thread, or because the answer is not wanted
            any more.
    """
    private = tempfile.TemporaryDirectory(prefix="gaussmark-kernel-")
    with private, ThreadPoolExecutor(1) as pool:
        source = path.read_text(encoding="utf-8")
        kernel = Kernel(private.name, {**os.environ, **env}, folder, source)
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
            start_timeout=300,  # seconds; a busy machine is slow, a dead kernel is seen at once
            iopub_timeout=60,
        )
    finally:
        run_sync(kernel.stop)()
        ensure_event_loop().close()
    _write(notebook, path)
    if notebook.metadata.papermill.exception:  # sys.exit(0), which papermill takes for success
        raise RuntimeError("a cell left the notebook before its end")


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Without the folder's name, which will be another one."""
    notebook.metadata.papermill.update(input_path=path.name, output_path=path.name)
    nbformat.write(notebook, path)


def mark_stopped(path: Path, error: BaseException) -> tuple[str | None, str]:
    """Marks in the notebook the cell where an error stopped it; returns its first line (None if no
    cell had begun) and the reason.

    Papermill calls cells complete that never ran, and knows nothing of a dead kernel.
    """
    name, text = (  # of the cell's own error, if it raised one
        getattr(error, "ename", type(error).__name__),
        getattr(error, "evalue", str(error)),
    )
    reason = f"{name}: {text}" if text else name
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return None, reason
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begun = [
        i for i, cell in enumerate(code) if cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not begun:
        return None, reason
    stopped, *pending = code[begun[-1] :]
    for cell in (stopped, *pending):
        cell.metadata.papermill["status"] = "failed" if cell is stopped else "pending"
    if not _errors([stopped]):
        stopped.outputs.append(
            nbformat.v4.new_output("error", ename=name, evalue=text, traceback=[reason])
        )
    with suppress(OSError):  # a full disk is what stopped it, and the reason must still be told
        _write(notebook, path)
    return stopped.source.strip().partition("\n")[0], reason


def traceback(path: Path) -> str:
    """The last traceback that the notebook at ``path`` shows, without colours; or nothing."""
    from nbconvert.filters import strip_ansi  # a second, and most runs do not fail

    errors = _errors(nbformat.read(path, as_version=4).cells)
    return strip_ansi("\n".join(errors[-1].traceback)) if errors else ""


def _errors(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    return [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
