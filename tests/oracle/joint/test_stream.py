"""The stream: one go against several, martingale means against 20,000 keys, and what a frozen
memory still promises.
"""

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import kstest

from gaussmark_lib import joint, score
from gaussmark_lib.joint import law, stream
from gaussmark_lib.joint.memory import GIVEN, Memory
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
KEYS = [Key.from_seed(i) for i in range(3)]
NO_RUNS = np.zeros(0, np.uint64)


@pytest.fixture(scope="module")
def model():
    return tiny_models.build()


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(3)
    return tiny_models.random_ids(rng, *[4] * 24), tiny_models.random_ids(
        rng, *rng.integers(8, 30, size=24)
    )


@pytest.mark.parametrize("budget", [1 << 30, 4 * 1536 * 9], ids=["room for all", "room for nine"])
def test_resumed_from_a_file_is_one_go_bit_for_bit(model, pairs, tmp_path, budget):
    whole = joint.State(budget)
    table = joint.sequence(model, *pairs, WM, KEYS, state=whole)
    joint.State(budget).save(tmp_path / "state")
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 17), (17, 24)):
        state = joint.State.load(tmp_path / "state")
        part = joint.sequence(
            model, pairs[0][start:end], pairs[1][start:end], WM, KEYS, state=state
        )
        parts.append(part.assign(text=part["text"] + start))
        state.save(tmp_path / "state")
    again = np.concatenate([part.drop(columns="key_id").to_numpy(float) for part in parts])
    np.testing.assert_array_equal(again, table.drop(columns="key_id").to_numpy(float))
    assert (state.log_e, state.correlation, state.n_texts) == (whole.log_e, whole.correlation, 24)


def test_evidence_is_the_product_of_its_bets(model, pairs):
    table = joint.sequence(model, *pairs, WM, KEYS, share=0.3)
    for _, rows in table.groupby("key_id"):
        promised = WM.sigma * rows["grad_norm"] * rows["residual"]
        e = np.exp(promised * rows["innovation"] - promised**2 / 2)
        np.testing.assert_allclose(rows["e_value"], e, rtol=1e-12)
        np.testing.assert_allclose(np.exp(rows["log_e"]), np.cumprod(1 - 0.3 + 0.3 * e), rtol=1e-10)


@pytest.mark.parametrize("promised", [0.3, 1.5, 4.0])
def test_a_bet_has_mean_one_over_keys_and_ville_holds(promised):
    """Importance sampling: half of the draws are shifted by λ, where the mass of exp(λr) lies, so
    that the mean is known to 2%.
    """
    rng, n = np.random.default_rng(0), 40_000
    shifted = rng.random(n) < 0.5
    r = rng.standard_normal(n) + promised * shifted
    weight = 1 / (0.5 + 0.5 * np.exp(promised * r - promised**2 / 2))
    assert (weight * np.exp(stream.log_bets(r, promised, 0.1))).mean() == pytest.approx(1, abs=0.02)
    running = stream.log_bets(rng.standard_normal((4000, 200)), promised, 0.1).cumsum(1)
    assert (running.max(1) >= np.log(20)).mean() < 0.05 + 3.1 * np.sqrt(0.05 * 0.95 / 4000)


def test_log_bets_neither_overflow_nor_underflow():
    found = stream.log_bets(np.array([-1e3, 0.0, 1e3]), 1e3, 0.1)
    assert found == pytest.approx([np.log(0.9), np.log(0.9), 500_000 + np.log(0.1)])


def test_a_stream_whose_every_twentieth_text_leans_to_the_key_is_found():
    rng = np.random.default_rng(1)
    r = rng.standard_normal((2000, 60))
    assert (stream.log_bets(r, 4.0, 0.1).cumsum(1).max(1) >= np.log(20)).mean() <= 0.05
    r[:, 19::20] += 4
    assert (stream.log_bets(r, 4.0, 0.1).cumsum(1).max(1) >= np.log(20)).mean() > 0.9


def directions(n: int, d: int = 300, seed: int = 0) -> torch.Tensor:
    """Unit vectors with a common part."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(
        torch.randn(d, generator=generator) + 0.8 * torch.randn(n, d, generator=generator), dim=1
    )


def test_beyond_the_room_each_innovation_is_normal_and_their_correlation_is_known():
    n, d, room, n_keys = 40, 300, 6, 4000
    units, z = directions(n, d), torch.randn(n_keys, d, generator=torch.Generator().manual_seed(5))
    psi, memory = law.inner(units, z), Memory(d, n_keys, 4 * d * room)
    answers = [
        memory.ask(u, row, NO_RUNS, place)
        for place, (u, row) in enumerate(zip(units, psi, strict=True))
    ]
    r = np.array([answer.innovation for answer in answers])
    assert [answer.kept for answer in answers] == [True] * room + [False] * (n - room)
    assert min(kstest(row, "norm").pvalue for row in r) > 1e-3 / n
    # the slow way: every remainder, and all its cosines
    basis = np.linalg.qr(units[:room].double().numpy().T).Q
    rest = units[room:].double().numpy() - units[room:].double().numpy() @ basis @ basis.T
    rest /= np.linalg.norm(rest, axis=1, keepdims=True)
    cosines = rest @ rest.T
    expected = [0.0, *(cosines[i, :i].mean() for i in range(1, n - room))]
    np.testing.assert_allclose(
        [answer.correlation for answer in answers[room:]], expected, atol=1e-5
    )
    assert memory.correlation == pytest.approx(
        cosines[np.triu_indices(n - room, 1)].mean(), abs=1e-5
    )
    measured = np.corrcoef(r[room:])[np.triu_indices(n - room, 1)].mean()
    assert measured == pytest.approx(memory.correlation, abs=4 * np.sqrt(2 / n_keys))
    assert memory.correlation > 0.05, "a room this small leaves some"


def test_reference_texts_leave_less_in_common():
    units, z = directions(60), torch.randn(500, 300, generator=torch.Generator().manual_seed(6))
    psi = law.inner(units, z)
    alone, with_references = Memory(300, 500, 0), Memory(300, 500, 4 * 300 * 30)
    for u, row in zip(units[:30], psi[:30], strict=True):
        with_references.ask(u, row, NO_RUNS, GIVEN)
    spread = {}
    for memory in (alone, with_references):
        r = np.array(
            [
                memory.ask(u, row, NO_RUNS, place).innovation
                for place, (u, row) in enumerate(zip(units[30:], psi[30:], strict=True))
            ]
        )
        spread[memory] = r.mean(0).std()
    assert spread[with_references] < 1.5 / np.sqrt(30) < 2.5 / np.sqrt(30) < spread[alone]


def test_given_texts_make_no_rows_and_no_bets(model, pairs):
    references, rest = tuple(part[:10] for part in pairs), tuple(part[10:] for part in pairs)
    state = joint.State()
    table = joint.sequence(model, *rest, WM, KEYS, given=references, state=state)
    one_go = joint.sequence(model, *pairs, WM, KEYS)
    assert (len(table), state.n_texts, state.n_kept) == (14 * 3, 14, 24)
    np.testing.assert_array_equal(table["innovation"], one_go["innovation"][30:])
    after = one_go["log_e"].to_numpy()[30:].reshape(-1, 3) - one_go["log_e"].to_numpy()[27:30]
    np.testing.assert_allclose(table["log_e"].to_numpy().reshape(-1, 3), after, atol=1e-10)


def test_psi_and_what_else_is_scored_are_those_of_score(model, pairs):
    table, plain = (
        joint.sequence(model, *pairs, WM, KEYS, batch_size=5),
        score.score(model, *pairs, WM, KEYS, batch_size=5),
    )
    assert table["key_id"].tolist() == plain["key_id"].tolist()
    for name in ("text", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"):
        np.testing.assert_allclose(table[name], plain[name], rtol=1e-4, atol=1e-5)
