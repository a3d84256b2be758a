"""``gaussmark run``, ``sweep`` and ``tour``: notebooks with checked parameters. And ``playground``:
the panel of notebook 11 as an app, which Voila serves to this machine alone.
"""

import importlib.util
import json
import os
import sys
from enum import StrEnum
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gaussmark_lib import files
from gaussmark_lib.cli import listing
from gaussmark_lib.cli.common import FAILED, Records, message
from gaussmark_lib.errors import GaussMarkError

if TYPE_CHECKING:
    from gaussmark_lib.runs.notebook import Notebook

BY_NAME = "or its name in papermill_runs/presets"
PLAYGROUND = files.NOTEBOOKS / "11_playground.ipynb"
APP = files.CACHE / "playground.ipynb"
APP_OPTIONS = [
    "--Voila.ip=127.0.0.1",
    "--Voila.auto_token=True",
    "--KernelManager.transport=ipc",
    "--VoilaConfiguration.show_tracebacks=True",
    "--VoilaConfiguration.template=gaussmark",
]
# Voila's own page, without the style sheets of icons that it would ask of the network.
APP_PAGE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{%- block notebook_css -%}{{ super() \
| replace('https://cdn.jsdelivr.net/', 'data:text/css,') }}{%- endblock notebook_css -%}
"""
HEADING = (
    "# Playground\n\nWrite text with a watermark, and test any text for it. Notebook 11 explains"
    " each part; Ctrl-C in the terminal ends the app."
)

NotebookName = Annotated[
    str,
    typer.Argument(
        metavar="NOTEBOOK",
        help="Number (00), name (00_first_watermark) or path.",
        show_default=False,
    ),
]
Typed = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME VALUE", help="A parameter's value, in YAML; may be repeated."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "-f",
        metavar="PRESET",
        help=f"A YAML file of parameter values, {BY_NAME}; -p overrides it.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Run even where there is a record.")]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Local runs at a time [one per core].")
]


class Theme(StrEnum):
    light = "light"
    dark = "dark"


def add(app: typer.Typer) -> None:
    for command in (run, sweep, tour, playground):
        app.command()(command)


def joined(words: list[str]) -> list[str]:
    """``-p name value`` as the one word ``-pname=value``, since typer takes one word per option."""
    if words[:1] not in (["run"], ["sweep"]):
        return words
    result, left = [], iter(words)
    for word in left:
        if word in ("-p", "--param"):
            name = next(left, "")
            word = "-p" + (name if "=" in name else "=".join([name, *islice(left, 1)]))
        result.append(word)
    return result


def run(
    notebook: NotebookName,
    typed: Typed = None,
    preset: Preset = None,
    records: Records = None,
    force: Force = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="List the parameters, and run nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check and print the values, and run nothing.")
    ] = False,
) -> int:
    """Run a notebook with checked parameters and record it."""
    from gaussmark_lib import runs
    from gaussmark_lib.runs import notebook as notebooks
    from gaussmark_lib.runs.ask import stoppable

    source = notebooks.load(notebook)
    if parameters:
        print(*source.parameters.values(), sep="\n")
        return 0
    of_preset, of_command = _values(source, preset, typed)
    values = of_preset | of_command
    if check:
        checked = source.check(values)
        print(f"{source.name} can run with")
        print(*(f"  {name:32} {value!r}" for name, value in checked.items()), sep="\n")
        return 0
    try:
        with stoppable():
            done = runs.run(source, values, force=force, root=records)
    except runs.RunFailedError as error:
        print(f"gaussmark: {message(error)}", file=sys.stderr)
        return FAILED
    from_record = f"answered from its record of {done.status['finished']}; --force runs it again"
    complete = f"complete in {done.status['seconds']} s"
    print(f"{source.name}: {from_record if done.cached else complete}")
    if line := done.headline:
        print(f"  {line.name}: {line}")
    for name, value in done.numbers.items():
        print(f"  {name:32} {value}")
    print(done.dir)
    return 0


def sweep(
    notebook: NotebookName,
    grid: Annotated[
        str,
        typer.Option(
            metavar="GRID", help=f"A YAML file of `name: [value, value]` lines, {BY_NAME}."
        ),
    ],
    typed: Typed = None,
    preset: Preset = None,
    records: Records = None,
    workers: Workers = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Use this Dask scheduler, e.g. tcp://host:8786."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help=f"Start workers as a queue's jobs: a YAML file, {BY_NAME}."
        ),
    ] = None,
    gpus_per_run: Annotated[
        int, typer.Option(metavar="N", min=0, max=64, help="GPUs that a run has to itself.")
    ] = 0,
) -> int:
    """Run a notebook for every combination in a grid of parameters and write one table.

    What has a record is not run again.
    """
    from gaussmark_lib import sweeps
    from gaussmark_lib.runs import notebook as notebooks
    from gaussmark_lib.runs import presets
    from gaussmark_lib.runs.ask import stoppable

    if sum(place is not None for place in (workers, scheduler, cluster)) > 1:
        raise GaussMarkError("expected one of --workers, --scheduler and --cluster")
    source, values = notebooks.load(notebook), presets.read(grid, "grid")
    of_preset, of_command = _values(source, preset, typed)
    if twice := of_command.keys() & _set_by(values):
        raise GaussMarkError(
            f"{', '.join(sorted(twice))}: given by -p and by the grid {grid}; give it once"
        )
    place = {"workers": workers, "scheduler": scheduler, "cluster": cluster}
    with stoppable():
        done = sweeps.sweep(
            source,
            values,
            of_preset | of_command,
            root=records,
            gpus_per_run=gpus_per_run,
            **place,
        )
    _say_failures(source.name, done.failed)
    print(
        f"{source.name}: {len(done.runs) - len(done.failed)} of {len(done.runs)} runs complete,"
        f" {done.cached} of them from record, {len(done.failed)} failed"
    )
    if done.failed:
        print("The same command again runs the failed ones again.")
    for sentence in done.summary.attrs["headlines"]:
        print(f"headline: {sentence}")
    listing.show(done.summary.to_dict("records"), heading=True)
    print(done.dir)
    return FAILED if done.failed else 0


def tour(workers: Workers = None, force: Force = False, records: Records = None) -> int:
    """Run all numbered notebooks, several at a time, and write one page about them."""
    from gaussmark_lib.runs.ask import stoppable
    from gaussmark_lib.sweeps.tour import tour

    with stoppable():
        done = tour(force=force, workers=workers, root=records)
    for stop in done.stops:
        print(f"{stop.name:28} {stop.outcome}")
    print(f"\nThe tour is in {done.page}")
    return FAILED if done.failed else 0


def _values(
    notebook: "Notebook", preset: str | None, typed: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that -f gives, and those that -p gives."""
    from gaussmark_lib.runs import parameters, presets

    if lone := [word for word in typed or () if "=" not in word]:
        raise GaussMarkError(f"-p takes a name and a value, got {lone[0]!r} alone")
    given = presets.read(preset) if preset is not None else {}
    values, skipped = parameters.taken(given, notebook.name[:2], notebook.parameters)
    if skipped:
        print(
            f"{notebook.name} has no parameter {', '.join(skipped)}: skipped, because the preset is"
            " shared by all notebooks",
            file=sys.stderr,
        )
    pairs = [tuple(word.split("=", 1)) for word in typed or ()]
    return values, parameters.parse(notebook.parameters, pairs)


def _set_by(grid: dict[str, Any]) -> set[str]:
    """The parameters that a grid sets, for all its runs or for some."""
    runs = grid["runs"] if isinstance(grid.get("runs"), list) else []
    return {*grid, *(name for run in runs if isinstance(run, dict) for name in run)}


def _say_failures(notebook: str, failures: list[Any]) -> None:
    """One reason after the other, each with the runs that it ended."""
    failures = sorted(failures, key=lambda failure: failure.why)
    for why, group in groupby(failures, key=lambda failure: failure.why):
        runs = [
            ", ".join(f"{name}={value!r}" for name, value in failure.params.items()) or notebook
            for failure in group
        ]
        print(f"\ngaussmark: failed: {'; '.join(runs)}\n{why}", file=sys.stderr)


def playground(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where it is served, or a free one near it.")
    ] = 8866,
    theme: Annotated[Theme, typer.Option(help="Colours of its page.")] = Theme.light,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print its address alone.")
    ] = False,
) -> None:
    """Open the playground in the browser, as an app."""
    if importlib.util.find_spec("voila") is None:
        raise GaussMarkError(
            "expected the package voila, which serves the playground, found none; install it, as"
            " `make playground` does"
        )
    template = APP.parent / "voila" / "templates" / "gaussmark"
    template.mkdir(parents=True, exist_ok=True)
    (template / "conf.json").write_text('{"base_template": "lab"}', encoding="utf-8")
    (template / "index.html.j2").write_text(APP_PAGE, encoding="utf-8")
    notebook = json.loads(PLAYGROUND.read_text(encoding="utf-8"))
    APP.write_text(json.dumps(panel_alone(notebook)), encoding="utf-8")
    os.environ["JUPYTER_PATH"] = os.pathsep.join(
        filter(None, [str(APP.parent), os.environ.get("JUPYTER_PATH")])
    )
    words = [f"--port={port}", f"--VoilaConfiguration.theme={theme.value}"]
    words += ["--no-browser"] * no_browser
    # in place of this process: whoever ends this command ends the server and its kernels
    os.execv(sys.executable, [sys.executable, "-m", "voila", str(APP), *APP_OPTIONS, *words])


def panel_alone(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook's code up to its panel, nothing shown before that, run in the notebooks'
    folder, where the panel saves its files.
    """
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    last = next(i for i, cell in enumerate(cells) if "Panel(" in "".join(cell["source"]))
    for cell in cells[:last]:
        cell["source"] = ["%%capture\n", *cell["source"]]
    blank = {"metadata": {}, "execution_count": None, "outputs": []}
    folder = [f"import os\n\nos.chdir({os.fspath(files.NOTEBOOKS)!r})"]
    first = [
        {"cell_type": "markdown", "id": "heading", "metadata": {}, "source": [HEADING]},
        {"cell_type": "code", "id": "folder", "source": folder, **blank},
    ]
    return notebook | {"cells": [*first, *cells[: last + 1]]}
