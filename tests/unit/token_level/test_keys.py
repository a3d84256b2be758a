"""Promises of token-level keys: names, errors, and nothing left behind."""

import numpy as np
import pandas as pd
import pytest
import torch

from gaussmark_lib import perturb, schemes
from gaussmark_lib.errors import DegenerateScoreError, InvalidWatermarkError, PerturbedModelError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.token_level import divergence as token_divergence
from gaussmark_lib.token_level import gradients as token_gradients
from gaussmark_lib.token_level import keys as token_keys

W = "model.layers.2.mlp.down_proj.weight"


def scored(model, prompts, responses, wm, key, alpha_0=0.5) -> pd.DataFrame:
    return token_keys.from_gammas(token_keys.per_token(model, prompts, responses, wm, key), alpha_0)


def test_the_keys_of_the_positions_differ_from_each_other_and_from_the_whole(key):
    keys = [key, *(token_keys.key_of(key, k) for k in range(300))]
    assert len({one.secret for one in keys}) == 301
    assert token_keys.key_of(key, 7) == token_keys.key_of(key, 7)
    assert token_keys.key_of(key, 7) != token_keys.key_of(Key.from_seed(1), 7)


def test_a_longer_text_begins_with_the_shorter_one(model, wm, key):
    assert [
        row[:5] for row in token_keys.sample(model, [[1, 2], [3]], 9, wm, key)
    ] == token_keys.sample(model, [[1, 2], [3]], 5, wm, key)


def test_a_row_does_not_depend_on_its_batch(model, wm, key):
    prompts = [[1, 2], [3, 4, 5, 6, 7], [8]]
    assert token_keys.sample(model, prompts, 8, wm, key)[:1] == token_keys.sample(
        model, prompts[:1], 8, wm, key
    )
    responses = [[5, 6, 7], [8, 9], [10] * 9]
    together = scored(model, prompts, responses, wm, key)
    for i in range(3):
        alone = scored(model, [prompts[i]], [responses[i]], wm, key)
        assert alone["psi"][0] == pytest.approx(together["psi"][i], rel=1e-4)
        assert alone["hits"][0] == together["hits"][i]


def test_an_exception_leaves_the_model_as_it_was(model, wm, key, monkeypatch):
    theta = wm.on(model).linear.parameter.clone()
    monkeypatch.setattr(token_keys.generate, "pick", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        token_keys.sample(model, [[1, 2]], 5, wm, key)
    assert torch.equal(wm.on(model).linear.parameter, theta)
    perturb.refuse_perturbed(model)


def test_a_certain_token_is_no_hit(model, wm, key, monkeypatch):
    a, g = torch.ones(3, 48), torch.ones(3, 32)
    g[1] = 0
    monkeypatch.setattr(token_gradients, "factors", lambda *_: (a, g))
    table = token_keys.per_token(model, [[1]], [[5, 6, 7]], wm, key)
    assert table["gamma"][1] == -np.inf
    assert np.isfinite(table["gamma"][[0, 2]]).all()
    found = scored(model, [[1]], [[5, 6, 7]], wm, key)
    assert found["hits"][0] == (table["gamma"][[0, 2]] >= 0).sum()
    assert found["psi"][0] == pytest.approx(table["gamma"][[0, 2]].sum() / 2**0.5)
    g[:] = 0
    with pytest.raises(
        DegenerateScoreError, match="text 0: expected finite gradients that are not all zero"
    ):
        token_keys.per_token(model, [[1]], [[5, 6, 7]], wm, key)


def test_a_token_whose_gradient_is_rounding_is_no_hit(model, key):
    """Over a single position attention does not depend on its query; on some processors that zero
    is 1e-9 (ATEN_CPU_CAPABILITY=default).
    """
    table = token_keys.per_token(
        model, [[]], [[3, 4, 5]], Watermark("model.layers.2.self_attn.q_proj.weight", 0.2), key
    )
    assert table["gamma"].tolist()[0] == -np.inf
    assert table["grad_norm"][0] == 0
    assert np.isfinite(table["gamma"][1:]).all()


def test_several_keys_share_the_gradients_and_nothing_else(model, key):
    wm, keys = Watermark(W, 0.2, 3), [key, Key.from_seed(8)]
    prompts, responses = [[1, 2], [3]], [[5, 6, 7], [8, 9]]
    together = token_keys.per_token_of_keys(model, prompts, responses, wm, keys)
    for one, table in zip(keys, together, strict=True):
        pd.testing.assert_frame_equal(
            table, token_keys.per_token(model, prompts, responses, wm, one)
        )
    assert not np.allclose(together[0]["gamma"], together[1]["gamma"])


def test_the_tests_of_part_of_a_text_are_those_of_the_shorter_text(model, wm, key):
    gammas = token_keys.per_token(model, [[1, 2], [3]], [[5, 6, 7, 8], [8, 9, 10]], wm, key)
    part = token_keys.from_gammas(gammas[gammas["position"] < 2], 0.3)
    short = scored(model, [[1, 2], [3]], [[5, 6], [8, 9]], wm, key, 0.3)
    pd.testing.assert_frame_equal(part, short, rtol=1e-4)


def test_tokens_that_are_all_certain_say_nothing():
    certain = pd.DataFrame({"text": 0, "position": range(3), "gamma": -np.inf, "grad_norm": 0.0})
    row = token_keys.from_gammas(certain).iloc[0]
    assert (row["psi"], row["p_psi"], row["log10_p_psi"], row["hits"], row["p_hits"]) == (
        -np.inf,
        1.0,
        0.0,
        0,
        1.0,
    )


def test_as_a_scheme(model, key):
    tests = [schemes.TokenKeys(Watermark(W, 0.3), key, test=test) for test in ("hits", "sum")]
    responses = tests[0].generate(model, [[1, 2]], 6)
    tables = [scheme.score(model, [[1, 2]], responses) for scheme in tests]
    for table in tables:
        assert {"text", "n_tokens", "statistic", "p_value", "log10_p"} <= set(table)
        assert np.log10(table["p_value"][0]) == pytest.approx(table["log10_p"][0])
    assert tables[0]["statistic"][0] == tables[0]["hits"][0]
    assert tables[1]["statistic"][0] == tables[1]["psi"][0]
    assert tests[0].rekeyed(9).key == Key.from_seed(9)


def test_a_weight_before_the_last_attention_and_a_perturbed_model_are_refused(model, wm, key):
    before = Watermark("model.layers.1.mlp.down_proj.weight", 0.2)
    calls = (
        lambda wm: token_keys.sample(model, [[1]], 5, wm, key),
        lambda wm: token_keys.per_token(model, [[1]], [[5]], wm, key),
        lambda wm: token_divergence.per_text(model, [[1]], [[5]], wm, key),
    )
    for call in calls:
        with pytest.raises(InvalidWatermarkError, match="expected a weight that changes no predic"):
            call(before)
        with perturb.watermarked(model, wm, key), pytest.raises(PerturbedModelError):
            call(wm)
