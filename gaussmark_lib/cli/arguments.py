"""What the commands have in common: exit codes, the argument that names a model, and files of text."""

import argparse
from collections.abc import Callable
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError

REFUSED, FAILED, PARTLY, INTERRUPTED = 2, 1, 3, 130  # exit codes; 0 is success
MODEL = {"default": "doclm", "help": "base model: doclm, a folder or a hub id"}
KEY = {"metavar": "KEY", "required": True, "help": "key file"}


def command(commands: Any, name: str, do: Callable, summary: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A new command of this name, which calls ``do`` with the arguments."""
    added = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog)
    added.set_defaults(do=do)
    return added


def read(name: str) -> str:
    """A file's text, or standard input's, whatever encoding the terminal has."""
    try:
        with open(0 if name == "-" else name, encoding="utf-8-sig", closefd=name != "-", opener=files.opener) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise GaussMarkError(f"cannot read {name!r}: {getattr(error, 'strerror', error)}; expected UTF-8 text") from None
