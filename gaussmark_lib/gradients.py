"""G = ∇_θ log p_θ(y | x) of many texts at once: the part of its test that does not depend on the
key.

A linear layer computes y_s = W·a_s at each position s, so

    G = Σ_s g_s a_sᵀ,      g_s = ∂ log p_θ(y | x) / ∂y_s

with x the prompt, y the response, and log p_θ(y | x) the *sum* over response tokens, at the base θ.
A hook keeps a_s and makes the layer's output the start of the graph; one backward pass down to it
gives g_s for all texts of a batch. No layer below is differentiated, and no other weight's gradient
is formed. Several weights, and several lengths of one text, share a forward pass.

A G that is zero in exact arithmetic is 1e-9 on some processors, so it counts as zero where, with
u_s the output of the layer's attention or MLP,

    Σ_s ‖g_s‖‖y_s‖  ≤  64 ε Σ_s ‖∂ log p_θ(y | x)/∂u_s‖‖u_s‖

Both sums bound what relative changes, of y and of u, do to log p. Where G is none, the left one is
about ε times the right one (float32's ε, in which sums are formed, even for bfloat16); elsewhere it
is more than 1e-3 times the right one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import pairwise
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import checks, likelihood, models, perturb, rank_reduce, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError
from gaussmark_lib.rank_reduce import Factors
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import Watermark
from gaussmark_lib.weights import Linear

ROUNDING = 64  # ε: sums of a few hundred terms, and their square root
Form = Callable[[Factors], Tensor | Factors]


@dataclass(frozen=True, eq=False)
class TextGradient:
    """One text's gradient ``G`` for one weight, and ``log_lik`` = log p_θ(y | x) in nats, summed
    over its ``n_tokens``.

    ``given`` is G as it was given: itself, or its terms.
    """

    text: int
    given: Float[Tensor, "d_out d_in"] | Factors
    log_lik: float
    n_tokens: int

    @cached_property
    def G(self) -> Float[Tensor, "d_out d_in"]:
        return self.given.matrix() if isinstance(self.given, Factors) else self.given

    @cached_property
    def norm(self) -> float:
        """‖G‖ (Frobenius), nats per unit of weight."""
        return (
            self.given.norm() if isinstance(self.given, Factors) else rank_reduce.norm(self.given)
        )

    def unit(self) -> Float[Tensor, " d"]:
        """G/‖G‖ in row order, d = d_out·d_in: its inner product with ξ/σ is ψ. DegenerateScoreError
        if G is zero or not finite.
        """
        self.check()
        return self.G.flatten() / self.norm

    def check(self) -> None:
        """DegenerateScoreError if G is zero or not finite."""
        if not math.isfinite(self.norm) or not math.isfinite(self.log_lik) or self.norm == 0:
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
        settings: ``lengths, dtype, batch_size``, with the meaning and the defaults that they have
            for ``score.score``.

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
    wm = perturb.placed(model, wm)
    for prefix in _Reading(model, [wm.linear], **settings).prefixes(pairs):
        PG = wm.project(G := form(prefix.factors[0]))
        if is_rounding(
            torch.tensor([float(PG.norm()), float(G.norm())], dtype=G.dtype)
        ):  # nothing is left
            PG = torch.zeros(wm.linear.shape, dtype=G.dtype, device=wm.linear.parameter.device)
        yield TextGradient(prefix.text, PG, prefix.log_lik, prefix.n_tokens)


def norms(
    model: PreTrainedModel, prompts: Texts, responses: Texts, weights: Sequence[str], **settings
) -> pd.DataFrame:
    """‖G‖, which predicts power, of each text for each of several weights (full names), from one
    pass; settings as :func:`gradients`.

    Returns:
        One row per text × length × weight: ``text, weight, n_tokens, grad_norm`` (nats per unit of
        weight), ``log_lik`` (nats, sum over tokens).
    """
    names = tokens.listed(weights, "weights: expected a list of weights' names") or [
        ""
    ]  # of none, an error that lists some
    linears = [models.linear(model, name) for name in names]
    rows = [
        {
            "text": prefix.text,
            "weight": linear.name,
            "n_tokens": prefix.n_tokens,
            "grad_norm": G.norm(),
            "log_lik": prefix.log_lik,
        }
        for prefix in _Reading(model, linears, **settings).prefixes(
            tokens.checked_pairs(model, prompts, responses)
        )
        for linear, G in zip(linears, prefix.factors, strict=True)
    ]
    return pd.DataFrame(rows).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


class Call(NamedTuple):
    """One use of a layer in a forward pass: its place in the list, input a, output y, where the
    graph begins, and its block's output u.
    """

    layer: int
    a: Float[Tensor, "texts n d_in"]
    y: Float[Tensor, "texts n d_out"]
    u: Tensor | None = None


@contextmanager
def traced(linears: Sequence[Linear], shape: tuple[int, int]) -> Iterator[list[Call]]:
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

    def keep_block(layer: int, _, inputs, output):
        u = output[0] if isinstance(output, tuple) else output
        last = max((i for i, call in enumerate(calls) if call.layer == layer), default=None)
        if last is not None and isinstance(u, Tensor) and u.requires_grad:
            rows = (
                u.unflatten(0, shape) if u is output and u.shape[:-1] == (math.prod(shape),) else u
            )
            if rows.shape[:-1] == calls[last].y.shape[:-1]:
                calls[last] = calls[last]._replace(u=rows)
            output = output if rows is u else rows.flatten(0, 1)
        return output

    with ExitStack() as hooks:
        for layer, linear in enumerate(linears):
            hooks.enter_context(linear.hooked(partial(keep, layer), partial(keep_block, layer)))
        yield calls


class Slope(NamedTuple):
    """What a backward pass finds of one call: g, and at each position ‖g_s‖‖y_s‖ and ‖∂ log
    p/∂u_s‖‖u_s‖.
    """

    g: Float[Tensor, "texts n d_out"]
    felt: Float[Tensor, "2 texts n"]


def backward(log_p: Tensor, calls: Sequence[Call], *, retain_graph: bool = False) -> list[Slope]:
    """The slope of Σ log p for each call."""
    outputs = [call.y for call in calls] + [call.y if call.u is None else call.u for call in calls]
    found = torch.autograd.grad(
        log_p, outputs, torch.ones_like(log_p), retain_graph=retain_graph, materialize_grads=True
    )
    wide, n = (
        reduce(torch.promote_types, [output.dtype for output in outputs], log_p.dtype),
        len(calls),
    )  # some models round float64 to log p's
    norm = partial(torch.linalg.vector_norm, dim=-1, dtype=wide)
    felt = [
        (norm(slope) * norm(output.detach())).to(log_p.dtype)
        for slope, output in zip(found, outputs, strict=True)
    ]
    return [
        Slope(g, torch.stack(both)) for g, *both in zip(found[:n], felt[:n], felt[n:], strict=True)
    ]


def is_rounding(felt: Float[Tensor, "2 *rest"]) -> Bool[Tensor, "*rest"]:
    """Whether a slope is zero but for rounding, from its ``felt``, at one position or summed over
    several.
    """
    return torch.isfinite(felt[1]) & (felt[0] <= ROUNDING * torch.finfo(felt.dtype).eps * felt[1])


class _Prefix(
    NamedTuple
):  # the first ``n_tokens`` of one text: their log-likelihood, and G for each layer
    text: int
    n_tokens: int
    log_lik: float
    factors: list[Factors]


@dataclass(frozen=True)
class _Reading:
    """How texts are read: in batches of like length, with one forward pass per batch and one
    backward pass per length.
    """

    model: PreTrainedModel
    linears: Sequence[Linear]
    lengths: Sequence[int] | None = None
    dtype: str | torch.dtype | None = None
    batch_size: int = 8
    perturbed: bool = False

    def __post_init__(self):
        checks.whole(self.batch_size, "batch_size")
        if self.lengths is not None:
            lengths = tokens.listed(self.lengths, expected := "lengths: expected whole numbers ≥ 1")
            if not lengths or not all(checks.is_whole(n) and 1 <= n < 1 << 62 for n in lengths):
                raise InvalidTextError(f"{expected}, got {checks.shown(lengths)}")
            object.__setattr__(self, "lengths", lengths)  # an iterator would be read once

    def prefixes(self, pairs: Mapping[int, Pair]) -> Iterator[_Prefix]:
        """Each text, or each wanted prefix of it, shortest texts first."""
        dtype = models.arithmetic(self.model, self.dtype)
        order = sorted(pairs, key=lambda i: sum(map(len, pairs[i])))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            if not self.perturbed:
                perturb.refuse_perturbed(
                    self.model
                )  # for each batch: the caller may have watermarked the model between two yields
            with models.computing_in(self.model, dtype), likelihood.frozen(self.model):
                found = self._batch([pairs[i] for i in batch])
            for prefix in found:
                yield prefix._replace(text=batch[prefix.text])

    def _batch(self, pairs: Sequence[Pair]) -> Iterator[_Prefix]:
        """The prefixes of one batch, numbered within it; each G is formed when it is asked for, and
        does not depend on the batch.
        """
        with traced(self.linears, (len(pairs), max(len(x) + len(y) for x, y in pairs))) as calls:
            log_p, number = likelihood.token_log_p(self.model, pairs)
        used = {call.layer for call in calls} if log_p.requires_grad else set()
        if unused := [
            linear.name for layer, linear in enumerate(self.linears) if layer not in used
        ]:
            raise DegenerateScoreError(
                f"expected texts that depend on {unused[0]}, which was not used; choose another"
                " weight, and no compiled model"
            )
        ends = sorted(set(self.lengths or [max(len(y) for _, y in pairs)]))
        parts = [(number > start) & (number <= end) for start, end in pairwise([0, *ends])]
        slopes = [
            backward(log_p * part, calls, retain_graph=part is not parts[-1]) for part in parts
        ]
        log_liks = (
            torch.stack([(log_p.detach().double() * part).sum(-1) for part in parts])
            .cumsum(0)
            .tolist()
        )
        return self._formed(
            [call._replace(y=None, u=None) for call in calls], slopes, log_liks, pairs
        )  # the outputs hold the whole graph

    def _formed(
        self,
        inputs: Sequence[Call],
        slopes: Sequence[list[Slope]],
        log_liks: list[list[float]],
        pairs: Sequence[Pair],
    ) -> Iterator[_Prefix]:
        """The terms of G, or zeros where that is rounding; a longer prefix adds what its further
        tokens say to each g_s.
        """
        uses = [
            [i for i, call in enumerate(inputs) if call.layer == layer]
            for layer in range(len(self.linears))
        ]
        for row, (x, y) in enumerate(pairs):
            g, felt = [0.0] * len(inputs), [0.0] * len(inputs)
            for part, end in enumerate(
                end for end in sorted(set(self.lengths or [len(y)])) if end <= len(y)
            ):
                g = [
                    so_far + slope.g[row].to(slope.felt.dtype)
                    for so_far, slope in zip(g, slopes[part], strict=True)
                ]
                felt = [
                    so_far + slope.felt[:, row].sum(-1)
                    for so_far, slope in zip(felt, slopes[part], strict=True)
                ]
                factors, n = [], len(x) + end
                for its in uses:
                    slope, a = (
                        torch.cat([g[i][:n] for i in its]),
                        torch.cat([inputs[i].a[row, :n] for i in its]),
                    )
                    factors.append(
                        Factors(slope.masked_fill(is_rounding(sum(felt[i] for i in its)), 0.0), a)
                    )
                yield _Prefix(row, end, log_liks[part][row], factors)
