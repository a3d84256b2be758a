"""Bets and their mixture: the algebra in plain loops, means by quadrature, and the level on
simulated streams: independent, dependent, and of a user who chooses texts by the answers.
"""

import numpy as np
import pytest

from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint import bets, law
from gaussmark_lib.beyond.joint.bets import MIXTURE, Bet

N_PATHS = 20_000
# a binomial share of 5% is above 5% + WIDE in 1 of 2,000
WIDE = 3.3 * np.sqrt(0.05 * 0.95 / N_PATHS)


def test_the_mixture_is_the_mean_of_products():
    rng = np.random.default_rng(0)
    r = rng.standard_normal((3, 7))
    promised = rng.uniform(0.5, 4, 7)
    log_e = bets.log_evidence(r, promised)
    for key in range(3):
        wealths = dict.fromkeys(MIXTURE, 1.0)
        for i in range(7):
            for share, strength in MIXTURE:
                m = strength * promised[i]
                ratio = np.exp(-((r[key, i] - m) ** 2) / 2) / np.exp(-(r[key, i] ** 2) / 2)
                wealths[Bet(share, strength)] *= 1 - share + share * ratio
            expected = np.mean(list(wealths.values()))
            assert np.exp(log_e[key, i]) == pytest.approx(expected, rel=1e-10)
        best = np.log(max(wealths.values()))
        assert best - np.log(8) <= log_e[key, -1] <= best


@pytest.mark.parametrize("promised", [0.3, 2.0, 4.0])
def test_every_bet_is_fair_by_quadrature(promised):
    r = np.linspace(-15, 25, 40_001)
    density = np.exp(-(r**2) / 2) / np.sqrt(2 * np.pi)
    factors = np.exp(bets.gains(r, promised, MIXTURE))
    means = (factors * density).sum(1) * (r[1] - r[0])
    np.testing.assert_allclose(means, np.ones(8), atol=1e-9)


def simulated(chosen, n_paths=N_PATHS, n=12, d=16):
    """ψ, innovations and λ of streams whose i-th text is ``chosen`` given the earlier answers."""
    rng = np.random.default_rng(5)
    z = rng.standard_normal((n_paths, d))
    known = np.zeros((n_paths, d))  # the part of z that the answers revealed
    basis = []
    columns = []
    for _ in range(n):
        direction, promised = chosen(rng, z, known)
        u = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        new = u.copy()
        for v in basis:
            new -= (new * v).sum(1, keepdims=True) * v
        residual = np.linalg.norm(new, axis=1)
        v = new / residual[:, None]
        r = (z * v).sum(1)
        columns.append([(z * u).sum(1), r, promised * residual])
        known = known + r[:, None] * v
        basis.append(v)
    return np.stack(columns, axis=-1)  # (ψ, r and λ; paths; texts)


def independent(rng, z, known):
    return rng.standard_normal(z.shape), 2.0


def alike(rng, z, known):
    direction = rng.standard_normal(z.shape) / 4
    direction[:, 0] += 1.5
    return direction, 2.0


def adaptive(rng, z, known):
    """Aim at what the answers revealed; raise λ after good answers."""
    length = np.linalg.norm(known, axis=1, keepdims=True)
    return known + rng.standard_normal(z.shape), np.where(length[:, 0] > 2, 3.0, 1.0)


def thief(rng, z, known):
    """Holds a watermarked text, and so knows a little of z."""
    return z + 2 * rng.standard_normal(z.shape), 2.0


@pytest.mark.parametrize("user", [independent, alike, adaptive])
def test_the_level_holds_at_any_time_and_the_mean_at_a_stopping_time(user):
    _, r, promised = simulated(user)
    log_e = bets.log_evidence(r, promised)
    assert (log_e.max(1) >= np.log(20)).mean() < 0.05 + WIDE
    assert (log_e.max(1) >= np.log(2)).mean() < 0.5, "Ville at another level"
    # the user stops at the first wealth of 1.5, or at the end; a wealth is cut at 50
    reached = log_e >= np.log(1.5)
    stop = np.where(reached.any(1), reached.argmax(1), log_e.shape[1] - 1)
    at_stop = np.minimum(np.exp(log_e[np.arange(len(r)), stop]), 50)
    assert at_stop.mean() < 1 + 3.3 * at_stop.std() / np.sqrt(len(r))
    assert at_stop.mean() > 0.8, "a fair bet, and little is cut"
    np.testing.assert_allclose(r.std(), 1, atol=0.01)


def test_what_breaks_the_conditions_breaks_the_level():
    """Bets on ψ where texts are alike, and a user who holds watermarked texts."""
    psi, _, _ = simulated(alike)
    assert (bets.log_evidence(psi, np.full(12, 2.0)).max(1) >= np.log(20)).mean() > 0.05 + WIDE
    _, r, promised = simulated(thief)
    assert (bets.log_evidence(r, promised).max(1) >= np.log(20)).mean() > 0.1


def test_the_simulation_s_innovations_are_those_of_the_law():
    psi, r, _ = simulated(alike, n_paths=2, n=5)
    rng = np.random.default_rng(5)
    z = rng.standard_normal((2, 16))
    directions = np.stack([alike(rng, z, None)[0] for _ in range(5)], axis=1)
    for path, u in enumerate(directions / np.linalg.norm(directions, axis=2, keepdims=True)):
        expected, _ = law.innovations(psi[[path]], u @ u.T)
        np.testing.assert_allclose(r[path], expected[0], rtol=1e-8)


def test_the_mixture_finds_rare_and_edited_texts_that_the_single_bet_misses():
    rng = np.random.default_rng(0)
    found = {}
    for every, kept in ((100, 1.0), (20, 0.6), (5, 1.0)):
        r = rng.standard_normal((400, 400))
        r[:, every - 1 :: every] += kept * 4.0
        for share in (None, 0.1):
            log_e = bets.log_evidence(r, np.full(400, 4.0), bets.of(share))
            found[every, share] = (log_e.max(1) >= np.log(20)).mean()
    assert found[100, None] > found[100, 0.1] + 0.5
    assert found[20, None] > found[20, 0.1] + 0.3
    assert found[5, None] == found[5, 0.1] == 1


def test_a_stream_that_changes_its_bets_keeps_its_wealth():
    state = joint.State()
    state.log_e = {"a": 1.25, "b": -0.5}  # as a file of before the mixture holds them
    for of_stream in (MIXTURE, bets.of(0.3), MIXTURE):
        state.bet_on(of_stream)
        for key_id, log_e in state.log_e.items():
            assert len(state.wealths[key_id]) == len(of_stream)
            assert np.exp(state.wealths[key_id]).sum() == pytest.approx(np.exp(log_e))
    state.wealths["a"][0] = 7.0
    state.bet_on(MIXTURE)
    assert state.wealths["a"][0] == 7.0, "the same bets go on with what each of them has"
