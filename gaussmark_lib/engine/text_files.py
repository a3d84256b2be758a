"""Files of texts: one reader for the command line, for notebooks and for training.

===========================  ======================================================================
``.csv`` ``.tsv``            a table whose first row names its columns: a text per row, in the
                             column ``text`` or in the only column that has words
``.jsonl`` ``.ndjson``       a JSON object with a ``text`` on each line
``.json``                    an array of such objects, or of strings
``.txt`` ``.md``, no or any  one text: the whole file
other ending
===========================  ======================================================================

A table's row and a JSON object may also have a ``prompt``. Endings count in any capitalisation, and
each file may be compressed by gzip (``.csv.gz``). Files are UTF-8, or UTF-16 with its byte order
mark. Documents, archives and other data that are not plain text are refused.

A text's name is its file's, and in a file of many texts also a number: ``two.csv:2`` is row 2 as a
spreadsheet counts (row 1 has the names of the columns), ``two.jsonl:2`` is line 2, and
``two.json:2`` is the second element of the array.

One text is held at a time, except that an array is read whole, and that a table without a column
``text`` is searched in its first rows.
"""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from gaussmark_lib import files
from gaussmark_lib.engine.typography import line_feeds
from gaussmark_lib.errors import InvalidTextError, shown

ALONE = (".txt", ".md")  # endings of files with one text that are read if they lie in folders
TABLES = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
ARRAYS = (".json",)
MANY = TABLES + LINES + ARRAYS
IN_FOLDERS = ALONE + MANY
# people have texts in these files, but their content is more than the text
DOCUMENTS = (
    *(".doc", ".docx", ".docm", ".odt", ".rtf", ".pages", ".pdf", ".ps", ".epub", ".mobi"),
    *(".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers", ".ppt", ".pptx", ".odp", ".key"),
    *(".htm", ".html", ".xhtml", ".mhtml", ".xml", ".eml", ".msg", ".ipynb"),
    *(".parquet", ".feather", ".arrow", ".orc", ".avro", ".h5", ".hdf5", ".npy", ".npz"),
    *(".pkl", ".pickle", ".db", ".sqlite", ".sqlite3"),
)
OTHERS = (
    *(".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"),
    *(".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".bmp", ".webp", ".heic", ".svg"),
    *(".mp3", ".mp4", ".wav", ".m4a", ".mov", ".avi"),
    *(".exe", ".bin", ".pt", ".pth", ".safetensors", ".gguf", ".onnx"),
)
BEGINNINGS = {b"%PDF-": "a PDF document", b"{\\rtf": "a rich text document"}  # have no zero byte
ADVICE = "save it as plain text (.txt), or several texts as .csv or .jsonl"
NOT_TEXT = f"expected UTF-8 text, got other bytes; {ADVICE}, in UTF-8"

DELIMITERS = ",;\t"
LOOK_AHEAD = 100  # rows of a table in which a column with words is looked for
LONGEST_NAME = 60  # characters: a longer name of a column is a text
LARGEST_CELL = 2**31 - 1  # characters; Python's default is 131,072
VALUES = ("true", "false", "null", "none", "")
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8, or half a character of JSON


class Item(NamedTuple):
    """A text with its name, or the reason why it cannot be read.

    ``prompt`` is None if the file has no prompt for the text.
    """

    name: str
    text: str = ""
    prompt: str | None = None
    error: str | None = None
    row: int = 0  # its place among all texts of a command

    def valid(self) -> str:
        """Return the text, or raise InvalidTextError if it cannot be read."""
        if self.error:
            raise InvalidTextError(self.error)
        return self.text

    def required(self) -> str:
        """Return the text, or raise InvalidTextError with its name if it cannot be read."""
        if self.error:
            raise InvalidTextError(f"{self.name}: {self.error}")
        return self.text


def item(name: str, text: str, prompt: str | None = None) -> Item:
    """Return a text that was read or typed, with line feeds alone at the ends of its lines."""
    if prompt is not None:
        prompt = line_feeds(prompt)
    return Item(name, line_feeds(text), prompt)


def has_many(name: str | Path) -> bool:
    """Return whether a file of this name can hold several texts.

    >>> has_many("folder/TWO.JSONL"), has_many("two.csv.gz"), has_many("csv.txt")
    (True, True, False)
    """
    return _ending(name) in MANY


def is_in_folders(name: str | Path) -> bool:
    """Return whether a file of this name is read if it lies in a folder of texts.

    >>> is_in_folders("a.md.gz"), is_in_folders("a.py")
    (True, False)
    """
    return _ending(name) in IN_FOLDERS


def is_document(name: str | Path) -> bool:
    """Return whether a file of this name may have text that cannot be read here.

    >>> is_document("a.docx"), is_document("a.py")
    (True, False)
    """
    return _ending(name) in DOCUMENTS


def items(
    name: str | Path,
    *,
    field: str = "text",
    column: str | None = None,
    standard_input: str | None = None,
) -> Iterator[Item]:
    """Yield the texts of a file, in order. A text that cannot be read is an item with an error.

    Args:
        name: the file, or ``-`` for standard input.
        field: the column, or the field of JSON objects: ``text``, or ``prompt``.
        column: another name of that column or field.
        standard_input: the format of standard input: ``"csv"``, ``"json"``, ``"jsonl"`` or
            ``"text"``, which is one text. None is one text, too, and refuses what looks like
            several.
    """
    name = str(name)
    ending = _ending(name)
    if name == "-" and standard_input is None:
        return _read(name, partial(_of_one, field=field))
    if name == "-":
        ending = f".{standard_input}"
    if ending in TABLES:
        return _read(name, partial(_of_table, field=field, column=column))
    if ending in LINES:
        return _read(name, partial(_of_lines, field=column or field))
    if ending in ARRAYS:
        return _read(name, partial(_of_array, field=column or field))
    return _read(name, partial(_of_whole, field=field))


def whole(name: str | Path, field: str = "text") -> Item:
    """Return a file as one text, whatever its ending."""
    return next(_read(str(name), partial(_of_whole, field=field)))


def rows(name: str | Path) -> Iterator[dict[str, str]]:
    """Yield a dict ``text, source`` for each text of a file.

    ``source`` is the text's name without its folder, such as ``mine.csv:12``. Raise
    InvalidTextError at the first text that cannot be read.
    """
    path = files.as_path(name, "a file of texts", InvalidTextError)
    for text in items(path):
        number = text.name.removeprefix(str(path))
        yield {"text": text.required(), "source": f"{path.name}{number}"}


def _ending(name: str | Path) -> str:
    """Return the ending in lower case; the ending of gzip does not count."""
    return Path(str(name).lower().removesuffix(".gz")).suffix


def _read(name: str, reader: Callable[[str, io.TextIOWrapper], Iterator[Item]]) -> Iterator[Item]:
    """Yield the items of a file. If reading ends early, the last item says why."""
    try:
        if _ending(name) in DOCUMENTS + OTHERS:
            raise InvalidTextError(f"expected plain text, got a {_ending(name)} file; {ADVICE}")
        with _opened(name) as file, _decoded(file) as characters:
            yield from reader(name, characters)
        return
    except InvalidTextError as error:
        why = str(error)
    except UnicodeError:
        why = NOT_TEXT
    except (EOFError, zlib.error, gzip.BadGzipFile):
        why = (
            "expected a whole gzip file, got one that is damaged or ends early; compress or"
            " download it again"
        )
    except OSError as error:
        why = f"{error.strerror or error}; expected a file with UTF-8 text"
    yield Item(name, error=f"cannot read the file: {why}")


@contextmanager
def _opened(name: str) -> Iterator[io.BufferedReader]:
    """Open a file, or standard input, and give its bytes, decompressed."""
    with ExitStack() as stack:
        if name == "-":
            file = stack.enter_context(open(0, "rb", closefd=False))
        else:
            file = stack.enter_context(open(name, "rb", opener=files.opener))
        if name.lower().endswith(".gz"):
            plain = stack.enter_context(gzip.GzipFile(fileobj=file))
            file = io.BufferedReader(plain)
        yield file


def _decoded(file: io.BufferedReader) -> io.TextIOWrapper:
    """Return the file's characters.

    A byte that is not UTF-8 becomes a surrogate, so that in a file of many texts only the text with
    this byte is lost.
    """
    beginning = file.peek(1)
    errors = "strict"
    if beginning.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "utf-32"
    elif beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
        errors = "surrogateescape"
        if b"\0" in beginning:
            raise InvalidTextError(NOT_TEXT)
    for start, kind in BEGINNINGS.items():
        if beginning.startswith(start):
            raise InvalidTextError(f"expected plain text, got {kind}; {ADVICE}")
    return io.TextIOWrapper(file, encoding, errors, newline="")


def _of_whole(name: str, file: io.TextIOWrapper, field: str) -> Iterator[Item]:
    """Yield a whole file. A prompt loses the end of its last line, which editors add."""
    content = file.read()
    if "\0" in content or SURROGATE.search(content):
        raise InvalidTextError(NOT_TEXT)
    text = line_feeds(content)
    yield Item(name, text.removesuffix("\n") if field == "prompt" else text)


def _of_one(name: str, file: io.TextIOWrapper, field: str) -> Iterator[Item]:
    """Yield standard input as one text, or raise InvalidTextError if it looks like several."""
    [only] = _of_whole(name, file, field)
    format = several(only.text, field)
    if format is not None:
        raise InvalidTextError(
            f"expected one text, got what looks like several texts in the format {format}; say"
            f" --format {format} to read each, or --format text to take all as one text"
        )
    yield only


def several(text: str, field: str = "text") -> str | None:
    """Return the format of a text that looks like a file of several texts, or None.

    JSON must have the field in each of its objects. A table must have the field in its first row,
    and as many cells in every row.

    >>> several('{"text": "a"}\\n{"text": "b"}'), several('["a", "b"]'), several("id,text\\n1,a")
    ('jsonl', 'json', 'csv')
    >>> several("Text, and more.\\nA line."), several('{"name": "a"}')
    (None, None)
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if text.lstrip()[:1] == "{" and all(_has_field(line, field) for line in lines):
        return "jsonl"
    if text.lstrip()[:1] in ("[", "{") and _is_array(text, field):
        return "json"
    if len(lines) > 1 and _is_table(text, lines[0], field):
        return "csv"
    return None


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _has_field(text: str, field: str) -> bool:
    value = _parsed(text)
    return isinstance(value, dict) and field in value


def _is_array(text: str, field: str) -> bool:
    """Return whether it is a JSON array of strings, or an array or object with the field."""
    value = _parsed(text)
    rows = value if isinstance(value, list) else [value]
    are_texts = isinstance(value, list) and all(isinstance(row, str) for row in rows)
    are_objects = all(isinstance(row, dict) and field in row for row in rows)
    return bool(rows) and (are_texts or are_objects)


def _is_table(text: str, heading: str, field: str) -> bool:
    csv.field_size_limit(LARGEST_CELL)
    table = csv.reader(text.split("\n"), delimiter=_delimiter(heading, field), strict=True)
    try:
        rows = [cells for cells in table if cells]
    except csv.Error:
        return False
    names = [name.strip().casefold() for name in rows[0]]
    return field in names and all(len(cells) == len(names) for cells in rows)


def _of_lines(name: str, file: io.TextIOWrapper, field: str) -> Iterator[Item]:
    for number, line in enumerate(file, 1):
        content = line.strip("\ufeff \t\r\n")  # files that were joined keep their marks
        if not content:
            continue
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = content  # not an object, so it becomes an item with an error
        yield _of_object(f"{name}:{number}", value, field)


def _of_array(name: str, file: io.TextIOWrapper, field: str) -> Iterator[Item]:
    content = file.read()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidTextError(
            f"expected a JSON array of texts, or of objects whose '{field}' is a text, got broken"
            f" JSON ({error}); a file with one object on each line is named .jsonl"
        ) from None
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, 1):
        is_text = isinstance(row, str) and isinstance(value, list)
        yield _of_object(f"{name}:{number}", {field: row} if is_text else row, field)


def _of_object(name: str, row: Any, field: str) -> Item:
    if isinstance(row, dict):
        text = row.get(field)
        prompt = row.get("prompt")
        are_strings = isinstance(text, str) and isinstance(prompt, str | None)
        if are_strings and not SURROGATE.search(text + (prompt or "")):
            return item(name, text, prompt)
    return Item(
        name,
        error=f"expected a JSON object whose '{field}' (and 'prompt') is a string of whole"
        f" characters, got {shown(row)}",
    )


def _of_table(name: str, file: io.TextIOWrapper, field: str, column: str | None) -> Iterator[Item]:
    csv.field_size_limit(LARGEST_CELL)
    n_blank = 0
    for heading in file:
        if heading.strip():
            break
        n_blank += 1
    else:
        raise InvalidTextError("expected a first row with the names of the columns, got no row")
    delimiter = "\t" if _ending(name) == ".tsv" else _delimiter(heading, column or field)
    table = csv.reader(chain([heading], file), delimiter=delimiter, strict=True)
    numbered = _numbered(table, n_blank + 1)
    _, names = next(numbered)
    if isinstance(names, str):
        raise InvalidTextError(names)
    names = [cell.strip() for cell in names]
    place = _place(names, column or field)
    place_of_prompt = _place(names, "prompt")
    if place is None:
        if column is not None:
            raise InvalidTextError(f"expected a column {column!r}, got {_listed(names)}")
        first_rows = list(islice(numbered, LOOK_AHEAD))
        numbered = chain(first_rows, numbered)
        place = _place_of_words(names, [cells for _, cells in first_rows], field)
    for number, cells in numbered:
        at = f"{name}:{number}"
        if isinstance(cells, str):
            yield Item(at, error=cells)
        elif len(cells) < len(names) or any(cells[len(names) :]):
            yield Item(
                at,
                error=f"expected {len(names)} cells, as in the first row, got {len(cells)}; a text"
                " with a comma or a line break needs quotes around it",
            )
        else:
            prompt = None if place_of_prompt is None else cells[place_of_prompt] or None
            if SURROGATE.search(cells[place] + (prompt or "")):
                yield Item(at, error=NOT_TEXT)
            else:
                yield item(at, cells[place], prompt)


def _delimiter(heading: str, wanted: str) -> str:
    """Return the delimiter that gives the first row the wanted column, or else the most columns."""
    columns = {mark: next(csv.reader([heading], delimiter=mark)) for mark in DELIMITERS}
    for mark, names in columns.items():
        if wanted.casefold() in [name.strip().casefold() for name in names]:
            return mark
    return max(columns, key=lambda mark: len(columns[mark]))


def _numbered(table: Iterator[list[str]], first: int) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the rows that have content, with their numbers.

    A broken row is the last row, and a reason stands in its place.
    """
    rows = enumerate(table, first)
    number = first - 1
    try:
        for number, cells in rows:
            if any(cells):
                yield number, cells
    except csv.Error as error:
        yield (
            number + 1,
            f"expected cells with complete quotes, got a row that breaks off ({error}); a quote"
            " inside a quoted text is written twice; no later row was read",
        )


def _place(names: Sequence[str], wanted: str) -> int | None:
    places = [i for i, name in enumerate(names) if name.casefold() == wanted.casefold()]
    if len(places) > 1:
        raise InvalidTextError(f"expected one column {wanted!r}, got {_listed(names)}")
    return places[0] if places else None


def _place_of_words(names: Sequence[str], rows: Sequence[list[str] | str], field: str) -> int:
    """Return the place of the only column with words, apart from ``text`` and ``prompt``.

    The rows are the first rows of the table.
    """
    if any(len(name) > LONGEST_NAME or name.endswith((".", "!", "?")) for name in names):
        raise InvalidTextError(
            f"expected a first row with the names of the columns, got {_listed(names)}; add one,"
            f" such as {field}"
        )
    full = [cells for cells in rows if not isinstance(cells, str)]
    places = [
        i
        for i, name in enumerate(names)
        if name.casefold() not in ("text", "prompt")
        and any(_has_words(cells[i]) for cells in full if i < len(cells))
    ]
    if len(places) != 1:
        raise InvalidTextError(
            f"expected a column '{field}', or only one column with words, got {_listed(names)};"
            f" rename one to '{field}' or name it with --column"
        )
    return places[0]


def _has_words(cell: str) -> bool:
    """Return whether a cell has letters, and is neither a number nor a truth value."""
    try:
        float(cell)  # also 1e5, nan and inf
    except ValueError:
        is_number = False
    else:
        is_number = True
    is_value = cell.strip().casefold() in VALUES
    return not is_number and not is_value and any(map(str.isalpha, cell))


def _listed(names: Sequence[str]) -> str:
    return f"the columns {', '.join(map(shown, names))}"
