"""What the commands are given: options that several of them have, and texts or prompts, one after
another, from files (``engine.text_files``), folders and standard input.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from gaussmark_lib import files
from gaussmark_lib.engine import text_files
from gaussmark_lib.engine.text_files import Item
from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning

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
Column = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Column or JSON field to read [text, or prompt in generate]."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Texts per batch.")]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write JSON lines there; where some are there already, go on behind the last.",
    ),
]


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
    path = Path(f"{files.as_path(name, 'a new file', GaussMarkError)}{suffix}")
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
        is_inside = place in path.parents and text_files.is_in_folders(path)
        if path == place or is_inside:
            raise GaussMarkError(
                f"--out: expected a file that is not among those that are read, got {out!r}; name"
                " one elsewhere"
            )


def are_many(names: Sequence[str], *, lines: bool = False) -> bool:
    """Whether several texts can come: then one that cannot be scored does not stop the others."""
    return len(names) > 1 or any(
        os.path.isdir(name) or text_files.has_many(name) or (name == "-" and lines)
        for name in names
    )


def items(
    names: Sequence[str], *, lines: bool = False, field: str = "text", column: str | None = None
) -> Iterator[Item]:
    """The texts of these files and folders, in order.

    GaussMarkError at once for a name of nothing, and for a file that is named alone and cannot be
    read.

    Args:
        lines: read standard input (``-``) as JSON lines.
        field: what a row of a file has: ``text``, or ``prompt`` where prompts are read.
        column: another name of it.
    """
    paths = [path for name in names for path in _files(name)]
    texts = chain.from_iterable(
        text_files.items(path, field=field, column=column, as_lines=lines) for path in paths
    )
    if len(names) != 1 or names == ["-"] or os.path.isdir(names[0]):
        return texts
    first = list(islice(texts, 1))
    if first and first[0].name == names[0]:  # no number: the error is that of the file
        first[0].required()
    return chain(first, texts)


def _files(name: str) -> list[str]:
    try:
        if os.path.isdir(name):
            return _of_folder(name)
        if name != "-":
            files.refuse_others(name)
    except OSError as error:
        raise GaussMarkError(
            f"cannot read {name!r}: {error.strerror}; expected a text or a folder of texts"
        ) from None
    return [name]


def _of_folder(name: str) -> list[str]:
    """The files with texts, sorted; a warning names those whose text cannot be read."""
    paths = sorted(str(path) for path in Path(name).rglob("*") if path.is_file())
    documents = [path for path in paths if text_files.is_document(path)]
    if documents:
        warnings.warn(
            f"{name}: left out {len(documents):,} files that are not plain text, such as"
            f" {documents[0]!r}; {text_files.ADVICE}",
            GaussMarkWarning,
            stacklevel=2,
        )
    texts = [path for path in paths if text_files.is_in_folders(path)]
    if not texts:
        raise GaussMarkError(
            f"cannot read {name!r}: expected a folder with texts"
            f" ({', '.join(text_files.IN_FOLDERS)}), found none in it"
        )
    return texts
