"""What is kept of a stream: the directions asked about, and what the answers said of the key along
them; and which texts were asked about, by their tokens.

Every text's direction is kept, so that innovations are independent whoever chose the texts
(``law``). A text without room is refused: its answer would say something of the key that the memory
does not know, and the law of later answers would no longer hold.

The law alone cannot tell a copy with a few edits from another text of one kind. (Two texts with a
common direction c and parts of their own have the gradients c + e_1 and c + e_2, whether c is what
all files of a kind share or what two copies share.) A text *repeats* an earlier one where both
share at least two thirds of the runs of three tokens of the longer one; a run that occurs n times
counts n times, so that a few repeated words do not hide behind many. One token in nine can be
exchanged at random before that ends, or half as much text be added. Only texts that repeat none are
compared with, so that no chain of edits leads from one text to quite another.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import norm

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.joint import directions, law
from gaussmark_lib.joint.directions import Direction, Directions

GIVEN = -1  # the place of a reference text, which nobody asked about
RUN = 3  # tokens
NEAR = 2 / 3  # shared runs / runs of the longer text
_MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64
)  # odd 64-bit constants


class Answer(NamedTuple):
    """What a text says under each of K keys. ``psi`` is what may be answered: where nothing is new,
    what the memory expects of it. ``repeats``: the place of the earlier text that it repeats, or
    −1.
    """

    psi: Float[np.ndarray, " k"]
    innovation: Float[np.ndarray, " k"]
    p_given: Float[np.ndarray, " k"]
    residual: float
    repeats: int


class Memory:
    """The kept directions, the factor of their Gram matrix, and the innovations along them under
    each key.

    Args:
        n_keys: K. budget: bytes for the directions in all.
    """

    def __init__(self, n_keys: int, budget: int):
        self.budget = budget
        self.factor, self.seen, self.directions = law.Factor(), SeenTexts(), Directions()
        self.innovations = np.zeros((0, n_keys))
        self.p_given = np.zeros((0, n_keys))
        self.places: list[int] = []

    @property
    def n(self) -> int:
        return self.factor.n

    def ask(
        self, u: Direction, psi: Float[np.ndarray, " k"], runs: NDArray[np.uint64], place: int
    ) -> Answer:
        """What a text with direction u and statistics ψ says that earlier ones had not; then it is
        one of them. GaussMarkError where the memory has no room for it.
        """
        coordinates = self.factor.coordinates(self.directions.inner(u))
        square = directions.square(u) - coordinates @ coordinates
        residual = float(np.sqrt(max(square, 0.0)))
        earlier = self.seen.nearest(runs)
        if residual > law.NOTHING_NEW:
            self._refuse_without_room(u)
            innovation = (psi - coordinates @ self.innovations) / residual
        else:  # nothing that the memory does not hold
            residual, psi = 0.0, coordinates @ self.innovations
            innovation = np.full(len(psi), np.nan) if earlier is None else self.innovations[earlier]
        p_given = np.nan_to_num(norm.sf(innovation), nan=1.0)
        if earlier is not None:  # nobody is accused by another's text
            p_given = np.maximum(self.p_given[earlier], norm.sf(psi))
        if residual:
            self.directions.add(u)
            self.factor.append(coordinates, residual)
            self.innovations = np.vstack([self.innovations, innovation])
            self.p_given = np.vstack([self.p_given, p_given])
            self.places.append(place)
            if place != GIVEN and earlier is None:
                self.seen.add(self.n - 1, runs)
        repeats = GIVEN if earlier is None else self.places[earlier]
        return Answer(psi, innovation, p_given, residual, repeats)

    def _refuse_without_room(self, u: Direction) -> None:
        if self.directions.n_bytes + directions.n_bytes(u) > self.budget:
            raise GaussMarkError(
                f"the stream's memory is full: expected room for one more gradient,"
                f" {directions.n_bytes(u):,} bytes, got {self.directions.n_bytes:,} of"
                f" {self.budget:,} in use after {self.n} texts; begin a new state with a new key"
            )


def runs(ids: Sequence[int]) -> NDArray[np.uint64]:
    """The hashes of a text's runs of three tokens, sorted; a shorter text is one run."""
    padded = np.array([*ids, *[-1] * (RUN - len(ids))], dtype=np.int64).astype(
        np.uint64
    ) + np.uint64(2)
    n = len(padded) - RUN + 1
    mixed = [
        np.bitwise_xor(padded[i : i + n] * _MIX[i], padded[i : i + n] >> np.uint64(i + 1))
        * _MIX[-i - 1]
        for i in range(RUN)
    ]
    return np.sort(mixed[0] + mixed[1] + mixed[2])


class SeenTexts:
    """The runs of the texts so far, each text known by a number."""

    def __init__(self) -> None:
        self.texts: dict[int, NDArray[np.uint64]] = {}
        self._with: dict[int, dict[int, int]] = defaultdict(dict)  # run → text → how often

    def add(self, number: int, text: NDArray[np.uint64]) -> None:
        self.texts[number] = text
        for run, times in Counter(text.tolist()).items():
            self._with[run][number] = times

    def nearest(self, text: NDArray[np.uint64]) -> int | None:
        """The earlier text that this one repeats: of several, the one that shares most, and of
        those the first.
        """
        shared: Counter[int] = Counter()
        for run, times in Counter(text.tolist()).items():
            for number, earlier in self._with.get(run, {}).items():
                shared[number] += min(times, earlier)
        alike = {
            number: n / max(len(text), len(self.texts[number])) for number, n in shared.items()
        }
        best = max(sorted(alike), key=alike.__getitem__, default=None)
        return best if best is not None and alike[best] >= NEAR else None
