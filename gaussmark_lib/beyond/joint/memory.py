"""What is stored of a stream: the directions of its texts, and the innovations of the key along
these directions.

The direction of every text is stored, so that innovations are independent however the texts were
chosen (``law``). A text that does not fit into the memory is refused: its answer would reveal
something about the key that the memory does not know, and the law of later answers would no longer
hold.

The very same text gets the same answer again. Nothing else is inherited: a copy with a few edits is
tested for what is new in it, like any other text. (To answer untrusted users, who may hold
watermarked texts, use ``public``.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from gaussmark_lib.beyond.joint import directions, law
from gaussmark_lib.beyond.joint.directions import Direction, Directions
from gaussmark_lib.errors import GaussMarkError

GIVEN = -1  # the place of a reference text, which is not part of the stream
NO_REPEAT = -1  # of a text that repeats no earlier text of the stream


class Answer(NamedTuple):
    """The evidence of a text under each of K keys.

    ``psi`` is the number that may be answered: if nothing in the text is new, it is the value that
    the memory expects. ``repeats`` is the place of the same text earlier in the stream, or −1.
    """

    psi: Float[np.ndarray, " k"]
    innovation: Float[np.ndarray, " k"]
    p_given: Float[np.ndarray, " k"]
    residual: float
    repeats: int


class Memory:
    """The stored directions, the factor of their Gram matrix, and their innovations under each key.

    Args:
        n_keys: K.
        budget: bytes for all directions together.
    """

    def __init__(self, n_keys: int, budget: int):
        self.budget = budget
        self.factor = law.Factor()
        self.directions = Directions()
        self.innovations = np.zeros((0, n_keys))  # one row per direction
        self.places: list[int] = []  # in the stream, one per direction

    @property
    def n(self) -> int:
        """Return the number of stored directions."""
        return self.factor.n

    def ask(self, u: Direction, psi: Float[np.ndarray, " k"], place: int) -> Answer:
        """Return the new evidence of a text with direction u and statistics ψ, and store it.

        Raises:
            GaussMarkError: if the text does not fit into the memory.
        """
        cosines = self.directions.inner(u)
        coordinates = self.factor.coordinates(cosines)
        expected = coordinates @ self.innovations  # of ψ, given all earlier answers
        square = directions.square(u) - coordinates @ coordinates
        residual = np.sqrt(max(square, 0.0))
        if residual <= law.NOTHING_NEW:
            return self._nothing_new(cosines, expected)
        self._refuse_without_room(u)
        innovation = (psi - expected) / residual
        self.directions.add(u)
        self.factor.append(coordinates, residual)
        self.innovations = np.vstack([self.innovations, innovation])
        self.places.append(place)
        return Answer(
            psi=psi,
            innovation=innovation,
            p_given=norm.sf(innovation),
            residual=residual,
            repeats=NO_REPEAT,
        )

    def _nothing_new(
        self, cosines: Float[np.ndarray, " n"], expected: Float[np.ndarray, " k"]
    ) -> Answer:
        """The answer for a direction inside the span of the stored directions."""
        nearest = int(np.argmax(cosines))
        is_same = cosines[nearest] > 1 - law.NOTHING_NEW**2
        # Several earlier texts together may hold all of this text: then there is no innovation.
        nothing = np.full(len(expected), np.nan)
        innovation = self.innovations[nearest] if is_same else nothing
        return Answer(
            psi=expected,
            innovation=innovation,
            p_given=np.nan_to_num(norm.sf(innovation), nan=1.0),
            residual=0.0,
            repeats=self.places[nearest] if is_same else NO_REPEAT,
        )

    def _refuse_without_room(self, u: Direction) -> None:
        n_new = directions.n_bytes(u)
        n_used = self.directions.n_bytes
        if n_used + n_new > self.budget:
            raise GaussMarkError(
                f"the stream's memory is full: expected room for one more gradient,"
                f" {n_new:,} bytes, got {n_used:,} of {self.budget:,} in use after"
                f" {self.n} texts; begin a new state with a new key"
            )
