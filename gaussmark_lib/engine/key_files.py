"""Files of keys. A secret never shows in a traceback, not even in one that prints local variables.
So functions that read or write a key return the reason of a failure, and their caller raises the
error, in a place where no variable has the content.
"""

import hashlib
import hmac
import json
import os
import shlex
import stat
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gaussmark_lib import files

FORMAT = "gaussmark key 2"
MOST_BYTES = 1 << 24
PARTIAL = ".partial-key"  # how the name of a half-written file ends; `make clean` knows it


class Binding(BaseModel):
    """What a key was made for.

    ``base_sha256`` is the hash of θ, and ``model_sha256`` that of all weights
    (``checkpoints.digest``). ``sigma_carried`` is the σ that θ + ξ has after rounding to the
    weights' dtype. For several weights there are several σ, shapes and so on, in the same order.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    weight: str | tuple[str, ...]
    shape: tuple[int, int] | tuple[tuple[int, int], ...]
    sigma: float | tuple[float, ...]
    rank_dropped: int
    base_sha256: str
    side: str = "left"  # older files do not say it, and mean this
    sigma_carried: float | tuple[float, ...] | None = None
    model_sha256: str | None = None
    file_sha256: str | None = None  # of the model's file, if it was read from one file, as GGUF
    edited: float = Field(0.0, ge=0, lt=1)  # the share of replaced tokens that a test allows for
    # Earlier versions wrote these two.
    noise_sha256: str | None = None
    weights: tuple[tuple[str, str], ...] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: str
    key_id: str
    secret: str = Field(pattern="^[0-9a-f]{32}$")
    binding: Binding | None
    seal: str


def derived(secret: bytes, purpose: str) -> bytes:
    """Return 32 bytes for one purpose.

    Neither the secret nor the bytes for another purpose can be computed from them.
    """
    return hmac.digest(secret, f"gaussmark {purpose}".encode(), "sha256")


def key_id(secret: bytes) -> str:
    """Return eight hexadecimal digits that name a key without giving it away.

    >>> key_id(bytes(16))
    '487660b5'
    """
    return hashlib.sha256(b"gaussmark key id" + secret).hexdigest()[:8]


def write(secret: bytes, binding: Binding | None, path: Path) -> str | None:
    """Write a key file, complete or not at all. Return None, or the reason why it failed."""
    content = {"format": FORMAT, "key_id": key_id(secret), "secret": secret.hex()}
    content["binding"] = binding.model_dump(mode="json") if binding else None
    content["seal"] = _seal(secret, content)
    partial = None
    try:
        handle, partial = tempfile.mkstemp(PARTIAL, f".{path.name}.", path.parent)  # mode 0600
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.link(partial, path)  # never overwrites, unlike a rename
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


def read(path: Path) -> tuple[bytes, Binding | None] | str:
    """Return the secret and the binding in a file, or the reason why they cannot be read."""
    try:
        with open(path, "rb", opener=files.opener) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_BYTES)
        content = json.loads(text)
        parsed = _File.model_validate_json(text)  # strict validation of ``content`` refuses lists
    except OSError as error:
        return f"cannot read the key file {path}: {error.strerror}"
    except ValidationError as error:
        places = [".".join(map(str, e["loc"])) for e in error.errors(include_input=False)]
        return (
            f"{path} is not a key file: missing or malformed: {', '.join(places) or 'all of it'};"
            " restore it from a copy"
        )
    except (ValueError, RecursionError):  # broken JSON or UTF-8, numbers of thousands of digits
        return (
            f"{path} is not a complete key file: expected JSON as Key.save writes it; restore it"
            " from a copy"
        )
    if parsed.format != FORMAT:
        return f"{path}: expected format {FORMAT!r}, got {parsed.format!r}"
    secret = bytes.fromhex(parsed.secret)
    sealed = hmac.compare_digest(parsed.seal.encode(), _seal(secret, content).encode())
    if not sealed or parsed.key_id != key_id(secret):
        return (
            f"{path} was edited or damaged: its seal does not fit its content; restore it from a"
            " copy"
        )
    if stat.S_ISREG(mode) and mode & 0o077:
        return (
            f"{path} is open to others (mode {stat.S_IMODE(mode):03o}): expected a key file that"
            f" only its owner can read; run `chmod 600 {shlex.quote(str(path))}`. Anyone who has"
            " read it can detect and remove the watermark: in that case make a new key"
        )
    return secret, parsed.binding


def _seal(secret: bytes, content: dict) -> str:
    """Return an HMAC under the secret, of everything else in the file."""
    public = {name: value for name, value in content.items() if name != "seal"}
    text = json.dumps(public, sort_keys=True).encode()
    return hmac.new(derived(secret, "key file seal"), text, "sha256").hexdigest()
