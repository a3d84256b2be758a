"""What is kept of a stream: the directions asked about, and what the answers said of the key along
them; and which texts were asked about, by their tokens.

Every text's direction is kept, so that innovations are independent whoever chose the texts
(``law``). A text without room is refused: its answer would say something of the key that the memory
does not know, and the law of later answers would no longer hold.

The very same text asked again gets the same answer. Nothing else is inherited: a copy with a few
edits is asked for what is new in it, like any text. (Who answers strangers, of whom some hold
marked texts, answers by ``public``.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from gaussmark_lib.beyond.joint import directions, law
from gaussmark_lib.beyond.joint.directions import Direction, Directions
from gaussmark_lib.errors import GaussMarkError

GIVEN = -1  # the place of a reference text, which nobody asked about


class Answer(NamedTuple):
    """What a text says under each of K keys. ``psi`` is what may be answered: where nothing is new,
    what the memory expects of it. ``repeats``: the place of the earlier text that is the same, or
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
        self.factor, self.directions = law.Factor(), Directions()
        self.innovations = np.zeros((0, n_keys))
        self.places: list[int] = []

    @property
    def n(self) -> int:
        return self.factor.n

    def ask(self, u: Direction, psi: Float[np.ndarray, " k"], place: int) -> Answer:
        """What a text with direction u and statistics ψ says that earlier ones had not; then it is
        one of them. GaussMarkError where the memory has no room for it.
        """
        cosines = self.directions.inner(u)
        coordinates = self.factor.coordinates(cosines)
        square = directions.square(u) - coordinates @ coordinates
        residual = np.sqrt(max(square, 0.0))
        repeats = GIVEN
        if residual > law.NOTHING_NEW:
            self._refuse_without_room(u)
            innovation = (psi - coordinates @ self.innovations) / residual
            self.directions.add(u)
            self.factor.append(coordinates, residual)
            self.innovations = np.vstack([self.innovations, innovation])
            self.places.append(place)
        else:  # nothing that the memory does not hold
            residual, psi = 0.0, coordinates @ self.innovations
            innovation, nearest = np.full(len(psi), np.nan), int(np.argmax(cosines))
            if cosines[nearest] > 1 - law.NOTHING_NEW**2:
                innovation, repeats = self.innovations[nearest], self.places[nearest]
        p_given = np.nan_to_num(norm.sf(innovation), nan=1.0)
        return Answer(psi, innovation, p_given, residual, repeats)

    def _refuse_without_room(self, u: Direction) -> None:
        if self.directions.n_bytes + directions.n_bytes(u) > self.budget:
            raise GaussMarkError(
                f"the stream's memory is full: expected room for one more gradient,"
                f" {directions.n_bytes(u):,} bytes, got {self.directions.n_bytes:,} of"
                f" {self.budget:,} in use after {self.n} texts; begin a new state with a new key"
            )
