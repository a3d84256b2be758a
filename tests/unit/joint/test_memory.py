"""What a memory answers: texts that say nothing new, and attackers who may ask."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from gaussmark_lib.beyond.joint.memory import Answer, Memory
from gaussmark_lib.engine.terms import Factors

ROOM = 1 << 30
normalized = torch.nn.functional.normalize


def test_what_several_texts_have_said_together_is_nothing_new():
    """In the span of two directions, and no copy of either."""
    memory, e = Memory(1, ROOM), torch.eye(4)
    units = [e[0], e[1], normalized(e[0] + e[1], dim=0)]
    for i, (u, psi) in enumerate(zip(units, (3.0, 1.0, 2.8), strict=True)):
        answer = memory.ask(u, np.array([psi]), i)
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
        answers = [memory.ask(one, np.array([p]), 0) for one, p in zip(tries, psi, strict=True)]
        u = tries[int(np.argmax(psi))]
    return psi[-1], answers[-1].innovation.item()


def test_an_attacker_who_may_ask_moves_psi_and_not_the_innovation():
    rng, generator, found = np.random.default_rng(0), torch.Generator().manual_seed(1), []
    for _ in range(50):
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
    memory = Memory(1, ROOM)

    def ask(u: torch.Tensor) -> Answer:
        return memory.ask(form(u), np.array([float(u.double() @ z)]), 0)

    u, *others = torch.linalg.qr(torch.randn(len(z), 13, generator=generator))[0].T
    first = ask(u).psi.item()
    forged = torch.zeros(len(z))
    for v in others:
        beside = normalized(u + 8e-4 * v, dim=0)
        new = ask(beside).psi.item() - first * float(beside @ u)
        forged += new / float(beside @ v) * v
    last = normalized(forged, dim=0) if forged.norm() > 0 else others[0]
    return ask(last).innovation.item()


@pytest.mark.parametrize("form", [torch.clone, in_terms])
def test_texts_that_add_a_hair_to_earlier_ones_do_not_give_the_key_away(form):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(150, 60, generator=generator).double()
    r = [amplified(of_key, generator, form) for of_key in z]
    assert kstest(r, "norm").pvalue > 1e-3
