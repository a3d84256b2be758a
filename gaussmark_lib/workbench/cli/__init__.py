"""The command ``gaussmark``: it reads arguments, calls the library and prints. Slow imports wait
until they are needed.

============== ==================================================================
``notebooks``  ``run``, ``sweep``, ``tour``, ``playground`` and ``list``
``keys``       ``key new``, ``key show``, ``key users``, ``export``, ``audit``, ``power``
``audit``      a key's calibration card
``power``      how much text a key needs
``weights``    ``verify``: whose checkpoint?
``texts``      ``generate`` and ``detect``: text under a key's watermark, and its test
``asking``     ``stream``, ``answer`` and ``trace``: texts in a stream, from untrusted
               users, and of the users of a codebook
``question``   what is asked of each text: keys, model and level
``scoring``    what ``detect`` answers, and what the next four answer instead
``normalise``  ``detect --normalise``: each text also with plain characters
``streaming``  ``stream``: what is new in each text
``answering``  ``answer``: yes or no
``naming``     ``trace``: a user of a codebook
``measure``    the tests themselves, which these five call
``writing``    what ``generate`` writes
``panels``     the help of a command
``options``    the options that several commands share
``inputs``     the texts and prompts that commands are given
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
from gaussmark_lib.workbench.cli import asking, keys, notebooks, texts, weights
from gaussmark_lib.workbench.cli.answers import FAILED, INTERRUPTED, REFUSED, say
from gaussmark_lib.workbench.cli.panels import Command

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
app.command(cls=notebooks.TakesPairs)(notebooks.run)
app.command(cls=notebooks.TakesPairs)(notebooks.sweep)
app.command(cls=Command)(notebooks.tour)
app.command(cls=Command)(notebooks.playground)
app.command("list", cls=Command)(notebooks.list_)
app.add_typer(keys.group, name="key")
app.command(cls=Command)(keys.export)
app.command(cls=Command)(keys.audit)
app.command(cls=Command)(keys.power)
app.command(cls=Command)(weights.verify)
app.command(cls=Command, epilog=texts.EXIT_OF_GENERATE)(texts.generate)
app.command(cls=Command, epilog=texts.EXIT_OF_DETECT)(texts.detect)
app.command(cls=Command, epilog=texts.EXIT_OF_DETECT)(asking.stream)
app.command(cls=Command, epilog=texts.EXIT_OF_DETECT)(asking.answer)
app.command(cls=Command, epilog=texts.EXIT_OF_DETECT)(asking.trace)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print versions.")] = False,
) -> None:
    if version:
        import platform

        from gaussmark_lib.workbench.runs import folder

        versions = [f"{name} {folder.version(name)}" for name in folder.PACKAGES]
        print(*versions, f"python {platform.python_version()}", sep=", ")
        raise typer.Exit


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command, and says in one sentence why it did not."""
    command = typer.main.get_command(app)
    with _of_this_process():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("once", GaussMarkWarning)
                warnings.showwarning = lambda warning, *_: say(str(warning))
                arguments = list(sys.argv[1:] if words is None else words)
                try:
                    with command.make_context("gaussmark", arguments) as context:
                        code = command.invoke(context) or 0
                except typer.Exit as done:  # after --help and --version
                    code = done.exit_code
            print(end="", flush=True)  # a full disk is noticed here, not at the interpreter's end
            return code
        except TyperException as error:
            is_help = type(error).__name__ == "NoArgsIsHelpError"
            message = error.format_message().replace("Value error, ", "")
            say(message, "" if is_help else "gaussmark: ")
            return REFUSED
        except GaussMarkError as error:
            say(str(error))
            return getattr(error, "exit_code", REFUSED)
        except BrokenPipeError:  # whoever reads, as `head`, has seen enough
            _write_nowhere()
            return FAILED
        except OSError as error:
            say(": ".join(filter(None, [error.filename, error.strerror])) or str(error))
            if sys.stdout is sys.__stdout__:
                _write_nowhere()
            return FAILED
        except (KeyboardInterrupt, SystemError) as error:
            # numba makes a SystemError of an interrupt
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, KeyboardInterrupt):
                raise
            say(str(cause) or "interrupted", "\ngaussmark: ")
            return INTERRUPTED


@contextmanager
def _of_this_process() -> Iterator[None]:
    """Inside, the standard streams are open, whatever the shell has closed, and the first Ctrl-C or
    SIGTERM raises KeyboardInterrupt. Later ones are ignored, so that a command that leaves records
    and processes behind can finish its clean-up.
    """
    # the next file must not get the number of a stream that was closed, as by `2>&-`
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ

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


def _write_nowhere() -> None:
    """What could not be written is not tried again at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
