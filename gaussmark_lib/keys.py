"""Secret keys and their files. A key is 128 random bits; everything else about it is public."""

import hashlib
import json
import operator
import os
import secrets
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import SupportsIndex

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from gaussmark_lib.errors import KeyFileError, KeyMismatchError
from gaussmark_lib.watermark import PlacedWatermark, Watermark

FORMAT = "gaussmark key 1"


class Binding(BaseModel):
    """What a key was made for. ``base_sha256`` is of θ, ``noise_sha256`` of ξ before any projection."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    weight: str
    shape: tuple[int, int]
    sigma: float
    rank_dropped: int
    base_sha256: str
    noise_sha256: str
    side: str = "left"  # what files say that are older than the choice


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: str
    key_id: str
    secret: str = Field(pattern="^[0-9a-f]{32}$")
    binding: Binding | None
    checksum: str


@dataclass(frozen=True, repr=False)
class Key:
    """The secret of one watermark. Printing it shows the public ``key_id`` only.

    >>> Key.from_seed(7)
    Key(key_id='8201c635', unbound)
    """

    secret: bytes = field(repr=False)  # some printers of dataclasses use no __repr__
    binding: Binding | None = None

    def __post_init__(self):
        if len(self.secret) != 16:
            raise KeyFileError(f"a key's secret is 16 bytes, got {len(self.secret)}")

    @classmethod
    def new(cls) -> "Key":
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(16))

    @classmethod
    def from_seed(cls, seed: SupportsIndex) -> "Key":
        """A guessable key: for demonstrations and tests only."""
        return cls(hashlib.sha256(f"gaussmark demonstration key {operator.index(seed)}".encode()).digest()[:16])

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
        """64 hexadecimal digits that name the key without giving it away, where ``key_id`` is too short to be unique."""
        return hashlib.sha256(b"gaussmark key fingerprint" + self.secret).hexdigest()

    @property
    def watermark(self) -> Watermark:
        """The watermark a bound key is for."""
        if self.binding is None:
            raise KeyMismatchError(f"key {self.key_id} is not bound to a weight; make one with perturb.bind(model, wm, key)")
        return Watermark(self.binding.weight, self.binding.sigma, self.binding.rank_dropped, self.binding.side)

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r}, {self.binding.weight if self.binding else 'unbound'})"

    def bound(self, wm: PlacedWatermark, xi: Float[Tensor, "d_out d_in"]) -> "Key":
        """This key with a note that it is for this watermark, on this model; ``xi`` is its noise before any projection."""
        return replace(self, binding=_binding(wm, xi))

    def check(self, wm: PlacedWatermark, xi: Float[Tensor, "d_out d_in"]) -> None:
        """KeyMismatchError, which names each difference, where a bound key's purpose is not its use."""
        made_for, used_for = self.binding.model_dump(), _binding(wm, xi).model_dump()
        if made_for["sigma"] != used_for["sigma"] or made_for["shape"] != used_for["shape"]:
            used_for.pop("noise_sha256")  # follows from the other difference
        wrong = [f"{name}: the key was made for {made_for[name]!r}, got {value!r}" for name, value in used_for.items() if made_for[name] != value]
        if wrong:
            what = "; ".join(wrong)
            raise KeyMismatchError(f"key {self.key_id} does not fit this use; {what}. Use the watermark and the base model it was made with")

    def save(self, path: str | Path) -> Path:
        """Writes the key file, readable by its owner only; never overwrites. It appears whole or not at all."""
        path = Path(path)
        binding = self.binding.model_dump(mode="json") if self.binding else None
        content = {"format": FORMAT, "key_id": self.key_id, "secret": self.secret.hex(), "binding": binding}
        content["checksum"] = _checksum(content)
        try:
            handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        except OSError as error:
            raise KeyFileError(f"cannot write a key file in {path.parent}: {error.strerror}; make the folder or name another") from None
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=1)
            os.link(partial, path)  # never overwrites, unlike a renaming
        except FileExistsError:
            raise KeyFileError(
                f"{path} exists; a key is never overwritten: text marked with it could not be detected any more. Name another file"
            ) from None
        finally:
            os.unlink(partial)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Key":
        """Reads a key file. KeyFileError, which never contains the secret, if it is missing, truncated, edited or no key file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            content = json.loads(text)
            file = _File.model_validate_json(text)  # not of ``content``: strictness would refuse JSON's lists for tuples
        except OSError as error:
            raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise KeyFileError(f"{path} is not a whole key file: expected JSON as Key.save writes it; restore it from a copy") from None
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, e["loc"])) or "the whole" for e in error.errors(include_input=False))
            raise KeyFileError(f"{path} is not a key file: missing or malformed: {fields}; restore it from a copy") from None
        if file.format != FORMAT:
            raise KeyFileError(f"{path}: expected format {FORMAT!r}, got {file.format!r}")
        key = cls(bytes.fromhex(file.secret), file.binding)
        if file.checksum != _checksum(content) or file.key_id != key.key_id:
            raise KeyFileError(f"{path} was edited or damaged: its checksum does not fit its content; restore it from a copy")
        return key


def _binding(wm: PlacedWatermark, xi: Tensor) -> Binding:
    return Binding(
        weight=wm.weight,
        shape=wm.linear.shape,
        sigma=float(wm.sigma),
        rank_dropped=wm.rank_dropped,
        side=wm.side if wm.rank_dropped else "left",  # with rank_dropped = 0 the side is ignored
        base_sha256=wm.linear.sha256(),
        noise_sha256=hashlib.sha256(xi.contiguous().numpy()).hexdigest(),
    )


def _checksum(content: dict) -> str:
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
