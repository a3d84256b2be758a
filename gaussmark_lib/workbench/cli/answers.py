"""What the commands say: exit codes, sentences and tables that a terminal can show, and the answers
to many texts, printed or kept in a file by which an interrupted command goes on.
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

# exit codes; 0 is success
FAILED = 1
REFUSED = 2
PARTLY = 3
INTERRUPTED = 130
DIGEST = "digest"  # the first field of a line, which says of which text and question it is
START = f'{{"{DIGEST}": "'.encode()  # of a line
DELAY = 0.5  # seconds before progress is shown

NUMBER = re.compile("^(prompt|response|text) 0: ")  # of a text that is named by its file instead

Row = dict[str, Any]


class Work(ABC):
    """What a command does with its texts, such as ``scoring.Scoring``."""

    doing: str  # the bar's words
    done: str  # "12 of 12 texts …"
    unit: str  # what the bar counts
    results: str  # what a file of answers has
    hidden: frozenset[str]  # fields that only a file of answers has
    per_text: int  # rows of a text that can be answered
    asked: list[Any]  # what tells these answers from answers to another question

    @abstractmethod
    def about(self, item: Item) -> Row:
        """The first fields of a text's rows."""

    @abstractmethod
    def encode(self, item: Item) -> Any:
        """The text, ready to be answered, with its ``item``. GaussMarkError if it cannot be."""

    @abstractmethod
    def answer(self, texts: Sequence[Any], advance: Callable[[int], object]) -> list[list[Row]]:
        """The rows of each text, or one with an ``error``."""

    @abstractmethod
    def sentence(self, row: Row, *, alone: bool) -> str:
        """A row in words."""


@dataclass
class Count:
    """How many texts were answered, those that failed included."""

    texts: int = 0
    failed: int = 0


def say(words: str, start: str = "gaussmark: ") -> None:
    """Prints a message on standard error."""
    with suppress(OSError):  # there may be nowhere to say it
        print(start + "\n".join(map(visible, words.split("\n"))), file=sys.stderr)


def loading(model: str) -> None:
    """Says in a terminal what a person waits for: packages and the model take seconds."""
    if sys.stderr.isatty():
        say(f"loading the model {model} …")


def waiting(words: str) -> None:
    """Says in a terminal what takes seconds."""
    if sys.stderr.isatty():
        say(words)


def table(rows: Sequence[Mapping[str, object]], *, heading: bool = False) -> None:
    """Prints a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Column, Table

    columns = (Column(name, overflow="fold") for name in rows[0])
    shown = Table(*columns, box=None, pad_edge=False, show_header=heading, padding=(0, 2, 0, 0))
    for row in rows:  # a record from elsewhere may hold anything
        shown.add_row(*(visible(str(cell)) for cell in row.values()))
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
    """Answers all texts, and says how it went; the exit code.

    Args:
        batch: how many texts are answered at a time.
        out: the file that the answers are kept in, one line for each row.
        total: where the bar ends.
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
                rows = {}
                for item in batch_items:
                    try:
                        encoded.append(work.encode(item))
                    except GaussMarkError as error:
                        rows[item.row] = [{"error": NUMBER.sub("", str(error))}]
                answers = work.answer(encoded, bar.update) if encoded else []
                for text, of_text in zip(encoded, answers, strict=True):
                    rows[text.item.row] = of_text
                now.failed += _report(batch_items, rows, texts.many, bar)
                asked = work.asked
                complete = [
                    {DIGEST: digest(item, asked)} | work.about(item) | row
                    for item in batch_items
                    for row in rows[item.row]
                ]
                if file is not None:
                    _write(file, complete)
                else:
                    bar.clear()  # the answers are not to stand behind the bar
                    _show(work, complete, as_json, alone=not texts.many)
                now.texts += len(batch_items)
        except GaussMarkError as error:
            error.exit_code = FAILED if now.texts else REFUSED
            raise
    return _summary(work, now, earlier, many=texts.many)


def _report(items: Sequence[Item], rows: Mapping[int, Sequence[Row]], many: bool, bar: Any) -> int:
    """Names the texts that could not be answered, and how many they are. GaussMarkError for one
    alone.
    """
    n_failed = 0
    for item in items:
        if error := rows[item.row][0].get("error"):
            name = "standard input" if item.name == "-" else item.name
            why = f"{visible(name)}: {visible(error)}"
            if not many:
                raise GaussMarkError(why)
            bar.write(f"gaussmark: {why}", file=sys.stderr)
            n_failed += 1
    return n_failed


def _summary(work: Work, now: Count, earlier: Count, *, many: bool) -> int:
    """Says how many texts were answered; the exit code."""
    if not now.texts + earlier.texts:
        raise GaussMarkError(f"expected at least one text to be {work.done}, got none")
    if many:
        n_done = now.texts - now.failed
        say(f"{n_done:,} of {now.texts:,} texts {work.done}, {now.failed:,} could not be")
    if earlier.texts:
        say(f"{earlier.texts:,} texts of an earlier run, {earlier.failed:,} of which could not be")
    return PARTLY if now.failed + earlier.failed else 0


def _show(work: Work, rows: Sequence[Row], as_json: bool, *, alone: bool) -> None:
    for row in rows:
        if as_json:
            print(json.dumps({name: row[name] for name in row if name not in work.hidden}))
        elif "error" not in row:
            print(work.sentence(row, alone=alone))
    print(end="", flush=True)


@contextmanager
def _kept(path: str) -> Iterator[IO[bytes]]:
    """A file of answers, for this process alone; a new one without an answer is removed."""
    is_new = not os.path.lexists(path)
    with _locked(Path(path)) as file:
        try:
            yield file
        finally:
            if is_new and not file.tell():
                os.unlink(path)


def _resumed(kept: IO[bytes], work: Work, items: Iterator[Item]) -> tuple[Count, Iterator[Item]]:
    """How many of the texts have their lines already, and the other texts. What a killed process
    left of an answer is cut off.

    GaussMarkError: the lines are those of other texts, other keys or other options, or
    somebody's own; the file stays as it is.
    """
    earlier = Count()
    end = 0  # of the last complete answer, in bytes
    position = 0  # of the next line
    n_rows = 0  # of the item so far
    item = None
    asked = work.asked
    kept.seek(0)
    for number, line in enumerate(kept, 1):
        if not line.endswith(b"\n") and line[: len(START)] == START[: len(line)]:
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
    kept.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    kept.flush()
    os.fsync(kept.fileno())


def _row(line: bytes) -> Row:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):  # of JSON, of UTF-8, and of deep nesting
        return {}


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Inside, no other process answers with this state: of two that do, each would forget what the
    other gave away.
    """
    state = Path(os.path.realpath(state))
    if state.is_file() and state.stat().st_nlink > 1:
        raise GaussMarkError(
            f"{state}: expected a state with one name, got a hard link; delete the others"
        )
    with _locked(state.with_name(f".{state.name}.lock")):
        yield


def _locked(path: Path) -> IO[bytes]:
    """The file, for this process alone."""
    try:
        file = open(path, "a+b", opener=files.opener)  # noqa: SIM115 - for the run
    except OSError as error:
        raise GaussMarkError(
            f"cannot write {path}: {error.strerror}; expected a file in a folder that can be"
            " written to"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise GaussMarkError(
            f"{path}: another process is using it; expected a file for this one alone"
        ) from None
    except OSError:  # some network folders have no locks
        pass
    return file
