"""The texts that ``gaussmark detect`` is given, one after another, and the prompts of ``generate``:
files, folders, .jsonl files, standard input.

Nothing is held but one text.
"""

import gzip
import hashlib
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gaussmark_lib import checks, files
from gaussmark_lib.cli.arguments import LONGEST_TEXT, read, read_prompt, visible
from gaussmark_lib.errors import GaussMarkError

LINES = (".jsonl", ".jsonl.gz")
IN_FOLDERS = (".txt", ".md", *LINES)
MOST = 100_000  # files and folders in a folder: a walk over a whole disk would look like a hang


class Item(NamedTuple):
    """One text with its name, or why there is none. ``prompt`` is None where its line names
    none.
    """

    name: str
    text: str = ""
    prompt: str | None = None
    error: str | None = None

    @property
    def digest(self) -> str:
        """What tells whether a result is of this text: sixteen hexadecimal digits."""
        return digest([self.text, self.prompt, self.error])


def digest(facts: list) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def spoken(name: str) -> str:
    """The name of a text or file as an error says it."""
    return "standard input" if name == "-" else visible(name)


def refuse_among(out: str, names: Sequence[str]) -> None:
    """GaussMarkError for results that would be read as texts: in one of these folders, or in place
    of one of these files.
    """
    place = os.path.realpath(out)
    for name in names:
        if (
            os.path.isdir(name)
            and place.endswith(IN_FOLDERS)
            and Path(place).is_relative_to(os.path.realpath(name))
        ):
            raise GaussMarkError(
                f"--out: expected a file outside of the folder {name!r}, all of which is read, got"
                f" {out!r}; name one elsewhere"
            )
        if name != "-" and place == os.path.realpath(name):
            raise GaussMarkError(
                f"--out: expected a file of its own, got {out!r}, which is read; name another"
            )


def items(names: Sequence[str], *, lines: bool = False, field: str = "text") -> Iterator[Item]:
    """The texts of these files and folders, in order; with ``lines``, standard input (-) is read as
    .jsonl. Names are checked at once.

    ``field`` is what each line of JSON has: ``text``, or ``prompt`` where prompts are read; a
    file's last line end is no part of a prompt.

    Raises:
        GaussMarkError: a name that is neither file nor folder, or a folder without texts. A file
            alone that cannot be read is one, too.
    """
    for name in names:
        if name != "-" and not os.path.isdir(name):
            _check(name)
        if name != "-" and os.path.isdir(name) and not _in_folder(Path(name)):
            raise GaussMarkError(
                f"cannot read {name!r}: expected a folder with texts ({', '.join(IN_FOLDERS)}),"
                " found none in it"
            )
    return (item for name in names for item in _of(name, lines, field))


def _check(name: str) -> None:
    """GaussMarkError where there is no such file, or something else than one."""
    try:
        files.refuse_others(name)
    except OSError as error:
        raise GaussMarkError(
            f"cannot read {name!r}: {error.strerror}; expected UTF-8 text"
        ) from None


def are_many(names: Sequence[str], *, lines: bool = False) -> bool:
    """Whether more texts than one can come: then one that cannot be scored does not stop the
    others.
    """
    return len(names) > 1 or any(
        os.path.isdir(name) or name.endswith(LINES) or (name == "-" and lines) for name in names
    )


def _of(name: str, lines: bool, field: str) -> Iterator[Item]:
    path = Path(name)
    if name.endswith(LINES) or (name == "-" and lines):
        yield from _of_lines(name, field)
    elif name != "-" and os.path.isdir(path):
        for file in _in_folder(path):
            try:
                yield from _of(str(file), lines, field)
            except GaussMarkError as error:
                yield Item(str(file), error=str(error))
    else:
        yield Item(name, read(name) if field == "text" else read_prompt(name))


def _in_folder(folder: Path) -> list[Path]:
    try:
        inside = list(islice(folder.rglob("*"), MOST + 1))
        if len(inside) > MOST:
            raise GaussMarkError(
                f"{str(folder)!r}: expected a folder of at most {MOST:,} files and folders; name"
                " smaller ones, or one .jsonl file"
            )
        return sorted(file for file in inside if file.name.endswith(IN_FOLDERS) and file.is_file())
    except OSError as error:
        raise GaussMarkError(
            f"cannot read the folder {str(folder)!r}: {error.strerror}: {error.filename}; expected"
            " one that can be read"
        ) from None


def _of_lines(name: str, field: str) -> Iterator[Item]:
    """The line's number, from 1, is part of its text's name. Empty lines are none."""
    number = 0
    try:
        with open(
            0 if name == "-" else name, "rb", closefd=name != "-", opener=files.opener
        ) as file:
            lines = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_TEXT + 1), b""), 1):
                line = line.removeprefix(BOM_UTF8)
                if len(line) > LONGEST_TEXT and not line.endswith(b"\n"):
                    yield Item(
                        f"{name}:{number}",
                        error=f"expected a line of at most {LONGEST_TEXT:,} bytes; split its text",
                    )
                    _pass_over(lines)
                elif line.strip():
                    yield _of_line(f"{name}:{number}", line, field)
    except (OSError, EOFError, zlib.error) as error:
        yield Item(
            f"{name}:{number + 1}", error=f"expected a whole file, but it ends here: {error}"
        )


def _pass_over(lines: BufferedIOBase) -> None:
    """Reads on to the end of a line, and holds a part of it at a time."""
    while (part := lines.readline(LONGEST_TEXT)) and not part.endswith(b"\n"):
        pass


def _of_line(name: str, line: bytes, field: str) -> Item:
    try:
        row = json.loads(line.decode())
        text, prompt = row[field], row.get("prompt")
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # of JSON, of UTF-8, and of another value than an object
        start = line.strip()[:60].decode(errors="backslashreplace")
        return Item(name, error=f"expected a JSON object with a '{field}' field, got {start!r}")
    for what, value in ((field, text), ("prompt", prompt)):
        if not isinstance(value, str) and not (what != field and value is None):
            return Item(name, error=f"expected {what!r} to be a string, got {checks.shown(value)}")
    return Item(name, text, prompt)
