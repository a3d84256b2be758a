"""A separate JupyterLab for the browser tests, and the playground's app: with new settings, new
state and a free port, and removed afterwards.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from sweep_places import until

TOKEN = "for-tests-only"
PATIENCE = 180_000  # ms; a busy machine is slow
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes": {"theme": "JupyterLab Light"},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running JupyterLab: its address, and the folder whose notebooks it opens."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    options = [
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.port_retries=0",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
    ]
    with running("jupyterlab", *options, home=home) as address:
        yield address.partition("/lab")[0], folder


@pytest.fixture(scope="module")
def open_and_run(lab: tuple[str, Path], browser: Browser) -> Iterator[Callable[[str], Page]]:
    """A function that opens a notebook of the lab's folder in a new page, runs all its cells, and
    returns the page when the kernel is done.
    """
    address, _ = lab
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)

    def open_and_run(notebook: str) -> Page:
        page = context.new_page()
        page.goto(f"{address}/lab/tree/{notebook}?reset&token={TOKEN}")
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        session = "window.jupyterapp?.shell.currentWidget?.sessionContext"
        page.wait_for_function(f"{session}?.session?.kernel?.status === 'idle'")
        page.evaluate(
            "async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells') }"
        )
        return page

    yield open_and_run
    context.close()


@pytest.fixture(params=["light", "dark"])
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address at which ``gaussmark playground`` runs, in each theme."""
    words = ["playground", "--no-browser", "--theme", request.param]
    with running("gaussmark_lib.workbench.cli", *words, home=tmp_path) as address:
        yield address


@contextmanager
def running(module: str, *options: str, home: Path) -> Iterator[str]:
    """Run a Python module as a server with its own Jupyter folders. Yield the address that it
    prints when it is up.
    """
    # a free port, which the system chooses
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        options = (*options, f"--port={probe.getsockname()[1]}")
    kinds = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    env = os.environ | {f"JUPYTER_{kind}": str(home / kind.lower()) for kind in kinds}
    env |= {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    log = home / "log"

    def address() -> re.Match | None:
        assert server.poll() is None, "it ended at once:\n" + log.read_text()
        return re.search(r"http://127\.0\.0\.1:\d+\S*(?=\s)", log.read_text())

    command = [sys.executable, "-m", module, *options]
    with (
        log.open("w") as file,
        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=file) as server,
    ):
        try:
            yield until(address, seconds=PATIENCE / 1000)[0]
        finally:
            server.terminate()  # the server then ends its kernels
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
