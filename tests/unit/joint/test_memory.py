"""What a memory answers: texts that repeat others or say nothing new, attackers who may ask, and
somebody who frames a victim.
"""

from collections.abc import Callable

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import kstest, norm

from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.joint.directions import Direction
from gaussmark_lib.joint.memory import Memory, SeenTexts, runs

NO_RUNS = np.zeros(0, np.uint64)
ROOM = 1 << 30
normalized = torch.nn.functional.normalize


def edited(ids: list[int], every: int) -> list[int]:
    return [(token + 1) % 97 if i % every == 0 else token for i, token in enumerate(ids)]


@pytest.mark.parametrize(("every", "near"), [(30, True), (12, True), (4, False)])
def test_near_is_two_thirds_of_the_runs_of_the_longer_text(every, near):
    seen, [text] = SeenTexts(), tiny_models.random_ids(np.random.default_rng(5), 120)
    seen.add(7, runs(text))
    assert (seen.nearest(runs(edited(text, every))) == 7) == near
    more = text + tiny_models.random_ids(np.random.default_rng(6), 480 // every)[0]
    assert (seen.nearest(runs(more)) == 7) == near


def test_what_several_texts_have_said_together_is_nothing_new():
    """In the span of two directions, and no copy of either."""
    memory, e = Memory(1, ROOM), torch.eye(4)
    units = [e[0], e[1], normalized(e[0] + e[1], dim=0)]
    for i, (u, psi) in enumerate(zip(units, (3.0, 1.0, 2.8), strict=True)):
        answer = memory.ask(u, np.array([psi]), runs([i] * 5), i)
    assert (answer.residual, answer.p_given.tolist()) == (0, [1.0])
    assert answer.psi[0] == pytest.approx(4 / 2**0.5), "what follows from the answers before"
    assert np.isnan(answer.innovation).all()
    assert memory.n == 2


def forged(units: torch.Tensor, z: torch.Tensor, rng: np.random.Generator) -> tuple[float, float]:
    """An attacker who asks for ψ of eight edits of a direction, ten times, and keeps the best: ψ
    and r of the last one, which he has not asked about.
    """
    memory, u = Memory(1, ROOM), units[0]
    ways = iter(rng.permutation(len(units) - 1) + 1)
    for n_tried in [8] * 10 + [1]:
        tries = [normalized(u + 0.3 * units[next(ways)], dim=0) for _ in range(n_tried)]
        psi = [float(each.double() @ z) for each in tries]
        answers = [
            memory.ask(one, np.array([p]), NO_RUNS, 0) for one, p in zip(tries, psi, strict=True)
        ]
        u = tries[int(np.argmax(psi))]
    return psi[-1], answers[-1].innovation.item()


def test_an_attacker_who_may_ask_moves_psi_and_not_the_innovation():
    rng, generator, found = np.random.default_rng(0), torch.Generator().manual_seed(1), []
    for _ in range(100):
        units = normalized(torch.randn(300, 400, generator=generator), dim=1)
        found.append(forged(units, torch.randn(400, generator=generator).double(), rng))
    psi, r = np.array(found).T
    assert psi.mean() > 2.5
    assert kstest(psi, "norm").pvalue < 1e-12
    assert kstest(r, "norm").pvalue > 1e-3


def in_terms(u: torch.Tensor) -> Factors:
    """The same direction, by the rows of a matrix."""
    return Factors(torch.eye(6), u.unflatten(0, (6, -1)))


def amplified(z: torch.Tensor, generator: torch.Generator, form: Callable) -> float:
    """An attacker who asks for 12 texts a hair beside one that was answered, solves for what lies
    between, and sums it: r of his last text.
    """
    memory, aside = Memory(1, ROOM), 8e-4

    def ask(u: Direction) -> tuple[float, float]:
        answer = memory.ask(form(u), np.array([float(u.double() @ z)]), NO_RUNS, 0)
        return answer.psi.item(), answer.innovation.item()

    u, *others = torch.linalg.qr(torch.randn(len(z), 13, generator=generator))[0].T
    first, _ = ask(u)
    forged = torch.zeros(len(z))
    for v in others:
        beside = normalized(u + aside * v, dim=0)
        forged += (ask(beside)[0] - first * float(beside @ u)) / float(beside @ v) * v
    return ask(normalized(forged, dim=0) if forged.norm() > 0 else others[0])[1]


@pytest.mark.parametrize("form", [torch.clone, in_terms])
def test_texts_that_add_a_hair_to_earlier_ones_do_not_give_the_key_away(form):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(150, 60, generator=generator).double()
    r = [amplified(of_key, generator, form) for of_key in z]
    assert kstest(r, "norm").pvalue > 1e-3


LEVEL, N_KEYS, N = 0.01, 48, 60  # N: tokens of the victim's text
FRAMES = {
    "behind": lambda human, marked: human + marked[: N // 2 - 2],
    "before": lambda human, marked: marked[: N // 2 - 2] + human,
    "inside": lambda human, marked: human[: N // 2] + marked[: N // 2 - 4] + human[N // 2 :],
    "in place of its end": lambda human, marked: human[: -(N // 4)] + marked[: N // 4],
    "repeated": lambda human, marked: human + marked[:12] * 10,
}


def toy(vectors: torch.Tensor, key: int, ids: list[int]) -> tuple[torch.Tensor, np.ndarray, list]:
    """What ``Memory.ask`` is told of a text whose gradient is a sum over tokens; those from N on
    lean to the key. None of these keys accuses the victim's text by itself.
    """
    z = torch.randn(vectors.shape[1], generator=torch.Generator().manual_seed(97 + key))
    u = normalized((vectors + 0.4 * (torch.arange(2 * N)[:, None] >= N) * z)[ids].sum(0), dim=0)
    return u, np.array([float(z.double() @ u.double())]), runs(ids)


@pytest.mark.parametrize("way", FRAMES)
def test_no_victim_is_accused_for_a_frame(way):
    """Somebody who holds marked text sends a victim's text with a part of it first, so that the
    victim's own text repeats one that was detected.
    """
    vectors = torch.randn(2 * N, 400, generator=torch.Generator().manual_seed(0))
    victim, marked = list(range(N)), list(range(N, 2 * N))
    answers = []
    for key in range(N_KEYS):
        memory = Memory(1, ROOM)
        for place, ids in enumerate((FRAMES[way](victim, marked), victim)):
            answers.append(memory.ask(*toy(vectors, key, ids), place))
    of_frame, of_victim = answers[::2], answers[1::2]
    framed, given = (np.array([one.p_given[0] for one in part]) for part in (of_frame, of_victim))
    assert (framed <= LEVEL).sum() >= 4, "otherwise this tests nothing"
    assert {one.repeats for one in of_victim} == {-1 if way == "repeated" else 0}
    assert not (given <= LEVEL).any()
    if way != "repeated":
        assert (given == np.maximum(framed, norm.sf([one.psi[0] for one in of_victim]))).all()
