"""The command ``gaussmark``: it reads arguments, calls the library and prints.

Slow imports wait until they are needed.

============== ==================================================================
``notebooks``  ``run``, ``sweep``, ``tour``, ``compare``, ``playground`` and ``list``
``keys``       ``key new``, ``key show``, ``key users``, ``export``, ``audit``, ``power``
``audit``      the calibration card of a key
``power``      how much text a key needs
``weights``    ``verify``: whose checkpoint?
``bench``      watermarks in one table
``texts``      ``generate`` and ``detect``: text under a key's watermark, and its test
``asking``     ``stream``, ``answer`` and ``trace``: texts in a stream, from untrusted
               users, and of the users of a codebook
``question``   the keys, the model and the level of a test
``scoring``    the answers of ``detect``; the next four files change them
``normalise``  ``detect --normalise``: each text also with plain characters
``streaming``  ``stream``: what is new in each text
``answering``  ``answer``: yes or no
``naming``     ``trace``: a user of a codebook
``measure``    the tests, which these five files call
``writing``    the texts of ``generate``
``panels``     the help of a command
``options``    the options that several commands share
``inputs``     the texts and prompts of a command
``answers``    exit codes, messages, tables, and the answers to many texts
============== ==================================================================

To add a command, add a function to one of the first files, register it below, and add its test to
``tests/unit/cli``. Nothing imports the command line.
"""

import atexit
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.exceptions import TyperException

from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning
from gaussmark_lib.workbench.cli import asking, bench, keys, notebooks, texts, weights
from gaussmark_lib.workbench.cli.answers import FAILED, INTERRUPTED, REFUSED, say
from gaussmark_lib.workbench.cli.panels import Command, examples

# \b: these lines are not joined
START = """Start with:

\b
  gaussmark playground                         write and test in a browser
  gaussmark key new my.key                     a secret key for doclm
  gaussmark generate --key my.key "A prompt"   text with the watermark
  gaussmark detect --key my.key text.txt       does it carry the watermark?
  gaussmark audit card --key my.key            the key's false alarms

"""
EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 refused, 3 some texts could not be scored or written, 130"
    " interrupted."
)
app = typer.Typer(
    help="Watermark a model's text with Gaussian noise on one weight matrix, and detect it.",
    epilog=START + EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain words, in whatever terminal or pipe
)
# The help lists the commands in this order: first keys and texts, then weights, then notebooks.
app.add_typer(keys.group, name="key", short_help="Make a key, or show one.")


def _add(
    function: Callable,
    short_help: str,
    *commands: str,
    name: str | None = None,
    exit_codes: str = "",
    cls: type[Command] = Command,
) -> None:
    epilog = f"{examples(*commands)}\n\n{exit_codes}"
    app.command(name, cls=cls, short_help=short_help, epilog=epilog)(function)


_add(
    texts.generate,
    "Write text with a key's watermark.",
    'generate --key my.key "A prompt" > text.txt',
    "generate --key my.key --file prompts.csv --out texts.jsonl",
    exit_codes=texts.EXIT_OF_GENERATE,
)
_add(
    texts.detect,
    "Test texts for a key's watermark.",
    "detect --key my.key text.txt",
    "detect --key my.key --json folder_of_texts > answers.jsonl",
    exit_codes=texts.EXIT_OF_DETECT,
)
_add(
    keys.power,
    "Predict how many tokens detection needs.",
    "power --key my.key",
    "power --key my.key --text prompts.csv --temperature 0.7",
)
_add(
    keys.audit,
    "Measure a key's false alarms on human texts.",
    "audit card --key my.key",
    "audit card --key my.key --text essays.csv",
)
_add(
    asking.stream,
    "Test texts that arrive one after another.",
    "stream --key my.key --state stream.state monday.txt",
    exit_codes=texts.EXIT_OF_DETECT,
)
_add(
    asking.answer,
    "Answer yes or no, for untrusted users.",
    "answer --key my.key --state queries.state text.txt",
    exit_codes=texts.EXIT_OF_DETECT,
)
_add(
    asking.trace,
    "Name the user whose key wrote a text.",
    "trace --key my.key --codebook users.json text.txt",
    exit_codes=texts.EXIT_OF_DETECT,
)
_add(
    keys.export,
    "Write the watermarked model, for any engine.",
    "export released --key my.key",
    "export chat.gguf --key chat.key --model smollm2",
)
_add(
    weights.verify,
    "Test a model's weights for a key's watermark.",
    "verify released --key my.key",
    "verify chat.gguf --key chat.key --model smollm2",
)
_add(
    bench.bench,
    "Compare watermarks in one table.",
    "bench --quick",
    "bench --model smollm2 --quick --html table.html",
)
_add(
    notebooks.playground,
    "Try the watermark in the browser.",
    "playground",
    "playground --port 9000 --theme dark --no-browser",
)
_add(
    notebooks.tour,
    "Run all notebooks, and write a page about them.",
    "tour",
    "tour 00 03 --preset smollm2",
)
_add(
    notebooks.run,
    "Run a notebook with parameters.",
    "run 03 --parameters",
    "run 03 -p model smollm2 -p text speeches",
    cls=notebooks.TakesPairs,
)
_add(
    notebooks.sweep,
    "Run a notebook for a grid of parameters.",
    "sweep 03 --grid detectability_grid",
    cls=notebooks.TakesPairs,
)
_add(
    notebooks.compare,
    "Show runs of a notebook side by side.",
    "compare reference/quality reference/quality_smollm2",
    "compare reference/quality reference/quality_smollm2 --html a.html",
)
_add(
    notebooks.list_,
    "List notebooks, presets, records and models.",
    "list models",
    "list weights --model smollm2",
    name="list",
)


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
    """Run a command; if it fails, print a sentence that says why. Return the exit code."""
    # Otherwise the interpreter visits all of torch's objects at its end, which takes seconds.
    atexit.register(gc.freeze)
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
            print(end="", flush=True)  # notices a full disk now, not at the interpreter's end
            return code
        except TyperException as error:
            is_help = type(error).__name__ == "NoArgsIsHelpError"
            message = error.format_message().replace("Value error, ", "")
            say(message, "" if is_help else "gaussmark: ")
            return REFUSED
        except GaussMarkError as error:
            say(str(error))
            return getattr(error, "exit_code", REFUSED)
        except BrokenPipeError:  # the reader, such as `head`, has ended
            _write_nowhere()
            return FAILED
        except OSError as error:
            parts = [part for part in (error.filename, error.strerror) if part]
            say(": ".join(parts) or str(error))
            if sys.stdout is sys.__stdout__:
                _write_nowhere()
            return FAILED
        except (KeyboardInterrupt, SystemError) as error:
            # numba turns an interrupt into a SystemError.
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, KeyboardInterrupt):
                raise
            say(str(cause) or "interrupted", "\ngaussmark: ")
            return INTERRUPTED


@contextmanager
def _of_this_process() -> Iterator[None]:
    """Open standard streams that the shell has closed, and handle signals.

    The first Ctrl-C or SIGTERM raises KeyboardInterrupt. Later signals are ignored, so that a
    command with records and processes can finish its clean-up.
    """
    # No other file may get the number of a stream that was closed, as by `2>&-`.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ

    def stop(number: int, frame: object) -> None:
        for handled in handlers:
            signal.signal(handled, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)


def _write_nowhere() -> None:
    """Drop the output that could not be written, or the interpreter would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
