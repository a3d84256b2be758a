"""What is kept of a stream: the directions asked about, and what the answers said of the key along them.

As long as there is room, every text's direction is kept, and innovations are independent whoever chose the texts (``law``). Beyond it the first m
directions stay as they are. Each further r_i = ⟨z, R_i⟩/‖R_i‖, R_i being u_i less its part in their span, is still exactly N(0, 1) for a text that
does not depend on z; but two of them have the correlation ⟨R_i, R_j⟩/(‖R_i‖‖R_j‖). Its mean is known from the sum of all R_i/‖R_i‖, which is
one vector, and a text chosen by looking at answers beyond the room is no longer covered.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from gaussmark_lib.errors import StateError
from gaussmark_lib.joint import law
from gaussmark_lib.joint.repeats import Said

GIVEN = -1  # the place of a reference text, which nobody asked about
AT_A_TIME = 1 << 24  # numbers of memory that are asked for together


class Answer(NamedTuple):
    """What a text says under each of K keys. ``psi`` is what may be answered: where nothing is new, what the memory expects of it. ``repeats`` is the
    place of the earlier text that it repeats, −1 if there is none; ``kept``: whether it found room.
    """

    psi: Float[np.ndarray, " k"]
    innovation: Float[np.ndarray, " k"]
    p_given: Float[np.ndarray, " k"]
    residual: float
    repeats: int
    correlation: float
    kept: bool


class Memory:
    """The kept directions, the factor of their Gram matrix, and the innovations along them under each key.

    Args:
        n_keys: K. budget: bytes for the directions, d float32 numbers each.
    """

    def __init__(self, d: int, n_keys: int, budget: int):
        self.d, self.most = d, budget // (4 * d)
        self.factor, self.said = law.Factor(), Said()
        self.blocks: list[Tensor] = []
        self.innovations = np.zeros((0, n_keys))
        self.p_given = np.zeros((0, n_keys))
        self.places: list[int] = []
        self.n_beyond, self.beyond = 0, torch.zeros(0)  # texts without room, and the sum of their R/‖R‖

    @property
    def n(self) -> int:
        return self.factor.n

    @property
    def correlation(self) -> float:
        """The mean correlation between the innovations of two texts beyond the room; 0 where there is room."""
        n = self.n_beyond
        return (float(law.inner(self.beyond[None], self.beyond[None])[0, 0]) - n) / (n * (n - 1)) if n > 1 else 0.0

    def ask(self, u: Float[Tensor, " d"], psi: Float[np.ndarray, " k"], runs: NDArray[np.uint64], place: int) -> Answer:
        """What a text with direction u and statistics ψ says that earlier ones had not; then it is one of them."""
        coordinates = self.factor.coordinates(self._inner(u))
        square = law.inner(u[None], u[None])[0, 0] - coordinates @ coordinates
        residual = float(np.sqrt(max(square, 0.0)))
        earlier = self.said.nearest(runs)
        if residual > law.NOTHING_NEW:
            innovation = (psi - coordinates @ self.innovations) / residual
        else:
            residual, psi = 0.0, coordinates @ self.innovations  # nothing that the memory does not hold
            innovation = np.full(len(psi), np.nan) if earlier is None else self.innovations[earlier]
        p_given = np.nan_to_num(norm.sf(innovation), nan=1.0) if earlier is None else self.p_given[earlier]
        correlation, kept = 0.0, bool(residual) and self.n < self.most
        if kept:
            self._keep(u, coordinates, residual, innovation, p_given, place)
            if place != GIVEN:
                self.said.add(self.n - 1, runs)
        elif residual and place != GIVEN:
            correlation = self._count(u, coordinates, residual)
        return Answer(psi, innovation, p_given, residual, GIVEN if earlier is None else self.places[earlier], correlation, kept)

    def to(self, device: torch.device) -> None:
        """Moves the directions to where the model computes."""
        self.blocks = [block.to(device) for block in self.blocks]
        self.beyond = self.beyond.to(device)

    def _inner(self, u: Float[Tensor, " d"]) -> Float[np.ndarray, " n"]:
        return np.concatenate([np.zeros(0), *(law.inner(block, u[None])[:, 0] for block in self.kept())])

    def kept(self) -> list[Float[Tensor, "rows d"]]:
        """The directions, in blocks."""
        rows = max(1, AT_A_TIME // self.d)
        return [block[: self.n - i * rows] for i, block in enumerate(self.blocks)]

    def refill(self, blocks: list[Tensor]) -> None:
        """Puts back what ``kept`` gave; StateError unless all parts fit together."""
        rows, k = max(1, AT_A_TIME // self.d), self.innovations.shape[1]
        expected = [min(rows, self.n - i) for i in range(0, self.n, rows)]
        shapes = [(len(self.places),), *(array.shape for array in (self.innovations, self.p_given))]
        if [tuple(block.shape) for block in blocks] != [(n, self.d) for n in expected] or shapes != [(self.n,), (self.n, k), (self.n, k)]:
            raise StateError(f"expected a state of {self.n} texts, got parts that do not fit together; restore it from a copy")
        for i, block in enumerate(blocks):
            self.blocks.append(torch.empty(min(rows, self.most - i * rows), self.d))
            self.blocks[-1][: len(block)] = block

    def _keep(self, u: Tensor, coordinates: np.ndarray, residual: float, innovation: np.ndarray, p_given: np.ndarray, place: int) -> None:
        rows = max(1, AT_A_TIME // self.d)
        if self.n % rows == 0:
            self.blocks.append(torch.empty(min(rows, self.most - self.n), self.d, device=u.device))
        self.blocks[-1][self.n % rows] = u
        self.factor.append(coordinates, residual)
        self.innovations = np.vstack([self.innovations, innovation])
        self.p_given = np.vstack([self.p_given, p_given])
        self.places.append(place)

    def _count(self, u: Tensor, coordinates: np.ndarray, residual: float) -> float:
        """The mean correlation of this text's innovation with those before it that found no room; then it is one of them."""
        direction = u.double()
        weights = torch.from_numpy(self.factor.weights(coordinates)).to(u)
        for block in self.kept():
            part, weights = weights[: len(block)], weights[len(block) :]
            direction -= (part @ block).double()
        direction = (direction / residual).float()
        before = self.beyond if self.n_beyond else torch.zeros_like(u)
        mean = float(law.inner(direction[None], before[None])[0, 0]) / max(self.n_beyond, 1)
        self.n_beyond, self.beyond = self.n_beyond + 1, before + direction
        return mean
