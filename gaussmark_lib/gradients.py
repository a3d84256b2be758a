"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of a test that does not depend on the key.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ,
or with token weights Σ_t w_t log p_θ(y_t | x, y_<t). A hook keeps a_s and makes the layer's output
the start of the graph; one backward pass down to it gives g_s for all texts of a batch. No layer
below is differentiated, and no other weight's gradient is formed. Several weights, and several
lengths of one text, share a forward pass.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, perturb, tokens
from gaussmark_lib.engine import arithmetic, blocks, hooks
from gaussmark_lib.engine.terms import Factors, norm
from gaussmark_lib.errors import (
    DegenerateScoreError,
    GaussMarkError,
    InvalidTextError,
    is_int,
    shown,
)
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import Watermark, Weight, checked

ROUNDING = 64  # in units of ε: what is left of terms that cancel exactly


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

    @cached_property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight; of several √Σ(σ_s/σ_1)²‖G_s‖²: σ_1 times it
        predicts ψ.
        """
        return math.hypot(*(c * norm(G) for c, G in zip(self.scales, self.parts, strict=True)))

    @property
    def facts(self) -> dict:
        """What a table says of the text."""
        facts = {"text": self.text, "log_lik": self.log_lik, "n_tokens": self.n_tokens}
        return facts | {"grad_norm": self.norm}

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


def usable(
    gradients: Iterable[TextGradient], failed: dict[int, GaussMarkError] | None
) -> Iterator[TextGradient]:
    """Those with a direction; the error of another goes to ``failed``, or is raised."""
    for gradient in gradients:
        try:
            gradient.check()
        except DegenerateScoreError as error:
            if failed is None:
                raise
            failed[gradient.text] = error
        else:
            yield gradient


def norms(
    model: PreTrainedModel, prompts: Texts, responses: Texts, weights: Sequence[str], **settings
) -> pd.DataFrame:
    """‖G‖, which predicts power, of each text for each of several weights (full names), from one
    pass; settings as :func:`gradients`.

    Returns:
        One row per text × length × weight: ``text, weight, n_tokens, grad_norm`` (nats per unit of
        weight), ``log_lik`` (nats, sum over tokens).
    """
    wm = Watermark(tokens.listed(weights, "weights: expected names"), 1.0)
    rows = [
        (gradient.text, name, gradient.n_tokens, norm(G), gradient.log_lik)
        for gradient in gradients(model, prompts, responses, wm, form=lambda G: G, **settings)
        for name, G in zip(wm.weights, gradient.parts, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["text", "weight", "n_tokens", "grad_norm", "log_lik"])
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def of_pairs(
    model: PreTrainedModel,
    pairs: Mapping[int, Pair],
    wm: Watermark,
    *,
    form: Callable[[Factors], Tensor | Factors] = Factors.matrix,
    token_weights: Sequence[Sequence[float]] | None = None,
    lengths: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    perturbed: bool = False,
) -> Iterator[TextGradient]:
    """:func:`gradients` of texts that are checked already (``tokens.checked_pairs``), by their
    numbers.

    Args:
        form: what to make of the terms of G.
        perturbed: the model may be a watermarked one: only to show what then goes wrong, since ψ is
            N(0, 1) at the base θ alone.
    """
    wm, dtype = checked(wm).on(model), arithmetic.arithmetic(model, dtype)
    lengths = _checked(lengths, token_weights, pairs)
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    sizes = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    for batch in blocks.batches(model, sizes, batch_size):
        if not perturbed:  # for each batch: the caller may have marked it between two yields
            perturb.refuse_perturbed(model)
        w = token_weights and [token_weights[i] for i in batch]
        several = {i: pairs[i] for i in batch}
        for text, n, log_lik, terms in _of_batch(model, wm.linears, several, w, lengths, dtype):
            bound = sum(c * G.bound() for c, G in zip(scales, terms, strict=True))
            parts = [form(G) for G in terms]
            if wm.rank_dropped:
                parts = [
                    G.projected(P) if isinstance(G, Factors) else P(G)
                    for G, P in zip(parts, wm.projectors, strict=True)
                ]
            yield TextGradient(text, parts, scales, bound, log_lik, n)


def _checked(
    lengths: Sequence[int] | None,
    token_weights: Sequence[Sequence[float]] | None,
    pairs: Mapping[int, Pair],
) -> list[int] | None:
    """The lengths in order; InvalidTextError where they or the token weights do not fit."""
    if token_weights is not None:
        weights = tokens.listed(token_weights, "token_weights: expected a list per response")
        for i, (_, y) in pairs.items():
            if len(weights[i]) != len(y):
                raise InvalidTextError(
                    f"token_weights: expected {len(y)} for response {i}, got {len(weights[i])}"
                )
    if lengths is None:
        return None
    lengths = tokens.listed(lengths, expected := "lengths: expected whole numbers ≥ 1")
    if not lengths or not all(is_int(n) and n >= 1 for n in lengths):
        raise InvalidTextError(f"{expected}, got {shown(lengths)}")
    return sorted(set(lengths))


def _of_batch(
    model: PreTrainedModel,
    linears: Sequence[Weight],
    pairs: Mapping[int, Pair],
    token_weights: Sequence[Sequence[float]] | None,
    lengths: Sequence[int] | None,
    dtype: torch.dtype,
) -> Iterator[tuple[int, int, float, list[Factors]]]:
    """(text, tokens, log-likelihood, G of each weight by its terms) of each text, or of each of its
    prefixes: one forward pass, and one backward pass per length.
    """
    shape = len(pairs), max(len(x) + len(y) for x, y in pairs.values())
    ends = lengths or [max(len(y) for _, y in pairs.values())]
    with arithmetic.computing_in(model, dtype), arithmetic.frozen(model):
        with hooks.traced(linears, shape) as calls:
            log_p, number = likelihood.token_log_p(model, list(pairs.values()))  # (texts, n)
        used = {call.layer for call in calls} if log_p.requires_grad else set()
        if unused := [linear.name for i, linear in enumerate(linears) if i not in used]:
            raise DegenerateScoreError(
                f"expected texts that depend on {unused[0]}, which was not used; choose another"
                " weight, and no compiled model"
            )
        weighted = log_p * _in_place(token_weights, number) if token_weights else log_p
        parts = [(number > start) & (number <= end) for start, end in pairwise([0, *ends])]
        ys, slopes = [call.y for call in calls], []
        for part in parts:
            total, last = (weighted * part).sum(), part is parts[-1]
            gs = torch.autograd.grad(total, ys, retain_graph=not last, materialize_grads=True)
            slopes.append([g.to(torch.promote_types(g.dtype, torch.float32)) for g in gs])
    for shorter, longer in pairwise(slopes):
        for slope, total in zip(shorter, longer, strict=True):
            total += slope
    log_liks = [(log_p.detach().double() * part).sum(-1) for part in parts]
    log_liks = torch.stack(log_liks).cumsum(0).tolist()  # (lengths, texts)
    del ys
    calls = [(call.layer, call.a) for call in calls]  # without y, which holds the graph
    for row, (text, (x, y)) in enumerate(pairs.items()):
        for end, g, log_lik in zip(ends, slopes, log_liks, strict=True):
            if lengths and end > len(y):
                break
            n = len(x) + min(end, len(y))
            terms: list[list] = [[] for _ in linears]
            for (layer, a), g_of_call in zip(calls, g, strict=True):
                terms[layer].append((g_of_call[row, :n], a[row, :n]))
            joined = [Factors(*map(torch.cat, zip(*its, strict=True))) for its in terms]
            yield text, min(end, len(y)), log_lik[row], joined


def _in_place(
    token_weights: Sequence[Sequence[float]], number: Int[Tensor, "texts n"]
) -> Float[Tensor, "texts n"]:
    """w_t where token t is predicted, 0 elsewhere."""
    w = torch.zeros_like(number, dtype=torch.float64)
    for row, is_token, values in zip(w, number > 0, token_weights, strict=True):
        row[is_token] = torch.as_tensor(values, dtype=w.dtype, device=w.device)
    return w
