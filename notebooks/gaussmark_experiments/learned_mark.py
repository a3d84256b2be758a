"""A watermark that is trained: fine-tuning of the marked matrix, and nothing else yet.

MarkTune (arXiv:2512.04044) fine-tunes a watermarked model with ψ as the reward and the divergence
from the base model as the brake. The test stays as it is. The key is drawn before the training, and
the gradient of ψ is taken at θ, so the level is exact.

In one context, let p be the base's distribution of the next token v, and q that of the trained
model. Let r(v) be the slope of log p_{θ+sξ}(v) at s = 0. A token adds r(v)/(σ‖G‖) to ψ. With a
reward of Σ_t r(y_t) and the divergence as the brake, the training maximises

    E Σ_t [E_q r − KL(q ‖ p)]   =   E Σ_t [log E_p e^r − KL(q ‖ p e^r / E_p e^r)]

To first order, the watermarked model has q = p e^r / E_p e^r from the beginning, so training can
gain at higher orders only.

The sum over the next token is exact. With the reward of whole texts, as in reinforcement learning,
the noise of the gradient would be about √(d/n) times as large as the gradient itself (n texts, d
numbers in the matrix). What a token does to the tokens after it is left out of the gradient; but
each step writes new texts with the model as it is.
"""

from itertools import cycle, islice

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, perturb
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

STEP = 0.1  # of the central difference along ξ


def trained(
    model: PreTrainedModel,
    wm: Watermark,
    key: Key,
    prompts: Texts,
    n_tokens: int,
    *,
    n_steps: int,
    rate: float = 0.003,
    batch_size: int = 8,
    seed: int = 0,
    **sampling,
) -> Float[Tensor, "d_out d_in"]:
    """Return what training makes of a key's noise. It starts at ξ.

    Each step writes ``batch_size`` texts after the next prompts (Adam; the rate falls linearly from
    ``rate`` to 0).
    """
    placed = wm.on(model)
    xi = perturb.noise(model, wm, key)
    mark = xi.clone()
    optimiser = torch.optim.Adam([mark], lr=rate, betas=(0.9, 0.99))
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=max(n_steps, 1))
    turns = cycle(prompts)
    for step in range(n_steps):
        asked = list(islice(turns, batch_size))
        with perturb.moved(placed, [mark]):
            texts = generate.sample(model, asked, n_tokens, seed=seed + step, **sampling)
        mark.grad = gradient(model, placed, xi, mark, asked, texts)
        optimiser.step()
        falling.step()
    return mark


def gradient(
    model: PreTrainedModel,
    wm: PlacedWatermark,
    xi: Float[Tensor, "d_out d_in"],
    mark: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    texts: Texts,
) -> Float[Tensor, "d_out d_in"]:
    """Return the gradient, with respect to the mark, of KL(q ‖ p) − E_q r, mean over the positions
    of these texts.
    """
    inputs, is_token = divergence.laid_out(model, list(zip(prompts, texts, strict=True)))
    n_tokens = is_token.shape[1]
    [linear] = wm.linears
    with torch.no_grad():
        p = divergence.logits(model, inputs, n_tokens).log_softmax(-1)
        r = slopes(model, wm, xi, inputs, n_tokens)
    with perturb.moved(wm, [mark]), torch.enable_grad():
        linear.parameter.requires_grad_()
        q = divergence.logits(model, inputs, n_tokens).log_softmax(-1)
        per_token = (q.exp() * (q - p - r)).sum(-1)
        loss = (per_token * is_token).sum() / is_token.sum()
        [of_parameter] = torch.autograd.grad(loss, [linear.parameter])
        linear.parameter.requires_grad_(False)
    return linear.oriented(of_parameter)


def slopes(
    model: PreTrainedModel,
    wm: PlacedWatermark,
    xi: Float[Tensor, "d_out d_in"],
    inputs: dict[str, Tensor],
    n_tokens: int,
) -> Float[Tensor, "texts n_tokens vocabulary"]:
    """Return r of each next token: a central difference over ±``STEP`` ξ."""
    sides = []
    for scale in (STEP, -STEP):
        with perturb.moved(wm, [scale * xi]):
            logits = divergence.logits(model, inputs, n_tokens)
        sides.append(logits.log_softmax(-1))
    above, below = sides
    return (above - below) / (2 * STEP)
