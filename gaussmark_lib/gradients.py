"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of a test that does not depend on the key.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ.
A hook keeps a_s and makes the layer's output the start of the graph; one backward pass down to it
gives g_s for all texts of a batch. No layer below is differentiated, and no other weight's gradient
is formed. Several weights, several lengths of one text, and several weighings of its tokens share a
forward pass.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, perturb
from gaussmark_lib.engine import arithmetic, blocks, hooks
from gaussmark_lib.engine.terms import Factors, inner, norm, of_text
from gaussmark_lib.errors import (
    DegenerateScoreError,
    GaussMarkError,
    InvalidTextError,
    require_int,
    require_list,
    shown,
)
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

# token ids and their log p, nats → w_t, where G = Σ_t w_t ∇log p_t
Weigh = Callable[[Sequence[int], Float[np.ndarray, " n"]], ArrayLike]
FixedWeights = Sequence[Sequence[float]]  # the w_t of each response
TokenWeights = FixedWeights | Weigh | Sequence[Weigh | None]
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
        """⟨u, v⟩ of the two directions u and v, as :meth:`unit` has them, to 1e-6."""
        each = zip(self.scales, self.parts, other.parts, strict=True)
        return sum(c**2 * inner(G, H) for c, G, H in each) / (self.norm * other.norm)


def gradients(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, **settings
) -> Iterator[TextGradient]:
    """G (or PG where rank_dropped > 0) of each text, one at a time, shortest first. ``settings``
    (``token_weights, lengths, dtype, batch_size``) and errors are those of :func:`score.score`.
    """
    wm = PlacedWatermark(model, wm)
    perturb.refuse_perturbed(model)
    return of_pairs(wm, wm.reader.pairs(prompts, responses), **settings)


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


def require_one(token_weights: Weigh | None) -> Weigh | None:
    """The weights of a test that has one direction, for any text: one function, or None."""
    if token_weights is not None and not callable(token_weights):
        expected = "token_weights: expected one function of token ids and their log p, or None"
        raise InvalidTextError(f"{expected}, got {shown(token_weights)}")
    return token_weights


def of_pairs(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    *,
    form: Callable[[Factors], Tensor | Factors] = Factors.matrix,
    token_weights: TokenWeights | None = None,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    failed: dict[int, GaussMarkError] | None = None,
    perturbed: bool = False,
) -> Iterator[TextGradient]:
    """:func:`gradients` of checked texts (``tokens.Reader.pairs``), by their numbers.

    Args:
        form: what to make of the terms of G.
        failed: gets the error of each text whose G has no direction, which is then left out.
        perturbed: the model may be a watermarked one, only to show what then goes wrong.
    """
    dtype = arithmetic.arithmetic(wm.model, dtype)
    weighings = [None] if token_weights is None else _checked(token_weights, pairs)
    if lengths is not None:
        lengths = require_list(lengths, "lengths: expected whole numbers ≥ 1", least=1)
        lengths = sorted({require_int(n, "lengths") for n in lengths})
    sizes = {text: len(x) + len(y) for text, (x, y) in pairs.items()}
    for batch in blocks.batches(wm.reader.vocabulary, sizes, batch_size):
        if not perturbed:  # for each batch: the caller may have marked it between two yields
            perturb.refuse_perturbed(wm.model)
        of_batch = {text: pairs[text] for text in batch}
        with arithmetic.computing_in(wm.model, dtype), arithmetic.frozen(wm.model):
            passes = _passes(wm, of_batch, lengths, weighings)
        for gradient in _of_passes(wm, of_batch, passes, form):
            if failed is None or _has_direction(gradient, failed):
                yield gradient


class _Passes(NamedTuple):
    """What the passes of a batch leave. The logits are not among it, which take most memory."""

    inputs: list[tuple[int, Tensor]]  # of each call of a layer: which one, and its a
    directions: list[tuple[int, list[Tensor]]]  # the end of the texts, and the g of each call
    log_p: list[Float[np.ndarray, " n"]]  # of each text's tokens, nats


def _passes(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    lengths: Sequence[int] | None,
    weighings: Sequence[Weigh | FixedWeights | None],
) -> _Passes:
    """One forward pass, and one backward pass for each length and each weighing. A longer beginning
    of a text is the shorter one and what its further tokens add.
    """
    with hooks.traced(wm.model, wm.linears) as calls:
        logits, targets, number = likelihood.predictions(wm.model, [*pairs.values()])
    logits.requires_grad_()  # also if they depend on no marked layer: then G is 0
    p = arithmetic.log_softmax_(arithmetic.wide(logits.detach()))
    log_p = p.gather(-1, targets[..., None])[..., 0]
    p.exp_()
    rows = zip(log_p.double().cpu().numpy(), number.cpu().numpy() > 0, strict=True)
    log_p_of_texts = [row[is_token] for row, is_token in rows]

    outputs = [call.y for call in calls]
    ends = lengths or [None]
    n_left = len(ends) * len(weighings)
    # of each weighing, what the shorter beginnings have
    shorter_weights = [torch.zeros_like(log_p) for _ in weighings]
    shorter_slopes = [[0.0 for _ in outputs] for _ in weighings]
    directions = []
    for end in ends:
        for i, weigh in enumerate(weighings):
            is_scored = number > 0 if end is None else (number > 0) & (number <= end)
            weights = is_scored.to(log_p)
            if weigh is not None:
                w = _weights(weigh, pairs, log_p_of_texts, end)
                weights[is_scored] = torch.from_numpy(w).to(log_p)
            added = (weights - shorter_weights[i])[..., None]
            n_left -= 1
            slope = (p.clone() if n_left else p).mul_(-added)
            slope.scatter_add_(-1, targets[..., None], added)  # w_t (onehot(y_t) − p_t)
            gs = torch.autograd.grad(
                logits, outputs, slope.to(logits), retain_graph=n_left > 0, materialize_grads=True
            )
            before = shorter_slopes[i]
            slopes = [g_before + arithmetic.wide(g) for g_before, g in zip(before, gs, strict=True)]
            directions.append((end, slopes))
            shorter_weights[i] = weights
            shorter_slopes[i] = slopes
    return _Passes([(call.layer, call.a) for call in calls], directions, log_p_of_texts)


def _weights(
    weigh: Weigh | FixedWeights,
    pairs: Mapping[int, Pair],
    log_p: Sequence[Float[np.ndarray, " _"]],
    end: int | None,
) -> Float[np.ndarray, " scored"]:
    """w_t of each token of the texts' beginnings, one text after the other."""
    weights = []
    for row, (text, (_, y)) in enumerate(pairs.items()):
        ids = y[:end]
        w = weigh(ids, log_p[row][:end]) if callable(weigh) else weigh[text][:end]
        if np.shape(w) != (len(ids),):
            expected = f"token_weights: expected {len(ids)} numbers for response {text}"
            raise InvalidTextError(f"{expected}, got {shown(w)}")
        weights.append(np.array(w, float))
    return np.concatenate(weights)


def _of_passes(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    passes: _Passes,
    form: Callable[[Factors], Tensor | Factors],
) -> Iterator[TextGradient]:
    """The gradients of each text, in the order of the passes."""
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    for row, (text, (x, y)) in enumerate(pairs.items()):
        for end, slopes in passes.directions:
            if end is not None and end > len(y):
                break
            n_tokens = len(y[:end])
            terms = of_text(passes.inputs, slopes, row, len(x) + n_tokens, len(scales))
            bound = sum(scale * G.bound() for scale, G in zip(scales, terms, strict=True))
            parts = [form(G) for G in terms]
            if wm.rank_dropped:
                parts = [
                    G.projected(P) if isinstance(G, Factors) else P(G)
                    for G, P in zip(parts, wm.projectors, strict=True)
                ]
            log_lik = passes.log_p[row][:n_tokens].sum().item()
            yield TextGradient(text, parts, scales, bound, log_lik, n_tokens)


def _has_direction(gradient: TextGradient, failed: dict[int, GaussMarkError]) -> bool:
    """Whether G is not zero; if it is, ``failed`` gets the error."""
    try:
        return gradient.norm > 0
    except DegenerateScoreError as error:
        failed[gradient.text] = error
        return False


def _checked(
    token_weights: TokenWeights, pairs: Mapping[int, Pair]
) -> list[Weigh | FixedWeights | None]:
    """The weighings of one forward pass; InvalidTextError for numbers that do not fit the texts."""
    if callable(token_weights):
        return [token_weights]
    expected = "token_weights: expected a list per response"
    weights = require_list(token_weights, f"{expected}, or functions", least=1)
    if all(weigh is None or callable(weigh) for weigh in weights):
        return weights
    require_list(weights, expected, least=max(pairs, default=-1) + 1)
    for text, (_, y) in pairs.items():
        n = np.size(weights[text])
        if n != len(y):
            raise InvalidTextError(f"{expected}, {len(y)} numbers for response {text}, got {n}")
    return [weights]
