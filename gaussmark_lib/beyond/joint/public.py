"""The rule of a detector that answers strangers, and its state: yes or no, never a number; nothing
is inherited but the answer to the very same text; questions are counted.

Texts that share runs of three tokens are one *neighbourhood*: a text joins every neighbourhood with
a text of which it shares at least a fifth of the runs of the shorter of both, and else begins a new
one. Neighbourhoods are never merged. The j-th question of a neighbourhood is tested by plain ψ at

    α_j = α (1/√j − 1/√(j + 1)),   Σ_j α_j = α

and a text of several neighbourhoods counts in each, and is tested at the smallest of their α_j.

**Proposition 4 (no given text is framed).** A text with its prompt, chosen without the key, is
called detected with probability at most α_1 over keys, whoever asked what before. *Proof.* Its ψ is
N(0, 1) and no question moves it; whatever its j, it is detected only if p ≤ α_j ≤ α_1. ∎

**Proposition 5 (until the first yes).** Somebody asks by any strategy and holds nothing that
depends on the key. The first "yes" falls in a given neighbourhood with probability at most α.
*Proof.* As long as all answers were "no", the next text is a function of the asker's own coins. So
the texts of that path, and their j, are fixed before the key is looked at; text i of it has p ≤ α_i
with probability at most α_i, and those of one neighbourhood add up to α at most. ∎ Over m
neighbourhoods it is mα. After a "yes", answers say something of ξ, as marked texts do: then this is
no theorem, and the first one still is.

Why 1/√j: of all α (j^−s − (j + 1)^−s), the 21st question gets most at s = .33. There s = 1/2 gives
it 90% of that, and the first question .29 α in place of .20 α; s = 1, which is α/(j(j + 1)), gives
the first .5 α and the 21st .0022 α in place of .0050 α. At α = .05 a marked text of mean ψ 5 is
detected with probability .998 as the first question and .936 as the 21st (s = 1: .999, .903).
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from gaussmark_lib import files
from gaussmark_lib.beyond.joint import state
from gaussmark_lib.errors import GaussMarkError, KeyFileError, require_between

SHARED = 1 / 5  # of the shorter text's different runs: two in five tokens exchanged at random
KIND, FORMAT = 0x474D7075, 1  # what SQLite calls a file's application and its user version
RULE = "neighbours share 1 run in 5; question j has the share 1/sqrt(j) - 1/sqrt(j + 1) of level"
RUN = 3  # tokens
_MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64
)  # odd 64-bit constants
TABLES = """
CREATE TABLE about (json TEXT);
CREATE TABLE questions (id INTEGER PRIMARY KEY, text TEXT UNIQUE, n_runs INTEGER, yes INTEGER);
CREATE TABLE runs (run INTEGER, question INTEGER, PRIMARY KEY (run, question)) WITHOUT ROWID;
CREATE TABLE members (
    neighbourhood INTEGER, question INTEGER, PRIMARY KEY (neighbourhood, question)
) WITHOUT ROWID;
CREATE INDEX of_question ON members (question)
"""
NEIGHBOURHOODS = """
SELECT neighbourhood, COUNT(*) FROM members WHERE neighbourhood IN (
    SELECT neighbourhood FROM members WHERE question IN (
        SELECT question FROM json_each(:runs)
        CROSS JOIN runs ON run = value JOIN questions ON questions.id = question
        GROUP BY question HAVING COUNT(*) >= :shared * MIN(n_runs, :n_runs)
    )
) GROUP BY neighbourhood
"""


def level_of(question: int, level: float) -> float:
    """α_j of the j-th question of a neighbourhood."""
    root, following = question**0.5, (question + 1) ** 0.5
    return level / (root * following * (root + following))


def levels(texts: Sequence[Sequence[int]], level: float) -> Float[np.ndarray, " texts"]:
    """At which levels texts are tested that were fixed before, in their order: as long as all
    answers are "no", they are those of every asker.
    """
    state, tested = Public(None, level, {}), {}
    for ids in map(tuple, texts):
        tested.setdefault(ids, state.next(runs(ids))[0])
        state.answer(str(ids), runs(ids), 1.0)
    return np.array([tested[tuple(ids)] for ids in texts])


def runs(ids: Sequence[int]) -> NDArray[np.uint64]:
    """The hashes of a text's different runs of three tokens; a shorter text is one run."""
    padded = np.array([*ids, *[-1] * (RUN - len(ids))], dtype=np.int64).astype(
        np.uint64
    ) + np.uint64(2)
    n = len(padded) - RUN + 1
    mixed = [
        np.bitwise_xor(padded[i : i + n] * _MIX[i], padded[i : i + n] >> np.uint64(i + 1))
        * _MIX[-i - 1]
        for i in range(RUN)
    ]
    return np.unique(mixed[0] + mixed[1] + mixed[2])


class Public:
    """Who asked what and how it was answered: an SQLite file, or without a name only in memory.

    One process at a time has the file, until ``close``.

    Args:
        level: α of a neighbourhood. asked: what the questions are of, such as key and model
            (``state.identity``); JSON without secrets.

    Raises:
        KeyFileError: another file, a newer format, open to others, or in use; KeyMismatchError: of
            another rule, level or ``asked``.
    """

    def __init__(self, path: str | Path | None, level: float, asked: Mapping[str, Any]):
        self.level = require_between(level, "level", high=1)
        about = {"rule": RULE, "level": self.level} | json.loads(json.dumps(asked))
        self.name = ":memory:" if path is None else _private(path)
        self._file = sqlite3.connect(self.name, timeout=0, isolation_level=None)
        self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
        try:
            with self._changing():
                state.refuse_others(self._begun(about), about)
        except GaussMarkError:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def answer(self, text: str, runs: NDArray[np.uint64], p_value: float) -> bool:
        """Whether a text is called detected; it is on the disk before it is returned.

        Args:
            text: names the very same text. runs: of its tokens (``public.runs``).
        """
        with self._changing() as file:
            for (yes,) in file.execute("SELECT yes FROM questions WHERE text = ?", [text]):
                return bool(yes)
            level, joined = self.next(runs)
            row = [text, len(runs), yes := bool(p_value <= level)]
            new = file.execute("INSERT INTO questions VALUES (NULL, ?, ?, ?)", row).lastrowid
            of_text = [(run, new) for run in runs.view(np.int64).tolist()]
            file.executemany("INSERT INTO runs VALUES (?, ?)", of_text)
            members = [(neighbourhood, new) for neighbourhood in joined or [new]]
            file.executemany("INSERT INTO members VALUES (?, ?)", members)
        return yes

    def next(self, runs: NDArray[np.uint64]) -> tuple[float, list[int]]:
        """The level at which a text would be tested now, and the neighbourhoods that it joins."""
        size = {"shared": SHARED, "n_runs": len(runs), "runs": str(runs.view(np.int64).tolist())}
        counts = dict(self._file.execute(NEIGHBOURHOODS, size).fetchall())
        return level_of(1 + max(counts.values(), default=0), self.level), list(counts)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Inside, all changes are made together, or none."""
        try:
            self._file.execute("BEGIN EXCLUSIVE")
            with self._file:
                yield self._file
        except sqlite3.DatabaseError as error:
            raise KeyFileError(
                f"{self.name}: expected a new name, or the state of a public detector that no other"
                f" process is using, on a disk with room ({error})"
            ) from None

    def _begun(self, about: dict[str, Any]) -> dict[str, Any]:
        """What a state says it is of; a new one says ``about``."""
        kind, version, n_tables = (
            self._file.execute(question).fetchone()[0]
            for question in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT COUNT(*) FROM sqlite_schema",
            )
        )
        if (kind, version, n_tables) == (0, 0, 0):
            for words in (*TABLES.split(";"), f"PRAGMA application_id = {KIND}"):
                self._file.execute(words)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
            self._file.execute("INSERT INTO about VALUES (?)", [json.dumps(about)])
        elif (kind, version) != (KIND, FORMAT):
            got = f"format {version}" if kind == KIND else "another file"
            raise KeyFileError(
                f"{self.name}: expected the state of a public detector, format {FORMAT}, got {got};"
                " begin a new one"
            )
        return json.loads(self._file.execute("SELECT json FROM about").fetchone()[0])


def _private(path: str | Path) -> str:
    """The name of a file that only its owner can read; an empty one where there is none."""
    path = Path(os.path.realpath(files.as_path(path, "the state", KeyFileError)))
    try:
        if os.path.lexists(path):
            files.refuse_others(path)
            state.refuse_open_to_others(path, os.stat(path))
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise KeyFileError(
            f"cannot write the state {path}: {error.strerror}; expected a file in a folder that can"
            " be written to"
        ) from None
    return str(path)
