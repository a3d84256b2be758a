"""A watermark that is trained: what fine-tuning the marked matrix gains over plain noise.

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

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_experiments import intervals
from gaussmark_lib import divergence, generate, perturb, score, stats
from gaussmark_lib.engine import arithmetic
from gaussmark_lib.gradients import gradients
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

NOISE = "plain noise"
TRAINED = "trained"
STEP = 0.1  # of the central difference along ξ
SCALES = (0.6, 0.8, 1.0, 1.2)  # of plain noise: its ψ at several prices
GAIN = "mean ψ of the trained mark, divided by that of plain noise at the same price"


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
        p = _log_p(model, inputs, n_tokens)
        r = slopes(model, wm, xi, inputs, n_tokens)
    with arithmetic.frozen(model), perturb.moved(wm, [mark]), torch.enable_grad():
        linear.parameter.requires_grad_()
        try:
            q = _log_p(model, inputs, n_tokens)
            per_token = (q.exp() * (q - p - r)).sum(-1)
            loss = (per_token * is_token).sum() / is_token.sum()
            [of_parameter] = torch.autograd.grad(loss, [linear.parameter])
        finally:
            linear.parameter.requires_grad_(False)
    return linear.oriented(of_parameter).to(mark)  # on its device, in its dtype


def _log_p(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    n_tokens: int,
) -> Float[Tensor, "texts n_tokens vocabulary"]:
    """log p of every next token, at least float32."""
    return arithmetic.wide(divergence.logits(model, inputs, n_tokens)).log_softmax(-1)


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
            sides.append(_log_p(model, inputs, n_tokens))
    above, below = sides
    return (above - below) / (2 * STEP)


@torch.no_grad()
def prices(
    model: PreTrainedModel,
    wm: PlacedWatermark,
    mark: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    texts: Texts,
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """Return KL(q ‖ p) of each text that the model with this mark wrote, nats per token."""
    pairs = list(zip(prompts, texts, strict=True))
    nats: list[float] = []
    for start in range(0, len(pairs), batch_size):
        inputs, is_token = divergence.laid_out(model, pairs[start : start + batch_size])
        n_tokens = is_token.shape[1]
        p = divergence.logits(model, inputs, n_tokens)
        with perturb.moved(wm, [mark]):
            q = divergence.logits(model, inputs, n_tokens)
        nats += divergence.summed(q, p, is_token)
    return np.array(nats) / [len(text) for text in texts]


def measured(
    model: PreTrainedModel,
    wm: Watermark,
    keys: Sequence[Key],
    mark: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> pd.DataFrame:
    """Let the model write with a mark, and test each text under two keys.

    Args:
        keys: that of the mark, and a wrong key as a control.

    Returns:
        A row per prompt: ``text, psi, wrong`` (ψ under the wrong key) and ``nats``, the price.
    """
    placed = wm.on(model)
    with perturb.moved(placed, [mark]):
        texts = generate.sample(model, prompts, n_tokens, seed=seed, **sampling)
    tested = list(score.statistics(gradients(model, prompts, texts, wm), placed, keys))
    of_text = {gradient.text: psis for gradient, psis in tested}
    own, wrong = np.array([of_text[number] for number in range(len(texts))]).T
    nats = prices(model, placed, mark, prompts, texts)
    return pd.DataFrame({"text": range(len(texts)), "psi": own, "wrong": wrong, "nats": nats})


def of_keys(
    model: PreTrainedModel,
    wm: Watermark,
    keys: Sequence[Key],
    prompts: Texts,
    n_tokens: int,
    *,
    n_training: int,
    n_steps: int,
    seed: int = 0,
    rate: float = 0.003,
    batch_size: int = 8,
    **sampling,
) -> pd.DataFrame:
    """Train the mark of each key on the first prompts. Measure it on the other prompts, next to the
    key's noise times each of ``SCALES``.

    Args:
        n_training: prompts for the training.

    Returns:
        The rows of :func:`measured`, with ``key``, its number, ``mark``, ``scale`` (1 if trained)
        and ``moved``, the length of the change by training, divided by that of the noise.
    """
    tables = []
    for number, key in enumerate(keys):
        first_seed = seed + (n_steps + 1) * number  # one for each step, and one to measure with
        xi = perturb.noise(model, wm, key)
        training = {"n_steps": n_steps, "rate": rate, "batch_size": batch_size, "seed": first_seed}
        mark = trained(model, wm, key, prompts[:n_training], n_tokens, **training, **sampling)
        marks = {(NOISE, scale): scale * xi for scale in SCALES} | {(TRAINED, 1.0): mark}
        moved = float((mark - xi).norm() / xi.norm())
        for (name, scale), one in marks.items():
            asked = [key, keys[number - 1]], one, prompts[n_training:], n_tokens
            table = measured(model, wm, *asked, seed=first_seed + n_steps, **sampling)
            tables.append(table.assign(key=number, mark=name, scale=scale, moved=moved))
    return pd.concat(tables, ignore_index=True)


def at_prices(table: pd.DataFrame) -> pd.DataFrame:
    """Return a point for each mark and scale of :func:`of_keys`: ``mark, scale, nats`` (the mean
    price) and an estimate of mean ψ over keys, without an interval if there are few keys.
    """
    rows = []
    for (mark, scale), cell in table.groupby(["mark", "scale"]):
        psi = stats.interval(cell["psi"].to_numpy(), cluster=cell["key"])
        rows.append({"mark": mark, "scale": scale, "nats": cell["nats"].mean()} | psi.row())
    return intervals.rows_of_enough(pd.DataFrame(rows))


def gain(table: pd.DataFrame) -> stats.Estimate:
    """Divide mean ψ of trained marks by that of plain noise at the same price (:func:`of_keys`).
    The interval is over keys.

    To first order, ψ is proportional to the root of the price. So ψ of plain noise at any price is
    read from a parabola in the root of the mean price, through the means of all scales.
    """
    wide = (
        table.groupby(["key", "mark", "scale"])[["psi", "nats"]].mean().unstack(["mark", "scale"])
    )
    of_noise = [wide[column, NOISE].to_numpy() for column in ("psi", "nats")]  # (keys, scales)
    of_mark = [wide[column, TRAINED].to_numpy() for column in ("psi", "nats")]  # (keys, 1)

    def of_means(rows: Float[np.ndarray, "keys columns"]) -> float:
        psi, nats, own, price = np.split(rows.mean(axis=0), [n, 2 * n, 2 * n + 1])
        return own[0] / np.polyval(np.polyfit(nats**0.5, psi, 2), price[0] ** 0.5)

    n = len(SCALES)
    return stats.interval(np.hstack([*of_noise, *of_mark]), of_means)


def in_words(learned: pd.DataFrame) -> str:
    """Say what training changed, in one run's table of :func:`of_keys`."""
    means = learned.groupby(["mark", "scale"])[["psi", "nats"]].mean()
    noise, mark = means.loc[(NOISE, 1.0)], means.loc[(TRAINED, 1.0)]
    moved = learned["moved"].mean()
    return (
        f"the key's noise: ψ {noise.psi:.2f} for {noise.nats:.3f} nats per token; the trained mark:"
        f" ψ {mark.psi:.2f} for {mark.nats:.3f}. At equal price, trained divided by plain:"
        f" **{gain(learned)}** keys. Training moved the mark by {moved:.0%} of the noise's length"
    )
