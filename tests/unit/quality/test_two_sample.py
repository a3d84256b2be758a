"""The classifier test: embeddings against a pass over each text alone, what it finds, and its
level where prompts matter more than the model.
"""

import numpy as np
import tiny_models
import torch
from scipy.stats import binomtest

from gaussmark_lib.quality import two_sample


def pairs(n, shift=0.0, seed=0):
    """Embeddings of two models' texts: prompts spread widely, what a model adds does not."""
    rng = np.random.default_rng(seed)
    prompts = rng.normal(size=(n, 4)) * 2
    x, y = prompts + rng.normal(size=(n, 4)), prompts + rng.normal(size=(n, 4))
    y[:, 0] += shift
    return x, y


def test_it_finds_a_shift_and_judges_half_of_the_pairs():
    right = two_sample.told_apart(*pairs(200, shift=1.5))
    assert len(right) == 100
    assert right.mean() > 0.75


def test_the_level_holds_where_the_models_do_not_differ():
    n_right = sum(int(two_sample.told_apart(*pairs(40, seed=i)).sum()) for i in range(30))
    low, high = binomtest(n_right, 600).proportion_ci(0.999)
    assert low <= 0.5 <= high


def test_equal_texts_are_left_out():
    x, _ = pairs(20)
    assert len(two_sample.told_apart(x, x)) == 0


@torch.no_grad()
def test_an_embedding_is_the_mean_of_the_responses_states():
    model = tiny_models.build()
    prompts, responses = [[5, 6], [7], []], [[8, 9, 10], [11], [12, 13, 14, 15]]
    means = two_sample.embed(model, prompts, responses, batch_size=2)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        before = prompt or [model.config.bos_token_id]
        ids = torch.tensor([before + response])
        states = model(ids, output_hidden_states=True).hidden_states[-1][0]
        expected = states[len(before) :].double().mean(0)
        np.testing.assert_allclose(means[i], expected, rtol=1e-4, atol=1e-5)
