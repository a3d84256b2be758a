"""The command ``gaussmark``: it reads arguments, calls the library and prints. Slow imports wait
until they are needed.

============== ==================================================================
``notebooks``  ``run``, ``sweep``, ``tour``, ``playground``
``listing``    ``list``: notebooks, presets, grids, clusters, records, a model's weights
``keys``       ``key new``, ``key show``, ``key users``, ``export``, ``audit``
``generate``   ``generate``: text under a key's watermark
``detect``     ``detect``: the test, of one text or of millions; ``scoring``: of one batch
``inputs``     texts and prompts, one after another
``answers``    their answers, a batch at a time, printed or kept in a file
``common``     exit codes and options that several commands have
============== ==================================================================
"""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import TyperException

from gaussmark_lib.cli import detect, generate, keys, listing, notebooks
from gaussmark_lib.cli.common import FAILED, INTERRUPTED, PARTLY, REFUSED, message
from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning

__all__ = ["FAILED", "INTERRUPTED", "PARTLY", "REFUSED", "app", "main"]

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
for group in (notebooks, listing, keys, generate, detect):
    group.add(app)


def _version(wanted: bool) -> bool:
    if wanted:
        import platform

        from gaussmark_lib.runs import folder

        first, *others = [f"{name} {folder.version(name) or 'unknown'}" for name in folder.PACKAGES]
        print(f"{first} ({', '.join(others)}, python {platform.python_version()})")
        raise typer.Exit
    return wanted


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print versions."),
    ] = False,
) -> None: ...


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command, and says in one sentence why it did not."""
    _open_what_is_closed()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ
    try:
        with warnings.catch_warnings():
            _say_warnings_once()
            code = _run(list(sys.argv[1:] if words is None else words))
        print(end="", flush=True)  # a full disk is noticed here, not at the interpreter's end
        return code
    except TyperException as error:
        return _refused(error)
    except GaussMarkError as error:
        _say(message(error))
        return getattr(error, "exit_code", REFUSED)
    except OSError as error:
        _say(message(error))
        if sys.stdout is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written
        return FAILED
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        _say(f"not enough memory: {message(error).splitlines()[0]}; ask for less at a time")
        return FAILED
    except KeyboardInterrupt as error:
        _say(message(error) or "interrupted", "\n")
        return INTERRUPTED


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("gaussmark", notebooks.joined(words)) as context:
            return command.invoke(context) or 0
    except typer.Exit as done:
        return done.exit_code


def _refused(error: TyperException) -> int:
    """Of a misspelt or missing word; nothing asked for gets the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        _say(message(ValueError(error.format_message())))
    return REFUSED


def _say(sentence: str, before: str = "") -> None:
    with suppress(OSError):  # there may be nowhere to say it
        print(f"{before}gaussmark: {sentence}", file=sys.stderr)


def _say_warnings_once() -> None:
    """The library's warnings as sentences, each once; others as before."""
    before, seen = warnings.showwarning, set()

    def show(warning: Warning | str, category: type[Warning], *where: object) -> None:
        if not issubclass(category, GaussMarkWarning):
            before(warning, category, *where)
        elif str(warning) not in seen:
            seen.add(str(warning))
            _say(str(warning))

    warnings.simplefilter("always", GaussMarkWarning)
    warnings.showwarning = show


def _open_what_is_closed() -> None:
    """Nothing in place of standard streams that a shell has closed, as by ``2>&-``: the next file
    would get their numbers and what they write.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
