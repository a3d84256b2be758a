"""What the commands are given: options that several of them have, and texts or prompts, one after
another, from files, folders, .jsonl files and standard input. Nothing is held but one text.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError

LINES = ".jsonl"
IN_FOLDERS = (".txt", ".md", LINES)
CONTROLS = re.compile(  # what moves a terminal's cursor, or turns a line's direction
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

KeyFile = Annotated[Path, typer.Option("--key", metavar="KEY", exists=True, help="Key file.")]
KeyFiles = Annotated[
    list[Path],
    typer.Option(
        "--key",
        metavar="KEY",
        exists=True,
        help="Key file; may be repeated, for keys of one weight and sigma.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Base model: doclm, smollm2, gemma-3-270m, a folder, a .gguf file or a hub id."
    ),
]
CodebookName = Annotated[
    str | None,
    typer.Option(metavar="FILE|N", help="A codebook of the key, or its number of users."),
]
Records = Annotated[str | None, typer.Option(help="Folder of the records [papermill_runs].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Lines = Annotated[bool, typer.Option("--jsonl", help="Standard input holds JSON lines.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Texts per batch.")]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write JSON lines there; where some are there already, go on behind the last.",
    ),
]


class Item(NamedTuple):
    """One text with its name, or why there is none. ``prompt`` is None where its line names
    none.
    """

    name: str
    text: str = ""
    prompt: str | None = None
    error: str | None = None
    row: int = 0  # its place among all

    def valid(self) -> str:
        """Its text; GaussMarkError where there is none."""
        if self.error:
            raise GaussMarkError(self.error)
        return self.text


def digest(item: Item, asked: list[Any]) -> str:
    """Names a text and what is asked of it: sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps([*item, *asked]).encode()).hexdigest()[:16]


def visible(text: str) -> str:
    """On one line, as a name or a message can stand in a terminal: what would control it is
    escaped.
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def new(name: str, suffix: str = "") -> Path:
    """The path of this name, where nothing is yet and something can be written: asked before the
    imports and any work, which take seconds or minutes.
    """
    path = Path(f"{files.named(name, 'a new file', GaussMarkError)}{suffix}")
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except OSError as error:
        raise GaussMarkError(
            f"cannot write {path}: {error.strerror}; nothing is overwritten: expected a new name in"
            " a folder that can be written to"
        ) from None
    return path


def refuse_among(out: str | None, names: Sequence[str]) -> None:
    """Refuses results that would be read as texts."""
    if out is None:
        return
    path = Path(os.path.realpath(out))
    for name in names:
        place = Path(os.path.realpath(name))
        if path == place or (place in path.parents and path.name.endswith(IN_FOLDERS)):
            raise GaussMarkError(
                f"--out: expected a file that is not among those that are read, got {out!r}; name"
                " one elsewhere"
            )


def are_many(names: Sequence[str], *, lines: bool = False) -> bool:
    """Whether several texts can come: then one that cannot be scored does not stop the others."""
    return len(names) > 1 or any(
        os.path.isdir(name) or name.endswith(LINES) or (name == "-" and lines) for name in names
    )


def items(names: Sequence[str], *, lines: bool = False, field: str = "text") -> Iterator[Item]:
    """The texts of these files and folders, in order; with ``lines``, standard input (-) is read as
    .jsonl. A name of nothing is refused at once.

    ``field`` is what each line of JSON has: ``text``, or ``prompt`` where prompts are read.
    """
    paths = [path for name in names for path in _files(name)]
    return chain.from_iterable(
        _of_lines(path, field)
        if path.endswith(LINES) or (path == "-" and lines)
        else [of_file(path, field)]
        for path in paths
    )


def _files(name: str) -> list[str]:
    try:
        if os.path.isdir(name):
            inside = (path for path in Path(name).rglob("*") if path.name.endswith(IN_FOLDERS))
            if found := sorted(str(path) for path in inside if path.is_file()):
                return found
            raise GaussMarkError(
                f"cannot read {name!r}: expected a folder with texts ({', '.join(IN_FOLDERS)}),"
                " found none in it"
            )
        if name != "-":
            files.refuse_others(name)
    except OSError as error:
        raise GaussMarkError(
            f"cannot read {name!r}: {error.strerror}; expected a text or a folder of texts"
        ) from None
    return [name]


def of_file(name: str, field: str = "text") -> Item:
    """A whole file; a prompt without the end of its last line, which editors add."""
    try:
        with _opened(name, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        return Item(name, error=f"cannot read {name!r}: {why}; expected UTF-8 text")
    return Item(name, text.removesuffix("\n") if field == "prompt" else text)


def _opened(name: str, **options: Any) -> IO:
    stdin = name == "-"
    return open(0 if stdin else name, closefd=not stdin, opener=files.opener, **options)


def _of_lines(name: str, field: str) -> Iterator[Item]:
    """The line's number, from 1, is part of its text's name. Empty lines are no texts."""
    with _opened(name, mode="rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _of_line(f"{name}:{number}", line, field)


def _of_line(name: str, line: bytes, field: str) -> Item:
    try:
        row = json.loads(line.decode("utf-8-sig"))
        text, prompt = row[field], row.get("prompt")
        if isinstance(text, str) and isinstance(prompt, str | None):
            return Item(name, text, prompt)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # something else than such an object
    start = line.strip()[:60].decode(errors="backslashreplace")
    why = f"expected a JSON object whose '{field}' (and 'prompt') is a string, got {start!r}"
    return Item(name, error=why)
