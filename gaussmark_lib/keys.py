"""Secret keys: 128 random bits, and the normal numbers that they stand for (``engine.stream``).

A secret shows in no message, no ``repr`` and no traceback.
"""

import hashlib
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import torch
from jaxtyping import Float

from gaussmark_lib import files
from gaussmark_lib.engine import checkpoints, key_files, philox
from gaussmark_lib.engine.key_files import Binding
from gaussmark_lib.engine.stream import standard_normal
from gaussmark_lib.errors import (
    GaussMarkWarning,
    KeyFileError,
    KeyMismatchError,
    kind,
    require_int,
    require_list,
)
from gaussmark_lib.weights import PlacedWatermark, Watermark


@dataclass(frozen=True, repr=False)
class Key:
    """The secret of one watermark. Printing it shows the public ``key_id`` only: eight hexadecimal
    digits that name the key without giving it away.

    >>> Key.from_seed(7)
    Key(key_id='8201c635', unbound)
    """

    secret: bytes = field(repr=False)  # some printers of dataclasses use no __repr__
    binding: Binding | None = None

    def __post_init__(self):
        if not isinstance(self.secret, bytes) or len(self.secret) != 16:
            size = f"{len(self.secret)} bytes" if isinstance(self.secret, bytes) else None
            raise KeyFileError(f"a key's secret is 16 bytes, got {size or kind(self.secret)}")
        vars(self)["key_id"] = key_files.key_id(self.secret)  # which is frozen
        vars(self)["seed"] = int.from_bytes(self.secret, "big")  # of the stream, below 2¹²⁸

    @classmethod
    def new(cls) -> "Key":
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(16))

    @classmethod
    def from_seed(cls, seed: SupportsIndex) -> "Key":
        """A guessable key: for demonstrations and tests only."""
        number = require_int(seed, "seed", KeyFileError, least=-inf, show=kind)
        text = b"gaussmark demonstration key %d" % number
        return cls(hashlib.sha256(text).digest()[:16])

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that name the key, where ``key_id`` is too short to be unique."""
        return hashlib.sha256(b"gaussmark key fingerprint" + self.secret).hexdigest()

    @property
    def watermark(self) -> Watermark:
        """The watermark that a bound key is for."""
        if not (use := self.binding):
            raise KeyMismatchError(f"key {self.key_id} is not bound to a weight by perturb.bind")
        return Watermark(use.weight, use.sigma, use.rank_dropped, use.side)

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose (``key_files.derived``)."""
        return key_files.derived(self.secret, purpose)

    def normals(
        self, n: int, scale: float = 1.0, dtype: type = np.float64, out: np.ndarray | None = None
    ) -> Float[np.ndarray, " n"]:
        """The first n numbers of the key's stream, as ``engine.stream.standard_normal``."""
        return standard_normal(self.seed, n, scale, dtype, out)

    def on_gpu(self, n: int, scale: float, device: torch.device) -> Float[torch.Tensor, " n"]:
        """The same in float32, made on a GPU (``engine.philox``)."""
        return philox.standard_normal(self.seed, n, scale, device)

    def check(self, wm: PlacedWatermark) -> None:
        """Of a bound key: KeyMismatchError where it is for another watermark or another θ; a
        GaussMarkWarning where only the model's other weights differ, as after fine-tuning.
        """
        made_for, made_with = self.binding.model_dump(), self.binding.model_sha256
        wrong = [
            f"{name}: the key was made for {made_for[name]!r}, got {value!r}"
            for name, value in purpose(wm).items()
            if made_for[name] != value
        ]
        if wrong:
            why = f"key {self.key_id} does not fit this use; {'; '.join(wrong)}"
            raise KeyMismatchError(f"{why}. Use the watermark and the base model it was made with")
        if made_with and wm.model is not None and made_with != checkpoints.digest(wm.model):
            differ = "the matrix is the key's, but other weights are not those of the key's model"
            message = f"key {self.key_id}: {differ}. The test stays exact, with less power"
            warnings.warn(message, GaussMarkWarning, stacklevel=3)

    def save(self, path: str | Path) -> Path:
        """Writes the key file, complete, readable by its owner only, and never over another."""
        path = files.as_path(path, "cannot write a key file", KeyFileError)
        if why_not := key_files.write(self.secret, self.binding, path):
            raise KeyFileError(why_not)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Reads a key file; KeyFileError if it is damaged, or readable by others than its owner."""
        content = key_files.read(files.as_path(path, "cannot read the key file", KeyFileError))
        if isinstance(content, str):
            raise KeyFileError(content)
        return cls(*content)

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r}, {self.binding.weight if self.binding else 'unbound'})"


def listed(keys: Sequence[Key], wm: PlacedWatermark | None = None) -> list[Key]:
    """At least one key, as a list, each of them for this use (:meth:`Key.check`). KeyMismatchError
    for anything but a key, which is not shown: it may be a secret.
    """
    keys = require_list(keys, "keys: expected a list of keys, such as [key]", least=1, show=kind)
    for i, key in enumerate(keys):
        if not isinstance(key, Key):
            expected = f"keys, number {i}: expected a Key, got {kind(key)}"
            raise KeyMismatchError(f"{expected}; Key.load(path) reads one")
    for key in dict.fromkeys(keys):
        if wm and key.binding:
            key.check(wm)
    return keys


def purpose(wm: PlacedWatermark) -> dict:
    """What a key is for: the watermark, and a hash of each marked matrix."""
    shapes = [weight.shape for weight in wm.linears]
    return {
        "weight": wm.weight,
        "shape": shapes[0] if len(shapes) == 1 else tuple(shapes),
        "sigma": wm.sigma,
        "rank_dropped": wm.rank_dropped,
        "side": wm.side if wm.rank_dropped else "left",  # which is ignored without a rank
        "base_sha256": " ".join(weight.sha256() for weight in wm.linears),
    }
