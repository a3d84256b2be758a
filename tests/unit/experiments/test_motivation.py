"""Likelihood ratio, strength and price of pairs: each number against the steps done by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import motivation
from gaussmark_lib import divergence, generate, likelihood, perturb, score
from gaussmark_lib.workbench.pairs import OWN, PLAIN, Pairs

LM = replace(tiny_lm.build(), model=tiny_models.build("llama", torch.float64))
MODEL = LM.model
WMS = [perturb.Watermark(tiny_lm.WEIGHT, s) for s in (0.02, 0.1)]
PAIRS = Pairs(
    tiny_models.random_ids(np.random.default_rng(3), 4, 6, 5),
    [perturb.Key.from_seed(k) for k in (1, 2, 3)],
)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return motivation.measured(LM, PAIRS, WMS, 12, seed=7, top_p=0.9)[0]


@pytest.mark.parametrize("sigma", [0.02, 0.1])
@pytest.mark.parametrize("i", [0, 2])
def test_each_number_of_a_text_by_hand(table, sigma, i):
    wm, (prompts, keys) = perturb.Watermark(tiny_lm.WEIGHT, sigma), PAIRS
    marks = [(wm, key) for wm in WMS for key in keys] + [None] * 3
    texts = generate.sample(MODEL, prompts * 3, 12, marks=marks, seed=7, top_p=0.9)
    xi = perturb.noise(MODEL, wm, keys[i])
    own = texts[i + 3 * [one.sigma for one in WMS].index(sigma)]
    for kind, text in {OWN: own, PLAIN: texts[6 + i]}.items():
        [row] = table[
            (table["kind"] == kind) & (table["sigma"] == sigma) & (table["prompt"] == i)
        ].to_dict("records")
        [g] = score.gradients(MODEL, [prompts[i]], [text], wm)
        inner = (xi * g.G).sum().item()
        assert row["psi"] == pytest.approx(inner / (sigma * g.norm), abs=1e-6)
        assert row["first_order"] == pytest.approx(inner - sigma**2 * g.norm**2 / 2, abs=1e-6)
        with perturb.watermarked(MODEL, wm, keys[i]):
            [entropy] = likelihood.cross_entropy(MODEL, [text], prompts=[prompts[i]])
        assert row["log_ratio"] == pytest.approx(-entropy * 12 - g.log_lik, abs=1e-6)
        if kind == OWN:
            marks = [(wm, keys[i])]
            [price] = divergence.per_text(MODEL, [prompts[i]], [text], marks=marks)
            assert row["price"] == pytest.approx(price, abs=1e-9)


def test_strength_and_price_are_means_over_pairs_beside_their_prediction(table):
    law = motivation.strength_and_price(table, typical_norm=30.0)
    own = table[(table["kind"] == OWN) & (table["sigma"] == 0.1)]
    by_point = law[law["sigma"] == 0.1].set_index(["quantity", "curve"])["value"]
    assert by_point[motivation.STRENGTH, OWN] == pytest.approx(own["psi"].mean())
    assert by_point[motivation.PRICE, OWN] == pytest.approx(own["price"].mean())
    assert by_point[motivation.STRENGTH, "predicted"] == pytest.approx(3.0)
    assert by_point[motivation.PRICE, "predicted"] == pytest.approx(4.5)
    ratio = motivation.over_prediction(law, 0.1, motivation.PRICE)
    assert ratio.value == pytest.approx(own["price"].mean() / 4.5)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.n == 3


def test_entropy_stands_beside_the_gradient_of_the_same_text():
    responses = tiny_models.random_ids(np.random.default_rng(4), 9, 3, 7)
    table = motivation.by_entropy(LM, PAIRS.prompts, responses, WMS[0])
    for i, row in enumerate(table.itertuples()):
        [g] = score.gradients(MODEL, [PAIRS.prompts[i]], [responses[i]], WMS[0])
        [entropy] = likelihood.entropies(MODEL, [PAIRS.prompts[i]], [responses[i]])
        assert (row.grad_norm, row.entropy) == pytest.approx((g.norm, float(entropy.mean())))
        assert row.per_token == pytest.approx(g.norm / np.sqrt(len(responses[i])))
