"""A JupyterLab of its own for the browser tests: fresh settings, fresh state, a free port, gone afterwards."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from playwright.sync_api import Browser, Page

TOKEN = "for-tests-only"
PATIENCE = 180_000  # ms; a busy machine is slow, a broken one is broken however long one waits
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
    with _server(home, folder) as address:
        yield address, folder


@pytest.fixture(scope="module")
def open_and_run(lab: tuple[str, Path], browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens a notebook of the lab's folder in a new page, runs all its cells, and returns when the kernel is done."""
    address, _ = lab
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(PATIENCE)

    def open_and_run(notebook: str) -> Page:
        page = context.new_page()
        page.goto(f"{address}/lab/tree/{notebook}?reset&token={TOKEN}")
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        session = "window.jupyterapp?.shell.currentWidget?.sessionContext"
        page.wait_for_function(f"{session}?.session?.kernel?.status === 'idle'")
        page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells') }")
        return page

    yield open_and_run
    context.close()


@contextmanager
def _server(home: Path, folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kinds = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    env = os.environ | {f"JUPYTER_{kind}": str(home / kind.lower()) for kind in kinds}
    env |= {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    options = [f"--port={port}", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}", "--ServerApp.port_retries=0"]
    options += ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    ready, log = Event(), []
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        Thread(target=_follow, args=(server.stderr, log, ready), daemon=True).start()
        try:
            assert ready.wait(PATIENCE / 1000), "JupyterLab did not start:\n" + "".join(log)
            assert server.poll() is None, "JupyterLab ended at once:\n" + "".join(log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()  # and it ends its kernels
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _follow(stream, log: list[str], ready: Event) -> None:
    """Keeps the server's messages (a full pipe would stop it), and says when it is up, or gone."""
    for line in stream:
        log.append(line)
        if re.search(r"is running at", line):
            ready.set()
    ready.set()
