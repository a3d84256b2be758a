"""Keys for many users, all from one master key.

    z_u = Σ_j c_uj z_j,    ‖c_u‖ = 1,    j = 1 … m

The m base noises z_j ~ N(0, I) come from sub-secrets of the master key, and so do the codes c_u,
uniform on the sphere of R^m. Since codes have length 1, z_u is exactly N(0, I): without the master
key, a user's noise σz_u looks like that of any key. With the master key, the ψ of all users follow
from m inner products, ψ_u = Σ_j c_uj ⟨z_j, G⟩/‖G‖. Independent keys would need one inner product
per user.

A user's noise does not depend on the number of users, so a codebook can grow.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from gaussmark_lib import files
from gaussmark_lib.engine.stream import standard_normal
from gaussmark_lib.errors import GaussMarkError, KeyFileError, kind, require_int, shown
from gaussmark_lib.keys import Key, listed

GROUP = 256  # users whose codes are drawn at once
FORMAT = "gaussmark codebook 1"
MOST_USERS = 10**9  # with more users, one text takes hours
MOST_BASE = 1 << 16  # likewise
MOST_CHARACTERS = 10_000  # of a codebook's file


class Codebook:
    """The keys of N users over m base noises, all from one master key.

    Args:
        key: the master key. If it is bound, the users' keys are for the same use.
        n_users: N ≥ 1; it can be increased later without any change for present users.
        n_base: m ≥ 2. A text with a given ψ carries (m/2)·ln(1 + ψ²/m) nats (``tracing.capacity``),
            and a name takes ln N nats. The share of correct names goes from 0 to 1 about where the
            two are equal, at finite N over a wide range of ψ (``tracing.share_right``).

    Raises:
        GaussMarkError: if a number is out of its range, or ``key`` is not a master key.

    >>> Codebook(Key.from_seed(7), n_users=100_000).key(99_999)
    UserKey(key_id='bc28f682', user=99999, unbound)
    """

    def __init__(self, key: Key, n_users: int, n_base: int = 256):
        if not isinstance(key, Key) or isinstance(key, UserKey):
            raise GaussMarkError(
                f"key: expected the master key of a codebook, got {type(key).__name__}"
            )
        self.master = key
        self.n_users = require_int(n_users, "n_users", GaussMarkError)
        self.n_base = require_int(n_base, "n_base", GaussMarkError, least=2)
        if n_users > MOST_USERS or n_base > MOST_BASE:
            raise GaussMarkError(
                f"expected at most {MOST_USERS:,} users and {MOST_BASE:,} base noises, got"
                f" {shown(n_users)} and {shown(n_base)}"
            )

    def __repr__(self) -> str:
        return (
            f"Codebook(key_id={self.master.key_id!r}, n_users={self.n_users}, n_base={self.n_base})"
        )

    def key(self, user: int) -> "UserKey":
        """Return the key of a user, 0 ≤ user < N, which works wherever a key does.

        It contains the master secret: never give it to the user.
        """
        binding = self.master.binding
        if binding:  # the master key has another noise
            binding = binding.model_copy(update={"noise_sha256": None})
        purpose = f"codebook user {self._checked(user)} of {self.n_base} base noises"
        secret = self.master.derived(purpose)[:16]
        return UserKey(secret, binding, user=int(user), book=self)

    def code(self, user: int) -> Float[np.ndarray, " m"]:
        """Return c_u, a unit vector."""
        number = self._checked(user) // GROUP
        return self._group(number)[user % GROUP]

    def codes(self) -> Iterator[tuple[int, Float[np.ndarray, "users m"]]]:
        """Yield all codes in groups of consecutive users, with the number of the first user.

        Memory holds one group at a time.
        """
        for first in range(0, self.n_users, GROUP):
            yield first, self._group(first // GROUP)[: self.n_users - first]

    def base(self, j: int, n: int) -> Float[np.ndarray, " n"]:
        """Return the first n numbers of base noise z_j."""
        return standard_normal(self._seed(f"base noise {j}"), n)

    def normals(self, users: Sequence[int], n: int) -> Float[np.ndarray, "users n"]:
        """Return Σ_j c_uj z_j of each user, in one pass over the base noises.

        The order of summation is fixed, so that every machine computes the same bits.
        """
        total = np.zeros((len(users), n))
        codes = np.stack([self.code(user) for user in users], axis=1)  # (m, users)
        for j, weights in enumerate(codes):
            base = self.base(j, n)
            for row, weight in zip(total, weights, strict=True):
                row += weight * base
        return total

    def save(self, path: str | Path) -> Path:
        """Write the codebook without its master key, which has its own file (``Key.save``).

        The file contains no secret.
        """
        path = files.as_path(path, "cannot write the codebook", KeyFileError)
        try:
            with path.open("x") as file:
                json.dump(self._content, file, indent=1)
        except OSError as error:
            raise KeyFileError(
                f"cannot write the codebook {path}: {error.strerror}; expected the name of a new"
                " file in a folder that exists"
            ) from None
        return path

    @property
    def _content(self) -> dict[str, str | int]:
        return {
            "format": FORMAT,
            "key_id": self.master.key_id,
            "n_users": self.n_users,
            "n_base": self.n_base,
        }

    @classmethod
    def load(cls, path: str | Path, key: Key) -> "Codebook":
        """Read a codebook from its file and its master key.

        Raises:
            KeyFileError: if the file is not a codebook, or belongs to another key.
        """
        path = files.as_path(path, "cannot read the codebook", KeyFileError)
        [key] = listed([key])
        try:
            with open(path, encoding="utf-8", opener=files.opener) as file:
                content = json.loads(file.read(MOST_CHARACTERS))
            book = cls(key, content["n_users"], content["n_base"])
        except OSError as error:
            raise KeyFileError(f"cannot read the codebook {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeyFileError(
                f"{path}: expected a codebook written by Codebook.save, got {shown(str(error))}"
            ) from None
        if content != book._content:
            raise KeyFileError(
                f"{path}: expected a codebook of key {key.key_id} in format {FORMAT!r}, got key"
                f" {content.get('key_id')!r} and {content.get('format')!r}"
            )
        return book

    def _group(self, number: int) -> Float[np.ndarray, "users m"]:
        """The codes of ``GROUP`` users: vectors of normal numbers, scaled to length 1."""
        seed = self._seed(f"codes {number} of {self.n_base} base noises")
        codes = standard_normal(seed, GROUP * self.n_base).reshape(GROUP, -1)
        # A running sum has the same bits on every machine; ``sum`` adds in its own order.
        squares = np.cumsum(codes * codes, axis=1)[:, -1]
        return codes / np.sqrt(squares)[:, None]

    def _seed(self, purpose: str) -> int:
        return int.from_bytes(self.master.derived(f"codebook {purpose}")[:16], "big")

    def _checked(self, user: int) -> int:
        most = self.n_users - 1
        show = shown if isinstance(user, int) else kind  # another value may be a secret
        return require_int(user, "user", GaussMarkError, least=0, most=most, show=show)


@dataclass(frozen=True, repr=False)
class UserKey(Key):
    """The key of one user of a codebook, made by :meth:`Codebook.key`.

    Its ``secret`` only identifies it; its noise needs the master secret, in ``book``.
    """

    user: int = field(kw_only=True)
    book: Codebook = field(kw_only=True, repr=False, compare=False)

    def normals(
        self,
        n: int,
        scale: float = 1.0,
        dtype: type[np.floating] = np.float64,
        out: Float[np.ndarray, " n"] | None = None,
    ) -> Float[np.ndarray, " n"]:
        """Return the first n numbers of scale·z_u, as ``Codebook.normals`` gives them."""
        [z] = self.book.normals([self.user], n)
        out = np.empty(n, dtype) if out is None else out
        np.multiply(z, scale, out=out, casting="same_kind")
        return out

    def on_gpu(self, n: int, scale: float, device: torch.device) -> Float[torch.Tensor, " n"]:
        """Return the same numbers in float32 on a GPU."""
        return torch.from_numpy(self.normals(n, scale, np.float32)).to(device)

    def save(self, path: str | Path) -> Path:
        """Raise KeyFileError, because the file would hold the master secret."""
        raise KeyFileError(
            f"user {self.user}'s key contains the master secret and is not written to {path}:"
            " save the master key, from which Codebook.key makes this key again"
        )

    def __repr__(self) -> str:
        return (
            f"UserKey(key_id={self.key_id!r}, user={self.user},"
            f" {self.binding.weight if self.binding else 'unbound'})"
        )
