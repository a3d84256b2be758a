"""The command ``gaussmark``: it reads arguments, calls the library and prints. Slow imports wait
until they are needed.

============== ==================================================================
``notebooks``  ``run``, ``sweep``, ``tour``
``listing``    ``list``: notebooks, presets, grids, clusters, records, a model's weights
``keys``       ``key new``, ``key show``, ``key users``, ``export``
``audit``      ``audit``: a key's calibration card
``generate``   ``generate``: text under a key's watermark
``detect``     ``detect``: the test, of one text or of millions
``playground`` ``playground``: notebook 11's panel as an app
``inputs``     where texts and prompts come from
``answers``    its sentences and its JSON lines, and where they end up
``arguments``  what the commands have in common
============== ==================================================================

It stays with argparse: click, typer or rich would add completion and colour and one more layer,
while every check here is the library's own.

Exit codes: 0 done; 1 something failed on the way (a notebook's cell, a full disk); 2 refused, and
nothing was done; 3 some texts could not be scored or written, and all others were; 130 interrupted.
"""

import argparse
import os
import sys
from contextlib import suppress

from gaussmark_lib.cli import audit, detect, generate, keys, listing, notebooks, playground
from gaussmark_lib.cli.arguments import (
    COMMAND,
    FAILED,
    INTERRUPTED,
    PARTLY,
    REFUSED,
    Parser,
    Version,
    in_a_shell,
)
from gaussmark_lib.errors import GaussMarkError

COMMANDS = dict.fromkeys(("run", "sweep", "tour"), notebooks)
COMMANDS |= {"list": listing, "key": keys, "export": keys, "generate": generate, "detect": detect}
COMMANDS |= {"audit": audit, "playground": playground}

__all__ = ["FAILED", "INTERRUPTED", "PARTLY", "REFUSED", "main", "parser"]


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    _open_what_is_closed()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that has no ψ
    arguments = None
    try:
        arguments = parser(*words[:1]).parse_args(
            notebooks.joined(words) if words[:1] in (["run"], ["sweep"]) else words
        )
        code = arguments.do(arguments) or 0
        print(
            end="", flush=True
        )  # a closed pipe or a full disk is noticed here, and not at the interpreter's end
        return code
    except GaussMarkError as error:
        _say(in_a_shell(error, getattr(arguments, "model", None)))
        return FAILED if getattr(arguments, "begun", False) else REFUSED
    except OSError as error:
        _say(in_a_shell(error))
        if sys.stdout is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written
        return FAILED
    except (
        MemoryError,
        RuntimeError,
    ) as error:  # torch's own is a RuntimeError, on a processor and on a GPU
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        _say(
            f"not enough memory: {in_a_shell(error).partition(chr(10))[0]}; ask for less at a time"
        )
        return FAILED
    except KeyboardInterrupt as error:
        _say(in_a_shell(error) or "interrupted", "\n")
        return INTERRUPTED


def _say(message: str, before: str = "") -> None:
    with suppress(OSError):  # there may be nowhere to say it
        print(f"{before}gaussmark: {message}", file=sys.stderr)


def _open_what_is_closed() -> None:
    """Nothing in place of the standard streams that a shell has closed, as by ``2>&-``: the next
    file would get their number and what they write.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends


def parser(command: str = "") -> argparse.ArgumentParser:
    """Of this command's arguments alone, or of all commands'."""
    top = Parser(
        prog="gaussmark",
        description=(
            "Watermark a model's text by Gaussian noise on one weight matrix, and detect it."
        ),
        epilog=(
            "Exit codes: 0 done, 1 failed, 2 refused, 3 some texts could not be scored or written,"
            " 130 interrupted."
        ),
    )
    top.add_argument(
        "--version",
        action=Version,
        help="print the versions of this, torch, transformers and numpy",
    )
    commands = top.add_subparsers(title="commands", metavar=COMMAND, required=True)
    for group in [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values()):
        group.add(commands)
    return top
