"""What the tests of the command line share: call it as a shell would, and write the .jsonl files
that it reads.
"""

import io
import json
from pathlib import Path

from gaussmark_lib.workbench import cli


def answer(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``gaussmark WORDS``."""
    return cli.main(words), *capsys.readouterr()


def rows(capsys, *words: str) -> tuple[int, list[dict], str]:
    """The same of a command that prints JSON lines."""
    code, out, err = answer(capsys, *words, "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


class Terminal(io.StringIO):
    """A terminal that is both standard output and standard error."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What stands on it: behind a carriage return a line is written over."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


def lines(
    path: Path, values: list[str], broken: dict[int, bytes] | None = None, field: str = "text"
) -> str:
    """A .jsonl file with a row for each value, and broken lines at these numbers."""
    content = [json.dumps({field: value}).encode() for value in values]
    for number, row in (broken or {}).items():
        content[number - 1] = row
    path.write_bytes(b"\n".join(content) + b"\n")
    return str(path)
