"""Noise on the output biases as a scheme: its direction by autograd, its text by a model with
these biases, its strength by σ‖u‖.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import generate
from gaussmark_lib.beyond.schemes import OutputBiases, biases
from gaussmark_lib.perturb import Key

KEY, SIGMA = Key.from_seed(4), 0.4
SCHEME = OutputBiases(KEY, SIGMA)
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 3, 9, 5)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 4, 7)


def slope(model, prompt: list[int], response: list[int]) -> np.ndarray:
    """By autograd, one token after the other."""
    bias = torch.zeros(model.config.vocab_size, dtype=torch.float64, requires_grad=True)
    log_p, start = 0.0, len(prompt)
    for t, token in enumerate(response):
        logits = model(torch.tensor([(prompt + response)[: start + t]])).logits[0, -1].double()
        log_p = log_p + (logits.detach() + bias).log_softmax(-1)[token]
    log_p.backward()
    return bias.grad.numpy()


def test_the_direction_is_the_slope_of_the_log_likelihood_in_the_biases(model):
    found = biases.slopes(model, PROMPTS, RESPONSES, batch_size=2)
    for u, prompt, response in zip(found, PROMPTS, RESPONSES, strict=True):
        np.testing.assert_allclose(u, slope(model, prompt, response), atol=1e-5)
        assert abs(u.sum()) < 1e-5


def test_it_writes_what_a_model_with_these_biases_writes(model):
    written = SCHEME.generate(model, PROMPTS, 12, seed=2)
    assert generate.sample(model, PROMPTS, 12, seed=2) != written
    bias = SIGMA * torch.from_numpy(SCHEME.noise(model.config.vocab_size)).float()
    model.lm_head.register_forward_hook(lambda layer, inputs, logits: logits + bias)
    assert generate.sample(model, PROMPTS, 12, seed=2) == written


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}])
def test_psi_is_what_its_length_promises(model, sampling):
    prompts = PROMPTS * 12
    keys = [Key.from_seed(100 + i) for i in range(len(prompts))]
    texts = SCHEME.generate(model, prompts, 40, keys=keys, **sampling)
    table = SCHEME.score(model, prompts, texts, keys)
    promised = np.mean([SIGMA * np.linalg.norm(u) for u in biases.slopes(model, prompts, texts)])
    assert table["statistic"].mean() > 0.5 * promised
    if not sampling:
        assert abs(table["statistic"].mean() - promised) < 4 / len(prompts) ** 0.5
    others = SCHEME.score(model, prompts, texts, [*keys[1:], keys[0]])["statistic"]
    assert abs(others.mean()) < 4 / len(prompts) ** 0.5
