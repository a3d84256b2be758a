"""What a watermark costs a language model: token-by-token divergences against the slow way, and against the mean log-likelihood ratio."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tiny_models import ONE_WEIGHT, build, random_ids

from gaussmark_lib import divergence, generate, perturb, score
from gaussmark_lib.errors import PerturbedModelError
from gaussmark_lib.experiments import motivation

KEY, OTHER = perturb.Key.from_seed(1), perturb.Key.from_seed(2)


@pytest.fixture(scope="module")
def model():
    return build("llama", torch.float64)


@pytest.fixture(scope="module")
def wm():
    return perturb.Watermark(ONE_WEIGHT["llama"], 0.1)


@torch.no_grad()
def slow(model, prompt, response, wm):
    """One prefix at a time, no batch, no padding."""
    total = 0.0
    for t in range(len(response)):
        ids = torch.tensor([prompt + response[:t]])
        with perturb.watermarked(model, wm, KEY):
            p = model(ids).logits[0, -1].softmax(-1)
        q = model(ids).logits[0, -1].softmax(-1)
        total += (p * (p / q).log()).sum().item()
    return total


def test_divergences_are_the_slow_sum_in_any_batch(model, wm):
    rng = np.random.default_rng(0)
    prompts, responses = random_ids(rng, 3, 1, 9, 5), random_ids(rng, 7, 12, 1, 6)
    expected = [slow(model, x, y, wm) for x, y in zip(prompts, responses, strict=True)]
    for batch_size in (1, 3, 16):
        assert divergence.per_text(model, prompts, responses, wm, KEY, batch_size) == pytest.approx(np.array(expected), rel=1e-10)


def test_mean_divergence_is_the_mean_log_likelihood_ratio(model, wm):
    """Both are unbiased for the same KL; their difference has mean 0, and the divergence varies less."""
    wm = perturb.Watermark(wm.weight, 0.3)
    prompts = random_ids(np.random.default_rng(1), *[4] * 200)
    with perturb.watermarked(model, wm, KEY):
        responses = generate.sample(model, prompts, 8, seed=3)
    found = divergence.per_text(model, prompts, responses, wm, KEY)
    ratio = score.score(model, prompts, responses, wm, [KEY])["log_lik"].to_numpy()
    linear = wm.on(model).linear
    theta = linear.parameter.data.clone()
    linear.parameter.data += perturb.noise(model, wm, KEY)  # by hand: score refuses a model under watermarked()
    ratio = score.score(model, prompts, responses, wm, [KEY])["log_lik"].to_numpy() - ratio
    linear.parameter.data = theta
    assert abs((found - ratio).mean()) < 4 * stats.sem(found - ratio)
    assert found.mean() > 10 * stats.sem(found - ratio)
    assert found.std() < ratio.std() / 2


def test_price_is_half_the_fisher_form_for_a_short_step(model):
    """Quadrupled by a doubled σ, and zero for σ → 0."""
    rng = np.random.default_rng(2)
    prompts, responses = random_ids(rng, 4, 4), random_ids(rng, 10, 10)
    one, two = (divergence.per_text(model, prompts, responses, perturb.Watermark(ONE_WEIGHT["llama"], s), KEY) for s in (1e-4, 2e-4))
    assert two == pytest.approx(4 * one, rel=1e-2)
    assert (one > 0).all()
    assert (one < 1e-4).all()


def test_measure_is_generation_scoring_and_divergence(model):
    prompts = random_ids(np.random.default_rng(3), 4, 6, 5)
    wms = [perturb.Watermark(ONE_WEIGHT["llama"], s) for s in (0.02, 0.1)]
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


def test_a_perturbed_model_is_refused(model, wm):
    with perturb.watermarked(model, wm, KEY), pytest.raises(PerturbedModelError):
        divergence.per_text(model, [[1]], [[2]], wm, OTHER)
