"""Likelihood ratio, strength and price of one watermark after another: each number against the
steps done by hand.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_lib import divergence, generate_many, likelihood, models, perturb, score, stats
from gaussmark_lib.experiments import motivation
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN

LM = replace(tiny_lm.build(), model=tiny_models.build("llama", torch.float64))
MODEL = LM.model
KEYS = [perturb.Key.from_seed(k) for k in (1, 2)]
WMS = [perturb.Watermark(tiny_lm.WEIGHT, s) for s in (0.02, 0.1)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(3), 4, 6, 5)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return motivation.measure(LM, PROMPTS, WMS, KEYS, 12, seed=7, top_p=0.9)


@pytest.mark.parametrize("wm", WMS)
def test_each_number_of_a_text_is_that_of_the_library_s_parts(table, wm):
    plain, own = generate_many.sample(
        MODEL, PROMPTS, [None, (wm, KEYS[1])], 12, seed=[7, 9], top_p=0.9
    )
    for kind, texts in {OWN: own, PLAIN: plain}.items():
        rows = table[
            (table["kind"] == kind)
            & (table["sigma"] == wm.sigma)
            & (table["key_id"] == KEYS[1].key_id)
        ].sort_values("prompt")
        scores = score.score(MODEL, PROMPTS, texts, wm, KEYS[::-1])
        mine = scores[scores["key_id"] == KEYS[1].key_id]
        assert rows["psi"].to_numpy() == pytest.approx(mine["psi"].to_numpy(), abs=1e-6)
        with perturb.watermarked(MODEL, wm, KEYS[1]):
            marked = -12 * likelihood.cross_entropy(MODEL, texts, prompts=PROMPTS)
        assert rows["log_ratio"].to_numpy() == pytest.approx(
            marked - mine["log_lik"].to_numpy(), abs=1e-6
        )
        xi = perturb.noise(MODEL, wm, KEYS[1])
        for row, g in zip(
            rows.itertuples(),
            sorted(score.gradients(MODEL, PROMPTS, texts, wm), key=lambda g: g.text),
            strict=True,
        ):
            assert row.first_order == pytest.approx(
                (xi * g.G).sum().item() - wm.sigma**2 * g.norm**2 / 2, abs=1e-6
            )
        if kind == OWN:
            wrong = scores.loc[scores["key_id"] == KEYS[0].key_id, "psi"]
            assert rows["wrong_psi"].to_numpy() == pytest.approx(wrong.to_numpy(), abs=1e-6)
            assert rows["price"].to_numpy() == pytest.approx(
                divergence.per_text(MODEL, PROMPTS, texts, wm, KEYS[1]), abs=1e-6
            )
        else:
            assert rows[["wrong_psi", "price"]].isna().all(axis=None)


def test_there_is_a_row_for_each_text_watermark_and_key(table):
    assert len(table) == 2 * len(WMS) * len(KEYS) * len(PROMPTS)
    assert not table.duplicated(["kind", "sigma", "key_id", "prompt"]).any()


def test_the_ratios_of_one_watermark_alone_are_those_of_all(table):
    alone = motivation.measure(LM, PROMPTS, WMS, KEYS, 12, ratio_of=WMS[1], seed=7, top_p=0.9)
    pd.testing.assert_frame_equal(
        *(rows[rows["sigma"] == WMS[1].sigma].reset_index(drop=True) for rows in (alone, table))
    )
    other, same = (
        rows[(rows["sigma"] == WMS[0].sigma) & (rows["kind"] == OWN)].reset_index(drop=True)
        for rows in (alone, table)
    )
    pd.testing.assert_frame_equal(other.drop(columns="log_ratio"), same.drop(columns="log_ratio"))
    assert other["log_ratio"].isna().all()
    assert len(alone) == len(table) - len(KEYS) * len(PROMPTS)


def test_for_a_short_step_the_log_ratio_is_the_inner_product_and_for_a_shorter_one_more_so():
    """log p_{θ+ξ} − log p_θ − ⟨ξ, G⟩ is of second order: a tenth of the step, a hundredth of the
    difference.
    """
    apart = []
    for sigma in (1e-3, 1e-4):
        rows = motivation.measure(
            LM, PROMPTS, [perturb.Watermark(tiny_lm.WEIGHT, sigma)], KEYS, 8
        ).query("kind == @PLAIN")
        inner = rows["psi"] * sigma * rows["grad_norm"]
        apart.append((rows["log_ratio"] - inner).abs().mean())
    assert apart[1] / apart[0] == pytest.approx(0.01, rel=0.2)


def test_the_model_is_as_before(table):
    assert torch.equal(
        MODEL.state_dict()[tiny_lm.WEIGHT],
        tiny_models.build("llama", torch.float64).state_dict()[tiny_lm.WEIGHT],
    )
    assert models.arithmetic(MODEL, None) == torch.float64


def test_agreement_is_the_correlation_over_all_texts_of_one_sigma(table):
    rows = table[table["sigma"] == WMS[1].sigma]
    estimate = motivation.agreement(rows)
    assert estimate.value == pytest.approx(rows["first_order"].corr(rows["log_ratio"]))
    assert estimate.low <= estimate.value <= estimate.high
    exact = motivation.agreement(rows.assign(log_ratio=3 * rows["first_order"] + 1))
    assert exact.value == pytest.approx(1.0)
    assert np.isnan(exact.low) or exact.low == pytest.approx(1.0), (
        "resamples that all agree bound nothing"
    )


def test_summary_is_means_over_prompts_and_keys():
    rows = pd.MultiIndex.from_product(
        [[0.1, 0.2], [0, 1], ["a", "b"]], names=["sigma", "prompt", "key_id"]
    ).to_frame(index=False)
    rows = rows.assign(kind=OWN, n_tokens=4, psi=np.arange(8.0), wrong_psi=0.5, price=8.0)
    ignored = rows.assign(kind=PLAIN, psi=99.0, price=np.nan)
    table = motivation.summary(pd.concat([rows, ignored]), typical_norm=30.0)
    assert list(table["predicted"]) == pytest.approx([3.0, 6.0])
    assert list(table["predicted_price"]) == pytest.approx(
        [stats.predicted_price(3.0, 4), stats.predicted_price(6.0, 4)]
    )
    assert list(table["psi"]) == [1.5, 5.5]
    assert list(table["price"]) == [2.0, 2.0]
    assert list(table["n"]) == [4, 4]
    assert (table["psi_low"] < table["psi"]).all()
    assert (table["psi"] < table["psi_high"]).all()


def test_fresh_keys_are_the_same_however_many_are_held_at_once(monkeypatch):
    responses = tiny_models.random_ids(np.random.default_rng(4), 9, 3, 7)
    whole = motivation.under_fresh_keys(MODEL, PROMPTS, responses, WMS[1], 7, first_seed=5)
    monkeypatch.setattr(motivation, "AT_ONCE", 2 * 32 * 48)
    few = motivation.under_fresh_keys(MODEL, PROMPTS, responses, WMS[1], 7, first_seed=5)
    order = ["text", "key"]
    pd.testing.assert_frame_equal(
        whole.sort_values(order, ignore_index=True), few.sort_values(order, ignore_index=True)
    )
    scores = score.score(
        MODEL, PROMPTS, responses, WMS[1], [perturb.Key.from_seed(5 + k) for k in range(7)]
    )
    assert whole.sort_values(order)["psi"].to_numpy() == pytest.approx(
        scores["psi"].to_numpy(), abs=1e-6
    )
    assert whole["inner"].to_numpy() == pytest.approx(
        (whole["psi"] * WMS[1].sigma * whole["grad_norm"]).to_numpy(), abs=1e-6
    )


def test_entropy_stands_beside_the_gradient_of_the_same_text():
    responses = tiny_models.random_ids(np.random.default_rng(4), 9, 3, 7)
    table = motivation.by_entropy(MODEL, PROMPTS, responses, WMS[0])
    assert list(table["n_tokens"]) == [9, 3, 7]
    for row in table.itertuples():
        [g] = score.gradients(MODEL, [PROMPTS[row.text]], [responses[row.text]], WMS[0])
        [entropy] = likelihood.entropies(MODEL, [PROMPTS[row.text]], [responses[row.text]])
        assert (row.grad_norm, row.entropy) == pytest.approx((g.norm, entropy.mean()))
        assert row.per_token == pytest.approx(g.norm / np.sqrt(row.n_tokens))
