"""The command ``gaussmark``: it reads arguments, calls the library and prints. Slow imports wait until they are needed."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib.errors import GaussMarkError

if TYPE_CHECKING:
    from gaussmark_lib.runs.notebook import Notebook

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes
BY_NAME = "or its name in papermill_runs/presets"
MODEL = {"default": "doclm", "help": "base model: doclm, a folder or a hub id"}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ
    arguments = parser().parse_args(_joined(words) if words[:1] in (["run"], ["sweep"]) else words)
    try:
        code = arguments.do(arguments) or 0
        print(end="", flush=True)  # a closed pipe or a full disk is noticed here, and not at the interpreter's end
        return code
    except GaussMarkError as error:
        print(f"gaussmark: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"gaussmark: {error}", file=sys.stderr)
        if sys.stdout is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written
        return FAILED
    except KeyboardInterrupt as error:
        print(f"\ngaussmark: {error or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="gaussmark", description="Watermark a model's text by Gaussian noise on one weight matrix, and detect it.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "run a notebook with checked parameters and record it")
    _add_question(run)
    run.add_argument("--force", action="store_true", help="run it even if there is a record")
    run.add_argument("--parameters", action="store_true", help="list the notebook's parameters, and run nothing")

    what = "run a notebook for every cell of a grid of parameters and write one table; cells with a record are not run again"
    sweep = _command(commands, "sweep", _sweep, what)
    _add_question(sweep)
    sweep.add_argument("--grid", metavar="GRID", required=True, help=f"a YAML file of `name: [value, value]` lines, {BY_NAME}")
    place = sweep.add_mutually_exclusive_group()
    place.add_argument("--workers", metavar="N", type=int, help="number of local processes; by default one per core, or per GPU with --gpus-per-run")
    place.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler, e.g. tcp://host:8786")
    place.add_argument("--cluster", metavar="FILE", help=f"start workers as a queue's jobs: a YAML file, {BY_NAME} (slurm)")
    sweep.add_argument("--gpus-per-run", metavar="N", type=int, choices=range(65), default=0, help="GPUs that a run has to itself (0)")

    tour = _command(commands, "tour", _tour, "run all numbered notebooks, several at a time, and write one page about them")
    tour.add_argument("--workers", metavar="N", type=int, help="notebooks that run at a time; by default one per core, as far as memory allows")
    tour.add_argument("--force", action="store_true", help="run them even if there are records")
    tour.add_argument("--records", metavar="DIR", type=Path, help="folder of the records and the tour, instead of papermill_runs")

    detect = _command(commands, "detect", _detect, "test whether a text carries a key's watermark")
    detect.add_argument("file", metavar="FILE", nargs="?", help="the text; - reads standard input")
    detect.add_argument("--text", help="the text itself")
    detect.add_argument("--key", required=True, help="key file")
    detect.add_argument("--model", **MODEL)
    detect.add_argument("--prompt", default="", help="the text's prompt; without it the test stays exact and has less power")
    detect.add_argument("--prompt-file", help="the same from a file")
    detect.add_argument("--json", action="store_true", help="print JSON")

    key = commands.add_parser("key", help="make and look at key files", description="Makes and shows key files.")
    actions = key.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = _command(actions, "new", _new_key, "make a key for one weight of one model")
    new.add_argument("path", metavar="PATH", help="key file to write; never overwritten, readable by you only")
    new.add_argument("--weight", required=True, help="full name of a linear layer's matrix, e.g. model.layers.4.mlp.down_proj.weight")
    new.add_argument("--sigma", required=True, type=float, help="standard deviation of the noise")
    new.add_argument("--model", **MODEL)
    new.add_argument("--rank-dropped", type=int, default=0, metavar="K", help="top singular directions that the noise avoids (0)")
    show = _command(actions, "show", _show_key, "print what a key is for, but not its secret")
    show.add_argument("path", metavar="PATH")
    return top


def _command(commands: Any, name: str, do: Callable, summary: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    command.set_defaults(do=do)
    return command


def _add_question(command: argparse.ArgumentParser) -> None:
    """The arguments of every command that runs one notebook."""
    command.add_argument("notebook", metavar="NOTEBOOK", help="number (00), name (00_first_watermark) or path")
    command.add_argument("-p", dest="typed", metavar="NAME VALUE", action="append", default=[], help="a parameter's value, in YAML; may be repeated")
    command.add_argument("-f", dest="preset", metavar="PRESET", help=f"a YAML file of parameter values, {BY_NAME}; -p overrides it")
    command.add_argument("--records", metavar="DIR", type=Path, help="folder of the records, instead of papermill_runs")


def _joined(words: list[str]) -> list[str]:
    """``-p name value`` as the one word ``-pname=value``, because argparse would take a value like -1e-3 for an option."""
    if "-p" not in words:
        return words
    before, after = words[: words.index("-p")], words[words.index("-p") + 1 :]
    taken = 1 if "=" in "".join(after[:1]) else 2
    return [*before, "-p" + "=".join(after[:taken]), *_joined(after[taken:])]


def _values(arguments: argparse.Namespace, notebook: "Notebook") -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that -f gives, and those that -p gives."""
    from gaussmark_lib.runs import parameters, presets

    if lone := [typed for typed in arguments.typed if "=" not in typed]:
        raise GaussMarkError(f"-p takes a name and a value, got {lone[0]!r} alone")
    preset = presets.read(arguments.preset) if arguments.preset else {}
    return preset, parameters.parse(notebook.parameters, [tuple(typed.split("=", 1)) for typed in arguments.typed])


def _run(arguments: argparse.Namespace) -> int:
    from gaussmark_lib import runs
    from gaussmark_lib.runs import notebook as notebooks
    from gaussmark_lib.runs.stopping import stoppable

    notebook = notebooks.load(arguments.notebook)
    if arguments.parameters:
        print("\n".join(map(str, notebook.parameters.values())))
        return 0
    preset, typed = _values(arguments, notebook)
    try:
        with stoppable():
            run = runs.run(notebook, preset | typed, force=arguments.force, root=arguments.records)
    except runs.RunFailedError as error:
        print(f"gaussmark: {error}", file=sys.stderr)
        return FAILED
    how = f"answered from its record of {run.status['finished']}; --force runs it again" if run.cached else f"complete in {run.status['seconds']} s"
    print(f"{notebook.name}: {how}")
    if run.headline:
        print(f"  {run.headline[0]}: {run.headline[1]}")
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
    if twice := typed.keys() & values.keys():
        raise GaussMarkError(f"{', '.join(sorted(twice))}: given by -p and by the grid {arguments.grid}; give it once")
    place = {name: getattr(arguments, name) for name in ("workers", "scheduler", "cluster", "gpus_per_run")}
    with stoppable():
        done = sweeps.sweep(notebook, values, preset | typed, root=arguments.records, **place)
    for why, failures in groupby(sorted(done.failed, key=lambda failure: failure.why), key=lambda failure: failure.why):
        cells = [", ".join(f"{name}={value!r}" for name, value in failure.params.items()) or notebook.name for failure in failures]
        print(f"\ngaussmark: failed: {'; '.join(cells)}\n{why}", file=sys.stderr)
    complete = len(done.cells) - len(done.failed)
    print(f"{notebook.name}: {complete} of {len(done.cells)} cells complete, {done.cached} of them from record, {len(done.failed)} failed")
    if done.failed:
        print("The same command again runs the failed cells again.")
    print(done.dir)
    return FAILED if done.failed else 0


def _tour(arguments: argparse.Namespace) -> int:
    from gaussmark_lib.runs.stopping import stoppable
    from gaussmark_lib.sweeps.tour import tour

    with stoppable():
        done = tour(force=arguments.force, workers=arguments.workers, root=arguments.records)
    for stop in done.stops:
        print(f"{stop.name:28} {stop.outcome}")
    print(f"\nThe tour is in {done.page}")
    return FAILED if done.failed else 0


def _detect(arguments: argparse.Namespace) -> None:
    if (arguments.file is None) == (arguments.text is None):
        raise GaussMarkError("expected one text to test: a FILE, - for standard input, or --text")
    if arguments.prompt and arguments.prompt_file is not None:
        raise GaussMarkError("expected one prompt: --prompt or --prompt-file")
    text = arguments.text if arguments.file is None else _read(arguments.file)
    prompt = arguments.prompt if arguments.prompt_file is None else _read(arguments.prompt_file)

    from gaussmark_lib import models, score, tokens
    from gaussmark_lib.keys import Key

    tokens.check_text(text)
    tokens.check_text(prompt, "prompt")
    key = Key.load(arguments.key)
    watermark = key.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(arguments.model)
    table = score.score(lm.model, [lm.prompt(prompt) if prompt else []], [lm.encode(text)], watermark, [key])
    [found] = table[["key_id", "psi", "p_value", "log10_p", "n_tokens"]].to_dict("records")
    print(json.dumps(found) if arguments.json else _sentence(found))


def _sentence(found: dict) -> str:
    """What a p-value says: the key is random here, and the text is fixed."""
    digits = -found["log10_p"]
    p = f"{found['p_value']:.3g}" if digits < 300 else f"1e-{digits:.0f}"  # beyond the smallest float
    odds = f"{found['p_value']:.0%}" if digits < 1 else f"one in {10**digits:,.0f}" if digits < 9 else f"about one in 1e{digits:.0f}"
    return (
        f"p = {p}  (ψ = {found['psi']:.3f}, log10 p = {found['log10_p']:.2f}, {found['n_tokens']} tokens, key {found['key_id']})\n"
        f"If this text had been written without the key, {odds} of all keys would score it as high as this one does."
    )


def _new_key(arguments: argparse.Namespace) -> None:
    if Path(arguments.path).exists():
        raise GaussMarkError(f"{arguments.path} exists, and a key is never overwritten; name another file")

    from gaussmark_lib import models, perturb

    watermark = perturb.Watermark(arguments.weight, arguments.sigma, arguments.rank_dropped)
    key = perturb.bind(models.load(arguments.model).model, watermark, perturb.Key.new())
    key.save(arguments.path)
    print(f"key {key.key_id} for {arguments.weight}: {arguments.path}\nKeep it secret: whoever has it can detect the watermark, and remove it.")


def _show_key(arguments: argparse.Namespace) -> None:
    from gaussmark_lib.keys import Key

    key = Key.load(arguments.path)
    binding = key.binding.model_dump(exclude={"weights"}) if key.binding else {"bound to": "nothing"}
    for name, value in ({"key_id": key.key_id} | binding).items():
        print(f"{name:14} {value}")


def _read(name: str) -> str:
    """A file's text, or standard input's, whatever encoding the terminal has."""
    try:
        with open(0 if name == "-" else name, encoding="utf-8", closefd=name != "-") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise GaussMarkError(f"cannot read {name!r}: {error}; expected UTF-8 text") from None


if __name__ == "__main__":
    sys.exit(main())
