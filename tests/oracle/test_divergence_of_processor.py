"""The divergence of a scheme that changes logits: against a plain loop over single prefixes, and
closed forms.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import divergence
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key
from gaussmark_lib.schemes import GumbelMax, SynthID

PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 3, 9, 5)


@pytest.fixture(scope="module")
def model():
    return tiny_models.build()


@torch.no_grad()
@pytest.mark.parametrize("bias", [1.0, 2.0])
def test_of_kgw_by_the_mass_of_the_green_list(model, bias):
    """q ∝ p·exp(δ·green): with green mass m and Z = 1 + m(e^δ − 1), KL(q ‖ p) = δ·m·e^δ/Z − log Z.
    Each prefix by itself, unpadded.
    """
    scheme = KGW(bias, Key.from_seed(1))
    responses = scheme.generate(model, PROMPTS, 12, seed=2)
    expected = []
    for x, y in zip(PROMPTS, responses, strict=True):
        total = 0.0
        for t in range(len(y)):
            ids = torch.tensor([x + y[:t]])
            logits = model(ids).logits[:, -1]
            green = scheme.processor(model)(ids, torch.zeros_like(logits))[0] > 0
            mass = logits.double().softmax(-1)[0, green].sum().item()
            z = 1 + mass * np.expm1(bias)
            total += bias * mass * np.exp(bias) / z - np.log(z)
        expected.append(total)
    np.testing.assert_allclose(scheme.divergences(model, PROMPTS, responses), expected, rtol=1e-4)
    in_two_batches = divergence.per_text_of_processor(
        model, PROMPTS, responses, lambda rows: scheme.processor(model), batch_size=2
    )
    np.testing.assert_allclose(in_two_batches, expected, rtol=1e-4)


@torch.no_grad()
def test_of_gumbel_max_it_is_the_surprisal_of_what_the_key_chooses(model):
    """Of its own text, that of the text itself, where no context comes twice; and a scheme that is
    certain has no 0·∞.
    """
    scheme = GumbelMax(Key.from_seed(1), context=2)
    responses = scheme.generate(model, PROMPTS, 12, seed=2)
    expected = []
    for x, y in zip(PROMPTS, responses, strict=True):
        contexts = [tuple((x + y)[len(x) + t - 2 : len(x) + t]) for t in range(len(y))]
        log_p = [
            model(torch.tensor([x + y[:t]])).logits[0, -1].log_softmax(-1)[v].item()
            for t, v in enumerate(y)
        ]
        expected.append(
            -sum(nats for t, nats in enumerate(log_p) if contexts[t] not in contexts[:t])
        )
    np.testing.assert_allclose(scheme.divergences(model, PROMPTS, responses), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "scheme",
    [KGW(2.0, Key.from_seed(1)), GumbelMax(Key.from_seed(1)), SynthID(Key.from_seed(1), depth=3)],
)
def test_a_shorter_text_beside_a_longer_one_has_its_own(model, scheme):
    responses = [
        y[:n] for y, n in zip(scheme.generate(model, PROMPTS, 12, seed=2), (12, 5, 9), strict=True)
    ]
    alone = [
        scheme.divergences(model, [x], [y])[0] for x, y in zip(PROMPTS, responses, strict=True)
    ]
    np.testing.assert_allclose(scheme.divergences(model, PROMPTS, responses), alone, rtol=1e-4)
