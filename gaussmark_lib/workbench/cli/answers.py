"""What the commands print: exit codes, messages, tables, and the answers to many texts.

Answers are printed, or written to a file with which an interrupted command continues.
"""

import fcntl
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli.inputs import Item, Texts, digest, visible

# Exit codes; 0 is success.
FAILED = 1
REFUSED = 2
PARTLY = 3
INTERRUPTED = 130
DIGEST = "digest"  # the first field of a line, which identifies its text and question
START = f'{{"{DIGEST}": "'.encode()  # of a line
DELAY = 0.5  # seconds before progress is shown

NUMBER = re.compile("^(prompt|response|text) 0: ")  # in errors, which name the file instead

Row = dict[str, Any]


class Work(ABC):
    """What a command does with its texts, such as ``scoring.Scoring``."""

    doing: str  # the words on the bar
    done: str  # "12 of 12 texts …"
    unit: str  # of the bar
    results: str  # the content of a file of answers, in words
    hidden: frozenset[str]  # fields that only a file of answers has
    per_text: int  # rows of a text that can be answered
    asked: list[Any]  # what distinguishes these answers from answers to another question

    @abstractmethod
    def about(self, item: Item) -> Row:
        """Return the first fields of a text's rows."""

    @abstractmethod
    def encode(self, item: Item) -> Any:
        """Return the text as token ids, with its ``item``; raise GaussMarkError if it has none."""

    @abstractmethod
    def answer(self, texts: Sequence[Any], advance: Callable[[int], object]) -> list[list[Row]]:
        """Return the rows of each text, or a single row with an ``error``."""

    @abstractmethod
    def sentence(self, row: Row, *, alone: bool) -> str:
        """Return a row in words."""


@dataclass
class Count:
    """The number of texts so far, and how many of them failed."""

    texts: int = 0
    failed: int = 0


def say(words: str, start: str = "gaussmark: ") -> None:
    """Print a message on standard error."""
    with suppress(OSError):  # standard error may be closed
        print(start + "\n".join(map(visible, words.split("\n"))), file=sys.stderr)


def loading(model: str) -> None:
    """Tell a person at a terminal that packages and the model take seconds to load."""
    if sys.stderr.isatty():
        say(f"loading the model {model} …")


def waiting(words: str) -> None:
    """Tell a person at a terminal what takes seconds."""
    if sys.stderr.isatty():
        say(words)


WORD = 12  # characters: the first column of a table is at least as wide as a word of this length


def table(rows: Sequence[Mapping[str, object]], *, heading: bool = False) -> None:
    """Print a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(name, overflow="fold") for name in rows[0]]
    names = [str(next(iter(row.values()))) for row in rows]  # what the rows are about
    longest_word = max(len(word) for name in names for word in name.split() or [""])
    columns[0].min_width = min(longest_word, WORD)  # such a word is not folded
    shown = Table(*columns, box=None, pad_edge=False, show_header=heading, padding=(0, 2, 0, 0))
    for row in rows:
        cells = [visible(str(cell)) for cell in row.values()]  # of records by others, too
        shown.add_row(*cells)
    Console(markup=False, emoji=False, highlight=False).print(shown)


def give(
    work: Work,
    texts: Texts,
    *,
    batch: int,
    out: str | None,
    as_json: bool,
    total: int | None = None,
) -> int:
    """Answer all texts, print a summary, and return the exit code.

    Args:
        batch: number of texts that are answered at a time.
        out: file for the answers, one line per row.
        total: end of the bar.
    """
    from tqdm import tqdm

    from gaussmark_lib.engine.blocks import in_lists

    now = Count()
    earlier = Count()
    items = (item._replace(row=row) for row, item in enumerate(texts.items))
    bar = tqdm(
        desc=work.doing,
        unit=work.unit,
        total=total,
        file=sys.stderr,
        delay=DELAY,
        leave=False,
        disable=None,
    )
    with ExitStack() as stack:
        file = None
        if out is not None:
            file = stack.enter_context(_kept(out))
            earlier, items = _resumed(file, work, items)
        stack.enter_context(bar)
        try:
            for batch_items in in_lists(items, batch):
                encoded = []
                rows = {}  # number of the text → its rows, or a single row with an error
                for item in batch_items:
                    try:
                        encoded.append(work.encode(item))
                    except GaussMarkError as error:
                        rows[item.row] = [{"error": NUMBER.sub("", str(error))}]
                answers = work.answer(encoded, bar.update) if encoded else []
                for text, rows_of_text in zip(encoded, answers, strict=True):
                    rows[text.item.row] = rows_of_text
                now.failed += _report(batch_items, rows, texts.many, bar)
                complete = _complete(work, batch_items, rows)
                if file is not None:
                    _write(file, complete)
                else:
                    bar.clear()  # or the answers would begin behind the bar
                    _show(work, complete, as_json, alone=not texts.many)
                now.texts += len(batch_items)
        except GaussMarkError as error:
            error.exit_code = FAILED if now.texts else REFUSED
            raise
    return _summary(work, now, earlier, many=texts.many)


def _complete(work: Work, items: Sequence[Item], rows: Mapping[int, Sequence[Row]]) -> list[Row]:
    """All rows with their first fields, in the order of the texts."""
    asked = work.asked
    complete = []
    for item in items:
        first = {DIGEST: digest(item, asked)} | work.about(item)
        complete += [first | row for row in rows[item.row]]
    return complete


def _report(items: Sequence[Item], rows: Mapping[int, Sequence[Row]], many: bool, bar: Any) -> int:
    """Print the names of texts that could not be answered; return their number.

    Raises:
        GaussMarkError: if a single text could not be answered.
    """
    n_failed = 0
    for item in items:
        error = rows[item.row][0].get("error")
        if not error:
            continue
        name = "standard input" if item.name == "-" else item.name
        message = f"{visible(name)}: {visible(error)}"
        if not many:
            raise GaussMarkError(message)
        bar.write(f"gaussmark: {message}", file=sys.stderr)
        n_failed += 1
    return n_failed


def _summary(work: Work, now: Count, earlier: Count, *, many: bool) -> int:
    """Print how many texts were answered; return the exit code."""
    if now.texts == 0 and earlier.texts == 0:
        raise GaussMarkError(f"expected at least one text to be {work.done}, got none")
    if many:
        n_done = now.texts - now.failed
        say(f"{n_done:,} of {now.texts:,} texts {work.done}, {now.failed:,} failed")
    if earlier.texts:
        say(f"{earlier.texts:,} texts were answered by an earlier run, {earlier.failed:,} failed")
    return PARTLY if now.failed + earlier.failed else 0


def _show(work: Work, rows: Sequence[Row], as_json: bool, *, alone: bool) -> None:
    for row in rows:
        if as_json:
            public = {name: value for name, value in row.items() if name not in work.hidden}
            print(json.dumps(public))
        elif "error" not in row:
            print(work.sentence(row, alone=alone))
    print(end="", flush=True)


@contextmanager
def _kept(path: str) -> Iterator[IO[bytes]]:
    """A file of answers, locked for this process; a new file without an answer is removed."""
    is_new = not os.path.lexists(path)
    with _locked(Path(path)) as file:
        try:
            yield file
        finally:
            if is_new and not file.tell():
                os.unlink(path)


def _resumed(kept: IO[bytes], work: Work, items: Iterator[Item]) -> tuple[Count, Iterator[Item]]:
    """Return the number of texts that have their lines already, and the other texts.

    An incomplete answer of a killed process is cut off.

    Raises:
        GaussMarkError: if the lines belong to other texts, keys or options, or are no answers; the
            file is not changed.
    """
    earlier = Count()
    end = 0  # of the last complete answer, in bytes
    position = 0  # of the next line
    n_rows = 0  # of the item so far
    item = None
    asked = work.asked
    kept.seek(0)
    for number, line in enumerate(kept, 1):
        is_begun = line[: len(START)] == START[: len(line)]  # as far as it goes
        if is_begun and not line.endswith(b"\n"):
            break
        item = item or next(items, None)
        row = _row(line)
        if item is None or row.get(DIGEST) != digest(item, asked):
            raise GaussMarkError(
                f"{kept.name}:{number}: expected {work.results}, got {line[:60]!r}; name another"
                " file"
            )
        position += len(line)
        n_rows += 1
        if n_rows == work.per_text or "error" in row:
            earlier.texts += 1
            earlier.failed += int("error" in row)
            end = position
            n_rows = 0
            item = None
    kept.truncate(end)
    return earlier, chain([item] if item else [], items)


def _write(kept: IO[bytes], rows: Sequence[Row]) -> None:
    lines = [f"{json.dumps(row)}\n" for row in rows]
    kept.write("".join(lines).encode())
    kept.flush()
    os.fsync(kept.fileno())


def _row(line: bytes) -> Row:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):  # of JSON, of UTF-8, and of deep nesting
        return {}


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Lock a state: of two processes that use it, each would miss the answers of the other."""
    state = Path(os.path.realpath(state))
    if state.is_file() and state.stat().st_nlink > 1:
        raise GaussMarkError(
            f"{state}: expected a state with one name, got a hard link; delete its other names"
        )
    with _locked(state.with_name(f".{state.name}.lock")):
        yield


def _locked(path: Path) -> IO[bytes]:
    """Open a file and lock it for this process."""
    try:
        file = open(path, "a+b", opener=files.opener)  # noqa: SIM115 - for the run
    except OSError as error:
        raise GaussMarkError(
            f"cannot write {path}: {error.strerror}; expected a file in a writable folder"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise GaussMarkError(
            f"{path}: another process is using this file; wait for it, or name another file"
        ) from None
    except OSError:  # some network file systems have no locks
        pass
    return file
