"""What the commands say: exit codes, sentences and tables that a terminal can show, and the answers
to many texts, printed or kept in a file by which an interrupted command goes on.
"""

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli.inputs import Item, digest, visible

if TYPE_CHECKING:
    from gaussmark_lib.workbench.cli.batches import Scoring, Writing

FAILED, REFUSED, PARTLY, INTERRUPTED = 1, 2, 3, 130  # exit codes; 0 is success
DIGEST = "digest"  # the first field of a line, which says of which text and question it is
START = f'{{"{DIGEST}": "'.encode()  # of a line
DELAY = 0.5  # seconds before progress is shown

Row = dict[str, Any]


def say(words: str, start: str = "gaussmark: ") -> None:
    """Prints a message on standard error."""
    with suppress(OSError):  # there may be nowhere to say it
        print(start + "\n".join(map(visible, words.split("\n"))), file=sys.stderr)


def loading(model: str) -> None:
    """What a person waits for: the packages and the model take seconds."""
    waiting(f"loading the model {model} …")


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
    work: "Scoring | Writing",
    items: Iterator[Item],
    *,
    many: bool,
    batch: int,
    out: str | None,
    as_json: bool,
    **bar: Any,
) -> int:
    """Answers all items, and says how it went; the exit code.

    Args:
        work: what is done with a batch of items.
        many: whether one text that cannot be answered does not stop the others.
        out: the file that the answers are kept in, one line for each of an item's rows.
        bar: tqdm's options.
    """
    from tqdm import tqdm

    from gaussmark_lib.engine.blocks import in_lists

    n = failed = n_before = failed_before = 0
    items = (item._replace(row=row) for row, item in enumerate(items))
    with ExitStack() as stack:
        if kept := stack.enter_context(_kept(out)) if out is not None else None:
            n_before, failed_before, items = _resumed(kept, work, items)
        progress = tqdm(**bar, file=sys.stderr, delay=DELAY, leave=False, disable=None)
        stack.enter_context(progress)
        try:
            for several in in_lists(items, batch):
                rows = []
                answers = work.answers(several, progress.update)
                for item, of_item in zip(several, answers, strict=True):
                    if error := of_item[0].get("error"):
                        failed += 1
                        name = "standard input" if item.name == "-" else item.name
                        why = f"{visible(name)}: {visible(error)}"
                        if not many:
                            raise GaussMarkError(why)
                        progress.write(f"gaussmark: {why}", file=sys.stderr)
                    about = {DIGEST: digest(item, work.asked)} | work.about(item)
                    rows += [about | row for row in of_item]
                if kept:
                    _write(kept, rows)
                else:
                    progress.clear()  # the answers are not to stand behind the bar
                    _show(work, rows, as_json, alone=not many)
                n += len(several)
        except GaussMarkError as error:
            error.exit_code = FAILED if n else REFUSED
            raise
    if not n + n_before:
        raise GaussMarkError(f"expected at least one text to be {work.done}, got none")
    if many:
        say(f"{n - failed:,} of {n:,} texts {work.done}, {failed:,} could not be")
    if n_before:
        say(f"{n_before:,} texts of an earlier run, {failed_before:,} of which could not be")
    return PARTLY if failed + failed_before else 0


def _show(work: "Scoring | Writing", rows: Sequence[Row], as_json: bool, *, alone: bool) -> None:
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


def _resumed(
    kept: IO[bytes], work: "Scoring | Writing", items: Iterator[Item]
) -> tuple[int, int, Iterator[Item]]:
    """How many of the items have their lines already, how many of those with an error, and the
    other items. What a killed process left of an answer is cut off.

    GaussMarkError: the lines are those of other texts, other keys or other options, or
    somebody's own; the file stays as it is.
    """
    n = failed = end = here = n_rows = 0
    item = None
    kept.seek(0)
    for number, line in enumerate(kept, 1):
        if not line.endswith(b"\n") and line[: len(START)] == START[: len(line)]:
            break
        item = item or next(items, None)
        row = _row(line)
        if item is None or row.get(DIGEST) != digest(item, work.asked):
            raise GaussMarkError(
                f"{kept.name}:{number}: expected {work.results}, got {line[:60]!r}; name another"
                " file"
            )
        here, n_rows = here + len(line), n_rows + 1
        if n_rows == work.per_text or "error" in row:
            n, failed, end, n_rows, item = n + 1, failed + ("error" in row), here, 0, None
    kept.truncate(end)
    return n, failed, chain([item] if item else [], items)


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
