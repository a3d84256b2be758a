"""The state of a stream of texts that goes on for weeks: the memory of what was asked, as a file.

It holds what the answers gave away of the key, and hashes of the texts' runs of tokens, so it is
kept as a key is: readable by its owner alone, and never half-written. It is of one weight of one
model, one set of keys and one version of this format, and refuses any other.
"""

import hashlib
import json
import math
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gaussmark_lib import binding, checks, files, perturb
from gaussmark_lib.errors import StateError
from gaussmark_lib.joint.memory import GIVEN, Memory
from gaussmark_lib.keys import listed
from gaussmark_lib.watermark import PlacedWatermark

FORMAT, BEFORE = (
    "gaussmark joint state 2",
    "gaussmark joint state 1",
)  # which has whole directions alone
BUDGET = (
    2 << 30
    # bytes: 2,700 answers about the embedded model's default weight; about one of 8 billion
    # parameters', 145 of 200 tokens
)
DTYPES = dict.fromkeys(
    ("factor", "innovations", "p_given", "along"), torch.float64
)  # of the tensors in a file
DTYPES |= dict.fromkeys(
    ("places", "runs", "n_runs", "n_beyond"), torch.int64
)  # all others are float32


class _Purpose(BaseModel):
    """What sizes the memory; ``State.use`` compares all of it."""

    shape: list[PositiveInt] = Field(min_length=2, max_length=2)
    keys: list[str] = Field(min_length=1)


class _Head(BaseModel):
    """What a file says beside its tensors."""

    model_config = ConfigDict(strict=True)
    budget: NonNegativeInt
    purpose: dict[str, Any] | None
    log_e: dict[str, FiniteFloat]
    n_texts: int = Field(ge=0, lt=1 << 53)
    notes: dict[str, Any]


class State:
    """What was asked and answered under some keys. The first use ties it to a weight, a model and a
    set of keys.

    Args:
        budget: bytes for the gradients that are kept, at most 4 for each number of the weight and
            text (``directions``). Beyond it, see ``memory``.

    Attributes:
        notes: the caller's own, saved with it; JSON, without secrets.
    """

    def __init__(self, budget: int = BUDGET):
        self.budget = checks.whole(budget, "budget, the bytes for gradients", StateError, least=0)
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

    @property
    def frozen(self) -> bool:
        """Whether the budget is used up, so that further texts are no longer kept."""
        return self.memory is not None and self.memory.full

    @property
    def correlation(self) -> float:
        """The mean correlation of the innovations beyond the budget; 0 within it."""
        return self.memory.correlation if self.memory else 0.0

    def use(self, wm: PlacedWatermark, keys: Sequence[perturb.Key]) -> Memory:
        """Its memory, for this watermark and these keys; StateError if it is of others."""
        keys = listed(keys)
        if len({key.key_id for key in keys}) < len(keys):
            raise StateError(
                "keys: expected keys of different ids, each of which has its own evidence, got"
                f" {', '.join(key.key_id for key in keys)}"
            )
        used_for = json.loads(
            json.dumps(binding.purpose(wm) | {"model_sha256": binding.whole(wm.model)})
        )
        used_for["keys"] = [key.fingerprint for key in keys]
        if self.memory is None:
            self.purpose, self.memory = (
                used_for,
                Memory(int(np.prod(wm.linear.shape)), len(keys), self.budget),
            )
            self.log_e = {key.key_id: 0.0 for key in keys}
        self.memory.to(
            wm.linear.parameter.device
            if wm.linear.parameter.device.type != "mps"
            else torch.device("cpu")
        )
        made_for = (self.purpose or {}) | (
            {} if self.log_e.keys() == {key.key_id for key in keys} else {"keys": list(self.log_e)}
        )
        if wrong := [
            f"{name}: it is of {made_for.get(name)!r}, got {value!r}"
            for name, value in used_for.items()
            if made_for.get(name) != value
        ]:
            what = "; ".join(wrong)
            raise StateError(
                "expected the weight, the model and the keys of this state (the keys in its"
                f" order), got others: {what}. Begin a new one"
            )
        return self.memory

    def save(self, path: str | Path) -> None:
        """Writes it whole or not at all, mode 0600, over an earlier one and over no other file; a
        link stays, and what it names is written.

        StateError where it cannot be written.
        """
        path = Path(os.path.realpath(files.named(path, "cannot write the state", StateError)))
        try:
            parts = {name: getattr(self, name) for name in _Head.model_fields}
            head = json.dumps(parts)
            _Head(**json.loads(head))  # what would not be read is not written over what was
            if json.loads(head)["notes"] != self.notes:
                raise StateError(
                    "JSON would give back something else, such as a text for a number that is a"
                    " name, or a list for a tuple"
                )
        except (TypeError, ValueError, RecursionError) as error:
            wrong = (
                ", ".join(str(one["loc"][0]) for one in error.errors())
                if isinstance(error, ValidationError)
                else "notes"
            )
            raise StateError(
                f"{wrong}: expected what JSON can hold and a state has, got"
                f" {checks.shown(parts.get(wrong))} ({error})"
            ) from None
        try:
            if path.is_file() and not _is_state(path):
                raise StateError(
                    f"{path}: expected a new name or an earlier state, got another file, which was"
                    " left as it is; choose another name"
                )
            with files.hidden_folder(path) as partial:
                whole = Path(partial) / "state"
                tensors = _tensors(self.memory)
                save_file(
                    tensors,
                    whole,
                    {"format": FORMAT, "head": head, "sha256": _sha256(head, tensors)},
                )
                whole.chmod(0o600)
                with whole.open("rb") as file:
                    os.fsync(file.fileno())
                whole.replace(path)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", error)
            raise StateError(
                f"cannot write the state {path}: {reason}; expected a folder with room, that can be"
                " written to"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> "State":
        """The state in a file. StateError if there is none, if it is damaged, of another version,
        or open to others.
        """
        path = files.named(path, "cannot read the state", StateError)
        try:
            files.refuse_others(path)
            mode = stat.S_IMODE(path.stat().st_mode)
            with safe_open(path, "pt") as file:
                metadata, names = file.metadata() or {}, file.keys()
                tensors = {name: file.get_tensor(name) for name in names}
        except OSError as error:
            raise StateError(
                f"cannot read the state {path}: {error.strerror or error}; expected a file that"
                " State.save wrote"
            ) from None
        except SafetensorError as error:
            raise StateError(
                f"{path}: expected a whole state file, got one that is damaged ({error}); restore"
                " it from a copy"
            ) from None
        if metadata.get("format") not in (FORMAT, BEFORE):
            raise StateError(
                f"{path}: expected format {FORMAT!r}, got {checks.shown(metadata.get('format'))}"
            )
        if metadata.get("sha256", "") not in (
            "",
            _sha256(metadata.get("head", ""), tensors),
        ):  # files of earlier versions have none
            raise StateError(
                f"{path}: expected a whole state file, got one that is damaged: its checksum does"
                " not fit; restore it from a copy"
            )
        if mode & 0o077:
            mend = f"chmod 600 {shlex.quote(str(path))}"
            raise StateError(
                f"{path} holds what answers gave away of a key: expected that only its owner can"
                f" read it, got mode {mode:o}; `{mend}`"
            )
        state = cls()
        try:
            for name, value in _Head(**json.loads(metadata["head"])):
                setattr(state, name, value)
            if state.purpose is not None:
                use = _Purpose(**state.purpose)
                if (
                    metadata["format"] == BEFORE
                ):  # whose sum beyond the room has no part in the span of the directions
                    tensors["along"] = torch.zeros(len(tensors["places"]), dtype=torch.float64)
                state.memory = _memory(tensors, use, state.budget, state.n_texts)
        except (
            KeyError,
            ValueError,
            TypeError,
            IndexError,
            RuntimeError,
        ) as error:  # of JSON, of pydantic, of parts that do not fit together
            raise StateError(
                f"{path}: expected a whole state file, got one that is damaged or was edited"
                f" ({type(error).__name__}); restore it from a copy"
            ) from None
        return state


def _is_state(path: Path) -> bool:
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("format", "").startswith(FORMAT.rstrip("0123456789"))
    except (OSError, SafetensorError):
        return False


def _sha256(head: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Of everything in the file: a state with one wrong bit would give wrong answers in silence."""
    digest = hashlib.sha256(head.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # an empty one has no bytes to look at
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _tensors(memory: Memory | None) -> dict[str, torch.Tensor]:
    if memory is None:
        return {}
    runs = [memory.said.texts.get(i, np.zeros(0, np.uint64)) for i in range(memory.n)]
    arrays = {
        "factor": memory.factor.rows,
        "innovations": memory.innovations,
        "p_given": memory.p_given,
        "places": np.array(memory.places, int),
    }
    arrays["along"] = memory.along
    arrays |= {
        "runs": np.concatenate([np.zeros(0, np.uint64), *runs]).view(np.int64),
        "n_runs": np.array([len(each) for each in runs], int),
    }
    arrays["n_beyond"] = np.array([memory.n_beyond])
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()
    }
    return tensors | memory.directions.tensors() | {"beyond": memory.beyond}


def _memory(tensors: dict[str, torch.Tensor], use: _Purpose, budget: int, n_texts: int) -> Memory:
    """The memory of a file's tensors; ValueError where no text can have left them so."""
    if any(
        tensor.dtype != DTYPES.get(name, torch.float32) or not tensor.isfinite().all()
        for name, tensor in tensors.items()
    ):
        raise StateError("parts that no text left")
    d, n_keys = math.prod(use.shape), len(use.keys)
    memory, array = Memory(d, n_keys, budget), {name: tensors[name].numpy() for name in DTYPES}
    memory.factor = type(memory.factor)(array["factor"])
    memory.innovations, memory.p_given, memory.places = (
        array["innovations"],
        array["p_given"],
        array["places"].tolist(),
    )
    memory.n_beyond, memory.beyond, memory.along = (
        int(array["n_beyond"][0]),
        tensors["beyond"],
        array["along"],
    )
    n, p, L = len(memory.places), memory.p_given, memory.factor.rows
    kept = {
        name: tensor for name, tensor in tensors.items() if name not in DTYPES and name != "beyond"
    }
    fitting = memory.directions.refill(n, use.shape, kept) and memory.directions.n_bytes <= budget
    fitting = fitting and L.shape == (n, n) and p.shape == memory.innovations.shape == (n, n_keys)
    whole = (
        fitting
        and (L.diagonal() > 0).all()
        and (p >= 0).all()
        and (p <= 1).all()
        and (array["n_runs"] >= 0).all()
    )
    if (
        not whole
        or memory.n_beyond < 0
        or not all(GIVEN <= place < n_texts for place in memory.places)
    ):
        raise StateError("parts that no text left")
    beyond = not memory.n_beyond or (memory.beyond.shape, memory.along.shape) == ((d,), (n,))
    if not beyond or array["n_runs"].sum() != len(array["runs"]):
        raise StateError("parts that no text left")
    ends = np.cumsum(array["n_runs"])
    for number, (place, end, n) in enumerate(
        zip(memory.places, ends, array["n_runs"], strict=True)
    ):
        if place >= 0:
            memory.said.add(number, array["runs"].view(np.uint64)[end - n : end])
    return memory
