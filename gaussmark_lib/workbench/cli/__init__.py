"""The command ``gaussmark``: it reads arguments, calls the library and prints. Slow imports wait
until they are needed.

============== ==================================================================
``notebooks``  ``run``, ``sweep``, ``tour``, ``playground`` and ``list``
``keys``       ``key new``, ``key show``, ``key users``, ``export``, ``audit``, ``power``
``audit``      a key's calibration card
``power``      how much text a key needs
``weights``    ``verify``: whose checkpoint?
``texts``      ``generate`` and ``detect``: text under a key's watermark, and its test
``batches``    what these two do with a batch of texts
``normalise``  ``detect --normalise``: each text also with plain characters
``inputs``     what the commands are given: shared options, texts and prompts
``answers``    what they say: exit codes, sentences, tables, answers to many texts
============== ==================================================================

A new command is a function of one of the first files, registered below, with its test in
``tests/unit/cli``. Nothing imports the command line.
"""

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.exceptions import TyperException

from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning
from gaussmark_lib.workbench.cli import keys, notebooks, texts, weights
from gaussmark_lib.workbench.cli.answers import FAILED, INTERRUPTED, REFUSED, say

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 refused, 3 some texts could not be scored or written, 130"
    " interrupted."
)
app = typer.Typer(
    help="Watermark a model's text by Gaussian noise on one weight matrix, and detect it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain words, in whatever terminal or pipe
)
for command in (notebooks.run, notebooks.sweep, notebooks.tour, notebooks.playground):
    app.command()(command)
app.command("list")(notebooks.list_)
app.add_typer(keys.group, name="key")
app.command()(keys.export)
app.command()(keys.audit)
app.command()(keys.power)
app.command()(weights.verify)
app.command(epilog=texts.EXIT_OF_GENERATE)(texts.generate)
app.command(epilog=texts.EXIT_OF_DETECT)(texts.detect)


def _version(wanted: bool) -> bool:
    if wanted:
        import platform

        from gaussmark_lib.workbench.runs import folder

        print(*(f"{name} {folder.version(name)}" for name in folder.PACKAGES), sep=", ", end=", ")
        print(f"python {platform.python_version()}")
        raise typer.Exit
    return wanted


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print versions.")
    ] = False,
) -> None: ...


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command, and says in one sentence why it did not."""
    _open_what_is_closed()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", GaussMarkWarning)
            warnings.showwarning = lambda warning, *_: say(str(warning))
            code = _run(list(sys.argv[1:] if words is None else words))
        print(end="", flush=True)  # a full disk is noticed here, not at the interpreter's end
        return code
    except TyperException as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        say(error.format_message().replace("Value error, ", ""), "" if is_help else "gaussmark: ")
        return REFUSED
    except GaussMarkError as error:
        say(str(error))
        return getattr(error, "exit_code", REFUSED)
    except BrokenPipeError:  # whoever reads, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except OSError as error:
        say(": ".join(filter(None, [error.filename, error.strerror])) or str(error))
        if sys.stdout is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written
        return FAILED
    except (KeyboardInterrupt, SystemError) as error:
        # numba makes a SystemError of an interrupt
        cause = error.__cause__ if isinstance(error, SystemError) else error
        if not isinstance(cause, KeyboardInterrupt):
            raise
        say(str(cause) or "interrupted", "\ngaussmark: ")
        return INTERRUPTED


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("gaussmark", notebooks.joined(words)) as context, _stoppable():
            return command.invoke(context) or 0
    except typer.Exit as done:
        return done.exit_code


@contextmanager
def _stoppable() -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM raises KeyboardInterrupt; later ones are ignored, so that
    a command that leaves records and processes behind can finish its clean-up.
    """

    def stop(number: int, frame: object) -> None:
        for stopping in before:
            signal.signal(stopping, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for stopping, handler in before.items():
            signal.signal(stopping, handler)


def _open_what_is_closed() -> None:
    """Nothing in place of standard streams that a shell has closed, as by ``2>&-``: the next file
    would get their numbers and what they write.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
