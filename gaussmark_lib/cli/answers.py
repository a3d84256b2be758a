"""The answers of ``gaussmark detect``: sentences or a JSON line each, printed, or kept in a file by
which an interrupted run goes on.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from gaussmark_lib import files
from gaussmark_lib.cli.arguments import visible
from gaussmark_lib.cli.inputs import Item
from gaussmark_lib.errors import GaussMarkError, shown

Row = dict[str, Any]
START = b'{"text": '  # of a line
LAST = "digest"  # the field that says of which text a line is


class Kept:
    """A file of JSON lines, in the order of the texts: ``per_text`` lines each, or one with an
    ``error``. One process at a time writes it.
    """

    def __init__(
        self,
        path: str,
        per_text: int,
        what: str = "results of these texts with this model, these keys, this prompt and level",
    ):
        self.path, self.per_text, self.what = Path(path), per_text, what
        try:
            self.is_new = not os.path.lexists(self.path)
            self.file = open(self.path, "a+b", opener=files.opener)  # noqa: SIM115 - for the run
        except OSError as error:
            raise GaussMarkError(
                f"cannot write {path}: {error.strerror}; expected a file in a folder that exists"
            ) from None
        if not _locked(self.file):
            self.file.close()
            raise GaussMarkError(
                f"{path}: another process is writing it; expected a file for this run alone, name"
                " another"
            )

    def skipped(
        self, items: Iterator[Item], digest: Callable[[Item], str] = attrgetter("digest")
    ) -> tuple[int, int]:
        """Takes from ``items`` those that have their lines already, by their ``digest``: how many,
        and how many of them with an error.

        What a killed process left of a line is cut off; a file that begins otherwise is somebody's
        own, and stays as it is.

        Raises:
            GaussMarkError: the lines are those of other texts, other keys or other options.
        """
        self.file.seek(0)
        n = failed = 0
        while True:
            start = self.file.tell()
            if not (rows := self._next()):
                self.file.truncate(start)
                return n, failed
            item = next(items, None)
            if item is None or any(row.get(LAST) != digest(item) for row in rows):
                where = item.name if item else "no further text"
                raise GaussMarkError(
                    f"{self.path}: expected {self.what}, got {shown(rows[0].get('text'))} for"
                    f" {where}; name another file"
                )
            n, failed = n + 1, failed + ("error" in rows[0])

    def _next(self) -> list[Row]:
        """The lines of the next text, or nothing where they are not all there."""
        rows: list[Row] = []
        while len(rows) < self.per_text:
            line = self.file.readline()
            try:
                row = json.loads(line)
            except (
                ValueError,
                RecursionError,
            ):  # of JSON, of UTF-8, and of what is nested too deeply
                row = None
            if (
                not line.endswith(b"\n")
                and line[: len(START)] == START[: len(line)]
                and (row is None or LAST in row)
            ):
                return []
            if not isinstance(row, dict):
                raise GaussMarkError(
                    f"{self.path}: expected lines of JSON as this command writes them, got"
                    f" {line[:60]!r}; name another file"
                ) from None
            rows.append(row)
            if "error" in row:
                break
        return rows

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_new and not self.file.tell():  # refused before the first answer
            self.path.unlink(missing_ok=True)
        self.file.close()

    def __call__(self, answers: Sequence[Sequence[Row]]) -> None:
        self.file.write(
            "".join(f"{json.dumps(row)}\n" for rows in answers for row in rows).encode()
        )
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Inside, no other process answers with this state: of two that do, each would forget what the
    other gave away. A link is what it names; a second name would go on as a state of its own.
    """
    state = Path(os.path.realpath(state))
    lock = state.parent / f".{state.name}.lock"
    try:
        file = open(lock, "ab", opener=files.opener)  # noqa: SIM115 - closed below
    except OSError as error:
        raise GaussMarkError(
            f"cannot write the state {state}: {error.strerror}; expected a name in a folder that"
            " can be written to"
        ) from None
    with file:
        if (
            not _locked(file)
            or not lock.exists()
            or not os.path.samestat(os.fstat(file.fileno()), lock.stat())
        ):  # its owner removes it at the end
            raise GaussMarkError(
                f"{state}: another process answers with it; expected a state for this run alone,"
                " wait for the other's end"
            )
        try:
            if state.is_file() and (names := state.stat().st_nlink) > 1:
                raise GaussMarkError(
                    f"{state}: expected a state with one name, got a file with {names} (hard"
                    " links), of which each would forget what another gave away; delete the others"
                )
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(file: IO[bytes]) -> bool:
    """Whether it is this process's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network folders have no locks
        pass
    return True


def printed(answers: Sequence[Sequence[Row]], *, as_json: bool, alone: bool) -> None:
    """Prints answers, except errors where they are sentences: those go to standard error."""
    for row in (row for rows in answers for row in rows):
        if as_json:
            print(json.dumps(row), flush=not alone)
        elif "error" not in row:
            print(
                (
                    sentences(row)
                    if alone
                    else f"{visible(row['text'])}: {sentences(row).splitlines()[0]}{_noted(row)}"
                ),
                flush=not alone,
            )


def sentences(row: Row) -> str:
    """The verdict; what its p-value says, where the key is random and the text is fixed; and what
    to expect of this test.
    """
    if "user" in row:
        return _named(row)
    digits = -row["log10_p"]
    p = (
        f"{row['p_value']:.3g}" if digits < 300 else _scientific(-digits, 3)
    )  # beyond the smallest float
    odds = f"{row['p_value']:.0%}" if digits < 1 else f"about one in {_large(digits)}"
    first = (
        f"p = {p}  (ψ = {row['psi']:.3f}, log10 p = {row['log10_p']:.2f}, {_length(row)}, key"
        f" {row['key_id']})"
    )
    if row.get("p_given") is not None:
        first = f"p = {row['p_given']:.3g} given what was answered before; alone {first}"
    verdict = (
        f"{row['verdict'].capitalize()} at level {row['level']:g}: " if "verdict" in row else ""
    )
    lines = [
        verdict + first,
        (
            f"If this text had been written without the key, {odds} of all keys would score it at"
            " least as high as this one does."
        ),
    ]
    if "power" in row:
        power = f"{row['power']:.2f}" if row["power"] < 0.995 else "above 0.99"
        lines += [
            "A text that carries the key and is like this one is detected with probability"
            f" {power}."
        ]
    if row.get("control_p_value") is not None:
        lines[-1] += (
            f" A control key, which nobody writes with, gives p = {row['control_p_value']:.3g}."
        )
    return "\n".join(lines)


def _named(row: Row) -> str:
    p = f"{row['p_value']:.3g}"
    how = (
        f"ψ = {row['psi']:.3f}, the next {row['runner_up'] or float('nan'):.3f}, {_length(row)},"
        f" key {row['key_id']}"
    )
    meaning = (
        "If this text had been written without the key, some user's key would score it at least as"
        f" high with probability {p}."
    )
    return "\n".join(
        [f"user {row['user']}, p = {p} over all users  ({how})", meaning, *row.get("warnings", ())]
    )


def _large(log10: float) -> str:
    """10 to this power, at least 10, with two digits: 33, 1,500, 15 million, 3.5e10."""
    number = float(f"{10 ** min(log10, 9):.2g}")
    if number >= 1e9:
        return _scientific(log10, 2)
    return f"{number / 1e6:g} million" if number >= 1e6 else f"{number:,.0f}"


def _scientific(log10: float, n: int) -> str:
    """10 to this power with n digits, also where no float is that large or small."""
    power = math.floor(log10)
    digits = f"{10 ** (log10 - power):.{n}g}"
    return f"1e{power + 1}" if digits == "10" else f"{digits}e{power}"


def _length(row: Row) -> str:
    return f"{row['n_tokens']} tokens" + (
        f" in {row['windows']} windows" if "windows" in row else ""
    )


def _noted(row: Row) -> str:
    return "".join(f"; {warning}" for warning in row.get("warnings", ()))
