"""What the commands have in common: the parser, exit codes, the argument that names a model, and
files of text.
"""

import argparse
import difflib
import re
import shlex
import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError

REFUSED, FAILED, PARTLY, INTERRUPTED = 2, 1, 3, 130  # exit codes; 0 is success
COMMAND, ACTION = "COMMAND", "ACTION"  # how usage calls them
CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)  # what moves a terminal's cursor, or turns a line's direction
LONGEST_TEXT = (
    1 << 26
)  # characters, and bytes of a line of JSON: what never ends is not read until the memory is full
LONGEST, START = 1000, 200  # letters of a word in a message, and how many are left of a longer one
MODEL = {"default": "doclm", "help": "base model: doclm, a folder or a hub id"}
KEY = {"metavar": "KEY", "required": True, "help": "key file"}


class Parser(argparse.ArgumentParser):
    """argparse's, which also says what a misspelt command or option may have meant; its own does so
    from Python 3.14.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if lone := next(
            (
                word
                for word in takewhile(lambda word: word != "--", args or ())
                if re.fullmatch(r"--[\w-]+=--", word)
            ),
            None,
        ):
            self.error(
                f"argument {lone[:-3]}: expected a value, got --"
            )  # of which argparse makes an empty list
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # here, and not in the parser above, which knows no options of this command
            options = [option for action in self._actions for option in action.option_strings]
            near = [
                match
                for word in unknown
                for match in difflib.get_close_matches(word.partition("=")[0], options, n=1)
            ]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(near)}")
        return found, unknown

    def print_help(self, file: Any = None) -> None:
        print(
            self.format_help(), end="", file=file, flush=True
        )  # argparse's own says nothing where it cannot be written

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        print(
            end="", flush=True
        )  # what cannot be written is noticed here, and not at the interpreter's end
        super().exit(status, message)

    def error(self, message: str) -> Any:
        if message.endswith(
            (f"required: {COMMAND}", f"required: {ACTION}")
        ):  # nothing was asked for
            self.print_help(sys.stderr)
            self.exit(REFUSED)
        if match := re.search(r"(invalid choice: '(.*)') \(choose from (.*)\)$", message):
            near = difflib.get_close_matches(match[2], re.findall(r"[\w-]+", match[3]), n=3)
            message = f"{message[: match.end(1)]}{_meant(near)}" if near else message
        super().error(visible(message))


def visible(text: str) -> str:
    """On one line and short, as a name or a message can stand in a terminal: what would control it
    is escaped, and endless words are cut.
    """
    cut = re.sub(
        rf"\S{{{LONGEST},}}", lambda word: f"{word[0][:START]}… ({len(word[0]):,} letters)", text
    )
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), cut)


def in_a_shell(error: BaseException, model: str | None = None) -> str:
    """An error's message, where the library's advice is a call in Python, with the command that
    does the same.
    """
    message = str(error)
    if isinstance(error, OSError) and error.strerror:  # Python's own message begins with a number
        message = ": ".join(
            str(part) for part in (error.filename, error.strerror) if part is not None
        )
    message = "\n".join(map(visible, message.split("\n")))
    named = f" --model {shlex.quote(model)}" if model and model != MODEL["default"] else ""
    return message.replace(
        "models.watermarkable(model) lists", f"`gaussmark list weights{named}` lists"
    )


def _meant(near: list[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


class Version(argparse.Action):
    """Prints the versions without importing what they are of, and ends the command."""

    def __init__(self, option_strings: Any, dest: str, **options: Any):
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        from gaussmark_lib.runs import versions

        own, *others = [f"{name} {versions.of(name) or 'unknown'}" for name in versions.PACKAGES]
        print(f"{own} ({', '.join(others)}, python {versions.platform.python_version()})")
        parser.exit()


def command(
    commands: Any, name: str, do: Callable, summary: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    """A new command of this name, which calls ``do`` with the arguments."""
    added = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog
    )
    added.set_defaults(do=do)
    return added


def read(name: str) -> str:
    """A file's text, or standard input's, whatever encoding the terminal has."""
    try:
        with open(
            0 if name == "-" else name,
            encoding="utf-8-sig",
            closefd=name != "-",
            opener=files.opener,
        ) as file:
            text = file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise GaussMarkError(
            f"cannot read {name!r}: {getattr(error, 'strerror', error)}; expected UTF-8 text"
        ) from None
    if len(text) > LONGEST_TEXT:
        raise GaussMarkError(
            f"cannot read {name!r}: expected a text of at most {LONGEST_TEXT:,} characters;"
            " split it"
        )
    return text


def read_prompt(name: str) -> str:
    """The same of a prompt, without the end of the last line, which editors add."""
    return read(name).removesuffix("\n")
