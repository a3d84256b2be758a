"""Texts and prompts in their order: typed, from files (``engine.text_files``), from folders and
from standard input.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from gaussmark_lib import files
from gaussmark_lib.engine import text_files
from gaussmark_lib.engine.text_files import Item
from gaussmark_lib.engine.typography import line_feeds
from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning
from gaussmark_lib.workbench.cli.options import Format

CONTROLS = re.compile(  # characters that move the cursor, or change the direction of a line
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


NOTHING = {  # errors for a command without texts or prompts
    "text": "expected a text to test, got none; give FILE, - for standard input, or --text",
    "prompt": "expected a prompt to continue, got none; give PROMPT, - for standard input, or"
    " --file",
}


class Texts(NamedTuple):
    """The texts, or prompts, of one command."""

    items: Iterator[Item]
    many: bool  # if true, the command continues after a text that cannot be read


def texts(
    names: Sequence[str],
    typed: Mapping[str, str | None],
    prompt: str | None = None,
    prompt_file: str | None = None,
    format: Format | None = None,
    column: str | None = None,
    out: str | None = None,
    *,
    field: str = "text",
) -> Texts:
    """Return the typed texts, then those of files, folders and standard input (``-``), in order.

    Args:
        typed: texts by their names; None is no text.
        prompt: the prompt of texts without a prompt in their row.
        prompt_file: a file with this prompt.
        format: the format of standard input.
        column: another name of the field.
        out: the file of results, which must not be among the texts.
        field: the column of files with rows: ``text``, or ``prompt`` if prompts are read.

    Raises:
        GaussMarkError: at once, if a name does not exist, if the only file cannot be read, or if an
            option has nothing to act on.
    """
    if prompt_file is not None:
        prompt = prompt_of(prompt_file, prompt)
    if out is not None:
        refuse_among(out, names)
    items = [text_files.item(name, text) for name, text in typed.items() if text is not None]
    if not names and not items:
        raise GaussMarkError(NOTHING[field])
    if format is not None and "-" not in names:
        raise GaussMarkError("--format: expected - (standard input) among the files, got none")
    of_several = [name for name in names if os.path.isdir(name) or text_files.has_many(name)]
    is_table = format not in (None, Format.TEXT)
    if "-" in names and is_table:
        of_several.append("-")  # standard input has several texts
    if column is not None and not of_several:
        raise GaussMarkError(
            "--column: expected a file of several texts (.csv, .json, .jsonl, …), a folder, or -"
            " with --format; got none of these"
        )

    paths = []
    for name in names:
        try:
            if os.path.isdir(name):
                paths += _of_folder(name)
                continue
            if name != "-":  # standard input
                files.refuse_others(name)
        except OSError as error:
            raise GaussMarkError(
                f"cannot read {name!r}: {error.strerror}; expected a text or a folder of texts"
            ) from None
        paths.append(name)
    read = chain.from_iterable(
        text_files.items(path, field=field, column=column, standard_input=format) for path in paths
    )
    is_one_file = len(names) == 1 and names != ["-"] and not os.path.isdir(names[0])
    if is_one_file and not items:
        first = list(islice(read, 1))
        if first and first[0].name == names[0]:  # no number: the error is that of the file
            first[0].required()
        read = chain(first, read)
    has_many = len(names) + len(items) > 1 or bool(of_several)
    items = chain(items, read)  # files are read one after another, as they are needed
    if prompt is not None:
        prompt = line_feeds(prompt)
        if text_files.SURROGATE.search(prompt):
            raise GaussMarkError("--prompt: expected whole Unicode characters, got half of one")
        items = (
            item._replace(prompt=prompt if item.prompt is None else item.prompt) for item in items
        )
    return Texts(items, has_many)


def prompt_of(path: str, prompt: str | None) -> str:
    """Return the content of the prompt's file; raise GaussMarkError if a prompt was typed as
    well.
    """
    if prompt:
        raise GaussMarkError("expected one prompt: --prompt or --prompt-file, got both")
    return text_files.whole(path, "prompt").required()


def _of_folder(name: str) -> list[str]:
    """The files with texts, sorted; warns of documents whose text cannot be read."""
    paths = sorted(str(path) for path in Path(name).rglob("*") if path.is_file())
    documents = [path for path in paths if text_files.is_document(path)]
    if documents:
        warnings.warn(
            f"{name}: left out {len(documents):,} files that are not plain text, such as"
            f" {documents[0]!r}; {text_files.ADVICE}",
            GaussMarkWarning,
            stacklevel=2,
        )
    readable = [path for path in paths if text_files.is_in_folders(path)]
    if not readable:
        raise GaussMarkError(
            f"cannot read {name!r}: expected a folder with texts"
            f" ({', '.join(text_files.IN_FOLDERS)}), found none in it"
        )
    return readable


def digest(item: Item, asked: list[Any]) -> str:
    """Return sixteen hexadecimal digits that identify a text and the question about it."""
    content = json.dumps([*item, *asked])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def visible(text: str) -> str:
    """Escape the characters of a name or a message that would control the terminal."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def new(name: str, suffix: str = "") -> Path:
    """Return the path of a new file, and raise GaussMarkError if it cannot be written.

    Commands call this before their imports and their work, which take seconds or minutes.
    """
    path = Path(f"{files.as_path(name, 'a new file', GaussMarkError)}{suffix}")
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except OSError as error:
        raise GaussMarkError(
            f"cannot write {path}: {error.strerror}; expected a new name in a writable folder,"
            " because no file is overwritten"
        ) from None
    return path


def refuse_among(out: str, names: Sequence[str]) -> None:
    """Raise GaussMarkError if the results would be read as texts."""
    path = Path(os.path.realpath(out))
    for name in names:
        place = Path(os.path.realpath(name))
        is_inside = place in path.parents and text_files.is_in_folders(path)
        if path == place or is_inside:
            raise GaussMarkError(
                f"--out: expected a file that is not among the texts, got {out!r}; name a file"
                " elsewhere"
            )
