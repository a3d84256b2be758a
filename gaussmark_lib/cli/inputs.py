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
from pathlib import Path
from typing import NamedTuple

from gaussmark_lib import files
from gaussmark_lib.cli.common import visible
from gaussmark_lib.errors import GaussMarkError, shown

LINES = (".jsonl", ".jsonl.gz")
IN_FOLDERS = (".txt", ".md", *LINES)
LONGEST_TEXT = 1 << 26  # characters of a text, bytes of a line: what never ends is not read


class Item(NamedTuple):
    """One text with its name, or why there is none. ``prompt`` is None where its line names
    none.
    """

    name: str
    text: str = ""
    prompt: str | None = None
    error: str | None = None
    row: int = 0  # its place among all, where that counts

    @property
    def digest(self) -> str:
        """Whether a result is of this text: sixteen hexadecimal digits."""
        return digest([self.text, self.prompt, self.error])


def digest(facts: list) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def spoken(name: str) -> str:
    """The name of a text or file in an error."""
    return "standard input" if name == "-" else visible(name)


def read(name: str) -> str:
    """A file's text, or standard input's, whatever encoding the terminal has."""
    stdin = name == "-"
    try:
        with open(
            0 if stdin else name, encoding="utf-8-sig", closefd=not stdin, opener=files.opener
        ) as file:
            text = file.read(LONGEST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, error) from None
    if len(text) > LONGEST_TEXT:
        raise GaussMarkError(
            f"cannot read {name!r}: expected a text of at most {LONGEST_TEXT:,} characters;"
            " split it"
        )
    return text


def read_prompt(name: str) -> str:
    """The same of a prompt, without the end of the last line, which editors add."""
    return read(name).removesuffix("\n")


def _unreadable(name: str, error: Exception) -> GaussMarkError:
    why = getattr(error, "strerror", error)
    return GaussMarkError(f"cannot read {name!r}: {why}; expected UTF-8 text")


def check_stdin(names: Sequence[str | None], jsonl: bool, what: str) -> None:
    """Refuses standard input that is named twice, and ``--jsonl`` without it."""
    if list(names).count("-") > 1:
        raise GaussMarkError("-: expected standard input to be named once, since it is read once")
    if jsonl and "-" not in names:
        raise GaussMarkError(
            f"--jsonl: expected standard input (-) among the {what}; a file of JSON lines is known"
            " by its name, .jsonl"
        )


def refuse_among(out: str, names: Sequence[str]) -> None:
    """Refuses results that would be read as texts: in one of these folders, or in place of one of
    these files.
    """
    path = os.path.realpath(out)
    for name in names:
        inside = os.path.isdir(name) and Path(path).is_relative_to(os.path.realpath(name))
        if inside and path.endswith(IN_FOLDERS):
            raise GaussMarkError(
                f"--out: expected a file outside of the folder {name!r}, all of which is read, got"
                f" {out!r}; name one elsewhere"
            )
        if name != "-" and path == os.path.realpath(name):
            raise GaussMarkError(
                f"--out: expected a file of its own, got {out!r}, which is read; name another"
            )


def items(names: Sequence[str], *, lines: bool = False, field: str = "text") -> Iterator[Item]:
    """The texts of these files and folders, in order; with ``lines``, standard input (-) is read as
    .jsonl. Names are checked at once.

    ``field`` is what each line of JSON has: ``text``, or ``prompt`` where prompts are read.

    Raises:
        GaussMarkError: a name that is neither file nor folder, or a folder without texts; and a
            file that cannot be read, outside of folders.
    """
    for name in names:
        if os.path.isdir(name):
            if not _in_folder(name):
                raise GaussMarkError(
                    f"cannot read {name!r}: expected a folder with texts ({', '.join(IN_FOLDERS)}),"
                    " found none in it"
                )
        elif name != "-":
            try:
                files.refuse_others(name)
            except OSError as error:
                raise _unreadable(name, error) from None
    return (item for name in names for item in _of(name, lines, field))


def are_many(names: Sequence[str], *, lines: bool = False) -> bool:
    """Whether several texts can come: then one that cannot be scored does not stop the others."""
    return len(names) > 1 or any(
        os.path.isdir(name) or name.endswith(LINES) or (name == "-" and lines) for name in names
    )


def _of(name: str, lines: bool, field: str) -> Iterator[Item]:
    if name.endswith(LINES) or (name == "-" and lines):
        yield from _of_lines(name, field)
    elif name != "-" and os.path.isdir(name):
        for file in _in_folder(name):
            try:
                yield from _of(str(file), lines, field)
            except GaussMarkError as error:
                yield Item(str(file), error=str(error))
    else:
        yield Item(name, read(name) if field == "text" else read_prompt(name))


def _in_folder(name: str) -> list[Path]:
    try:
        return sorted(
            file
            for file in Path(name).rglob("*")
            if file.name.endswith(IN_FOLDERS) and file.is_file()
        )
    except OSError as error:
        raise GaussMarkError(
            f"cannot read the folder {name!r}: {error.strerror}: {error.filename}; expected one"
            " that can be read"
        ) from None


def _of_lines(name: str, field: str) -> Iterator[Item]:
    """The line's number, from 1, is part of its text's name. Empty lines are no texts."""
    number, stdin = 0, name == "-"
    try:
        with open(0 if stdin else name, "rb", closefd=not stdin, opener=files.opener) as file:
            lines = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_TEXT + 1), b""), 1):
                line = line.removeprefix(BOM_UTF8)
                if len(line) > LONGEST_TEXT and not line.endswith(b"\n"):
                    why = f"expected a line of at most {LONGEST_TEXT:,} bytes, and read no further"
                    yield Item(f"{name}:{number}", error=f"{why}; split its text")
                    return
                if line.strip():
                    yield _of_line(f"{name}:{number}", line, field)
    except (OSError, EOFError, zlib.error) as error:
        why = f"expected a whole file, but it ends here: {error}"
        yield Item(f"{name}:{number + 1}", error=why)


def _of_line(name: str, line: bytes, field: str) -> Item:
    try:
        row = json.loads(line.decode())
        text, prompt = row[field], row.get("prompt")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        start = line.strip()[:60].decode(errors="backslashreplace")
        return Item(name, error=f"expected a JSON object with a '{field}' field, got {start!r}")
    if not isinstance(text, str):
        return Item(name, error=f"expected {field!r} to be a string, got {shown(text)}")
    if not isinstance(prompt, str | None):
        return Item(name, error=f"expected 'prompt' to be a string, got {shown(prompt)}")
    return Item(name, text, prompt)
