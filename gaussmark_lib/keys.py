"""Secret keys: 128 random bits, and the normal numbers that they stand for (``engine.stream``).

A secret never shows in a message, a ``repr`` or a traceback.
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

N_BYTES = 16  # of a secret


@dataclass(frozen=True, repr=False)
class Key:
    """The secret of one watermark.

    Printing it shows only the public ``key_id``: eight hexadecimal digits that name the key without
    giving it away.

    >>> Key.from_seed(7)
    Key(key_id='8201c635', unbound)
    """

    secret: bytes = field(repr=False)  # some printers of dataclasses use no __repr__
    binding: Binding | None = None

    def __post_init__(self):
        if not isinstance(self.secret, bytes):
            raise KeyFileError(f"a key's secret is {N_BYTES} bytes, got {kind(self.secret)}")
        if len(self.secret) != N_BYTES:
            raise KeyFileError(f"a key's secret is {N_BYTES} bytes, got {len(self.secret)} bytes")
        # A frozen dataclass lets nothing else set its attributes, not even its own methods.
        object.__setattr__(self, "key_id", key_files.key_id(self.secret))
        # the seed of the stream, below 2¹²⁸
        object.__setattr__(self, "seed", int.from_bytes(self.secret, "big"))

    @classmethod
    def new(cls) -> "Key":
        """Make a fresh key from the operating system's randomness.

        >>> Key.new() == Key.new()
        False
        """
        return cls(secrets.token_bytes(N_BYTES))

    @classmethod
    def from_seed(cls, seed: SupportsIndex) -> "Key":
        """Make a guessable key, for demonstrations and tests only.

        >>> Key.from_seed(7) == Key.from_seed(7)
        True
        """
        number = require_int(seed, "seed", KeyFileError, least=-inf, show=kind)
        text = b"gaussmark demonstration key %d" % number
        return cls(hashlib.sha256(text).digest()[:N_BYTES])

    @property
    def fingerprint(self) -> str:
        """Return 64 hexadecimal digits that name the key; ``key_id`` is too short to be unique.

        >>> len(Key.from_seed(7).fingerprint)
        64
        """
        return hashlib.sha256(b"gaussmark key fingerprint" + self.secret).hexdigest()

    @property
    def watermark(self) -> Watermark:
        """Return the watermark that a bound key is for; raise KeyMismatchError if it is unbound."""
        use = self.binding
        if use is None:
            raise KeyMismatchError(f"key {self.key_id} is not bound to a weight by perturb.bind")
        return Watermark(use.weight, use.sigma, use.rank_dropped, use.side)

    def derived(self, purpose: str) -> bytes:
        """Return 32 secret bytes for one purpose; other purposes have other bytes.

        >>> Key.from_seed(7).derived("KGW") == Key.from_seed(7).derived("SynthID")
        False
        """
        return key_files.derived(self.secret, purpose)

    def normals(
        self, n: int, scale: float = 1.0, dtype: type = np.float64, out: np.ndarray | None = None
    ) -> Float[np.ndarray, " n"]:
        """Return the first n numbers of the key's stream, as ``engine.stream.standard_normal``.

        >>> Key.from_seed(7).normals(3).round(4)
        array([ 1.1223, -1.1809, -0.5234])
        """
        return standard_normal(self.seed, n, scale, dtype, out)

    def on_gpu(self, n: int, scale: float, device: torch.device) -> Float[torch.Tensor, " n"]:
        """Return the same numbers in float32, made on a GPU (``engine.philox``)."""
        return philox.standard_normal(self.seed, n, scale, device)

    def check(self, wm: PlacedWatermark) -> None:
        """Check that a bound key is for this watermark on this model.

        Raise KeyMismatchError if the key is for another watermark or another θ. Give a
        GaussMarkWarning if only the model's other weights differ, as after fine-tuning.
        """
        made_for = self.binding.model_dump()
        differences = [
            f"{name}: the key was made for {made_for[name]!r}, got {value!r}"
            for name, value in purpose(wm).items()
            if made_for[name] != value
        ]
        if differences:
            raise KeyMismatchError(
                f"key {self.key_id} does not fit this use; {'; '.join(differences)}. Use the"
                " watermark and the base model it was made with"
            )
        made_with = self.binding.model_sha256
        if not made_with or wm.model is None:  # older key files, and matrices read from a file
            return
        if made_with != checkpoints.digest(wm.model):
            warnings.warn(
                f"key {self.key_id}: the matrix is the key's, but other weights are not those of"
                " the key's model. The test stays exact, with less power",
                GaussMarkWarning,
                stacklevel=3,
            )

    def save(self, path: str | Path) -> Path:
        """Write the key file, complete and readable by its owner only; never overwrite a file."""
        path = files.as_path(path, "cannot write a key file", KeyFileError)
        why_not = key_files.write(self.secret, self.binding, path)
        if why_not is not None:
            raise KeyFileError(why_not)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Read a key file that :meth:`save` wrote.

        Raise KeyFileError if it is damaged, or readable by anyone other than its owner.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Key.from_seed(7).save(f"{folder}/my.key")
        ...     Key.load(file) == Key.from_seed(7)
        True
        """
        path = files.as_path(path, "cannot read the key file", KeyFileError)
        content = key_files.read(path)
        if isinstance(content, str):  # the reason why it cannot be read
            raise KeyFileError(content)
        secret, binding = content
        return cls(secret, binding)

    def __repr__(self) -> str:
        use = self.binding.weight if self.binding else "unbound"
        return f"Key(key_id={self.key_id!r}, {use})"


def listed(keys: Sequence[Key], wm: PlacedWatermark | None = None) -> list[Key]:
    """Return at least one key as a list, and check each bound key for this use (:meth:`Key.check`).

    Raise KeyMismatchError for anything but a key. The error does not show it: it may be a secret.

    >>> listed((Key.from_seed(7),))
    [Key(key_id='8201c635', unbound)]
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
    """Return what a key is for: the watermark, and a hash of each marked matrix."""
    shapes = [weight.shape for weight in wm.linears]
    hashes = [weight.sha256() for weight in wm.linears]
    return {
        "weight": wm.weight,
        "shape": shapes[0] if len(shapes) == 1 else tuple(shapes),
        "sigma": wm.sigma,
        "rank_dropped": wm.rank_dropped,
        "side": wm.side if wm.rank_dropped else "left",  # the side does not matter without a rank
        "base_sha256": " ".join(hashes),
    }
