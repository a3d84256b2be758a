"""Strength and price of one watermark after another: each number against the steps done by hand."""

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from scipy import stats

from gaussmark_lib import divergence, generate, perturb, score
from gaussmark_lib.experiments import motivation

KEY, OTHER = perturb.Key.from_seed(1), perturb.Key.from_seed(2)


def test_measure_is_generation_scoring_and_divergence():
    model = tiny_models.build("llama", torch.float64)
    prompts = tiny_models.random_ids(np.random.default_rng(3), 4, 6, 5)
    wms = [perturb.Watermark(tiny_models.ONE_WEIGHT["llama"], s) for s in (0.02, 0.1)]
    keys, wrong = [KEY, perturb.Key.from_seed(5)], [OTHER, perturb.Key.from_seed(6)]
    table = motivation.measure(model, prompts, wms, keys, wrong, n_tokens=12, seed=7)
    assert sorted(table["prompt"]) == [0, 0, 1, 1, 2, 2]
    rows = table[(table["sigma"] == 0.1) & (table["key_id"] == KEY.key_id)]
    assert list(rows["prompt"]) == [0, 2]
    mine = [prompts[0], prompts[2]]
    with perturb.watermarked(model, wms[1], KEY):
        responses = generate.sample(model, mine, 12, seed=7 + 2)
    scored = score.score(model, mine, responses, wms[1], [KEY, OTHER])
    for column, key in (("psi", KEY), ("wrong_psi", OTHER)):
        assert rows[column].to_numpy() == pytest.approx(scored.loc[scored["key_id"] == key.key_id, "psi"].to_numpy())
    assert rows["price"].to_numpy() == pytest.approx(divergence.per_text(model, mine, responses, wms[1], KEY))
    assert (table["n_tokens"] == 12).all()


def test_summary_is_means_with_intervals():
    rows = pd.DataFrame({"weight": "w", "sigma": [0.1] * 3 + [0.2] * 3, "n_tokens": 4, "psi": [1.0, 2, 3, 4, 5, 6], "wrong_psi": 0.5, "price": 8.0})
    table = motivation.summary(rows, typical_norm=30.0)
    assert list(table["predicted"]) == pytest.approx([3.0, 6.0])
    assert list(table["psi"]) == [2.0, 5.0]
    assert list(table["price"]) == [2.0, 2.0]
    half = stats.t.isf(0.025, 2) / np.sqrt(3)
    assert table["psi_low"].iloc[0] == pytest.approx(2 - half)
    assert table["psi_high"].iloc[0] == pytest.approx(2 + half)
    assert list(table["n"]) == [3, 3]
