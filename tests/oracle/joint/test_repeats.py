"""Framing: somebody who holds marked text sends a victim's text with a part of it first, so that
the victim's own text repeats one that was detected.

Before, the victim's text had the p-value of the text that it repeats.
"""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from gaussmark_lib.joint import repeats
from gaussmark_lib.joint.memory import Answer, Memory

LEVEL, N_KEYS, N = 0.01, 48, 60  # N: tokens of the victim's text
FRAMES = {
    "behind": lambda human, marked: human + marked[: N // 2 - 2],
    "before": lambda human, marked: marked[: N // 2 - 2] + human,
    "inside": lambda human, marked: human[: N // 2] + marked[: N // 2 - 4] + human[N // 2 :],
    "in place of its end": lambda human, marked: human[: -(N // 4)] + marked[: N // 4],
    "repeated": lambda human, marked: human + marked[:12] * 10,
}


@pytest.fixture(scope="module")
def vectors() -> torch.Tensor:
    """What each of 2N tokens adds to a text's gradient."""
    return torch.randn(2 * N, 400, generator=torch.Generator().manual_seed(0))


def toy(vectors: torch.Tensor, key: int, ids: list[int]) -> tuple[torch.Tensor, np.ndarray, list]:
    """What ``Memory.ask`` is told of a text whose gradient is a sum over tokens; those from N on
    lean to the key. None of these keys accuses the victim's text by itself.
    """
    z = torch.randn(vectors.shape[1], generator=torch.Generator().manual_seed(97 + key))
    marked = torch.arange(2 * N)[:, None] >= N
    G = (vectors + 0.4 * marked * z)[ids].sum(0)
    u = G / G.norm()
    return u, np.array([float(z.double() @ u.double())]), repeats.runs(ids)


@pytest.mark.parametrize("way", FRAMES)
def test_no_victim_is_accused_for_a_frame(vectors, way):
    frame = FRAMES[way](list(range(N)), list(range(N, 2 * N)))
    answers: list[tuple[Answer, Answer]] = []
    for key in range(N_KEYS):
        memory = Memory(vectors.shape[1], 1, 1 << 20)
        told = [toy(vectors, key, ids) for ids in (frame, list(range(N)))]
        answers.append(tuple(memory.ask(*text, place) for place, text in enumerate(told)))
    framed, victim = (
        np.array([one.p_given[0] for one in part]) for part in zip(*answers, strict=True)
    )
    own = norm.sf([victim.psi[0] for _, victim in answers])
    assert (framed <= LEVEL).sum() >= 4, "otherwise this tests nothing"
    assert {victim.repeats for _, victim in answers} == {-1 if way == "repeated" else 0}
    assert not (victim <= LEVEL).any()
    if way != "repeated":
        assert (victim == np.maximum(framed, own)).all()


def test_runs_count_as_often_as_they_occur():
    human, chunk = list(range(N)), list(range(N, N + 12))
    said = repeats.Said()
    said.add(0, repeats.runs(human))
    assert len(repeats.runs(chunk * 10)) == 118
    assert said.nearest(repeats.runs(human + chunk)) == 0
    assert said.nearest(repeats.runs(human + chunk * 10)) is None
    said.add(1, repeats.runs(human[:9] + chunk * 10))
    assert said.nearest(repeats.runs(chunk * 9)) == 1
    assert said.nearest(repeats.runs(human)) == 0
