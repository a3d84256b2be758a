"""⟨ξ, G⟩ is the slope of log p along ξ: central differences in float64, whose error has to fall as
h².
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import perturb, score
from gaussmark_lib.perturb import Key, Watermark


@pytest.mark.parametrize(("architecture", "weight", "rank_dropped"), tiny_models.alternating(0, 4))
def test_the_slope_along_the_noise_is_the_inner_product(architecture, weight, rank_dropped):
    model, key = tiny_models.build(architecture, torch.float64), Key.from_seed(5)
    wm = Watermark(weight, 1.0, rank_dropped)
    prompt, response = tiny_models.random_ids(np.random.default_rng(3), 4, 12)
    [row] = score.score(model, [prompt], [response], wm, [key]).itertuples()
    expected = row.psi * row.grad_norm  # σ = 1
    stored = tiny_models.parameter(model, weight).data
    theta = stored.clone()
    xi = perturb.noise(model, wm, key).double()
    xi = xi.T if architecture == "gpt2" else xi

    @torch.no_grad()
    def slope(h: float) -> float:
        ends = []
        for sign in (1, -1):
            stored.copy_(theta + sign * h * xi)
            ends.append(tiny_models.log_p(model, prompt, response).sum().item())
        stored.copy_(theta)
        return (ends[0] - ends[1]) / (2 * h)

    coarse, fine = (abs(slope(h) - expected) for h in (1e-3, 1e-4))
    assert fine < 1e-4 * abs(expected)
    # else the float32 of the directions, or of the router, is what remains
    if rank_dropped == 0 and architecture != "qwen2_moe":
        assert 50 < coarse / fine < 200  # 10² for a tenth of the step


def test_the_noise_that_watermarked_adds_is_the_one_that_score_looks_for():
    """log p_{θ+ξ} − log p_θ through the public functions alone: first order in σ it is ψ·σ‖G‖, with
    the right sign.
    """
    model, key = tiny_models.build("gpt2", torch.float64), Key.from_seed(5)
    wm = Watermark("transformer.h.0.mlp.c_fc.weight", 1e-6)
    prompt, response = tiny_models.random_ids(np.random.default_rng(3), 4, 12)
    [row] = score.score(model, [prompt], [response], wm, [key]).itertuples()
    base = tiny_models.log_p(model, prompt, response).sum().item()
    with perturb.watermarked(model, wm, key):
        gain = tiny_models.log_p(model, prompt, response).sum().item() - base
    assert gain == pytest.approx(row.psi * wm.sigma * row.grad_norm, rel=1e-3)
