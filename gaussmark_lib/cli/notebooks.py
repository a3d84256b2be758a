"""``gaussmark run``, ``sweep`` and ``tour``: notebooks with checked parameters."""

import argparse
import sys
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from gaussmark_lib.cli import listing
from gaussmark_lib.cli.arguments import FAILED, command, in_a_shell
from gaussmark_lib.errors import GaussMarkError

if TYPE_CHECKING:
    from gaussmark_lib.runs.notebook import Notebook

BY_NAME = "or its name in papermill_runs/presets"


def add(commands: Any) -> None:
    """Adds these commands to the parser."""
    run = command(commands, "run", _run, "run a notebook with checked parameters and record it")
    _add_question(run)
    run.add_argument("--force", action="store_true", help="run it even if there is a record")
    run.add_argument(
        "--parameters", action="store_true", help="list the notebook's parameters, and run nothing"
    )
    run.add_argument(
        "--check",
        action="store_true",
        help="check and print the parameters' values, and run nothing",
    )

    what = (
        "run a notebook for every combination in a grid of parameters and write one table; what has"
        " a record is not run again"
    )
    sweep = command(commands, "sweep", _sweep, what)
    _add_question(sweep)
    sweep.add_argument(
        "--grid",
        metavar="GRID",
        required=True,
        help=f"a YAML file of `name: [value, value]` lines, {BY_NAME}",
    )
    place = sweep.add_mutually_exclusive_group()
    place.add_argument(
        "--workers",
        metavar="N",
        type=int,
        help="number of local processes; by default one per core, or per GPU with --gpus-per-run",
    )
    place.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="use the workers of this Dask scheduler, e.g. tcp://host:8786",
    )
    place.add_argument(
        "--cluster",
        metavar="FILE",
        help=f"start workers as a queue's jobs: a YAML file, {BY_NAME} (slurm)",
    )
    sweep.add_argument(
        "--gpus-per-run",
        metavar="N",
        type=int,
        choices=range(65),
        default=0,
        help="GPUs that a run has to itself (0)",
    )

    tour = command(
        commands,
        "tour",
        _tour,
        "run all numbered notebooks, several at a time, and write one page about them",
    )
    tour.add_argument(
        "--workers",
        metavar="N",
        type=int,
        help="notebooks that run at a time; by default one per core, as far as memory allows",
    )
    tour.add_argument("--force", action="store_true", help="run them even if there are records")
    tour.add_argument(
        "--records",
        metavar="DIR",
        help="folder of the records and the tour, instead of papermill_runs",
    )


def _add_question(command: argparse.ArgumentParser) -> None:
    """The arguments of every command that runs one notebook."""
    command.add_argument(
        "notebook", metavar="NOTEBOOK", help="number (00), name (00_first_watermark) or path"
    )
    command.add_argument(
        "-p",
        "--param",
        dest="typed",
        metavar="NAME VALUE",
        action="append",
        default=[],
        help="a parameter's value, in YAML; may be repeated",
    )
    command.add_argument(
        "-f",
        "--preset",
        dest="preset",
        metavar="PRESET",
        help=f"a YAML file of parameter values, {BY_NAME}; -p overrides it",
    )
    command.add_argument(
        "--records", metavar="DIR", help="folder of the records, instead of papermill_runs"
    )


def joined(words: list[str]) -> list[str]:
    """``-p name value`` as the one word ``-pname=value``, because argparse would take a value like
    -1e-3 for an option; ``--param`` too.
    """
    found, left = [], iter(words)
    for word in left:
        if word in ("-p", "--param"):
            typed = next(left, "")
            word = "-p" + (typed if "=" in typed else "=".join([typed, *islice(left, 1)]))
        found.append(word)
    return found


def _values(
    arguments: argparse.Namespace, notebook: "Notebook"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that -f gives, and those that -p gives."""
    from gaussmark_lib.runs import parameters, presets

    if lone := [typed for typed in arguments.typed if "=" not in typed]:
        raise GaussMarkError(f"-p takes a name and a value, got {lone[0]!r} alone")
    preset, skipped = presets.taken(
        presets.read(arguments.preset) if arguments.preset is not None else {},
        notebook.name[:2],
        notebook.parameters,
    )
    if skipped:
        print(
            f"{notebook.name} has no parameter {', '.join(skipped)}: skipped, because the preset is"
            " shared by all notebooks",
            file=sys.stderr,
        )
    return preset, parameters.parse(
        notebook.parameters, [tuple(typed.split("=", 1)) for typed in arguments.typed]
    )


def _run(arguments: argparse.Namespace) -> int:
    from gaussmark_lib import runs
    from gaussmark_lib.runs import notebook as notebooks
    from gaussmark_lib.runs.stopping import stoppable
    from gaussmark_lib.sweeps import findings

    notebook = notebooks.load(arguments.notebook)
    if arguments.parameters:
        print("\n".join(map(str, notebook.parameters.values())))
        return 0
    preset, typed = _values(arguments, notebook)
    if arguments.check:
        values = notebook.check(preset | typed)
        print(
            f"{notebook.name} can run with",
            *(f"  {n:32} {v!r}" for n, v in values.items()),
            sep="\n",
        )
        return 0
    try:
        with stoppable():
            run = runs.run(notebook, preset | typed, force=arguments.force, root=arguments.records)
    except runs.RunFailedError as error:
        print(f"gaussmark: {in_a_shell(error, (preset | typed).get('model'))}", file=sys.stderr)
        return FAILED
    how = (
        f"answered from its record of {run.status['finished']}; --force runs it again"
        if run.cached
        else f"complete in {run.status['seconds']} s"
    )
    print(f"{notebook.name}: {how}")
    if line := findings.headline(run):
        print(f"  {line.name}: {line}")
    for name, value in run.numbers.items():
        print(f"  {name:32} {value}")
    print(run.dir)
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from gaussmark_lib import sweeps
    from gaussmark_lib.runs import notebook as notebooks
    from gaussmark_lib.runs import presets
    from gaussmark_lib.runs.stopping import stoppable

    notebook, values = notebooks.load(arguments.notebook), presets.read(arguments.grid, "grid")
    preset, typed = _values(arguments, notebook)
    if twice := typed.keys() & _set_by(values):
        raise GaussMarkError(
            f"{', '.join(sorted(twice))}: given by -p and by the grid {arguments.grid}; give it"
            " once"
        )
    place = {
        name: getattr(arguments, name)
        for name in ("workers", "scheduler", "cluster", "gpus_per_run")
    }
    with stoppable():
        done = sweeps.sweep(notebook, values, preset | typed, root=arguments.records, **place)
    for why, failures in groupby(
        sorted(done.failed, key=lambda failure: failure.why), key=lambda failure: failure.why
    ):
        which = [
            ", ".join(f"{name}={value!r}" for name, value in failure.params.items())
            or notebook.name
            for failure in failures
        ]
        print(f"\ngaussmark: failed: {'; '.join(which)}\n{why}", file=sys.stderr)
    complete = len(done.runs) - len(done.failed)
    print(
        f"{notebook.name}: {complete} of {len(done.runs)} runs complete, {done.cached} of them from"
        f" record, {len(done.failed)} failed"
    )
    if done.failed:
        print("The same command again runs the failed ones again.")
    print(
        *[f"headline: {sentence}\n" for sentence in done.summary.attrs["headlines"]], sep="", end=""
    )
    print("\n".join(listing.columns(done.summary.to_dict("records"))))
    print(done.dir)
    return FAILED if done.failed else 0


def _set_by(grid: dict[str, Any]) -> set[str]:
    """The parameters that a grid sets, for all its runs or for some."""
    runs = grid["runs"] if isinstance(grid.get("runs"), list) else []
    return {*grid, *(name for run in runs if isinstance(run, dict) for name in run)}


def _tour(arguments: argparse.Namespace) -> int:
    from gaussmark_lib.runs.stopping import stoppable
    from gaussmark_lib.sweeps.tour import tour

    with stoppable():
        done = tour(force=arguments.force, workers=arguments.workers, root=arguments.records)
    for stop in done.stops:
        print(f"{stop.name:28} {stop.outcome}")
    print(f"\nThe tour is in {done.page}")
    return FAILED if done.failed else 0
