"""Secret keys: 128 random bits, the normal numbers that they stand for, and their files.

A key must mean the same noise on every computer and in every year. NumPy promises that for the raw
bits of its Philox4x64-10 counter, not for its normal numbers. So the stream of a key is

    bits  →  u = (k + ½)·2⁻⁵², k the top 52 bits  →  z = Φ⁻¹(u)

with Φ⁻¹ as the rational functions of Wichura's algorithm AS 241 (Applied Statistics 37, 1988;
relative error about 1e-16). They are compiled (numba): NumPy's uniforms with torch's ``ndtri`` take
2.3 times as long. A counter can start anywhere, so several threads make one stream.

A secret shows in no message, no ``repr`` and no traceback, not even in one that prints local
variables: what reads and writes files returns the reason of a failure, and only then, without the
content, an error is raised.
"""

import hashlib
import hmac
import inspect
import json
import math
import operator
import os
import secrets
import shlex
import stat
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

import numba
import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gaussmark_lib import files, tokens
from gaussmark_lib.errors import InvalidTextError, KeyFileError, KeyMismatchError, is_int, kind
from gaussmark_lib.weights import PlacedWatermark, Watermark

FORMAT = "gaussmark key 2"
MOST_BYTES = 1 << 24
SPAN = 1 << 19  # numbers that a thread makes with one counter
CHUNK = 1 << 14  # numbers at a time: the temporaries stay in the processor's cache


class Binding(BaseModel):
    """What a key was made for. ``base_sha256`` is of θ, ``model_sha256`` of all weights
    (``models.digest``); ``sigma_carried`` is the σ that θ + ξ has after rounding to the weights'
    dtype. Several weights have several σ, shapes and so on, in their order.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    weight: str | tuple[str, ...]
    shape: tuple[int, int] | tuple[tuple[int, int], ...]
    sigma: float | tuple[float, ...]
    rank_dropped: int
    base_sha256: str
    side: str = "left"  # what files say that are older than the choice
    sigma_carried: float | tuple[float, ...] | None = None
    model_sha256: str | None = None
    noise_sha256: str | None = None  # of earlier versions, like the next one
    weights: tuple[tuple[str, str], ...] | None = None

    @property
    def watermark(self) -> Watermark:
        return Watermark(self.weight, self.sigma, self.rank_dropped, self.side)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: str
    key_id: str
    secret: str = Field(pattern="^[0-9a-f]{32}$")
    binding: Binding | None
    seal: str


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
        return hashlib.sha256(b"gaussmark key id" + self.secret).hexdigest()[:8]

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
        """The first n numbers of the key's stream, as :func:`standard_normal`."""
        return standard_normal(self.seed, n, scale, dtype, out)

    def check(self, wm: PlacedWatermark, _=None) -> None:
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
        if why_not := _write(self, path):
            raise KeyFileError(why_not)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Reads a key file. KeyFileError if it is missing, truncated, edited, no key file, or
        readable by others than its owner.
        """
        read = _read(files.named(path, "cannot read the key file", KeyFileError))
        if isinstance(read, str):
            raise KeyFileError(read)
        return read

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


def _write(key: Key, path: Path) -> str | None:
    """Writes a key file; the reason why not, where it could not."""
    content = {"format": FORMAT, "key_id": key.key_id, "secret": key.secret.hex()}
    content["binding"] = key.binding.model_dump(mode="json") if key.binding else None
    content["seal"] = _seal(key, content)
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
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
        file = _File.model_validate_json(text)  # of ``content``, strictness would refuse lists
    except OSError as error:
        return f"cannot read the key file {path}: {error.strerror}"
    except ValidationError as error:
        places = [".".join(map(str, e["loc"])) for e in error.errors(include_input=False)]
        return (
            f"{path} is not a key file: missing or malformed: {', '.join(places) or 'all of it'};"
            " restore it from a copy"
        )
    except (ValueError, RecursionError):  # of JSON, UTF-8, and numbers with thousands of digits
        return (
            f"{path} is not a complete key file: expected JSON as Key.save writes it; restore it"
            " from a copy"
        )
    if file.format != FORMAT:
        return f"{path}: expected format {FORMAT!r}, got {file.format!r}"
    key = Key(bytes.fromhex(file.secret), file.binding)
    sealed = hmac.compare_digest(file.seal.encode(), _seal(key, content).encode())
    if not sealed or file.key_id != key.key_id:
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


def _seal(key: Key, content: dict) -> str:
    """An HMAC under the secret, of everything else."""
    public = {name: value for name, value in content.items() if name != "seal"}
    text = json.dumps(public, sort_keys=True).encode()
    return hmac.new(key.derived("key file seal"), text, "sha256").hexdigest()


def standard_normal(
    seed: int,
    n: int,
    scale: float = 1.0,
    dtype: type[np.floating] = np.float64,
    out: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """The first n numbers of the stream of a seed, 0 ≤ seed < 2¹²⁸, times ``scale``; they do not
    depend on n. Written to ``out`` where that is given.

    Returns:
        shape (n,), computed in float64 and rounded once to ``dtype`` (or ``out``'s): independent
        N(0, scale²); |z| ≤ 8.3 before the scale.
    """
    bits = np.random.Philox(key=seed)
    del seed  # which no traceback of what follows shows
    out = np.empty(n, dtype) if out is None else out
    starts = range(0, n, SPAN)

    def fill(start: int) -> None:
        span = out[start : start + SPAN]
        stream = deepcopy(bits).advance(start // 4)  # its counter gives four numbers at a time
        for part in np.split(span, range(CHUNK, len(span), CHUNK)):
            part[:] = _normals(stream.random_raw(len(part)), scale)

    if len(starts) > 1 and (threads := torch.get_num_threads()) > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, starts))
    else:  # starting a thread takes longer than a few numbers
        list(map(fill, starts))
    return out


def _table(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of numerator and denominator, highest power first."""
    numbers = tuple(map(float, text.split()))
    return numbers[:8], numbers[8:]


# AS 241: |u − ½| ≤ 0.425; √(−log r) ≤ 5; beyond. r is the distance of u to the nearer end.
_CENTRE = _table("""
    2.5090809287301226727e3 3.3430575583588128105e4 6.7265770927008700853e4
    4.5921953931549871457e4 1.3731693765509461125e4 1.9715909503065514427e3
    1.3314166789178437745e2 3.3871328727963666080e0
    5.2264952788528545610e3 2.8729085735721942674e4 3.9307895800092710610e4
    2.1213794301586595867e4 5.3941960214247511077e3 6.8718700749205790830e2
    4.2313330701600911252e1 1.0
""")
_TAIL = _table("""
    7.74545014278341407640e-4 2.27238449892691845833e-2 2.41780725177450611770e-1
    1.27045825245236838258e0 3.64784832476320460504e0 5.76949722146069140550e0
    4.63033784615654529590e0 1.42343711074968357734e0
    1.05075007164441684324e-9 5.47593808499534494600e-4 1.51986665636164571966e-2
    1.48103976427480074590e-1 6.89767334985100004550e-1 1.67638483018380384940e0
    2.05319162663775882187e0 1.0
""")
_FAR_TAIL = _table("""
    2.01033439929228813265e-7 2.71155556874348757815e-5 1.24266094738807843860e-3
    2.65321895265761230930e-2 2.96560571828504891230e-1 1.78482653991729133580e0
    5.46378491116411436990e0 6.65790464350110377720e0
    2.04426310338993978564e-15 1.42151175831644588870e-7 1.84631831751005468180e-5
    7.86869131145613259100e-4 1.48753612908506148525e-2 1.36929880922735805310e-1
    5.99832206555887937690e-1 1.0
""")


def _compiled(function):
    """By numba, when it is first called, and kept for the next process where there is room."""
    function = inspect.unwrap(function)  # of what checks shapes in the tests
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def _polynomial(coefficients, x):
    value = coefficients[0] * x
    for c in coefficients[1:-1]:
        value += c
        value *= x
    return value + coefficients[-1]


def _normals(raw: np.ndarray, scale: float) -> np.ndarray:
    """Φ⁻¹ of these bits, times ``scale``: the centre's formula for all, the tails' where due."""
    z, tails, ends = _centre(raw, scale)
    z[tails] = _tail(np.sqrt(-np.log(np.abs(ends))), ends, scale)
    return z


@_compiled
def _centre(raw, scale):
    """z by the centre's formula; where the tails are; and there u, or u − 1 if that is nearer."""
    z, ends, tails, n = np.empty(len(raw)), np.empty(len(raw)), np.empty(len(raw), np.int32), 0
    for i in range(len(raw)):
        q = (np.float64(np.int64(raw[i] >> np.uint64(12))) + 0.5) * 2.0**-52 - 0.5
        x = 0.180625 - q * q
        z[i] = _polynomial(_CENTRE[0], x) / _polynomial(_CENTRE[1], x) * q * scale
    for i in range(len(raw)):
        u = (np.float64(np.int64(raw[i] >> np.uint64(12))) + 0.5) * 2.0**-52
        tails[n], ends[n] = i, u if u < 0.5 else u - 1.0
        n += abs(u - 0.5) > 0.425
    return z, tails[:n], ends[:n]


@_compiled
def _tail(r, ends, scale):
    z = np.empty(len(r))
    for i in range(len(r)):
        size = _polynomial(_TAIL[0], r[i] - 1.6) / _polynomial(_TAIL[1], r[i] - 1.6)
        z[i] = math.copysign(size * scale, -ends[i])
    for i in range(len(r)):
        if r[i] > 5.0:  # about one number in 10¹¹
            size = _polynomial(_FAR_TAIL[0], r[i] - 5.0) / _polynomial(_FAR_TAIL[1], r[i] - 5.0)
            z[i] = math.copysign(size * scale, -ends[i])
    return z
