"""What is kept of a stream: the directions asked about, and what the answers said of the key along
them.

As long as there is room, every text's direction is kept, and innovations are independent whoever
chose the texts (``law``). From the first text on that finds no room, the m directions stay as they
are: a shorter text that would fit is not kept either, since texts beyond the room are one set (a
reference text without room is left out, and nothing more). Each of their r_i = ⟨z, R_i⟩/‖R_i‖, R_i
being u_i less its part in the span of the m, is still exactly N(0, 1) for a text that does not
depend on z; but two of them have the correlation ⟨R_i, R_j⟩/(‖R_i‖‖R_j‖), and a text chosen by
looking at answers beyond the room is no longer covered. With l_i the coordinates of u_i in the span
(``law``) and s_i = ‖R_i‖,

    ⟨R_i, R_j⟩ = ⟨u_i, u_j⟩ − l_i·l_j

so that the mean correlation is known from two vectors, the sums of all u_i/s_i and of all l_i/s_i.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import norm

from gaussmark_lib.joint import directions, law
from gaussmark_lib.joint.directions import Direction
from gaussmark_lib.joint.repeats import Said

GIVEN = -1  # the place of a reference text, which nobody asked about
AT_A_TIME = 1 << 24  # numbers of memory that are asked for together


class Answer(NamedTuple):
    """What a text says under each of K keys. ``psi`` is what may be answered: where nothing is new,
    what the memory expects of it. ``repeats`` is the place of the earlier text that it repeats, −1
    if there is none; ``kept``: whether it found room.
    """

    psi: Float[np.ndarray, " k"]
    innovation: Float[np.ndarray, " k"]
    p_given: Float[np.ndarray, " k"]
    residual: float
    repeats: int
    correlation: float
    kept: bool


class Memory:
    """The kept directions, the factor of their Gram matrix, and the innovations along them under
    each key.

    Args:
        n_keys: K. budget: bytes for the directions in all, of either kind (``directions``).
    """

    def __init__(self, d: int, n_keys: int, budget: int):
        self.d, self.budget = d, budget
        self.factor, self.said = law.Factor(), Said()
        self.directions = directions.Directions(d, min(AT_A_TIME, budget // 4) // d)
        self.innovations = np.zeros((0, n_keys))
        self.p_given = np.zeros((0, n_keys))
        self.places: list[int] = []
        self.n_beyond, self.along = (
            0,
            np.zeros(0),
        )  # of texts without room: their number, and the sums of their l/s and u/s
        self.beyond = torch.zeros(0, dtype=torch.float32, device="cpu")

    @property
    def n(self) -> int:
        return self.factor.n

    @property
    def full(self) -> bool:
        """Whether no further text can be kept: one found no room, or the shortest would
        find none.
        """
        return self.n_beyond > 0 or self.budget - self.directions.n_bytes < directions.least(self.d)

    @property
    def correlation(self) -> float:
        """The mean correlation between the innovations of two texts beyond the room; 0 where there
        is room.
        """
        n = self.n_beyond
        return (
            (directions.square(self.beyond) - self.along @ self.along - n) / (n * (n - 1))
            if n > 1
            else 0.0
        )

    def ask(
        self, u: Direction, psi: Float[np.ndarray, " k"], runs: NDArray[np.uint64], place: int
    ) -> Answer:
        """What a text with direction u and statistics ψ says that earlier ones had not; then it is
        one of them.
        """
        coordinates = self.factor.coordinates(self.directions.inner(u))
        square = directions.square(u) - coordinates @ coordinates
        residual = float(np.sqrt(max(square, 0.0)))
        earlier = self.said.nearest(runs)
        if residual > law.NOTHING_NEW:
            innovation = (psi - coordinates @ self.innovations) / residual
        else:
            residual, psi = (
                0.0,
                coordinates @ self.innovations,
            )  # nothing that the memory does not hold
            innovation = np.full(len(psi), np.nan) if earlier is None else self.innovations[earlier]
        p_given = (
            np.nan_to_num(norm.sf(innovation), nan=1.0)
            if earlier is None
            else np.maximum(self.p_given[earlier], norm.sf(psi))  # not accused by another's text
        )
        correlation, kept = (
            0.0,
            bool(residual)
            and not self.n_beyond
            and self.directions.n_bytes + directions.n_bytes(u) <= self.budget,
        )
        if kept:
            self._keep(u, coordinates, residual, innovation, p_given, place)
            if place != GIVEN and earlier is None:
                self.said.add(self.n - 1, runs)
        elif residual and place != GIVEN:
            correlation = self._count(u, coordinates, residual)
        return Answer(
            psi,
            innovation,
            p_given,
            residual,
            GIVEN if earlier is None else self.places[earlier],
            correlation,
            kept,
        )

    def to(self, device: torch.device) -> None:
        """Moves the directions to where the model computes."""
        self.directions.to(device)
        self.beyond = self.beyond.to(device)

    def _keep(
        self,
        u: Direction,
        coordinates: np.ndarray,
        residual: float,
        innovation: np.ndarray,
        p_given: np.ndarray,
        place: int,
    ) -> None:
        self.directions.add(u)
        self.factor.append(coordinates, residual)
        self.innovations = np.vstack([self.innovations, innovation])
        self.p_given = np.vstack([self.p_given, p_given])
        self.places.append(place)

    def _count(self, u: Direction, coordinates: np.ndarray, residual: float) -> float:
        """The mean correlation of this text's innovation with those before it that found no room;
        then it is one of them.
        """
        if not self.n_beyond:
            self.beyond, self.along = (
                torch.zeros(self.d, dtype=torch.float32, device=directions.device(u)),
                np.zeros(self.n),
            )
        both = directions.inner_with(u, self.beyond[None])[0] - coordinates @ self.along
        mean = float(both) / residual / max(self.n_beyond, 1)
        directions.add(self.beyond, u, 1 / residual)
        self.n_beyond, self.along = self.n_beyond + 1, self.along + coordinates / residual
        return mean
