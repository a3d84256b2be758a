"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of its test that does not depend on the
key.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ,
or with token weights Σ_t w_t log p_θ(y_t | x, y_<t). A hook keeps a_s and makes the layer's output
the start of the graph; one backward pass down to it gives g_s for all texts of a batch. No layer
below is differentiated, and no other weight's gradient is formed. Several weights, and several
lengths of one text, share a forward pass.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, models, perturb, tokens
from gaussmark_lib.engine.terms import Factors, frobenius
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError, is_int, shown
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import Watermark, Weight, checked

ROUNDING = 64  # in units of ε: what is left of terms that cancel exactly


Form = Callable[[Factors], Tensor | Factors]


@dataclass(frozen=True, eq=False)
class TextGradient:
    """One text's gradient, and ``log_lik`` = log p_θ(y | x) in nats, summed over its ``n_tokens``.

    Args:
        parts: G (or PG) of each weight, as a matrix or by its terms.
        scales: σ of each weight over the first one's.
        bound: Σ_s ‖g_s‖‖a_s‖ over all weights, scaled alike.
    """

    text: int
    parts: list[Tensor | Factors]  # each (d_out, d_in)
    scales: list[float]
    bound: float
    log_lik: float
    n_tokens: int

    @property
    def G(self) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
        """The gradient of the one weight, or of each weight."""
        matrices = [G.matrix() if isinstance(G, Factors) else G for G in self.parts]
        return matrices[0] if len(matrices) == 1 else matrices

    @property
    def given(self):
        return self.parts[0]

    @cached_property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight; of several √Σ(σ_s/σ_1)²‖G_s‖²: σ_1 times it
        predicts ψ.
        """
        norms = [G.norm() if isinstance(G, Factors) else frobenius(G) for G in self.parts]
        return math.hypot(*(c * norm for c, norm in zip(self.scales, norms, strict=True)))

    def unit(self) -> Float[Tensor, " d"]:
        """u = (σ_1 G_1, σ_2 G_2, …)/‖·‖ in row order: ψ = ⟨z, u⟩. DegenerateScoreError without a
        direction.
        """
        self.check()
        matrices = self.G if isinstance(self.G, list) else [self.G]
        scaled = [c * G.flatten() for c, G in zip(self.scales, matrices, strict=True)]
        return torch.cat(scaled) / self.norm

    def check(self) -> None:
        """DegenerateScoreError if G is not finite, or zero but for rounding."""
        eps = torch.finfo(torch.float32).eps
        finite = math.isfinite(self.norm) and math.isfinite(self.log_lik)
        if not finite or self.norm <= ROUNDING * eps * self.bound:
            raise DegenerateScoreError(
                f"text {self.text}: expected a finite, non-zero gradient, got ‖G‖ = {self.norm} and"
                f" log-likelihood {self.log_lik}; a weight that the text does not depend on (such"
                " as an expert that none of its tokens is routed to), or an overflow in this dtype"
                " (try float32)"
            )


def gradients(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, **settings
) -> Iterator[TextGradient]:
    """G (or PG where rank_dropped > 0) of each text, one at a time, shortest first.

    Args:
        settings: ``token_weights, lengths, dtype, batch_size``, with the meaning and the defaults
            that they have for ``score.score``.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, UnknownWeightError: as
            ``score.score``.
    """
    perturb.refuse_perturbed(model)
    return of_pairs(model, tokens.checked_pairs(model, prompts, responses), wm, **settings)


def of_pairs(
    model: PreTrainedModel,
    pairs: Mapping[int, Pair],
    wm: Watermark,
    *,
    form: Form = Factors.matrix,
    **settings,
) -> Iterator[TextGradient]:
    """:func:`gradients` of texts that are checked already (``tokens.checked_pairs``), by their
    numbers; ``form`` says what to make of the terms of G.

    With ``perturbed=True`` the model may be a watermarked one: only to show what then goes wrong,
    since ψ is N(0, 1) at the base θ alone.
    """
    wm = checked(wm).on(model)
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    for prefix in prefixes(model, pairs, wm.linears, **settings):
        bound = sum(c * G.bound() for c, G in zip(scales, prefix.terms, strict=True))
        parts = [form(terms) for terms in prefix.terms]
        if wm.rank_dropped:
            parts = [
                G.projected(P) if isinstance(G, Factors) else P(G)
                for G, P in zip(parts, wm.projectors, strict=True)
            ]
        yield TextGradient(prefix.text, parts, scales, bound, prefix.log_lik, prefix.n_tokens)


def norms(
    model: PreTrainedModel, prompts: Texts, responses: Texts, weights: Sequence[str], **settings
) -> pd.DataFrame:
    """‖G‖, which predicts power, of each text for each of several weights (full names), from one
    pass; settings as :func:`gradients`.

    Returns:
        One row per text × length × weight: ``text, weight, n_tokens, grad_norm`` (nats per unit of
        weight), ``log_lik`` (nats, sum over tokens).
    """
    linears = [Weight(model, name) for name in tokens.listed(weights, "weights: expected names")]
    pairs = tokens.checked_pairs(model, prompts, responses)
    rows = [
        (prefix.text, linear.name, prefix.n_tokens, terms.norm(), prefix.log_lik)
        for prefix in prefixes(model, pairs, linears, **settings)
        for linear, terms in zip(linears, prefix.terms, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["text", "weight", "n_tokens", "grad_norm", "log_lik"])
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


class Prefix(NamedTuple):
    """The first ``n_tokens`` of one text: their log-likelihood, and the terms of G per weight."""

    text: int
    n_tokens: int
    log_lik: float
    terms: list[Factors]


def prefixes(
    model: PreTrainedModel,
    pairs: Mapping[int, Pair],
    linears: Sequence[Weight],
    *,
    token_weights: Sequence[Sequence[float]] | None = None,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    perturbed: bool = False,
) -> Iterator[Prefix]:
    """Each text, or each wanted prefix of it, shortest texts first: one forward pass per batch and
    one backward pass per length.
    """
    if lengths is not None:
        lengths = tokens.listed(lengths, expected := "lengths: expected whole numbers ≥ 1")
        if not lengths or not all(is_int(n) and n >= 1 for n in lengths):
            raise InvalidTextError(f"{expected}, got {shown(lengths)}")
        lengths = sorted(set(lengths))
    if token_weights is not None:
        token_weights = tokens.listed(token_weights, "token_weights: expected a list per response")
        for i, (_, y) in pairs.items():
            if len(token_weights[i]) != len(y):
                raise InvalidTextError(
                    f"token_weights: expected {len(y)} for response {i}, got"
                    f" {len(token_weights[i])}"
                )
    dtype = models.arithmetic(model, dtype)
    sizes = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    for batch in likelihood.batches(model, sizes, batch_size):
        if not perturbed:  # for each batch: the caller may have marked it between two yields
            perturb.refuse_perturbed(model)
        weights = token_weights and [token_weights[i] for i in batch]
        with models.computing_in(model, dtype), likelihood.frozen(model):
            of_batch = _batch(model, linears, [pairs[i] for i in batch], weights, lengths)
        for prefix in of_batch:
            yield prefix._replace(text=batch[prefix.text])


def _batch(
    model: PreTrainedModel,
    linears: Sequence[Weight],
    pairs: Sequence[Pair],
    token_weights: Sequence[Sequence[float]] | None,
    lengths: Sequence[int] | None,
) -> Iterator[Prefix]:
    """The prefixes of one batch, numbered within it."""
    with traced(linears, (len(pairs), max(len(x) + len(y) for x, y in pairs))) as calls:
        log_p, number = likelihood.token_log_p(model, pairs)  # (texts, n)
    used = {call.layer for call in calls} if log_p.requires_grad else set()
    if unused := [linear.name for i, linear in enumerate(linears) if i not in used]:
        raise DegenerateScoreError(
            f"expected texts that depend on {unused[0]}, which was not used; choose another weight,"
            " and no compiled model"
        )
    weighted = log_p
    if token_weights is not None:
        w = torch.zeros_like(log_p)
        for row, is_token, values in zip(w, number > 0, token_weights, strict=True):
            row[is_token] = torch.as_tensor(values, dtype=w.dtype, device=w.device)
        weighted = log_p * w
    ends = lengths or [max(len(y) for _, y in pairs)]
    parts = [(number > start) & (number <= end) for start, end in pairwise([0, *ends])]
    slopes = [  # g of each call, for the tokens of each part
        torch.autograd.grad(
            (weighted * part).sum(),
            [call.y for call in calls],
            retain_graph=part is not parts[-1],
            materialize_grads=True,
        )
        for part in parts
    ]
    log_liks = torch.stack([(log_p.detach().double() * part).sum(-1) for part in parts]).cumsum(0)
    inputs = [(call.layer, call.a) for call in calls]  # without y, which holds the graph
    return _formed(inputs, slopes, log_liks.tolist(), pairs, lengths)


def _formed(
    inputs: Sequence[tuple[int, Tensor]],
    slopes: Sequence[Sequence[Tensor]],
    log_liks: list[list[float]],
    pairs: Sequence[Pair],
    lengths: Sequence[int] | None,
) -> Iterator[Prefix]:
    """The terms of each G when it is asked for; a longer prefix adds to each g_s what its further
    tokens say.
    """
    n_layers = 1 + max(layer for layer, _ in inputs)
    for row, (x, y) in enumerate(pairs):
        g = [0.0] * len(inputs)
        for part, end in enumerate([n for n in lengths if n <= len(y)] if lengths else [len(y)]):
            wide = [torch.promote_types(slope.dtype, torch.float32) for slope in slopes[part]]
            g = [
                total + slope[row].to(dtype)
                for total, slope, dtype in zip(g, slopes[part], wide, strict=True)
            ]
            n, terms = len(x) + end, []
            for layer in range(n_layers):  # a layer may be used several times in a pass
                its = [i for i, (where, _) in enumerate(inputs) if where == layer]
                a = torch.cat([inputs[i][1][row, :n] for i in its])
                terms.append(Factors(torch.cat([g[i][:n] for i in its]), a))
            yield Prefix(row, end, log_liks[part][row], terms)


class Call(NamedTuple):
    """One use of a layer in a forward pass: its place in the list, its input and its output, where
    the graph begins.
    """

    layer: int
    a: Float[Tensor, "texts n d_in"]
    y: Float[Tensor, "texts n d_out"]


@contextmanager
def traced(linears: Sequence[Weight], shape: tuple[int, int]) -> Iterator[list[Call]]:
    """Inside the ``with``, each use of these layers in a pass over (texts, positions) is kept, in
    its order; their outputs require a gradient.
    """
    calls: list[Call] = []

    def keep(layer: int, _, inputs, output):
        a, y = (tokens.by_text(x, shape, linears[layer].name) for x in (inputs[0].detach(), output))
        if not y.requires_grad:
            y = y.detach().requires_grad_()
        calls.append(Call(layer, a, y))
        return y.view(output.shape).clone()  # which the model may write to, as Falcon does

    with ExitStack() as hooks:
        for layer, linear in enumerate(linears):
            hooks.enter_context(linear.hooked(partial(keep, layer)))
        yield calls


def __getattr__(name: str):  # of an earlier version, until its last users have changed
    if name.startswith("__"):
        raise AttributeError(name)
    from gaussmark_lib import _old

    return getattr(_old, name)
