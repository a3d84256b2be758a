"""``gaussmark playground``: the panel of notebook 11 as an app, without its code. Voila serves it
to this machine alone, behind a secret address.
"""

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from gaussmark_lib import paths
from gaussmark_lib.cli.arguments import command
from gaussmark_lib.errors import GaussMarkError

NOTEBOOK = paths.NOTEBOOKS / "11_playground.ipynb"
APP = paths.CACHE / "playground.ipynb"
OPTIONS = [
    "--Voila.ip=127.0.0.1",
    "--Voila.auto_token=True",
    "--KernelManager.transport=ipc",
    "--VoilaConfiguration.show_tracebacks=True",
]
OPTIONS += ["--VoilaConfiguration.template=gaussmark"]
# Voila's own page, without the two style sheets of icons that it asks of the network and the panel
# has no use for.
PAGE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{%- block notebook_css -%}{{ super() \
| replace('https://cdn.jsdelivr.net/', 'data:text/css,') }}{%- endblock notebook_css -%}
"""
HEADING = (
    "# Playground\n\nWrite text with a watermark, and test any text for it. Notebook 11 explains"
    " each part; Ctrl-C in the terminal ends the app."
)


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    added = command(
        commands, "playground", _playground, "open the playground in the browser, as an app"
    )
    added.add_argument(
        "--port",
        type=int,
        default=8866,
        help="where it is served on this machine (8866, or one near it that is free)",
    )
    added.add_argument(
        "--theme", choices=("light", "dark"), default="light", help="colours of its page (light)"
    )
    added.add_argument("--no-browser", action="store_true", help="print its address alone")


def _playground(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.port <= 65535:
        raise GaussMarkError(f"--port: expected a number from 1 to 65535, got {arguments.port}")
    if importlib.util.find_spec("voila") is None:
        raise GaussMarkError(
            "expected the package voila, which serves the playground, found none; install it, as"
            " `make playground` does"
        )
    APP.parent.mkdir(parents=True, exist_ok=True)
    APP.write_text(
        json.dumps(app(json.loads(NOTEBOOK.read_text(encoding="utf-8")))), encoding="utf-8"
    )
    template = APP.parent / "voila" / "templates" / "gaussmark"
    template.mkdir(parents=True, exist_ok=True)
    (template / "conf.json").write_text('{"base_template": "lab"}', encoding="utf-8")
    (template / "index.html.j2").write_text(PAGE, encoding="utf-8")
    os.environ["JUPYTER_PATH"] = os.pathsep.join(
        [str(APP.parent), *filter(None, [os.environ.get("JUPYTER_PATH")])]
    )
    words = [
        "voila",
        str(APP),
        *OPTIONS,
        f"--port={arguments.port}",
        f"--VoilaConfiguration.theme={arguments.theme}",
    ]
    words += ["--no-browser"] * arguments.no_browser
    os.execv(
        sys.executable, [sys.executable, "-m", *words]
    )  # so that whoever ends this command ends the server and its kernels


def app(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook's code up to its panel, with nothing shown before that. It runs in the
    notebooks' folder, where the panel saves its files.
    """
    code = [cell for cell in up_to_panel(notebook)["cells"] if cell["cell_type"] == "code"]
    for cell in code[:-1]:
        cell["source"] = ["%%capture\n", *cell["source"]]
    there = {
        "cell_type": "code",
        "id": "there",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
    }
    there["source"] = [f"import os\n\nos.chdir({os.fspath(paths.NOTEBOOKS)!r})"]
    heading = {"cell_type": "markdown", "id": "heading", "metadata": {}, "source": [HEADING]}
    return notebook | {"cells": [heading, there, *code]}


def up_to_panel(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook as far as the cell that makes the panel."""
    last = next(
        i
        for i, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code" and "Panel(" in "".join(cell["source"])
    )
    return notebook | {"cells": notebook["cells"][: last + 1]}
