"""The rule of a detector for untrusted users, and its state.

The detector answers yes or no, never with a number. It counts the queries about similar texts, and
repeats its answer only for the very same text.

Texts that share runs of three tokens form a *neighbourhood*. Two texts are neighbours if they share
at least a fifth of the runs of the shorter text. A text joins every neighbourhood that holds a
neighbour of it, and begins a new neighbourhood if there is none. Neighbourhoods are never merged.
The j-th query of a neighbourhood is tested by ψ at the level

    α_j = α (1/√j − 1/√(j + 1)),   Σ_j α_j = α

A text in several neighbourhoods counts in each of them, and is tested at the smallest of their α_j.

**Proposition 4 (no given text is framed).** A text and its prompt that were chosen without the key
are called detected with probability at most α_1 over keys, whatever was asked before. *Proof.* The
text's ψ is N(0, 1), and no query changes it. Whatever its j, it is detected only if p ≤ α_j ≤ α_1.
∎

**Proposition 5 (until the first yes).** A user queries by any strategy and holds nothing that
depends on the key. The first "yes" falls in a given neighbourhood with probability at most α.
*Proof.* As long as all answers were "no", the next text is a function of the user's own random
numbers. So the texts of that path, and their j, do not depend on the key. Its text i has p ≤ α_i
with probability at most α_i, and the levels of one neighbourhood add up to at most α. ∎ Over m
neighbourhoods the bound is mα. After a "yes", answers reveal something about ξ, as watermarked
texts do. Then Proposition 5 no longer holds, but Proposition 4 does.

**Boilerplate.** Honest users of one template are neighbours: 1,000 letters that share a fifth of
their runs are one neighbourhood, and the last of them is tested at 1.6·10⁻⁵ α. The provider can
register the template before the first query. If at least half of a text's runs are not registered,
only these runs count, both in what two texts share and in the length of the shorter text. Other
texts count with all of their runs, so that a registered text itself is still counted.

**Proposition 6 (what is registered costs no guarantee).** Propositions 4 and 5 hold with any
boilerplate that was chosen without the key and before the first query. *Proof.* Both proofs use
three facts: neighbourhoods are a function of the texts (and now of the boilerplate) and not of the
key; the levels of a neighbourhood add up to at most α; and no level is above α_1. None of these
depends on which runs count. ∎ What changes is the number m of neighbourhoods in the bound mα: texts
that share only boilerplate are now different texts, and each may be tested at α_1. Boilerplate
that is learnt from queries would not be safe: a user could query a human text until its runs count
as boilerplate, and then test as many copies of it as wanted at α_1.

Why 1/√j: among all α (j^−s − (j + 1)^−s), s = .33 gives the 21st query the highest level.

=====  ===================  ======================  ================================
s      level of the first   level of the 21st       power at α = .05, mean ψ 5
=====  ===================  ======================  ================================
.33    .20 α                largest                 –
1/2    .29 α                .0050 α (90% of that)   .998 first query, .936 21st query
1      .5 α                 .0022 α                 .999 first query, .903 21st query
=====  ===================  ======================  ================================

With s = 1 the levels are α/(j(j + 1)).
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

SHARED = 1 / 5  # of the shorter text's distinct runs: what is left if 2 of 5 tokens are replaced
KIND = 0x474D7075  # SQLite's application_id of the file
FORMAT = 1  # its user_version
RULE = "neighbours share 1 run in 5; question j has the share 1/sqrt(j) - 1/sqrt(j + 1) of level"
RUN = 3  # tokens
BOILERPLATE = 0  # the question that holds the registered runs; other questions begin at 1
LEAST_OWN = 1 / 2  # of a text's runs; with fewer, its boilerplate counts
# Odd 64-bit constants for hashing.
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)
# A run is a hash; a question, the number of a text; a neighbourhood, the number of its first text.
TABLES = """
CREATE TABLE about (json TEXT);
CREATE TABLE questions (id INTEGER PRIMARY KEY, text TEXT UNIQUE, n_runs INTEGER, yes INTEGER);
CREATE TABLE runs (run INTEGER, question INTEGER, PRIMARY KEY (run, question)) WITHOUT ROWID;
CREATE TABLE members (
    neighbourhood INTEGER, question INTEGER, PRIMARY KEY (neighbourhood, question)
) WITHOUT ROWID;
CREATE INDEX of_question ON members (question)
"""
# The neighbourhoods that a text with these runs joins, and how many texts each of them has.
NEIGHBOURHOODS = """
SELECT neighbourhood, COUNT(*) FROM members WHERE neighbourhood IN (
    SELECT neighbourhood FROM members WHERE question IN (
        SELECT question FROM json_each(:runs)
        CROSS JOIN runs ON run = value JOIN questions ON questions.id = question
        GROUP BY question HAVING COUNT(*) >= :shared * MIN(n_runs, :n_runs)
    )
) GROUP BY neighbourhood
"""

REGISTERED = """
SELECT run FROM json_each(:runs) CROSS JOIN runs ON run = value AND question = :boilerplate
"""


def level_of(question: int, level: float) -> float:
    """Return α_j of the j-th query of a neighbourhood."""
    # 1/√j − 1/√(j + 1) as a quotient without a difference, which is exact for any j
    root = question**0.5
    following = (question + 1) ** 0.5
    return level / (root * following * (root + following))


def levels(
    texts: Sequence[Sequence[int]], level: float, boilerplate: Sequence[Sequence[int]] = ()
) -> Float[np.ndarray, " texts"]:
    """Return the levels at which a fixed sequence of texts is tested, after these texts of
    boilerplate were registered.

    As long as all answers are "no", these are the levels of any user who asks the same texts.
    """
    state = Public(None, level, {})
    for ids in boilerplate:
        state.register(runs(ids))
    level_of_text = {}
    for ids in map(tuple, texts):
        runs_of_text = runs(ids)
        if ids not in level_of_text:
            level_of_text[ids], _ = state.next(runs_of_text)
        state.answer(text=str(ids), runs=runs_of_text, p_value=1.0)
    return np.array([level_of_text[tuple(ids)] for ids in texts])


def runs(ids: Sequence[int]) -> NDArray[np.uint64]:
    """Return the hashes of a text's distinct runs of three tokens; a shorter text is one run."""
    padding = [-1] * (RUN - len(ids))
    padded = np.array([*ids, *padding], dtype=np.int64)
    numbers = padded.astype(np.uint64) + np.uint64(2)  # −1 wraps around to 1; no number is 0
    n = len(numbers) - RUN + 1
    hashes = np.zeros(n, dtype=np.uint64)
    for i in range(RUN):
        tokens = numbers[i : i + n]  # token i of each run
        mixed = np.bitwise_xor(tokens * _MIX[i], tokens >> np.uint64(i + 1))
        hashes += mixed * _MIX[-i - 1]  # modulo 2⁶⁴
    return np.unique(hashes)


class Public:
    """Earlier queries and their answers, in an SQLite file, or in memory if ``path`` is None.

    One process at a time holds the file, until ``close``.

    Args:
        level: α of a neighbourhood.
        asked: what the queries are about, such as key and model (``state.identity``); JSON without
            secrets.

    Raises:
        KeyFileError: if the file is of another kind or a newer format, if others can read it, or if
            it is in use.
        KeyMismatchError: if the file belongs to another rule, level or ``asked``.
    """

    def __init__(self, path: str | Path | None, level: float, asked: Mapping[str, Any]):
        self.level = require_between(level, "level", high=1)
        plain = json.loads(json.dumps(asked))  # as it will be read from the file
        about = {"rule": RULE, "level": self.level} | plain
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
        """Release the file."""
        self._file.close()

    def register(self, runs: NDArray[np.uint64]) -> None:
        """Register a text's runs as boilerplate, which makes no texts neighbours.

        Raises:
            GaussMarkError: if a query was already answered.
        """
        with self._changing() as file:
            n_queries = self._number("SELECT COUNT(*) FROM questions")
            if n_queries:
                raise GaussMarkError(
                    f"{self.name}: expected boilerplate before the first query, got it after"
                    f" {n_queries:,} queries; begin a new state"
                )
            rows = [(run, BOILERPLATE) for run in runs.view(np.int64).tolist()]
            file.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?)", rows)

    def answer(self, text: str, runs: NDArray[np.uint64], p_value: float) -> bool:
        """Return whether a text is called detected; the answer is stored on disk first.

        Args:
            text: a name that only the very same text has.
            runs: the runs of its tokens (``public.runs``).
        """
        with self._changing() as file:
            earlier = file.execute("SELECT yes FROM questions WHERE text = ?", [text]).fetchone()
            if earlier is not None:
                return bool(earlier[0])
            level, joined = self.next(runs)
            runs = self._counted(runs)
            is_detected = bool(p_value <= level)
            row = [text, len(runs), is_detected]
            new = file.execute("INSERT INTO questions VALUES (NULL, ?, ?, ?)", row).lastrowid
            signed_runs = runs.view(np.int64).tolist()  # SQLite has no unsigned integers
            runs_of_text = [(run, new) for run in signed_runs]
            file.executemany("INSERT INTO runs VALUES (?, ?)", runs_of_text)
            members = [(neighbourhood, new) for neighbourhood in joined or [new]]
            file.executemany("INSERT INTO members VALUES (?, ?)", members)
        return is_detected

    def next(self, runs: NDArray[np.uint64]) -> tuple[float, list[int]]:
        """Return the level at which a text would be tested now, and the neighbourhoods it joins."""
        runs = self._counted(runs)
        signed_runs = runs.view(np.int64).tolist()
        values = {"shared": SHARED, "n_runs": len(runs), "runs": str(signed_runs)}
        rows = self._file.execute(NEIGHBOURHOODS, values).fetchall()
        counts = dict(rows)  # neighbourhood → how many texts it has
        question = 1 + max(counts.values(), default=0)
        return level_of(question, self.level), list(counts)

    def _counted(self, runs: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The runs by which a text has neighbours: those that are not registered, or all of them
        if too few are not.
        """
        values = {"runs": str(runs.view(np.int64).tolist()), "boilerplate": BOILERPLATE}
        rows = self._file.execute(REGISTERED, values).fetchall()
        registered = np.array(rows, dtype=np.int64).reshape(-1).view(np.uint64)
        is_own = ~np.isin(runs, registered)
        return runs[is_own] if is_own.mean() >= LEAST_OWN else runs

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Make all changes of the block together, or none of them."""
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
        """The identity that the file holds. A new file gets the identity ``about``."""
        kind = self._number("PRAGMA application_id")
        version = self._number("PRAGMA user_version")
        n_tables = self._number("SELECT COUNT(*) FROM sqlite_schema")
        is_empty = (kind, version, n_tables) == (0, 0, 0)
        if is_empty:
            # One statement at a time: executescript would end the transaction.
            for statement in TABLES.split(";"):
                self._file.execute(statement)
            self._file.execute(f"PRAGMA application_id = {KIND}")
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
            self._file.execute("INSERT INTO about VALUES (?)", [json.dumps(about)])
        elif (kind, version) != (KIND, FORMAT):
            got = f"format {version}" if kind == KIND else "another file"
            raise KeyFileError(
                f"{self.name}: expected the state of a public detector, format {FORMAT}, got {got};"
                " begin a new one"
            )
        [text] = self._file.execute("SELECT json FROM about").fetchone()
        return json.loads(text)

    def _number(self, query: str) -> int:
        [number] = self._file.execute(query).fetchone()
        return number


def _private(path: str | Path) -> str:
    """The name of a file that only its owner can read; a new file is created empty."""
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
