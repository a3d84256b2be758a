"""What ``detect`` and ``generate`` do with many texts: answer them a batch at a time, print the
answers or keep them in a file by which an interrupted run goes on, and say how it went.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from gaussmark_lib import files
from gaussmark_lib.cli.common import FAILED, PARTLY, REFUSED, visible
from gaussmark_lib.cli.inputs import Item, spoken
from gaussmark_lib.errors import GaussMarkError, shown

Row = dict[str, Any]
START = b'{"text": '  # of a line
DIGEST = "digest"  # the field that says of which text a line is
DELAY = 0.5  # seconds before progress is shown


@dataclass
class Work:
    """One command's texts, from files of these ``names``.

    Args:
        done: what is done with a text, in one word: scored, written.
        answer: a batch of items → the rows of each: one or more, or one with an ``error``.
        show: prints one row.
        many: whether one text that cannot be answered does not stop the others.
        digest: item → what its rows have in the field ``digest``.
    """

    names: Sequence[str]
    done: str
    answer: Callable[[Sequence[Item]], list[list[Row]]]
    show: Callable[[Row], None]
    many: bool
    digest: Callable[[Item], str]
    bar: tqdm = field(init=False)

    def all(self, items: Iterator[Item], size: int, kept: "Kept | None", **bar: Any) -> int:
        """Answers all items, ``size`` at a time; the exit code. ``bar`` has tqdm's options."""
        n = failed = 0
        before, failed_before = kept.skipped(items, self.digest) if kept else (0, 0)
        options = {"file": sys.stderr, "delay": DELAY, "leave": False, "disable": None}
        with tqdm(**bar, **options) as self.bar:
            try:
                for batch in iter(lambda: list(islice(items, size)), []):
                    answers = [
                        [row | {DIGEST: self.digest(item)} for row in rows]
                        for item, rows in zip(batch, self.answer(batch), strict=True)
                    ]
                    failed += self._say_errors(answers)
                    if kept:
                        kept.write(answers)
                    else:
                        self._show(answers)
                    n += len(answers)
            except GaussMarkError as error:
                error.exit_code = FAILED if n else REFUSED
                raise
        if not n + before:
            names = ", ".join(map(spoken, self.names))
            raise GaussMarkError(
                f"expected at least one text to be {self.done}, got none in {names}"
            )
        if self.many or failed_before:
            earlier = (
                f", behind {before:,} of an earlier run, {failed_before:,} of which could not be"
            )
            print(
                f"gaussmark: {n - failed:,} text{'s'[: n - failed != 1]} {self.done}, {failed:,}"
                f" could not be{earlier if before else ''}",
                file=sys.stderr,
            )
        return PARTLY if failed + failed_before else 0

    def _say_errors(self, answers: Sequence[Sequence[Row]]) -> int:
        errors = [rows[0] for rows in answers if "error" in rows[0]]
        for row in errors:
            name = row.get("name", row["text"])
            if not self.many:
                raise GaussMarkError(f"{spoken(name)}: {row['error']}")
            self.bar.write(f"gaussmark: {visible(name)}: {row['error']}", file=sys.stderr)
        return len(errors)

    def _show(self, answers: Sequence[Sequence[Row]]) -> None:
        self.bar.clear()  # the answers are not to stand behind the bar
        for row in (row for rows in answers for row in rows):
            self.show(row)
        sys.stdout.flush()


class Kept:
    """A file of JSON lines, in the order of the texts: ``per_text`` lines each, or one with an
    ``error``. One process at a time writes it. ``what`` says in an error whose lines are expected.
    """

    def __init__(self, path: str, per_text: int, what: str):
        self.path, self.per_text, self.what = Path(path), per_text, what
        self.is_new = not os.path.lexists(self.path)
        self.file = _locked(self.path, f"cannot write {path}", "another process is writing it")

    def skipped(self, items: Iterator[Item], digest: Callable[[Item], str]) -> tuple[int, int]:
        """Takes from ``items`` those that have their lines already, by their ``digest``: how many,
        and how many of them with an error.

        What a killed process left of a line is cut off.

        Raises:
            GaussMarkError: the lines are those of other texts, other keys or other options, or
                somebody's own; the file stays as it is.
        """
        n = failed = end = here = 0
        rows: list[Row] = []
        self.file.seek(0)
        for line in self.file:
            if (row := self._row(line)) is None:
                break
            here += len(line)
            rows.append(row)
            if len(rows) < self.per_text and "error" not in row:
                continue
            item = next(items, None)
            if item is None or any(row[DIGEST] != digest(item) for row in rows):
                raise GaussMarkError(
                    f"{self.path}: expected {self.what}, got {shown(row['text'])} for"
                    f" {item.name if item else 'no further text'}; name another file"
                )
            n, failed, end, rows = n + 1, failed + ("error" in row), here, []
        self.file.truncate(end)
        return n, failed

    def _row(self, line: bytes) -> Row | None:
        """A line of results; None for what a killed process left of one."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # of JSON, of UTF-8, and of deep nesting
            row = None
        is_ours = isinstance(row, dict) and DIGEST in row
        if is_ours and line.endswith(b"\n"):
            return row
        begins = line[: len(START)] == START[: len(line)]
        if begins and not line.endswith(b"\n") and (row is None or is_ours):
            return None
        raise GaussMarkError(
            f"{self.path}: expected lines of JSON as this command writes them, got {line[:60]!r};"
            " name another file"
        )

    def write(self, answers: Sequence[Sequence[Row]]) -> None:
        rows = [row for rows in answers for row in rows]
        self.file.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())
        self.file.flush()
        os.fsync(self.file.fileno())

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_new and not self.file.tell():  # refused before the first answer
            self.path.unlink(missing_ok=True)
        self.file.close()


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Inside, no other process answers with this state: of two that do, each would forget what the
    other gave away.
    """
    state = Path(os.path.realpath(state))
    lock = state.parent / f".{state.name}.lock"
    busy = "another process answers with it"
    with _locked(lock, f"cannot write the state {state}", busy) as file:
        if not lock.exists() or not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            raise GaussMarkError(f"{state}: {busy}")  # its owner removed the lock meanwhile
        try:
            if state.is_file() and state.stat().st_nlink > 1:
                raise GaussMarkError(
                    f"{state}: expected a state with one name, got a file with several (hard links)"
                    ", of which each would forget what another gave away; delete the others"
                )
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(path: Path, cannot: str, busy: str) -> IO[bytes]:
    """The file, for this process alone."""
    try:
        file = open(path, "a+b", opener=files.opener)  # noqa: SIM115 - for the run
    except OSError as error:
        raise GaussMarkError(
            f"{cannot}: {error.strerror}; expected a file in a folder that can be written to"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise GaussMarkError(f"{path}: {busy}; expected a file for this run alone") from None
    except OSError:  # some network folders have no locks
        pass
    return file
