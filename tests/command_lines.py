"""Helpers for tests of the command line: call it as a shell would, and write the .jsonl files that
it reads.
"""

import io
import json
from pathlib import Path

import typer

from gaussmark_lib.workbench import cli


def answer(capsys, *words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of ``gaussmark WORDS``."""
    code = cli.main(words)
    out, err = capsys.readouterr()
    return code, out, err


def refusal(capsys, *words: str) -> str:
    """Return the message of a command that is refused and prints nothing else."""
    code, out, err = answer(capsys, *words)
    assert (code, out) == (cli.REFUSED, ""), (words, err)
    return err


def parse(words: list[str]) -> None:
    """Read a command's words as ``gaussmark`` does, and run nothing."""
    group = typer.main.get_command(cli.app)
    context = group.make_context("gaussmark", words)
    while words := context._protected_args + context.args:
        name, command, rest = context.command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            break


def rows(capsys, *words: str) -> tuple[int, list[dict], str]:
    """Return exit code, rows and standard error of a command that prints JSON lines."""
    code, out, err = answer(capsys, *words, "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


class Terminal(io.StringIO):
    """A terminal that is both standard output and standard error."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Return the visible lines. Text after a carriage return overwrites its line."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []  # a character each
            for part in line.split("\r"):
                # a shorter part leaves the end of the line as it is
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


def lines(
    path: Path, values: list[str], broken: dict[int, bytes] | None = None, field: str = "text"
) -> str:
    """Write a .jsonl file with a row for each value, and with broken lines at these numbers."""
    content = [json.dumps({field: value}).encode() for value in values]
    for number, row in (broken or {}).items():
        content[number - 1] = row
    path.write_bytes(b"\n".join(content) + b"\n")
    return str(path)
