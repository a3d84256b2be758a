"""Texts that repeat an earlier one: by their tokens, since the law alone cannot tell a copy with a
few edits from another text of one kind.

(Two texts with a common direction c and parts of their own have the gradients c + e_1 and c + e_2,
whether c is what all files of a kind share or what two copies share.) A text repeats an earlier one
where both share at least two thirds of the runs of three tokens of the longer one; a run that
occurs n times counts n times, so that a few repeated words do not hide behind many. One token in
nine can be exchanged at random before that ends, or half as much text be added. Only texts that
repeat none are compared with, so that no chain of edits leads from one text to quite another.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN = 3  # tokens
NEAR = 2 / 3  # shared runs / runs of the longer text
_MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64
)  # odd 64-bit constants


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
