"""A stream: its evidence, texts that repeat others, reference texts, and texts that cannot be
tested.
"""

import numpy as np
import pytest
import tiny_models
from scipy.stats import norm

from gaussmark_lib import score
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint import bets
from gaussmark_lib.errors import GaussMarkError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark

KEYS = [Key.from_seed(i) for i in range(3)]
RNG = np.random.default_rng(3)
X = tiny_models.random_ids(RNG, *[4] * 12)
Y = tiny_models.random_ids(RNG, *RNG.integers(20, 30, size=12))


def test_evidence_is_the_product_of_its_bets(model, wm):
    table = joint.sequence(model, X, Y, wm, KEYS, share=0.3)
    for _, rows in table.groupby("key_id"):
        promised = wm.sigma * rows["grad_norm"] * rows["residual"]
        e = np.exp(promised * rows["innovation"] - promised**2 / 2)
        np.testing.assert_allclose(rows["e_value"], e, rtol=1e-12)
        np.testing.assert_allclose(np.exp(rows["log_e"]), np.cumprod(1 - 0.3 + 0.3 * e), rtol=1e-10)


def test_without_a_share_the_evidence_is_the_mixture_s(model, wm):
    table = joint.sequence(model, X, Y, wm, KEYS)
    for _, rows in table.groupby("key_id"):
        promised = (wm.sigma * rows["grad_norm"] * rows["residual"]).to_numpy()
        log_e = bets.log_evidence(rows["innovation"].to_numpy()[None], promised)
        np.testing.assert_allclose(rows["log_e"], log_e[0], atol=1e-6)


def test_psi_and_what_else_is_scored_are_those_of_score(model, wm):
    table = joint.sequence(model, X, Y, wm, KEYS, batch_size=5)
    plain = score.score(model, X, Y, wm, KEYS, batch_size=5)
    assert table["key_id"].tolist() == plain["key_id"].tolist()
    for name in ("text", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"):
        np.testing.assert_allclose(table[name], plain[name], rtol=1e-4, atol=1e-5)


def test_given_texts_make_no_rows_and_no_bets(model, wm):
    state = joint.State()
    options = {"share": 0.1, "given": (X[:5], Y[:5]), "state": state}
    table = joint.sequence(model, X[5:], Y[5:], wm, KEYS, **options)
    one_go = joint.sequence(model, X, Y, wm, KEYS, share=0.1)
    assert (len(table), state.n_texts, state.n_kept) == (7 * 3, 7, 12)
    np.testing.assert_allclose(table["innovation"], one_go["innovation"][15:], rtol=1e-4, atol=1e-5)
    log_e = one_go["log_e"].to_numpy().reshape(-1, 3)
    gains = table["log_e"].to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(gains, log_e[5:] - log_e[4], atol=1e-3)


def test_the_same_text_twice_is_one_text(model, wm):
    table = joint.sequence(model, [*X, X[2]], [*Y, Y[2]], wm, KEYS)
    once, again = (table[table["text"] == text].reset_index(drop=True) for text in (2, 12))
    assert (again["residual"] == 0).all()
    assert (again["repeats"] == 2).all()
    assert again["innovation"].tolist() == once["innovation"].tolist()
    assert again["p_given"].tolist() == once["p_given"].tolist()
    assert (again["e_value"] == 1).all()
    assert again["log_e"].tolist() == table[table["text"] == 11]["log_e"].tolist()


def test_nothing_is_inherited_by_a_text_that_shares_a_part(model, wm):
    first = [*Y[0], *Y[2]][:40]
    changed = [(token + 1) % 97 if i % 20 == 0 else token for i, token in enumerate(first)]
    texts = [first, changed, first[20:] + Y[1], Y[1]]
    table = joint.sequence(model, [X[0]] * 4, texts, wm, KEYS[:1])
    assert table["repeats"].tolist() == [-1] * 4
    assert table["p_given"].tolist() == norm.sf(table["innovation"]).tolist()
    assert table["p_given"][0] == pytest.approx(table["p_value"][0])
    assert (table["residual"] > 0.01).all()
    assert table["innovation"].nunique() == 4, "what is new in them stays to be seen"


def test_a_text_that_cannot_be_scored_is_recorded_and_leaves_no_trace(model, wm):
    state, keys, y = joint.State(), KEYS[:2], [Y[0], [], Y[2]]
    table = joint.sequence(model, X[:3], y, wm, keys, state=state, on_error="record")
    assert table["error"].notna().tolist() == [False, False, True, True, False, False]
    bad = table.loc[table["error"].notna(), ["innovation", "p_given", "log_e"]]
    assert bad.isna().all(axis=None)
    assert (state.n_texts, state.n_kept) == (2, 2)
    other = joint.sequence(model, [X[0], X[2]], [Y[0], Y[2]], wm, keys)
    log_e = table.loc[table["error"].isna(), "log_e"].tolist()
    assert other["log_e"].tolist() == pytest.approx(log_e, rel=1e-5)
    with pytest.raises(InvalidTextError, match="at least one token"):
        joint.sequence(model, X[:3], y, wm, keys)


def test_a_text_beyond_the_memory_is_refused(model, wm):
    state = joint.State(4 * 1536 * 2)
    x, y = [*X[:4], X[0]], [*Y[:4], Y[0]]
    table = joint.sequence(model, x, y, wm, KEYS[:1], state=state, on_error="record")
    refused = table["error"].str.contains("memory is full").fillna(False)
    assert refused.tolist() == [False, False, True, True, False]
    assert (state.n_texts, state.n_kept) == (3, 2), "a copy is answered, and needs no room"
    with pytest.raises(GaussMarkError, match="memory is full"):
        joint.sequence(model, X[2:3], Y[2:3], wm, KEYS[:1], state=state)


def test_a_watermark_on_several_weights_is_refused(model):
    several = Watermark(list(tiny_models.WEIGHTS["llama"][:2]), [0.1, 0.2])
    with pytest.raises(InvalidWatermarkError, match="a watermark on one weight, got 2"):
        joint.sequence(model, X, Y, several, KEYS)
