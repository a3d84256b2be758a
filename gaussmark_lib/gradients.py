"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of a test that does not depend on the key.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ.
A hook keeps a_s and makes the layer's output the start of the graph; one backward pass down to it
gives g_s for all texts of a batch. No layer below is differentiated, and no other weight's gradient
is formed. Several weights, and several lengths of one text, share a forward pass.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, perturb, tokens
from gaussmark_lib.beyond import channel
from gaussmark_lib.engine import arithmetic, blocks, hooks
from gaussmark_lib.engine.terms import Factors, inner, norm, of_text
from gaussmark_lib.errors import (
    DegenerateScoreError,
    GaussMarkError,
    InvalidTextError,
    require_int,
    require_list,
)
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

ROUNDING = 64  # in units of ε: what is left of terms that cancel exactly


@dataclass(frozen=True, eq=False)
class TextGradient:
    """One text's gradient, in one weight or several."""

    text: int
    parts: list[Tensor | Factors]  # G, or PG, of each weight, (d_out, d_in)
    scales: list[float]  # σ of each weight over the first one's
    bound: float  # Σ_s ‖g_s‖‖a_s‖ over all weights, scaled alike
    log_lik: float  # log p_θ(y | x), nats, summed over its ``n_tokens``
    n_tokens: int

    @property
    def G(self) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
        """The gradient of the one weight, or of each weight."""
        matrices = [G.matrix() if isinstance(G, Factors) else G for G in self.parts]
        return matrices[0] if len(matrices) == 1 else matrices

    @cached_property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight; of several weights √Σ(σ_s/σ_1)²‖G_s‖².
        DegenerateScoreError if it is not finite, or zero but for rounding.
        """
        size = math.hypot(*(c * norm(G) for c, G in zip(self.scales, self.parts, strict=True)))
        least = ROUNDING * torch.finfo(torch.float32).eps * self.bound
        if not least < size < math.inf or not math.isfinite(self.log_lik):
            raise DegenerateScoreError(
                f"text {self.text}: expected a finite, non-zero gradient, got ‖G‖ = {size} and"
                f" log-likelihood {self.log_lik}; choose a weight that the text depends on (an"
                " expert may see none of its tokens), or float32, where less overflows"
            )
        return size

    def unit(self) -> Float[Tensor, " d"]:
        """u = (σ_1 G_1, σ_2 G_2, …)/‖·‖ in row order."""
        each = zip(self.scales, self.parts, strict=True)
        return torch.cat([G.flatten() * (c / self.norm) for c, G in each])

    def cosine(self, other: "TextGradient") -> float:
        """⟨u, v⟩ of the two directions u and v, as :meth:`unit` has them: to 4e-5, as ``norm``."""
        each = zip(self.scales, self.parts, other.parts, strict=True)
        return sum(c**2 * inner(G, H) for c, G, H in each) / (self.norm * other.norm)


def gradients(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, **settings
) -> Iterator[TextGradient]:
    """G (or PG where rank_dropped > 0) of each text, one at a time, shortest first. ``settings``
    (``edited, q, token_weights, lengths, dtype, batch_size``) and errors are those of
    :func:`score.score`; of several ``edited`` there is one after the other.
    """
    perturb.refuse_perturbed(model)
    wm = PlacedWatermark(model, wm)
    return of_pairs(wm, tokens.checked_pairs(model, prompts, responses), **settings)


def norms(
    model: PreTrainedModel, prompts: Texts, responses: Texts, weights: Sequence[str], **settings
) -> pd.DataFrame:
    """‖G‖ of each text for each of several weights (full names), from one pass; ``settings`` as
    :func:`gradients`. One row per text × length × weight: ``text, weight, n_tokens, grad_norm``
    (nats per unit of weight), ``log_lik`` (nats, sum over tokens).
    """
    wm = Watermark(require_list(weights, "weights: expected names"), 1.0)
    rows = [
        (gradient.text, name, gradient.n_tokens, norm(G), gradient.log_lik)
        for gradient in gradients(model, prompts, responses, wm, form=lambda G: G, **settings)
        for name, G in zip(wm.weights, gradient.parts, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["text", "weight", "n_tokens", "grad_norm", "log_lik"])
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def of_pairs(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    *,
    form: Callable[[Factors], Tensor | Factors] = Factors.matrix,
    edited: float | Sequence[float] = 0.0,
    q: ArrayLike | None = None,
    token_weights: Sequence[Sequence[float]] | None = None,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    failed: dict[int, GaussMarkError] | None = None,
    perturbed: bool = False,
) -> Iterator[TextGradient]:
    """:func:`gradients` of checked texts (``tokens.checked_pairs``), by their numbers.

    Args:
        form: what to make of the terms of G.
        failed: gets the error of each text whose G has no direction, which is then left out.
        perturbed: the model may be a watermarked one, only to show what then goes wrong.
    """
    model, dtype = wm.model, arithmetic.arithmetic(wm.model, dtype)
    if lengths is not None:
        lengths = require_list(lengths, "lengths: expected whole numbers ≥ 1", least=1)
        lengths = sorted({require_int(n, "lengths") for n in lengths})
    if token_weights is not None:
        token_weights = _checked_weights(token_weights, pairs)
    fs = channel.fractions(edited) if edited != 0 else (0.0,)
    log_q = channel.log_frequencies(model, q) if any(fs) or q is not None else None
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    sizes = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    for batch in blocks.batches(model, sizes, batch_size):
        if not perturbed:  # for each batch: the caller may have marked it between two yields
            perturb.refuse_perturbed(model)
        several = [pairs[text] for text in batch]
        w = token_weights and [token_weights[text] for text in batch]
        ends = lengths or [max(len(y) for _, y in several)]
        directions = [*product(ends, fs)]
        with arithmetic.computing_in(model, dtype):
            inputs, slopes, log_p = _passes(wm, several, w, directions, log_q)
        for row, (text, (x, y)) in enumerate(zip(batch, several, strict=True)):
            for (end, _), gs in zip(directions, slopes, strict=True):
                if lengths and end > len(y):
                    break
                n_tokens = min(end, len(y))
                terms = of_text(inputs, gs, row, len(x) + n_tokens, len(scales))
                bound = sum(c * G.bound() for c, G in zip(scales, terms, strict=True))
                parts = [form(G) for G in terms]
                if wm.rank_dropped:
                    parts = [
                        G.projected(P) if isinstance(G, Factors) else P(G)
                        for G, P in zip(parts, wm.projectors, strict=True)
                    ]
                log_lik = log_p[row][:n_tokens].sum().item()
                gradient = TextGradient(text, parts, scales, bound, log_lik, n_tokens)
                try:
                    if failed is not None:
                        _ = gradient.norm
                except DegenerateScoreError as error:
                    failed[text] = error
                else:
                    yield gradient


def _checked_weights(
    token_weights: Sequence[Sequence[float]], pairs: Mapping[int, Pair]
) -> list[Sequence[float]]:
    """InvalidTextError unless there is one for each token of each response."""
    expected = "token_weights: expected a list per response"
    weights = require_list(token_weights, expected, least=max(pairs, default=-1) + 1)
    for i, (_, y) in pairs.items():
        if (n := np.size(weights[i])) != len(y):
            raise InvalidTextError(f"{expected}, {len(y)} numbers for response {i}, got {n}")
    return weights


def _passes(
    wm: PlacedWatermark,
    pairs: Sequence[Pair],
    token_weights: Sequence[Sequence[float]] | None,
    directions: Sequence[tuple[int, float]],
    log_q: Float[np.ndarray, " vocabulary"] | None,
) -> tuple[list[tuple[int, Tensor]], list[list[Tensor]], list[Float[np.ndarray, " n"]]]:
    """One forward pass, and one backward pass per direction, which is where the texts end and the
    f of their edit channel: the layer and the inputs a of each call; of each direction the g of
    each call; of each text log p of its tokens. A longer beginning of a text is the shorter one and
    what its further tokens add.
    """
    with arithmetic.frozen(wm.model):
        with hooks.traced(wm.model, wm.linears) as calls:
            logits, targets, number = likelihood.predictions(wm.model, pairs)
        logits.requires_grad_()  # also if they depend on none of them: then G is 0
        p = arithmetic.log_softmax_(arithmetic.wide(logits.detach()))
        log_p = p.gather(-1, targets[..., None])[..., 0]
        p.exp_()
        values = log_p.double().cpu().numpy()
        rows = [row[of_row] for row, of_row in zip(values, number.cpu().numpy() > 0, strict=True)]
        slopes, ys = [], [call.y for call in calls]
        shorter = dict.fromkeys([f for _, f in directions], (0.0, [0.0] * len(ys)))
        for end, f in directions:
            weights = torch.zeros_like(log_p)
            for i, (_, y) in enumerate(pairs):  # w_t where token t is predicted
                w = np.ones(len(y)) if token_weights is None else np.array(token_weights[i], float)
                w[end:] = 0
                if f:
                    w[:end] *= channel.kept((rows[i] - log_q[np.array(y)])[:end], f)
                weights[i, number[i] > 0] = torch.from_numpy(w).to(weights)
            added = weights - shorter[f][0]  # what a longer beginning adds to a shorter one
            more = len(slopes) + 1 < len(directions)
            slope = (p.clone() if more else p).mul_(-added[..., None])
            slope.scatter_add_(-1, targets[..., None], added[..., None])  # w_t (onehot(y_t) − p_t)
            slope = slope.to(logits)
            gs = torch.autograd.grad(logits, ys, slope, retain_graph=more, materialize_grads=True)
            both = zip(shorter[f][1], gs, strict=True)
            slopes.append([before + arithmetic.wide(g) for before, g in both])
            shorter[f] = weights, slopes[-1]
    return [(call.layer, call.a) for call in calls], slopes, rows
