"""The price of token-level keys against the slow way: a model a token, no batch; and beside the
one-key price.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import perturb
from gaussmark_lib.beyond.token_level import divergence as token_divergence
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.perturb import Key, Watermark

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
