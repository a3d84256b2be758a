"""The state of a stream of texts that lasts for weeks: its memory, as a file.

The file holds everything that the answers revealed of the key. It is therefore protected like a
key: only its owner can read it, and it is never half-written. A state belongs to one weight of one
model, one set of keys and one version of this format, and refuses any other.

The file is a line with the format and the SHA-256 of all that follows, a line of JSON, and arrays
as ``numpy.save`` writes them, the directions last.
"""

import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gaussmark_lib import files
from gaussmark_lib.beyond.joint import directions
from gaussmark_lib.beyond.joint.bets import Bet
from gaussmark_lib.beyond.joint.memory import Memory
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.errors import GaussMarkError, KeyFileError, KeyMismatchError, require_int
from gaussmark_lib.keys import Key, purpose
from gaussmark_lib.weights import PlacedWatermark

FORMAT = b"gaussmark joint state 4"
ANY_FORMAT = re.compile(rb"gaussmark joint state \d+")
# Bytes: room for 2,700 texts at the embedded model's default weight, or for about 145 texts of 200
# tokens at that of an 8-billion-parameter model.
BUDGET = 2 << 30
# Attributes in the line of JSON. A file without bets and wealths has the log_e of one bet.
HEAD = ("budget", "purpose", "log_e", "bets", "wealths", "n_texts", "notes")


class State:
    """The texts of a stream and their answers under some keys.

    The first use ties a state to a weight, a model and a set of keys.

    Args:
        budget: bytes for the stored gradients, at most 4 per text and entry of the weight
            (``directions``). A text that does not fit is refused.

    Attributes:
        notes: free for the caller, and saved with the state; JSON without secrets.
    """

    def __init__(self, budget: int = BUDGET):
        self.budget = require_int(
            budget, "budget, the bytes for gradients", GaussMarkError, least=0
        )
        self.purpose: dict[str, Any] | None = None
        self.memory: Memory | None = None
        self.log_e: dict[str, float] = {}  # key id → log E_n (``stream``)
        self.bets: list[Bet] = []  # the bets that hold the wealth; none yet
        self.wealths: dict[str, list[float]] = {}  # key id → log of the wealth of each bet
        self.n_texts = 0
        self.notes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return (
            f"State({self.n_texts} texts, {self.n_kept} directions kept, keys"
            f" {', '.join(self.log_e) or 'none yet'})"
        )

    @property
    def n_kept(self) -> int:
        """Return the number of stored directions, those of reference texts included."""
        return self.memory.n if self.memory else 0

    def use(self, wm: PlacedWatermark, keys: Sequence[Key]) -> Memory:
        """Return the memory for this watermark and these keys.

        Raises:
            KeyMismatchError: if the state belongs to another watermark or to other keys.
        """
        ids = [key.key_id for key in keys]
        if len(set(ids)) < len(keys):  # its evidence would be counted twice
            raise KeyMismatchError(f"keys: expected keys of different ids, got {', '.join(ids)}")
        used_for = identity(wm, keys)
        if self.memory is None:
            self.purpose = used_for
            self.memory = Memory(len(keys), self.budget)
            self.log_e = dict.fromkeys(ids, 0.0)
        refuse_others(self.purpose or {}, used_for)
        device = wm.linear.parameter.device
        has_float64 = device.type != "mps"
        self.memory.directions.to(device if has_float64 else torch.device("cpu"))
        return self.memory

    def bet_on(self, of_stream: Sequence[Bet]) -> None:
        """Divide the wealth of each key equally among these bets, unless they hold it already."""
        if self.bets != list(of_stream):
            self.bets = list(of_stream)
            for key_id, log_e in self.log_e.items():
                stake = log_e - float(np.log(len(of_stream)))
                self.wealths[key_id] = [stake] * len(of_stream)

    def save(self, path: str | Path) -> None:
        """Write the state to a file of mode 0600, completely or not at all.

        It replaces an earlier state, and no other file. If ``path`` is a link, its target is
        written.

        Raises:
            KeyFileError: if the file cannot be written, or is something else than a state.
        """
        path = files.as_path(path, "cannot write the state", KeyFileError)
        path = Path(os.path.realpath(path))  # a link stays a link
        try:
            attributes = {name: getattr(self, name) for name in HEAD}
            head = json.dumps(attributes, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise KeyFileError(f"notes: expected values that JSON can hold ({error})") from None
        try:
            if path.is_file():
                with path.open("rb") as file:
                    start = file.read(len(FORMAT))
                if start != FORMAT:
                    raise KeyFileError(
                        f"{path}: expected a new name or an earlier state, got another file. It was"
                        " not changed; choose another name"
                    )
            with files.hidden_folder(path) as folder:
                partial = Path(folder) / "state"
                with partial.open("w+b") as file:
                    partial.chmod(0o600)  # before anything is written
                    self._write(file, head)
                partial.replace(path)
        except OSError as error:
            raise KeyFileError(
                f"cannot write the state {path}: {error.strerror}; expected a writable folder with"
                " free space"
            ) from None

    def _write(self, file: IO[bytes], head: str) -> None:
        file.write(_first_line("0" * 64))  # the digest is known only when all else is written
        start = file.tell()
        file.write(head.encode() + b"\n")
        for array in _arrays(self.memory) if self.memory else ():
            np.save(file, array, allow_pickle=False)
        file.seek(start)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(_first_line(digest))
        file.flush()
        os.fsync(file.fileno())  # on the disk before it replaces the earlier state

    @classmethod
    def load(cls, path: str | Path) -> "State":
        """Read a state from a file.

        Raises:
            KeyFileError: if the file is missing, damaged, of another version, or readable by
                others.
        """
        path = files.as_path(path, "cannot read the state", KeyFileError)
        try:
            with open(path, "rb", opener=files.opener) as file:
                _check(file, path)
                state = cls()
                for name, value in json.loads(file.readline()).items():
                    setattr(state, name, value)
                state.bets = [Bet(*bet) for bet in state.bets]
                if state.purpose:
                    state.memory = _memory(file, state)
        except OSError as error:
            raise KeyFileError(
                f"cannot read the state {path}: {error.strerror or error}; expected a file"
                " written by State.save"
            ) from None
        return state


def identity(wm: PlacedWatermark, keys: Sequence[Key]) -> dict[str, Any]:
    """Return what a state belongs to: a weight, a model and keys, without secrets."""
    return purpose(wm) | {
        "shape": list(wm.linear.shape),
        "model_sha256": checkpoints.digest(wm.model),
        "keys": [key.fingerprint for key in keys],
    }


def refuse_others(made_for: dict[str, Any], used_for: dict[str, Any]) -> None:
    """Raise KeyMismatchError if a state does not belong to what it is used for."""
    differences = [
        f"{name}: the state has {made_for[name]!r}, got {value!r}"
        for name, value in used_for.items()
        if made_for[name] != value
    ]
    if differences:
        raise KeyMismatchError(
            "expected the weight, the model and the keys of this state (the keys in its"
            f" order), got others: {'; '.join(differences)}. Begin a new state"
        )


def refuse_open_to_others(path: Path, status: os.stat_result) -> None:
    """Raise KeyFileError if users other than the owner can read a file."""
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:  # any permission of the group or of others
        command = f"chmod 600 {shlex.quote(str(path))}"
        raise KeyFileError(
            f"{path}: expected a state that only its owner can read, because it holds what answers"
            f" revealed of a key; got mode {mode:o}. If the file is a state, run `{command}`"
        )


def _first_line(digest: str) -> bytes:
    return b"%s %s\n" % (FORMAT, digest.encode())


def _check(file: IO[bytes], path: Path) -> None:
    """Refuse a file that is not a state of this format, or that was changed: one wrong bit would
    silently give wrong answers. Leaves the file at its second line.
    """
    start = file.read(1 << 16)
    if not start.startswith(FORMAT):
        match = ANY_FORMAT.search(start)
        got = repr(match[0].decode()) if match else "another file"
        raise KeyFileError(
            f"{path}: expected the format {FORMAT.decode()!r}, got {got}; begin a new state"
        )
    file.seek(0)
    first = file.readline()
    begin = file.tell()  # of the second line
    if first != _first_line(hashlib.file_digest(file, "sha256").hexdigest()):
        raise KeyFileError(
            f"{path}: expected a complete state file, got a damaged file: its checksum is wrong;"
            " restore it from a copy"
        )
    refuse_open_to_others(path, os.fstat(file.fileno()))
    file.seek(begin)


def _arrays(memory: Memory) -> Iterator[np.ndarray]:
    """The arrays of a memory, in the order of the file."""
    yield memory.factor.rows
    yield memory.innovations
    yield np.array(memory.places, int)
    for u in memory.directions:
        for part in directions.parts(u):
            yield part.cpu().numpy()


def _memory(file: IO[bytes], state: State) -> Memory:
    """Read the arrays that ``_arrays`` gives."""

    def array() -> np.ndarray:
        return np.load(file, allow_pickle=False)

    memory = Memory(len(state.log_e), state.budget)
    memory.factor.rows = array()
    memory.innovations = array()
    memory.places = array().tolist()
    for _ in memory.places:
        u = torch.from_numpy(array())
        is_term = u.ndim == 2  # g, which is followed by its a; a whole direction is a vector
        if is_term:
            u = Factors(g=u, a=torch.from_numpy(array()))
        memory.directions.add(u)
    return memory
