"""The state of a stream of texts that goes on for weeks: the memory of what was asked, as a file.

It holds what the answers gave away of the key, and hashes of the texts' runs of tokens, so it is
kept as a key is: readable by its owner alone, and never half-written. It is of one weight of one
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
from gaussmark_lib.beyond.joint.memory import Memory
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.errors import GaussMarkError, KeyFileError, KeyMismatchError, require_int
from gaussmark_lib.keys import Key, purpose
from gaussmark_lib.weights import PlacedWatermark

FORMAT = b"gaussmark joint state 4"
ANY_FORMAT = re.compile(rb"gaussmark joint state \d+")
# bytes: 2,700 answers about the embedded model's default weight, or about an 8-billion-parameter
# model's 145 of 200 tokens
BUDGET = 2 << 30
HEAD = ("budget", "purpose", "log_e", "n_texts", "notes")  # what a file says beside its arrays


class State:
    """What was asked and answered under some keys. The first use ties it to a weight, a model and a
    set of keys.

    Args:
        budget: bytes for the gradients that are kept, at most 4 per number of the weight and text
            (``directions``). A text beyond it is refused.

    Attributes:
        notes: the caller's own, saved with it; JSON, without secrets.
    """

    def __init__(self, budget: int = BUDGET):
        self.budget = require_int(
            budget, "budget, the bytes for gradients", GaussMarkError, least=0
        )
        self.purpose: dict[str, Any] | None = None
        self.memory: Memory | None = None
        self.log_e: dict[str, float] = {}
        self.n_texts = 0
        self.notes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return (
            f"State({self.n_texts} texts, {self.n_kept} directions kept, keys"
            f" {', '.join(self.log_e) or 'none yet'})"
        )

    @property
    def n_kept(self) -> int:
        """How many directions are kept, those of given texts included."""
        return self.memory.n if self.memory else 0

    def use(self, wm: PlacedWatermark, keys: Sequence[Key]) -> Memory:
        """Its memory, for this watermark and these keys; KeyMismatchError if it is of others."""
        ids = [key.key_id for key in keys]
        if len(set(ids)) < len(keys):  # its evidence would be counted twice
            raise KeyMismatchError(f"keys: expected keys of different ids, got {', '.join(ids)}")
        used_for = identity(wm, keys)
        if self.memory is None:
            self.purpose, self.memory = used_for, Memory(len(keys), self.budget)
            self.log_e = dict.fromkeys(ids, 0.0)
        refuse_others(self.purpose or {}, used_for)
        device = wm.linear.parameter.device
        self.memory.directions.to(torch.device("cpu") if device.type == "mps" else device)
        return self.memory

    def save(self, path: str | Path) -> None:
        """Writes it complete or not at all, mode 0600, over an earlier state and over no other
        file; of a link, what it names is written. KeyFileError where that cannot be done.
        """
        path = Path(os.path.realpath(files.as_path(path, "cannot write the state", KeyFileError)))
        try:
            head = json.dumps({name: getattr(self, name) for name in HEAD}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise KeyFileError(f"notes: expected what JSON can hold ({error})") from None
        try:
            if path.is_file():
                with path.open("rb") as file:
                    start = file.read(len(FORMAT))
                if start != FORMAT:
                    raise KeyFileError(
                        f"{path}: expected a new name or an earlier state, got another file, which"
                        " was left as it is; choose another name"
                    )
            with files.hidden_folder(path) as folder:
                partial = Path(folder) / "state"
                with partial.open("w+b") as file:
                    partial.chmod(0o600)
                    self._write(file, head)
                partial.replace(path)
        except OSError as error:
            raise KeyFileError(
                f"cannot write the state {path}: {error.strerror}; expected a folder with room,"
                " that can be written to"
            ) from None

    def _write(self, file: IO[bytes], head: str) -> None:
        file.write(_first_line("0" * 64))
        start = file.tell()
        file.write(head.encode() + b"\n")
        for array in _arrays(self.memory) if self.memory else ():
            np.save(file, array, allow_pickle=False)
        file.seek(start)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        file.write(_first_line(digest))
        file.flush()
        os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | Path) -> "State":
        """The state in a file. KeyFileError if there is none, if it is damaged, of another version,
        or open to others.
        """
        path = files.as_path(path, "cannot read the state", KeyFileError)
        try:
            with open(path, "rb", opener=files.opener) as file:
                _check(file, path)
                state = cls()
                for name, value in json.loads(file.readline()).items():
                    setattr(state, name, value)
                if state.purpose:
                    state.memory = _memory(file, state)
        except OSError as error:
            raise KeyFileError(
                f"cannot read the state {path}: {error.strerror or error}; expected a file that"
                " State.save wrote"
            ) from None
        return state


def identity(wm: PlacedWatermark, keys: Sequence[Key]) -> dict[str, Any]:
    """What a state is of: a weight, a model and keys, without secrets."""
    return purpose(wm) | {
        "shape": list(wm.linear.shape),
        "model_sha256": checkpoints.digest(wm.model),
        "keys": [key.fingerprint for key in keys],
    }


def refuse_others(made_for: dict[str, Any], used_for: dict[str, Any]) -> None:
    """KeyMismatchError where a state is not of what it is to be used for."""
    if wrong := [
        f"{name}: it is of {made_for[name]!r}, got {value!r}"
        for name, value in used_for.items()
        if made_for[name] != value
    ]:
        raise KeyMismatchError(
            "expected the weight, the model and the keys of this state (the keys in its"
            f" order), got others: {'; '.join(wrong)}. Begin a new one"
        )


def refuse_open_to_others(path: Path, status: os.stat_result) -> None:
    """KeyFileError for a file that others than its owner can read."""
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        mend = f"chmod 600 {shlex.quote(str(path))}"
        raise KeyFileError(
            f"{path}: expected a state that only its owner can read, since it holds what answers"
            f" gave away of a key; got mode {mode:o}: if it is one, `{mend}`"
        )


def _first_line(digest: str) -> bytes:
    return b"%s %s\n" % (FORMAT, digest.encode())


def _check(file: IO[bytes], path: Path) -> None:
    """KeyFileError unless it is a state of this format, as it was written: one wrong bit would give
    wrong answers in silence. Leaves the file at its second line.
    """
    start = file.read(1 << 16)
    if not start.startswith(FORMAT):
        got = ANY_FORMAT.search(start)
        raise KeyFileError(
            f"{path}: expected the format {FORMAT.decode()!r}, got"
            f" {repr(got[0].decode()) if got else 'another file'}; begin a new state"
        )
    file.seek(0)
    first = file.readline()
    begin = file.tell()
    if first != _first_line(hashlib.file_digest(file, "sha256").hexdigest()):
        raise KeyFileError(
            f"{path}: expected a complete state file, got one that is damaged: its checksum does"
            " not fit; restore it from a copy"
        )
    refuse_open_to_others(path, os.fstat(file.fileno()))
    file.seek(begin)


def _arrays(memory: Memory) -> Iterator[np.ndarray]:
    yield from (memory.factor.rows, memory.innovations, np.array(memory.places, int))
    for u in memory.directions:
        yield from (part.cpu().numpy() for part in directions.parts(u))


def _memory(file: IO[bytes], state: State) -> Memory:
    """What ``_arrays`` has written."""
    memory = Memory(len(state.log_e), state.budget)
    memory.factor.rows, memory.innovations, places = (
        np.load(file, allow_pickle=False) for _ in range(3)
    )
    memory.places = places.tolist()
    for _ in places:
        u = torch.from_numpy(np.load(file, allow_pickle=False))
        if u.ndim == 2:  # g, which its a follows
            u = Factors(u, torch.from_numpy(np.load(file, allow_pickle=False)))
        memory.directions.add(u)
    return memory
