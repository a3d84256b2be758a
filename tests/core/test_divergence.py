"""What a watermark costs a language model: token-by-token divergences against the slow way, and
against the mean log-likelihood ratio.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import ONE_WEIGHT, build, random_ids

from gaussmark_lib import divergence, generate, perturb, score
from gaussmark_lib.errors import PerturbedModelError

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
        assert divergence.per_text(model, prompts, responses, wm, KEY, batch_size) == pytest.approx(
            np.array(expected), rel=1e-10
        )


def test_mean_divergence_is_the_mean_log_likelihood_ratio(model, wm):
    """Both are unbiased for the same KL; their difference has mean 0, and the divergence varies
    less.
    """
    wm = perturb.Watermark(wm.weight, 0.3)
    prompts = random_ids(np.random.default_rng(1), *[4] * 200)
    with perturb.watermarked(model, wm, KEY):
        responses = generate.sample(model, prompts, 8, seed=3)
    found = divergence.per_text(model, prompts, responses, wm, KEY)
    ratio = score.score(model, prompts, responses, wm, [KEY])["log_lik"].to_numpy()
    linear = wm.on(model).linear
    theta = linear.parameter.data.clone()
    linear.parameter.data += perturb.noise(
        model, wm, KEY
    )  # by hand: score refuses a model under watermarked()
    ratio = score.score(model, prompts, responses, wm, [KEY])["log_lik"].to_numpy() - ratio
    linear.parameter.data = theta
    assert abs((found - ratio).mean()) < 4 * stats.sem(found - ratio)
    assert found.mean() > 10 * stats.sem(found - ratio)
    assert found.std() < ratio.std() / 2


def test_price_is_half_the_fisher_form_for_a_short_step(model):
    """Quadrupled by a doubled σ, and zero for σ → 0."""
    rng = np.random.default_rng(2)
    prompts, responses = random_ids(rng, 4, 4), random_ids(rng, 10, 10)
    one, two = (
        divergence.per_text(
            model, prompts, responses, perturb.Watermark(ONE_WEIGHT["llama"], s), KEY
        )
        for s in (1e-4, 2e-4)
    )
    assert two == pytest.approx(4 * one, rel=1e-2)
    assert (one > 0).all()
    assert (one < 1e-4).all()


def test_a_perturbed_model_is_refused(model, wm):
    with perturb.watermarked(model, wm, KEY), pytest.raises(PerturbedModelError):
        divergence.per_text(model, [[1]], [[2]], wm, OTHER)
