"""``gaussmark run``, ``sweep``, ``tour`` and ``compare``: notebooks with checked parameters.

``list``: what can be run, and what was run. ``playground``: the panel of notebook 11 as an app,
which Voila serves to this machine alone.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gaussmark_lib import files
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs, sweeps, words
from gaussmark_lib.workbench.cli import answers
from gaussmark_lib.workbench.cli.options import Records
from gaussmark_lib.workbench.cli.panels import ADVANCED, Command
from gaussmark_lib.workbench.runs import folder, presets
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.parameters import parse

BY_NAME = "or its name in papermill_runs/presets"
MARKUP = re.compile(r"^\*\*Claim\.\*\* |[*`$]")  # in a claim
PLAYGROUND = files.NOTEBOOKS / "11_playground.ipynb"
APP = files.CACHE / "playground.ipynb"
TEMPLATES = Path(__file__).parent / "app"  # Voila finds its template by JUPYTER_PATH
APP_OPTIONS = [
    "--Voila.ip=127.0.0.1",
    "--Voila.auto_token=True",
    "--KernelManager.transport=ipc",
    # The kernel of a page that was closed or reloaded ends after a minute or two; it takes a GB.
    "--MappingKernelManager.cull_idle_timeout=60",
    "--MappingKernelManager.cull_interval=20",
    "--MappingKernelManager.cull_connected=False",
    "--VoilaConfiguration.show_tracebacks=True",
    "--VoilaConfiguration.template=gaussmark",
]
HEADING = (
    "# Playground\n\nWrite text with a watermark, and test any text for it. Notebook 11 explains"
    " each part; Ctrl-C in the terminal ends the app."
)

NotebookName = Annotated[
    str, typer.Argument(help="Number (00), name (00_first_watermark) or path.")
]
Typed = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME VALUE", help="A parameter's value, in YAML; may be repeated."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", "-f", help=f"A YAML file of parameter values, {BY_NAME}."),
]
Force = Annotated[bool, typer.Option("--force", help="Run again even if there is a record.")]
Workers = Annotated[int | None, typer.Option(help="Local runs at a time.  [one per core]")]


class TakesPairs(Command):
    """A command with ``-p name value``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join names and values before typer reads the arguments."""
        return super().parse_args(ctx, joined(args))


def joined(words: list[str]) -> list[str]:
    """Join ``-p name value`` into the word ``-pname=value``: typer takes one word per option."""
    result = []
    following = iter(words)
    for word in following:
        if word in ("-p", "--param"):
            name = next(following, "")
            if "=" not in name:  # the value is the next word
                name = "=".join([name, *islice(following, 1)])
            word = f"-p{name}"
        result.append(word)
    return result


def run(
    notebook: NotebookName,
    typed: Typed = None,
    preset: Preset = None,
    records: Records = None,
    force: Force = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="List the parameters without running.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check and print the values without running.")
    ] = False,
) -> int:
    """Run a notebook with checked parameters and record it."""
    if parameters and (check or force or typed or preset):
        raise GaussMarkError(
            "--parameters: expected no --param, --preset, --check or --force; nothing is run"
        )
    if check and force:
        raise GaussMarkError("--check: expected no --force, because nothing is run")
    source = notebooks.load(notebook)
    if parameters:  # only lists them
        print(*source.parameters.values(), sep="\n")
        return 0
    of_preset, of_command = _values(source, preset, typed)
    values = of_preset | of_command
    if check:
        checked = source.check(values).items()  # with the defaults
        print(f"{source.name} can run with")
        _print({name: repr(value) for name, value in checked})
        return 0
    try:
        done = runs.run(source, values, force=force, root=records)
    except runs.RunFailedError as error:
        answers.say(str(error))
        return answers.FAILED
    if done.cached:
        finished = done.status["finished"]
        print(f"{source.name}: answered from its record of {finished}; --force runs it again")
    else:
        print(f"{source.name}: complete in {done.status['seconds']} s")
    if done.headline:
        print(f"  {done.headline.name}: {done.headline}")
    # Lists mean nothing without their names; results.json has them.
    is_list = {name: ", " in text and "n = " not in text for name, text in done.numbers.items()}
    _print({name: text for name, text in done.numbers.items() if not is_list[name]})
    for finding in done.findings:
        measured = f"{finding['claim']} is {finding['value']} {finding['basis']}"
        line = f"  {finding['verdict']}: {measured}; expected {finding['expected']}"
        print(answers.visible(line))
    print(done.dir)
    return 0


def _print(values: dict[str, str]) -> None:
    for name, value in values.items():
        print(f"  {name:32}  {value}")


def sweep(
    notebook: NotebookName,
    grid: Annotated[
        str, typer.Option(help=f"A YAML file of `name: [value, value]` lines, {BY_NAME}.")
    ],
    typed: Typed = None,
    preset: Preset = None,
    records: Records = None,
    workers: Workers = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Use this Dask scheduler, e.g. tcp://host:8786.", rich_help_panel=ADVANCED
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"Start workers as jobs of a queue: a YAML file, {BY_NAME}.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    gpus_per_run: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="GPUs per run, not shared with other runs.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0,
) -> int:
    """Run a notebook for every combination in a grid of parameters and write one table.

    Combinations that have a record are not run again.
    """
    source = notebooks.load(notebook)
    values = presets.read(grid, "grid")
    of_preset, of_command = _values(source, preset, typed)
    twice = of_command.keys() & values.keys()
    if twice:
        raise GaussMarkError(
            f"{', '.join(sorted(twice))}: expected a value from -p or from the grid {grid}, got"
            " both; give it once"
        )
    done = sweeps.sweep(
        source,
        values,
        of_preset | of_command,
        root=records,
        workers=workers,
        scheduler=scheduler,
        cluster=cluster,
        gpus_per_run=gpus_per_run,
    )
    for failure in done.failed:
        answers.say(f"failed: {failure['params'] or source.name}: {failure['error']}")
    print(
        f"{source.name}: {len(done.runs) - len(done.failed)} of {len(done.runs)} runs complete,"
        f" {done.cached} of them from record, {len(done.failed)} failed"
    )
    if done.failed:
        print("Run the same command again to repeat the failed runs.")
    for sentence in done.summary.attrs["headlines"]:
        print(f"headline: {sentence}")
    rows = done.summary.to_dict("records")
    if rows:
        answers.table(rows, heading=True)
    print(done.dir)
    return answers.FAILED if done.failed else 0


def tour(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NOTEBOOK", help="Numbers or names  [all].")
    ] = None,
    preset: Preset = None,
    workers: Workers = None,
    force: Force = False,
    records: Records = None,
) -> int:
    """Run numbered notebooks, several at a time, and write one page about them."""
    from gaussmark_lib.workbench.sweeps.tour import tour

    done = tour(names or (), preset=preset, force=force, workers=workers, root=records)
    for stop in done.stops:
        print(f"{stop.name:28} {stop.outcome}")
    print(f"\nThe tour is in {done.page}")
    return answers.FAILED if done.failed else 0


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORD RECORD...", help="As `gaussmark list records` names them, or folders."
        ),
    ],
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page with the figures, too.")
    ] = None,
    records: Records = None,
) -> None:
    """Show runs of a notebook side by side: parameters that differ, and findings with intervals."""
    from gaussmark_lib.workbench.sweeps.comparison import NOTE, compare, lacks

    comparison = compare(names, records)
    page = comparison.save(html) if html else None  # before a pipe of the tables may be closed
    tables = {"parameters that differ": comparison.parameters, "findings": comparison.findings}
    for heading, table in tables.items():
        print(f"\n{heading}")
        for quantity, values in table.iterrows():
            print(f"  {quantity}")
            for name, value in values.items():
                print(f"    {name:32}  {answers.visible(value)}")
    if any(lacks(table) for table in tables.values()):
        print(f"\n{NOTE}")
    if page:
        print(f"\nThe page is {page}")


def _values(
    notebook: notebooks.Notebook, preset: str | None, typed: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of -f, and the values of -p."""
    declared = notebook.parameters
    pairs = [word.partition("=") for word in typed or ()]
    without_value = [name for name, equals, _ in pairs if not equals]
    if without_value:
        raise GaussMarkError(f"-p takes a name and a value, got only {without_value[0]!r}")
    values = {}
    if preset is not None:
        values, skipped = presets.taken(presets.read(preset), notebook.name[:2], declared)
        if skipped:
            answers.say(
                f"skipped {', '.join(skipped)}: {notebook.name} has no such parameter, but other"
                " notebooks share this preset"
            )
    of_command = [(name, value) for name, _, value in pairs]
    return values, parse(declared, of_command)


def list_(
    what: Annotated[
        Literal["notebooks", "presets", "grids", "clusters", "records", "models", "weights"] | None,
        typer.Argument(help="What to list.  [all but weights]"),
    ] = None,
    records: Records = None,
    model: Annotated[
        str | None, typer.Option(help="Model for `list weights`, as in `detect`.  [doclm]")
    ] = None,
) -> None:
    """List the notebooks, presets, grids, clusters, records and models, or a model's weights."""
    if records is not None and what not in (None, "records"):
        raise GaussMarkError(f"--records: expected `list` or `list records`, got `list {what}`")
    if model is not None and what != "weights":
        raise GaussMarkError(
            "--model: expected `list weights`, which lists the matrices of a model"
        )
    everything = ["notebooks", "presets", "grids", "clusters", "records", "models"]
    for name in [what] if what else everything:
        if not what:
            print(f"\n{name}")
        entries = _listed(name, records, model or "doclm")
        rows = [{"name": entry, "about": about} for entry, about in entries]
        if rows:
            answers.table(rows)
        else:
            print("none")


def _listed(what: str, records: str | None, model: str) -> Iterator[tuple[str, str]]:
    """Names, each with a description.

    It is the first sentence of a notebook's claim; the first line of a preset, a comment; the
    headline of a record, with its parameters that are not the notebook's defaults.
    """
    match what:
        case "notebooks":
            for path in notebooks.numbered():
                claim, stop, _ = MARKUP.sub("", notebooks.load(path).claim).partition(". ")
                yield path.stem, claim + stop
        case "models":
            yield from _models()
        case "weights":
            answers.loading(model)
            from gaussmark_lib import models, weights

            loaded = models.load(model).model
            for name in weights.names(loaded):
                yield name, " × ".join(map(str, weights.Weight(loaded, name).shape))
        case "records":
            for path in sorted(files.records(records).glob("*/*/status.json")):
                if done := folder.load(path.parent):  # None: incomplete or damaged
                    line = done.headline
                    about = f"{line.name}: {line}" if line else "no headline"
                    about += _changed(done, path.parent.parent.name)
                    when = str(done.status["finished"])[:16]
                    yield f"{path.parent.parent.name}/{done.id}", f"{when}  {about}"
        case _:
            for name in presets.known(what.removesuffix("s")):
                text = (files.PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
                yield name, text.partition("\n")[0].lstrip("# ")


def _models() -> Iterator[tuple[str, str]]:
    """The models with a name, and how to install those that are not installed."""
    about = "6.2 M parameters, llama, Apache-2.0, in this repository; writes documentation"
    yield "doclm", about
    for name, model in packages.MODELS.items():
        is_here = packages.is_installed(model)
        yield (
            name,
            f"{model.parameters / 1e6:.1f} M parameters, {model.architecture}, {model.licence}"
            f" ({model.licence_url}), {'installed' if is_here else 'not installed: `make models`'};"
            f" {model.about}; weights: {model.weights}",
        )


def _changed(done: runs.Run, notebook: str) -> str:
    """A record's parameters that differ from the defaults of its notebook, if that still exists."""
    name = f"??_{done.id}" if notebook == "reference" else notebook
    paths = list(files.NOTEBOOKS.glob(f"{name}.ipynb"))
    declared = notebooks.load(paths[0]).parameters if paths else {}
    return "".join(
        f"; {name} = {words.of(value) or 'none'}"
        for name, value in done.params.items()
        if name in declared and value != declared[name].default
    )


def playground(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the app, or the next free port.")
    ] = 8866,
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Colours of the page.")] = "light",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Open the playground in the browser, as an app; it needs the package voila."""
    if not find_spec("voila"):
        raise GaussMarkError("expected the package voila; `make playground` installs it first")
    _write_app()
    paths = [str(TEMPLATES)]
    if os.environ.get("JUPYTER_PATH"):
        paths.append(os.environ["JUPYTER_PATH"])
    os.environ["JUPYTER_PATH"] = os.pathsep.join(paths)
    words = [f"--port={port}", f"--VoilaConfiguration.theme={theme}"]
    if no_browser:
        words.append("--no-browser")
    # Replaces this process: to end this command is to end the server and its kernels.
    os.execv(sys.executable, [sys.executable, "-m", "voila", str(APP), *APP_OPTIONS, *words])


def _write_app() -> None:
    """Write the notebook of the app: the code of notebook 11 up to its panel, without output.

    It runs in the notebooks' folder, where the panel saves its files.
    """
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell

    notebook = nbformat.read(PLAYGROUND, 4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    last = next(i for i, source in enumerate(code) if "Panel(" in source)  # the cell of the panel
    folder = f"import os\n\nos.chdir({os.fspath(files.NOTEBOOKS)!r})"
    silent = [new_code_cell(f"%%capture\n{source}") for source in (folder, *code[:last])]
    notebook.cells = [new_markdown_cell(HEADING), *silent, new_code_cell(code[last])]
    APP.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, APP)
