"""The price of token-level keys against the slow way: a model a token, no batch; and beside the
one-key price.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import divergence, generate, perturb, stats
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.token_level import divergence as token_divergence
from gaussmark_lib.token_level import keys as token_keys

WEIGHTS = [
    ("llama", "model.layers.2.mlp.down_proj.weight"),
    ("llama", "model.layers.2.self_attn.o_proj.weight"),
    ("gpt2", "transformer.h.1.mlp.c_fc.weight"),
]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 1, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 6, 9, 3)
KEYS = [Key.from_seed(2), Key.from_seed(5), Key.from_seed(2)]  # one per text


@torch.no_grad()
def slow(model, prompt, response, wm, key) -> float:
    total = 0.0
    for k in range(len(response)):
        ids = torch.tensor([prompt + response[:k]])
        with perturb.watermarked(model, wm, token_keys.key_of(key, k)):
            p = model(ids).logits[0, -1].softmax(-1)
        q = model(ids).logits[0, -1].softmax(-1)
        total += (p * (p / q).log()).sum().item()
    return total


@pytest.mark.parametrize("rank", [(0, "left"), (4, "both")])
@pytest.mark.parametrize(("architecture", "weight"), WEIGHTS)
def test_the_price_is_the_slow_sum(architecture, weight, rank):
    model, wm = tiny_models.build(architecture, torch.float64), Watermark(weight, 0.3, *rank)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    each = zip(PROMPTS, RESPONSES, KEYS, strict=True)
    expected = [slow(model, x, y, wm, key) for x, y, key in each]
    assert token_divergence.per_text(model, PROMPTS, RESPONSES, wm, KEYS) == pytest.approx(
        np.array(expected), rel=1e-7
    )
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_it_is_the_mean_log_likelihood_ratio_of_its_own_texts():
    model, wm, key = (
        tiny_models.build("llama", torch.float64),
        Watermark(WEIGHTS[0][1], 0.3),
        Key.from_seed(2),
    )
    prompts = tiny_models.random_ids(np.random.default_rng(3), *[4] * 150)
    responses = token_keys.sample(model, prompts, 8, wm, [key] * 150, seed=1)
    found = token_divergence.per_text(model, prompts, responses, wm, [key] * 150)
    ids = torch.tensor([x + y for x, y in zip(prompts, responses, strict=True)])

    def log_lik(k: int) -> torch.Tensor:
        with torch.no_grad():
            return model(ids).logits.log_softmax(-1)[range(150), 3 + k, ids[:, 4 + k]]

    ratio = torch.zeros(150, dtype=torch.float64)
    for k in range(8):
        with perturb.watermarked(model, wm, token_keys.key_of(key, k)):
            ratio += log_lik(k)
        ratio -= log_lik(k)
    interval = stats.interval(ratio.numpy() - found, confidence=0.999)
    assert interval.low <= 0 <= interval.high
    assert stats.interval(found, confidence=0.999).low > 0


def test_at_one_sigma_it_is_the_one_key_price_to_second_order():
    """Over keys: both are ½σ² Σ_k tr F_k on the same texts."""
    model, wm = tiny_models.build("llama"), Watermark(WEIGHTS[0][1], 0.01)
    prompts = tiny_models.random_ids(np.random.default_rng(3), *[4] * 12)
    plain = generate.sample(model, prompts, 12, seed=5)
    keys = [Key.from_seed(i) for i in range(60)]
    one = np.array([divergence.per_text(model, prompts, plain, wm, k).mean() for k in keys])
    each = [token_divergence.per_text(model, prompts, plain, wm, [k] * 12).mean() for k in keys]
    each = np.array(each)
    ratio = stats.interval(one / each.mean(), confidence=0.999)
    assert ratio.low <= 1 <= ratio.high
    assert each.std() < one.std() / 1.3, "many noises average out what one leaves to luck"
