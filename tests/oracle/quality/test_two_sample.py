"""MMD and the classifier test against slow loops, and their level by simulation, prompts that
matter included.
"""

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import binom

from gaussmark_lib import perturb
from gaussmark_lib.errors import InvalidTextError, PerturbedModelError, StatisticsError
from gaussmark_lib.quality import two_sample


def pairs(n, d=4, shift=0.0, spread=2.0, seed=0):
    """Texts of two models: prompts spread widely, what a model adds to them does not."""
    rng = np.random.default_rng(seed)
    prompts = rng.normal(size=(n, d)) * spread
    x, y = prompts + rng.normal(size=(n, d)), prompts + rng.normal(size=(n, d))
    y[:, 0] += shift
    return x, y


def by_hand(x, y, h):
    def k(a, b):
        return np.exp(-np.sum((a - b) ** 2) / (2 * h**2))

    n = len(x)
    terms = [
        k(x[i], x[j]) + k(y[i], y[j]) - k(x[i], y[j]) - k(y[i], x[j])
        for i in range(n)
        for j in range(n)
        if i != j
    ]
    return np.mean(terms)


def test_mmd_is_the_double_loop():
    x, y = pairs(15, shift=1.0)
    distances = [np.linalg.norm(a - b) for i, a in enumerate(np.r_[x, y]) for b in np.r_[x, y][:i]]
    bandwidth = two_sample.median_bandwidth(x, y)
    assert bandwidth == pytest.approx(np.median(distances))
    assert two_sample.mmd(x, y, n_resamples=9).change.value == pytest.approx(
        by_hand(x, y, bandwidth), rel=1e-9
    )


@pytest.mark.parametrize("shift", [0.0, 0.25, 0.5, 1.0])
def test_a_permutation_is_a_swap_within_pairs(shift):
    x, y = pairs(12, shift=shift)
    test = two_sample.mmd(x, y, n_resamples=50, bandwidth=1.5, seed=3)
    swaps = np.random.default_rng(3).integers(2, size=(50, 12)) * 2 - 1
    values = []
    for signs in swaps:
        swap = (signs < 0)[:, None]
        values.append(by_hand(np.where(swap, y, x), np.where(swap, x, y), 1.5))
    as_large = sum(value >= test.change.value - 1e-12 for value in values)
    assert test.p_value == pytest.approx((1 + as_large) / 51)


def test_mmd_is_unbiased():
    """Between two Gaussians in one dimension MMD² has a closed form: 2 s/√(s² + 2) (1 −
    exp(−δ²/(2(s² + 2)))), bandwidth s.
    """
    delta, s, n = 0.8, 1.3, 30
    truth = 2 * s / np.sqrt(s**2 + 2) * (1 - np.exp(-(delta**2) / (2 * (s**2 + 2))))
    rng = np.random.default_rng(5)
    found = [
        two_sample.mmd(
            rng.normal(size=(n, 1)), rng.normal(size=(n, 1)) + delta, n_resamples=1, bandwidth=s
        ).change.value
        for _ in range(600)
    ]
    assert abs(np.mean(found) - truth) < 3.3 * np.std(found) / np.sqrt(len(found))
    null = [
        two_sample.mmd(
            *np.split(rng.normal(size=(2 * n, 1)), 2), n_resamples=1, bandwidth=s
        ).change.value
        for _ in range(600)
    ]
    assert min(null) < 0, "unbiased around zero"
    assert abs(np.mean(null)) < 3.3 * np.std(null) / np.sqrt(len(null))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_level_holds_whatever_the_prompts(spread):
    trials = 140
    rejected = {"mmd": 0, "classifier": 0}
    for trial in range(trials):
        x, y = pairs(40, spread=spread, seed=100 + trial)
        rejected["mmd"] += two_sample.mmd(x, y, n_resamples=99, seed=trial).p_value <= 0.05
        if trial < 60:
            rejected["classifier"] += two_sample.classifier(x, y, seed=trial).p_value <= 0.05
    assert binom.cdf(rejected["mmd"], trials, 0.05) > 0.0005
    assert binom.sf(rejected["mmd"] - 1, trials, 0.05) > 0.0005
    assert binom.sf(rejected["classifier"] - 1, 60, 0.05) > 0.0005


def test_a_difference_is_found_though_prompts_differ_more():
    x, y = pairs(200, shift=1.0, spread=3.0)
    assert two_sample.mmd(x, y).p_value < 0.01
    told = two_sample.classifier(x, y)
    assert told.p_value < 1e-4
    assert told.change.low > 0.1
    assert told.change.n == 100


def test_equal_pairs_are_left_out_of_the_classifiers_question():
    x, y = pairs(200, shift=1.0)
    y[::2] = x[::2]
    told = two_sample.classifier(x, y)
    assert 0 < told.change.n < 100
    assert told.n_equal == 0, "not every pair is equal, and no verdict may say so"


def test_embeddings_are_means_over_the_response_whatever_the_batch():
    rng = np.random.default_rng(0)
    model = tiny_models.build()
    prompts, responses = tiny_models.random_ids(rng, 3, 9, 1), tiny_models.random_ids(rng, 7, 2, 5)
    found = two_sample.embed(model, prompts, responses, batch_size=2)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with torch.no_grad():
            states = model.model(torch.tensor([prompt + response])).last_hidden_state[0]
        np.testing.assert_allclose(
            found[i], states[len(prompt) :].mean(0).numpy(), rtol=1e-4, atol=1e-5
        )


def test_embeddings_do_not_know_the_key():
    model = tiny_models.build()
    with (
        perturb.watermarked(
            model,
            perturb.Watermark("model.layers.2.mlp.down_proj.weight", 0.1),
            perturb.Key.from_seed(0),
        ),
        pytest.raises(PerturbedModelError),
    ):
        two_sample.embed(model, [[1]], [[2]])


def test_bad_input():
    with pytest.raises(InvalidTextError, match="response 1"):
        two_sample.embed(tiny_models.build(), [[1], [1]], [[2], []])
    with pytest.raises(StatisticsError, match="at least 10, got 5 and 5"):
        two_sample.mmd(np.zeros((5, 2)), np.zeros((5, 2)))
