"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of a test that does not depend on the key.

A linear layer computes y_i = W·a_i at each position i, so

    G = Σ_i g_i a_iᵀ,      g_i = ∂ log p_θ(y | x) / ∂y_i

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ.
A hook keeps a_i and makes the layer's output the start of the graph. A single backward pass down to
it gives g_i for all texts of a batch. Layers below are not differentiated, and gradients of other
weights are not formed. Several weights, several lengths of a text, and several weighings of its
tokens share a forward pass.
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
from gaussmark_lib.rank_reduce import Projector
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

# token ids and their log p, nats → w_t, where G = Σ_t w_t ∇log p_t
Weigh = Callable[[Sequence[int], Float[np.ndarray, " n"]], ArrayLike]
FixedWeights = Sequence[Sequence[float]]  # the w_t of each response
TokenWeights = FixedWeights | Weigh | Sequence[Weigh | None]
Weighing = Weigh | FixedWeights | None  # of a single backward pass; None is w_t = 1
ROUNDING = 64  # in units of ε: what remains of terms that cancel exactly
COLUMNS = ["text", "weight", "n_tokens", "grad_norm", "log_lik"]  # of :func:`norms`


@dataclass(frozen=True, eq=False)
class TextGradient:
    """The gradient of a text, in one weight or several.

    Attributes:
        text: the number of the text in the call that it came from.
        parts: G of each weight (PG if rank_dropped > 0), as a matrix (d_out, d_in) or by its terms,
            in nats per unit of weight.
        scales: σ_s/σ_1 of each weight s; 1.0 for a single weight.
        bound: Σ_s (σ_s/σ_1) Σ_i ‖g_i‖‖a_i‖, over weights s and positions i. A norm below
            ``ROUNDING``·ε·bound counts as zero.
        log_lik: log p_θ(y | x), nats, the sum over its ``n_tokens`` tokens.
    """

    text: int
    parts: list[Tensor | Factors]
    scales: list[float]
    bound: float
    log_lik: float
    n_tokens: int

    @property
    def G(self) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
        """Return the gradient as a matrix; for several weights, a list of matrices."""
        matrices = self.matrices
        return matrices[0] if len(matrices) == 1 else matrices

    @property
    def matrices(self) -> list[Float[Tensor, "d_out d_in"]]:
        """Return the gradient in each weight, a list even for a single weight."""
        return [G.matrix() if isinstance(G, Factors) else G for G in self.parts]

    @cached_property
    def norm(self) -> float:
        """Return ‖G‖ (Frobenius), nats per unit of weight; for several √(Σ_s (σ_s/σ_1)²‖G_s‖²).

        In both cases σ_1 times the norm is the mean ψ that theory predicts for a marked text. Raise
        DegenerateScoreError if the norm is not finite, or zero except for rounding.

        >>> ones = torch.ones(2, 2)
        >>> of_two = TextGradient(0, [ones, ones], [1.0, 2.0], bound=6.0, log_lik=-9.0, n_tokens=5)
        >>> round(of_two.norm, 3)  # √(2² + 2²·2²)
        4.472
        """
        norms = [scale * norm(G) for scale, G in zip(self.scales, self.parts, strict=True)]
        size = math.hypot(*norms)
        # Rounding grows with the terms, not with their sum, which may be exactly zero.
        rounding_error = ROUNDING * torch.finfo(torch.float32).eps * self.bound
        if not rounding_error < size < math.inf or not math.isfinite(self.log_lik):
            raise DegenerateScoreError(
                f"text {self.text}: expected a finite, non-zero gradient, got ‖G‖ = {size} and"
                f" log-likelihood {self.log_lik}; choose a weight that the text depends on (an"
                " expert may see none of its tokens), or float32, where less overflows"
            )
        return size

    def unit(self) -> Float[Tensor, " d"]:
        """Return the direction u = (σ_1 G_1, σ_2 G_2, …)/‖·‖, in row order: (d,), length 1.

        With z = (ξ_1/σ_1, ξ_2/σ_2, …), ψ is ⟨z, u⟩.

        >>> ones = torch.ones(2, 2)
        >>> of_one = TextGradient(0, [ones], [1.0], bound=2.0, log_lik=-9.0, n_tokens=5)
        >>> of_one.unit()
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        """
        directions = [
            G.flatten() * (scale / self.norm)
            for scale, G in zip(self.scales, self.parts, strict=True)
        ]
        return torch.cat(directions)

    def cosine(self, other: "TextGradient") -> float:
        """Return ⟨u, v⟩ of the directions u and v (:meth:`unit`) of two texts, to 1e-6.

        The products are of the matrices or of their terms: u and v are never formed.
        """
        products = [
            scale**2 * inner(G, H)
            for scale, G, H in zip(self.scales, self.parts, other.parts, strict=True)
        ]
        return sum(products) / (self.norm * other.norm)


def gradients(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, **settings
) -> Iterator[TextGradient]:
    """Yield G (or PG if rank_dropped > 0) of each text, one at a time, shortest first.

    ``settings`` (``token_weights, lengths, dtype, batch_size``) and errors are those of
    :func:`score.score`.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> [gradient] = gradients(lm.model, [[]], [lm.encode("Return the mean.")], wm)
    >>> gradient.G.shape == wm.on(lm.model).linear.shape
    True
    """
    placed = PlacedWatermark(model, wm)
    perturb.refuse_perturbed(model)
    return of_pairs(placed, placed.reader.pairs(prompts, responses), **settings)


def norms(
    model: PreTrainedModel, prompts: Texts, responses: Texts, weights: Sequence[str], **settings
) -> pd.DataFrame:
    """Return ‖G‖ of each text for each of several weights (full names), from a single pass.

    ``settings`` are those of :func:`gradients`. There is one row per text × length × weight, with
    ``text, weight, n_tokens, grad_norm`` (of this weight alone, nats per unit of weight) and
    ``log_lik`` (nats, sum over tokens).

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> names = ["model.layers.0.mlp.up_proj.weight", "model.layers.5.mlp.down_proj.weight"]
    >>> table = norms(lm.model, [[]], [lm.encode("Return the mean.")], names)
    >>> table["weight"].tolist() == names
    True
    """
    wm = Watermark(require_list(weights, "weights: expected names"), 1.0)
    rows = []
    # ``form``: the terms suffice for a norm, and take less memory than the matrix.
    for gradient in gradients(model, prompts, responses, wm, form=lambda G: G, **settings):
        for name, G in zip(wm.weights, gradient.parts, strict=True):
            rows.append((gradient.text, name, gradient.n_tokens, norm(G), gradient.log_lik))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def require_one(token_weights: Weigh | None) -> Weigh | None:
    """Return the weights of a test that has a single direction: a function, or None.

    Raise InvalidTextError for anything else, such as a list of functions.

    >>> require_one(None) is None
    True
    """
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
    """Yield :func:`gradients` of checked texts (``tokens.Reader.pairs``), by their numbers.

    Settings that are not below are those of :func:`score.score`.

    Args:
        form: what to make of the terms of G; by default the matrix.
        failed: gets the error of each text whose G has no direction; the text is then left out.
        perturbed: whether the model may be watermarked; only to show what then goes wrong.
    """
    dtype = arithmetic.arithmetic(wm.model, dtype)
    weighings = [None] if token_weights is None else _checked_weights(token_weights, pairs)
    ends = [None] if lengths is None else _checked_lengths(lengths)
    sizes = {text: len(x) + len(y) for text, (x, y) in pairs.items()}
    for numbers in blocks.batches(wm.reader.vocabulary, sizes, batch_size):
        if not perturbed:  # for each batch: the caller may have marked the model between two yields
            perturb.refuse_perturbed(wm.model)
        batch = {text: pairs[text] for text in numbers}
        with arithmetic.computing_in(wm.model, dtype), arithmetic.frozen(wm.model):
            passes = _passes(wm, batch, ends, weighings)
        for gradient in _gradients_of_texts(wm, batch, passes, form):
            error = None if failed is None else _error(gradient)
            if error is None:
                yield gradient
            else:
                failed[gradient.text] = error


class _Backward(NamedTuple):
    """A backward pass from Σ_t w_t log p_t of each text, up to its end."""

    end: int | None  # the texts' length; None: each at its own end
    weights: Float[Tensor, "texts n"]  # w_t where token t is predicted, 0 elsewhere
    slopes: list[Tensor | float]  # g of each call of a layer, (texts, positions, d_out), or 0


class _Passes(NamedTuple):
    """What remains of the passes of a batch, without the logits, which take most memory."""

    inputs: list[tuple[int, Tensor]]  # of each call of a layer: the layer's number, and a
    backward: list[_Backward]
    log_p: list[Float[np.ndarray, " n"]]  # of each text's tokens, nats


def _passes(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    ends: Sequence[int | None],
    weighings: Sequence[Weighing],
) -> _Passes:
    """Run a forward pass, and a backward pass for each end and each weighing.

    Ends ascend. A backward pass differentiates only the tokens that were added since the previous
    end, and its slopes are added to the previous ones.
    """
    with hooks.traced(wm.model, wm.linears) as calls:
        logits, targets, number = likelihood.predictions(wm.model, list(pairs.values()))
    logits.requires_grad_()  # even if they depend on no marked layer: then G is 0
    p = arithmetic.log_softmax_(arithmetic.wide(logits.detach()))  # log p so far
    log_p = p.gather(-1, targets[..., None])[..., 0]  # (texts, n)
    p.exp_()  # in place: logits and p are the largest tensors of all
    rows = zip(log_p.double().cpu().numpy(), number.cpu().numpy() > 0, strict=True)
    log_p_of_texts = [row[is_token] for row, is_token in rows]

    n_passes = len(ends) * len(weighings)
    nothing = _Backward(end=0, weights=torch.zeros_like(log_p), slopes=[0.0 for _ in calls])
    previous = [nothing for _ in weighings]  # the last pass of each weighing
    backward = []
    for end in ends:
        is_scored = number > 0  # where a token of the texts' beginnings is predicted, (texts, n)
        if end is not None:
            is_scored &= number <= end
        for i, weighing in enumerate(weighings):
            weights = is_scored.to(log_p)
            if weighing is not None:
                w = _token_weights(weighing, pairs, log_p_of_texts, end)
                weights[is_scored] = torch.from_numpy(w).to(log_p)
            is_last = len(backward) == n_passes - 1
            slope = arithmetic.slope_(
                p=p if is_last else p.clone(),  # is overwritten
                targets=targets,
                weights=weights - previous[i].weights,
            )
            added = torch.autograd.grad(
                outputs=logits,
                inputs=[call.y for call in calls],
                grad_outputs=slope.to(logits),
                retain_graph=not is_last,
                materialize_grads=True,
            )
            slopes = [
                shorter + arithmetic.wide(g)
                for shorter, g in zip(previous[i].slopes, added, strict=True)
            ]
            previous[i] = _Backward(end, weights, slopes)
            backward.append(previous[i])
    inputs = [(call.layer, call.a) for call in calls]
    return _Passes(inputs, backward, log_p_of_texts)


def _token_weights(
    weighing: Weigh | FixedWeights,
    pairs: Mapping[int, Pair],
    log_p: Sequence[Float[np.ndarray, " _"]],
    end: int | None,
) -> Float[np.ndarray, " scored"]:
    """Return w_t of each token of the texts' beginnings, one text after the other."""
    weights = []
    for row, (text, (_, y)) in enumerate(pairs.items()):
        ids = y[:end]
        w = weighing(ids, log_p[row][:end]) if callable(weighing) else weighing[text][:end]
        if np.shape(w) != (len(ids),):
            expected = f"token_weights: expected {len(ids)} numbers for response {text}"
            raise InvalidTextError(f"{expected}, got {shown(w)}")
        weights.append(np.array(w, float))
    return np.concatenate(weights)


def _gradients_of_texts(
    wm: PlacedWatermark,
    pairs: Mapping[int, Pair],
    passes: _Passes,
    form: Callable[[Factors], Tensor | Factors],
) -> Iterator[TextGradient]:
    """Yield the gradients of each text, in the order of the passes."""
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    for row, (text, (x, y)) in enumerate(pairs.items()):
        for end, _, slopes in passes.backward:
            if end is not None and end > len(y):
                break  # the text has no such length, and no later one
            n_tokens = len(y[:end])
            terms = of_text(passes.inputs, slopes, row, len(x) + n_tokens, len(scales))
            bounds = [scale * G.bound() for scale, G in zip(scales, terms, strict=True)]
            parts = [form(G) for G in terms]
            if wm.rank_dropped:
                parts = [_projected(G, P) for G, P in zip(parts, wm.projectors, strict=True)]
            yield TextGradient(
                text=text,
                parts=parts,
                scales=scales,
                bound=sum(bounds),
                log_lik=passes.log_p[row][:n_tokens].sum().item(),
                n_tokens=n_tokens,
            )


def _projected(G: Tensor | Factors, P: Projector) -> Tensor | Factors:
    return G.projected(P) if isinstance(G, Factors) else P(G)


def _error(gradient: TextGradient) -> DegenerateScoreError | None:
    """Return the error of a gradient that is zero or not finite, and None for any other."""
    try:
        _ = gradient.norm  # raises the error
    except DegenerateScoreError as error:
        return error
    return None


def _checked_lengths(lengths: Sequence[int]) -> list[int]:
    """Return the lengths, ascending, each of them once."""
    lengths = require_list(lengths, "lengths: expected whole numbers ≥ 1", least=1)
    return sorted({require_int(n, "lengths") for n in lengths})


def _checked_weights(token_weights: TokenWeights, pairs: Mapping[int, Pair]) -> list[Weighing]:
    """Return the weighings of a forward pass.

    Raise InvalidTextError for numbers that do not fit the texts.
    """
    if callable(token_weights):
        return [token_weights]
    expected = "token_weights: expected a list per response"
    weights = require_list(token_weights, f"{expected}, or functions", least=1)
    if all(weighing is None or callable(weighing) for weighing in weights):
        return weights
    require_list(weights, expected, least=max(pairs, default=-1) + 1)
    for text, (_, y) in pairs.items():
        n = np.size(weights[text])
        if n != len(y):
            raise InvalidTextError(f"{expected}, {len(y)} numbers for response {text}, got {n}")
    return [weights]
