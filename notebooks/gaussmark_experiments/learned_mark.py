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

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, likelihood, perturb, score, stats
from gaussmark_lib.gradients import gradients
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

NOISE = "plain noise"
TRAINED = "trained"
STEP = 0.1  # of the central difference along ξ
GAIN = "mean ψ divided by √(2 · price), trained divided by plain noise"
HUMAN = "rise of the cross-entropy on human text per ψ², trained divided by plain noise"


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


@torch.no_grad()
def prices(
    model: PreTrainedModel,
    wm: PlacedWatermark,
    mark: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    texts: Texts,
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """Return Σ_t KL(q_t ‖ p_t) of each text that the model with this mark wrote, nats."""
    pairs = list(zip(prompts, texts, strict=True))
    nats: list[float] = []
    for start in range(0, len(pairs), batch_size):
        inputs, is_token = divergence.laid_out(model, pairs[start : start + batch_size])
        n_tokens = is_token.shape[1]
        p = divergence.logits(model, inputs, n_tokens)
        with perturb.moved(wm, [mark]):
            q = divergence.logits(model, inputs, n_tokens)
        nats += divergence.summed(q, p, is_token)
    return np.array(nats)


def measured(
    model: PreTrainedModel,
    wm: Watermark,
    keys: Sequence[Key],
    marks: Mapping[str, Float[Tensor, "d_out d_in"]],
    prompts: Texts,
    n_tokens: int,
    human: tuple[Texts, Texts],
    *,
    seed: int = 0,
    **sampling,
) -> pd.DataFrame:
    """Let the model write with each mark, and test each text under two keys.

    Args:
        keys: that of the marks, and a wrong key as a control.
        marks: name → noise or trained noise.
        human: (prompts, responses) of people, on which the second price is measured.

    Returns:
        A row per mark and prompt: ``mark, text, psi, wrong`` (ψ under the wrong key), ``nats`` (KL
        of the text) and ``rise`` (of the cross-entropy on human text, nats per token, the same
        number for all rows of a mark).
    """
    placed = wm.on(model)
    before, passages = human
    plain = likelihood.cross_entropy(model, passages, prompts=before)
    tables = []
    for name, mark in marks.items():
        with perturb.moved(placed, [mark]):
            texts = generate.sample(model, prompts, n_tokens, seed=seed, **sampling)
            moved = likelihood.cross_entropy(model, passages, prompts=before)
        tested = list(score.statistics(gradients(model, prompts, texts, wm), placed, keys))
        of_text = {gradient.text: psis for gradient, psis in tested}
        own, wrong = np.array([of_text[number] for number in range(len(texts))]).T
        columns = {"mark": name, "text": range(len(texts)), "psi": own, "wrong": wrong}
        nats = prices(model, placed, mark, prompts, texts)
        tables.append(pd.DataFrame(columns).assign(nats=nats, rise=(moved - plain).mean()))
    return pd.concat(tables, ignore_index=True)


def of_keys(
    model: PreTrainedModel,
    wm: Watermark,
    keys: Sequence[Key],
    prompts: Texts,
    n_tokens: int,
    human: tuple[Texts, Texts],
    *,
    n_training: int,
    n_steps: int,
    seed: int = 0,
    **options,
) -> pd.DataFrame:
    """Train the mark of each key on the first prompts, and measure it on the others, next to the
    key's noise: the rows of :func:`measured`, with ``key``, its number, and ``moved``, the length
    of the change divided by that of the noise.

    Args:
        n_training: prompts for the training.
        options: sampling, and ``rate`` and ``batch_size`` of :func:`trained`.
    """
    sampling = {name: options[name] for name in ("top_p", "temperature") if name in options}
    tables = []
    for number, key in enumerate(keys):
        of_training = {"n_steps": n_steps, "seed": seed + 1000 * number}
        mark = trained(model, wm, key, prompts[:n_training], n_tokens, **of_training, **options)
        xi = perturb.noise(model, wm, key)
        table = measured(
            model,
            wm,
            [key, keys[number - 1]],
            {NOISE: xi, TRAINED: mark},
            prompts[n_training:],
            n_tokens,
            human,
            seed=seed + 1000 * number + 500,
            **sampling,
        )
        tables.append(table.assign(key=number, moved=float((mark - xi).norm() / xi.norm())))
    return pd.concat(tables, ignore_index=True)


def efficiencies(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean ψ / √(2 · price) of plain noise and of trained marks (:func:`of_keys`): ``mark``,
    and an estimate with an interval over keys, where there are at least three.
    """
    rows = []
    for mark, cell in table.groupby("mark", sort=False):
        by_key = cell.groupby("key")[["psi", "nats"]].mean().to_numpy()
        estimate = stats.interval(by_key, _efficiency)
        rows.append({"mark": mark} | estimate.row())
    return pd.DataFrame(rows)


def _efficiency(rows: Float[np.ndarray, "keys two"]) -> float:
    psi, nats = rows.mean(axis=0)
    return psi / np.sqrt(2 * nats)


def gain(table: pd.DataFrame) -> stats.Estimate:
    """Divide mean ψ / √(2 · price) of trained marks by that of plain noise (:func:`of_keys`). To
    first order, both are 1. The interval is over keys.
    """
    return _quotient(table, lambda psi, nats, rise: psi / np.sqrt(2 * nats))


def human_price(table: pd.DataFrame) -> stats.Estimate:
    """Divide the rise of the cross-entropy on human text, per ψ², of trained marks by that of plain
    noise (:func:`of_keys`). The interval is over keys.
    """
    return _quotient(table, lambda psi, nats, rise: rise / psi**2)


def _quotient(table: pd.DataFrame, value: Callable[[float, float, float], float]) -> stats.Estimate:
    """A value of the means of trained marks, divided by that of plain noise."""
    columns = ["psi", "nats", "rise"]
    by_key = table.groupby(["key", "mark"])[columns].mean().unstack("mark")
    rows = np.hstack([by_key.xs(mark, axis=1, level="mark")[columns] for mark in (TRAINED, NOISE)])

    def of_means(rows: Float[np.ndarray, "keys six"]) -> float:
        after, before = np.split(rows.mean(axis=0), 2)
        return value(*after) / value(*before)

    return stats.interval(rows, of_means)


def in_words(table: pd.DataFrame) -> str:
    """Say what training changed, in one run's table of :func:`of_keys`."""
    of_mark = table.groupby("mark")[["psi", "nats"]].mean()
    parts = [
        f"{mark}: ψ {row.psi:.2f} for {row.nats:.2f} nats per text"
        for mark, row in of_mark.iterrows()
    ]
    moved = table["moved"].mean()
    return f"{'; '.join(parts)}. Training moved the mark by {moved:.0%} of the noise's length"
