"""Secret keys: 128 random bits, and the normal numbers that they stand for (``engine.stream``).

A secret shows in no message, no ``repr`` and no traceback.
"""

import hashlib
import operator
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Float

from gaussmark_lib import files, tokens
from gaussmark_lib.engine import key_files
from gaussmark_lib.engine.key_files import Binding
from gaussmark_lib.engine.stream import standard_normal
from gaussmark_lib.errors import InvalidTextError, KeyFileError, KeyMismatchError, is_int, kind
from gaussmark_lib.weights import PlacedWatermark, Watermark

__all__ = ["Binding", "Key", "checked", "listed", "purpose", "standard_normal"]


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
            size = f"{len(self.secret)} bytes" if isinstance(self.secret, bytes) else None
            raise KeyFileError(f"a key's secret is 16 bytes, got {size or kind(self.secret)}")
        if not isinstance(self.binding, Binding | None):
            raise KeyFileError(
                f"binding: expected a Binding or None, got {kind(self.binding)}; perturb.bind makes"
                " a bound key"
            )

    @classmethod
    def new(cls) -> "Key":
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(16))

    @classmethod
    def from_seed(cls, seed: SupportsIndex) -> "Key":
        """A guessable key: for demonstrations and tests only."""
        if not is_int(seed):
            raise KeyFileError(f"seed: expected a whole number, got {kind(seed)}")
        text = f"gaussmark demonstration key {operator.index(seed)}"
        return cls(hashlib.sha256(text.encode()).digest()[:16])

    @property
    def seed(self) -> int:
        """The secret as an integer below 2¹²⁸, which starts the stream."""
        return int.from_bytes(self.secret, "big")

    @property
    def key_id(self) -> str:
        """Eight hexadecimal digits that name the key without giving it away."""
        return key_files.key_id(self.secret)

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that name the key, where ``key_id`` is too short to be unique."""
        return hashlib.sha256(b"gaussmark key fingerprint" + self.secret).hexdigest()

    @property
    def watermark(self) -> Watermark:
        """The watermark that a bound key is for."""
        if self.binding is None:
            raise KeyMismatchError(
                f"key {self.key_id} is not bound to a weight; make one with perturb.bind(model, wm,"
                " key)"
            )
        made_for = self.binding
        return Watermark(made_for.weight, made_for.sigma, made_for.rank_dropped, made_for.side)

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose, from which neither the secret nor those for another purpose can
        be computed.
        """
        return key_files.derived(self.secret, purpose)

    def normals(
        self,
        n: int,
        scale: float = 1.0,
        dtype: type[np.floating] = np.float64,
        out: Float[np.ndarray, " n"] | None = None,
    ) -> Float[np.ndarray, " n"]:
        """The first n numbers of the key's stream, as :func:`standard_normal`."""
        return standard_normal(self.seed, n, scale, dtype, out)

    def check(self, wm: PlacedWatermark) -> None:
        """KeyMismatchError where a bound key was made for another watermark or another θ. An
        unbound key is for any use.
        """
        if not self.binding:
            return
        made_for, used_for = self.binding.model_dump(), purpose(wm)
        wrong = [
            f"{name}: the key was made for {made_for[name]!r}, got {value!r}"
            for name, value in used_for.items()
            if made_for[name] != value
        ]
        if wrong:
            raise KeyMismatchError(
                f"key {self.key_id} does not fit this use; {'; '.join(wrong)}. Use the watermark"
                " and the base model it was made with"
            )

    def save(self, path: str | Path) -> Path:
        """Writes the key file, readable by its owner only; never overwrites. It appears complete or
        not at all.
        """
        path = files.named(path, "cannot write a key file", KeyFileError)
        if why_not := key_files.write(self.secret, self.binding, path):
            raise KeyFileError(why_not)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Reads a key file. KeyFileError if it is missing, truncated, edited, no key file, or
        readable by others than its owner.
        """
        content = key_files.read(files.named(path, "cannot read the key file", KeyFileError))
        if isinstance(content, str):
            raise KeyFileError(content)
        return cls(*content)

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r}, {self.binding.weight if self.binding else 'unbound'})"


def checked(key: Any, what: str = "key") -> Key:
    """Itself; KeyMismatchError for anything but a key, which is not shown: it may be a secret."""
    if not isinstance(key, Key):
        raise KeyMismatchError(f"{what}: expected a Key, got {kind(key)}; Key.load(path) reads one")
    return key


def listed(keys: Sequence[Key]) -> list[Key]:
    """At least one key, as a list; InvalidTextError for one key alone, and for none."""
    if isinstance(keys, Key):
        raise InvalidTextError("keys: expected a list of keys, got one; write keys=[key]")
    if not isinstance(keys, Iterable) or isinstance(keys, tokens.NOT_LISTS):
        raise InvalidTextError(f"keys: expected a list of keys, got {kind(keys)}")
    if not (keys := [checked(key, f"keys, number {i}") for i, key in enumerate(keys)]):
        raise InvalidTextError(
            "keys: expected at least one key to test for, got none; gradients() needs no key"
        )
    return keys


def purpose(wm: PlacedWatermark) -> dict:
    """What a key is for: the watermark, and a hash of each marked matrix."""
    shapes = tuple(weight.shape for weight in wm.linears)
    digests = [weight.sha256() for weight in wm.linears]
    return {
        "weight": wm.weight,
        "shape": shapes[0] if len(shapes) == 1 else shapes,
        "sigma": wm.sigma,
        "rank_dropped": wm.rank_dropped,
        "side": wm.side if wm.rank_dropped else "left",  # which is ignored without a rank
        "base_sha256": " ".join(digests),
    }
