"""Secret keys and their files. A key is 128 random bits; everything else about it is public.

A secret shows in no message, no ``repr`` and no traceback, not even in one that prints local
variables and contexts: what reads and writes files returns the reason of a failure, and only then,
without the content, an error is raised.
"""

import fcntl
import hashlib
import hmac
import json
import operator
import os
import secrets
import shlex
import stat
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from jaxtyping import Float
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from gaussmark_lib import binding as bindings
from gaussmark_lib import checks, files, normal, tokens
from gaussmark_lib.binding import Binding
from gaussmark_lib.errors import InvalidTextError, KeyFileError, KeyFileWarning, KeyMismatchError
from gaussmark_lib.watermark import PlacedWatermark, Watermark

__all__ = ["Binding", "Key"]

FORMAT, FIRST_FORMAT = (
    "gaussmark key 2",
    "gaussmark key 1",
)  # the first one has a checksum in place of the seal
MOST_BYTES = 1 << 24
PARTIAL = ".partial-key"  # how the names of half-written files end


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: str
    key_id: str
    secret: str = Field(pattern="^[0-9a-f]{32}$")
    binding: Binding | None
    seal: str = Field(validation_alias=AliasChoices("seal", "checksum"))


@dataclass(frozen=True, repr=False)
class Key:
    """The secret of one watermark. Printing it shows the public ``key_id`` only.

    >>> Key.from_seed(7)
    Key(key_id='8201c635', unbound)
    """

    secret: bytes = field(repr=False)  # some printers of dataclasses use no __repr__
    binding: Binding | None = None

    def __post_init__(self):
        if not isinstance(self.secret, bytes) or len(self.secret) != 16:
            got = (
                len(self.secret)
                if isinstance(self.secret, bytes)
                else f"a value of type {type(self.secret).__name__}"
            )
            raise KeyFileError(f"a key's secret is 16 bytes, got {got}")
        if not isinstance(self.binding, Binding | None):
            raise KeyFileError(
                f"binding: expected a Binding or None, got {checks.kind(self.binding)};"
                " perturb.bind makes a bound key"
            )

    @classmethod
    def new(cls) -> "Key":
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(16))

    @classmethod
    def from_seed(cls, seed: SupportsIndex) -> "Key":
        """A guessable key: for demonstrations and tests only. KeyFileError for a seed that is no
        whole number.
        """
        if not checks.is_whole(seed):
            raise KeyFileError(f"seed: expected a whole number, got {checks.kind(seed)}")
        return cls(
            hashlib.sha256(f"gaussmark demonstration key {operator.index(seed)}".encode()).digest()[
                :16
            ]
        )

    @property
    def seed(self) -> int:
        """The secret as an integer below 2¹²⁸, which starts the noise stream."""
        return int.from_bytes(self.secret, "big")

    @property
    def key_id(self) -> str:
        """Eight hexadecimal digits that name the key without giving it away."""
        return hashlib.sha256(b"gaussmark key id" + self.secret).hexdigest()[:8]

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that name the key without giving it away, where ``key_id`` is too
        short to be unique.
        """
        return hashlib.sha256(b"gaussmark key fingerprint" + self.secret).hexdigest()

    @property
    def watermark(self) -> Watermark:
        """The watermark a bound key is for."""
        if self.binding is None:
            raise KeyMismatchError(
                f"key {self.key_id} is not bound to a weight; make one with perturb.bind(model, wm,"
                " key)"
            )
        return self.binding.watermark

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose, from which neither the secret nor those for another purpose can
        be computed.
        """
        return hmac.digest(self.secret, f"gaussmark {purpose}".encode(), "sha256")

    def normals(
        self,
        n: int,
        scale: float = 1.0,
        dtype: type[np.floating] = np.float64,
        out: Float[np.ndarray, " n"] | None = None,
    ) -> Float[np.ndarray, " n"]:
        """The first n numbers of the noise that the key stands for, for σ = scale: independent N(0,
        scale²), the same bits on every machine.

        ``out`` is as that of ``normal.standard_normal``.
        """
        return normal.standard_normal(self.seed, n, scale, dtype, out)

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r}, {self.binding.weight if self.binding else 'unbound'})"

    def bound(
        self,
        wm: PlacedWatermark,
        xi: Float[Tensor, "d_out d_in"],
        sigma_carried: float | None = None,
    ) -> "Key":
        """This key with a note that it is for this watermark, on this model; ``xi`` is its noise
        before any projection.
        """
        return replace(self, binding=bindings.of(wm, xi, sigma_carried))

    def check(self, use: bindings.Use, xi: Float[Tensor, "d_out d_in"] | None = None) -> None:
        """``binding.check`` of a bound key: an error where its purpose is not this use. An unbound
        key is for any use.
        """
        if self.binding:
            bindings.check(self.binding, self.key_id, use, xi)

    def save(self, path: str | Path) -> Path:
        """Writes the key file, readable by its owner only; never overwrites. It appears whole or
        not at all.
        """
        path = files.named(path, "cannot write a key file", KeyFileError)
        _remove_partial(path.parent)
        if why_not := _write(self, path):
            raise KeyFileError(why_not)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Reads a key file. KeyFileError if it is missing, truncated, edited, no key file, or
        readable by others than its owner.
        """
        path = files.named(path, "cannot read the key file", KeyFileError)
        _remove_partial(path.parent)
        found = _read(path)
        if isinstance(found, str):
            raise KeyFileError(found)
        return found


def checked(key: Key, what: str = "key") -> Key:
    """Itself; KeyMismatchError for anything but a key. What came is not shown: it may be a
    secret.
    """
    if not isinstance(key, Key):
        raise KeyMismatchError(
            f"{what}: expected a Key, got {checks.kind(key)}; Key.load(path) reads one"
        )
    return key


def listed(keys: Sequence[Key]) -> list[Key]:
    """At least one key, as a list; InvalidTextError for one key alone, and for none."""
    if isinstance(keys, Key):
        raise InvalidTextError("keys: expected a list of keys, got one; write keys=[key]")
    if not isinstance(keys, Iterable) or isinstance(keys, tokens.NOT_LISTS):
        raise InvalidTextError(f"keys: expected a list of keys, got {checks.kind(keys)}")
    if not (found := [checked(key, f"keys, number {i}") for i, key in enumerate(keys)]):
        raise InvalidTextError(
            "keys: expected at least one key to test for, got none; gradients() needs no key"
        )
    return found


def _write(key: Key, path: Path) -> str | None:
    """Writes a key file; why not, where it could not."""
    content = {"format": FORMAT, "key_id": key.key_id, "secret": key.secret.hex()}
    content["binding"] = key.binding.model_dump(mode="json") if key.binding else None
    content["seal"] = _seal(key, content)
    partial = None
    try:
        handle, partial = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL
        )  # mode 0600
        with os.fdopen(handle, "w") as file:
            with suppress(OSError):  # some network folders have no locks
                fcntl.flock(
                    file, fcntl.LOCK_EX
                )  # as long as we live, nobody takes it for a leftover
            json.dump(content, file, indent=1)
            file.flush()
            os.link(partial, path)  # never overwrites, unlike a renaming
    except FileExistsError:
        return (
            f"{path} exists; a key is never overwritten: text marked with it could not be detected"
            " any more. Name another file"
        )
    except OSError as error:
        return (
            f"cannot write a key file in {path.parent}: {error.strerror}; make the folder, make"
            " room in it, or name another"
        )
    finally:
        if partial:
            Path(partial).unlink(missing_ok=True)
    return None


def _read(path: Path) -> Key | str:
    """The key in a file, or why there is none."""
    try:
        with open(path, "rb", opener=files.opener) as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(MOST_BYTES)
        content = json.loads(text)
        file = _File.model_validate_json(
            text
        )  # not of ``content``: strictness would refuse JSON's lists for tuples
    except OSError as error:
        return f"cannot read the key file {path}: {error.strerror}"
    except ValidationError as error:
        fields = ", ".join(
            ".".join(map(str, e["loc"])) or "the whole" for e in error.errors(include_input=False)
        )
        return f"{path} is not a key file: missing or malformed: {fields}; restore it from a copy"
    except (ValueError, RecursionError):  # of JSON, UTF-8, and numbers with thousands of digits
        return (
            f"{path} is not a whole key file: expected JSON as Key.save writes it; restore it from"
            " a copy"
        )
    if file.format not in (FORMAT, FIRST_FORMAT):
        return f"{path}: expected format {FORMAT!r}, got {file.format!r}"
    key = Key(bytes.fromhex(file.secret), file.binding)
    expected = _seal(key, content) if file.format == FORMAT else _checksum(content)
    too_new = (
        file.format == FIRST_FORMAT and key.binding and key.binding.weights
    )  # a newer file that passes for an older one
    if (
        too_new
        or not hmac.compare_digest(file.seal.encode(), expected.encode())
        or file.key_id != key.key_id
    ):
        return (
            f"{path} was edited or damaged: its seal does not fit its content; restore it from a"
            " copy"
        )
    if stat.S_ISREG(mode) and mode & 0o077:
        return (
            f"{path} is open to others (mode {stat.S_IMODE(mode):03o}): expected a key file that"
            f" only its owner can read; `chmod 600 {shlex.quote(str(path))}` mends it. Whoever may"
            " have read it can detect and remove the watermark: then make a new key"
        )
    return key


def _remove_partial(folder: Path) -> None:
    """Removes, and reports, what a process left that was killed while it wrote a key file."""
    found: list[Path] = []
    with suppress(OSError):  # no such folder, or none that can be looked into
        found = list(folder.glob(f".*{PARTIAL}"))
    for partial in found:
        try:
            with partial.open("rb") as file:
                fcntl.flock(
                    file, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # BlockingIOError if its writer lives
                partial.unlink()
        except OSError:
            continue
        warnings.warn(
            f"removed {partial}, a half-written key file with its secret: the process that wrote it"
            " was killed",
            KeyFileWarning,
            3,
        )


def _seal(key: Key, content: dict) -> str:
    """An HMAC under the secret, of everything else."""
    return hmac.new(key.derived("key file seal"), _canonical(content), "sha256").hexdigest()


def _checksum(content: dict) -> str:
    """What stands in files of the first format in place of the seal."""
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: dict) -> bytes:
    return json.dumps(
        {name: value for name, value in content.items() if name not in ("seal", "checksum")},
        sort_keys=True,
    ).encode()
