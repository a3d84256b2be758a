"""What a watermark costs a language model, in nats: how far the model that writes, q, is from p_θ
on the texts that it writes.

    KL(q ‖ p_θ)  =  E_{y ~ q} Σ_t KL(q(· | x, y_<t) ‖ p_θ(· | x, y_<t))

by the chain rule; q is p_{θ+ξ}, or what a scheme makes of p_θ while it samples. The texts y are
samples. The sum over the next token is exact, so its noise is far below that of
log q(y) − log p_θ(y).

A second cost is what readers could notice: over keys, watermarked text has another mean surprisal
h = −(1/T) log p_θ(y | x) than plain text. The *equivalent temperature* gives this cost in a unit
that users know. It is the temperature τ at which plain text has the same mean surprisal.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate, perturb, stats, tokens
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.arithmetic import evaluating, wide
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.tokens import Pair, Texts


@torch.no_grad()
def per_text(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    *,
    marks: Sequence[generate.Mark] | None = None,
    processor: Callable[[slice], generate.Processor] | None = None,
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """Return Σ_t KL(q_t ‖ p_t) over the response's positions, nats per text: float64, (texts,).

    Its mean over y ~ q is the price of the watermark. q is what writes, p the base model. Give
    either ``marks`` or a ``processor``, with the meaning that they have for ``generate.sample``:
    they make q of p.

    Raise PerturbedModelError for a watermarked model, and InvalidTextError as for a score, or for
    both ``marks`` and a ``processor``.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = perturb.Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> marks = [(wm, perturb.Key.from_seed(1))]
    >>> [nats] = per_text(lm.model, [[]], [lm.encode("Return the mean.")], marks=marks)
    >>> bool(nats > 0)
    True
    """
    if marks is not None and processor is not None:
        raise InvalidTextError("expected marks or a processor, got both")
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    nats = []
    for rows, under_marks in generate.in_batches(model, len(pairs), batch_size, marks):
        inputs, is_token = laid_out(model, pairs[rows])
        n_tokens = is_token.shape[1]  # of the longest response
        p = logits(model, inputs, n_tokens)
        q = p
        if marks is not None:
            with under_marks:
                q = logits(model, inputs, n_tokens)
        if processor:
            q = _processed(processor(rows), inputs["input_ids"], p)
        nats += summed(q, p, is_token)
    return np.array(nats)


def _processed(
    process: generate.Processor,
    ids: Tensor,
    logits: Float[Tensor, "texts n_tokens vocabulary"],
) -> Float[Tensor, "texts n_tokens vocabulary"]:
    """Return what a processor makes of the logits at each step, given the ids before that step."""
    n_tokens = logits.shape[1]
    start = ids.shape[1] - n_tokens  # where the responses begin
    steps = [process(ids[:, : start + t], logits[:, t]) for t in range(n_tokens)]
    return torch.stack(steps, dim=1)


def laid_out(model: PreTrainedModel, pairs: Sequence[Pair]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model's inputs for a batch, and the mask of response tokens.

    Prompts are padded on the left and responses on the right, so that all responses begin at the
    same position. The mask is (texts, longest response), 1 for a token and 0 for padding.
    """
    prompts, responses = zip(*pairs, strict=True)
    x, is_prompt = blocks.padded(prompts, "left", model.device)
    y, is_token = blocks.padded(responses, "right", model.device)
    mask = torch.cat([is_prompt, is_token], dim=1)
    inputs = {
        "input_ids": torch.cat([x, y], dim=1),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp_min(0),  # padding does not count
    }
    return inputs, is_token


def logits(
    model: PreTrainedModel, inputs: dict[str, Tensor], n_tokens: int
) -> Float[Tensor, "texts n_tokens vocabulary"]:
    """Return the logits that predict each of the last ``n_tokens`` tokens."""
    with evaluating(model):
        output = model(**inputs, use_cache=False)
    return output.logits[:, -n_tokens - 1 : -1]  # position t predicts token t + 1


def summed(q: Tensor, p: Tensor, is_token: Tensor) -> list[float]:
    """Return Σ_t KL(q_t ‖ p_t) of each text, from logits (texts, n_tokens, vocabulary).

    A token that q excludes adds nothing.

    >>> q = torch.tensor([[[0.0, -torch.inf]]])  # certain of token 0
    >>> p = torch.tensor([[[0.0, 0.0]]])  # a fair coin
    >>> [nats] = summed(q, p, is_token=torch.tensor([[1]]))
    >>> round(nats, 4)  # log 2
    0.6931
    """
    log_q = wide(q).log_softmax(-1)
    log_p = wide(p).log_softmax(-1)
    terms = log_q.exp() * (log_q - log_p)
    terms = terms.masked_fill(log_q == -torch.inf, 0.0)  # 0·log 0 = 0, where torch has NaN
    per_token = terms.sum(-1).double()  # (texts, n_tokens)
    return (per_token.to(is_token.device) * is_token).sum(-1).tolist()


class Surprisal(NamedTuple):
    """−log p_θ of each token of some texts, with its mean (the entropy) and its variance over the
    tokens that could have stood there: nats, float64, (texts, n_tokens).
    """

    value: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


@torch.no_grad()
def surprisal(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 4
) -> Surprisal:
    """Return the surprisal of each token. Raise InvalidTextError if lengths differ.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> found = surprisal(lm.model, [[]], [lm.encode("Return the mean.")])
    >>> bool((found.value > 0).all() and (found.variance > 0).all())
    True
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    lengths = {len(response) for _, response in pairs}
    if len(lengths) != 1:
        raise InvalidTextError(f"expected responses of one length, got lengths {sorted(lengths)}")
    [n_tokens] = lengths
    batches = []
    for start in range(0, len(pairs), batch_size):
        inputs, _ = laid_out(model, pairs[start : start + batch_size])
        log_p = wide(logits(model, inputs, n_tokens)).log_softmax(-1)
        p = log_p.exp()
        targets = inputs["input_ids"][:, -n_tokens:, None].to(log_p.device)
        value = -log_p.gather(-1, targets)[..., 0]  # (texts, n_tokens)
        mean = torch.special.entr(p).sum(-1)
        squares = p * (log_p + mean[..., None]) ** 2
        variance = squares.masked_fill(p == 0, 0.0).sum(-1)  # 0·∞ = 0, where torch has NaN
        batches.append(torch.stack([value, mean, variance]).double().cpu())
    return Surprisal(*torch.cat(batches, dim=1).numpy())


def temperature_slopes(found: Surprisal) -> Float[np.ndarray, " texts"]:
    """Estimate dh/dτ at τ = 1 from plain texts alone, where h(τ) is the mean surprisal of text that
    the base model samples at temperature τ. The mean over the texts is unbiased.

    Let s_t be the surprisal of token t, H_t its mean and V_t its variance over the next token. At
    τ = 1, d log p_τ(y)/dτ = Σ_t (s_t − H_t) = M_T, the last value of a martingale. So

        dh/dτ  =  E[M_T · Σ_t s_t] / T  =  (1/T) Σ_t E[V_t + H_t M_{t−1}]

    V_t is the change of a step at fixed context, without sampling noise. H_t M_{t−1} is the change
    of the contexts. E M_{t−1} = 0, so any number that does not depend on the text may be subtracted
    from H_t. We subtract the mean of H_t over the other texts, which removes most of the noise:
    on doclm (192 texts of 120 tokens), the standard error is .3, that of M_T · Σ s_t is 6, and
    the slope is 6.

    Args:
        found: of two or more texts that the base model sampled at temperature 1.
    """
    n_texts = len(found.mean)
    if n_texts < 2:
        raise InvalidTextError(f"expected at least two plain texts, got {n_texts}")
    martingale = np.cumsum(found.value - found.mean, axis=1)
    before = np.pad(martingale, ((0, 0), (1, 0)))[:, :-1]  # M_{t−1}, from M_0 = 0
    from_mean = found.mean - found.mean.mean(0)
    from_others = from_mean * n_texts / (n_texts - 1)  # H_t minus its mean over the other texts
    return (found.variance + from_others * before).mean(1)


def equivalent_temperature(
    changes: ArrayLike, slopes: ArrayLike, *, cluster: ArrayLike | None = None
) -> stats.Estimate:
    """Return the temperature at which plain text has the mean surprisal of watermarked text, to
    first order: τ = 1 + mean change / mean slope. The interval is a bootstrap over pairs, or over
    clusters of pairs (``stats.ratio``).

    Args:
        changes: of each pair, the surprisal of its watermarked text under the base model minus that
            of plain text, nats per token.
        slopes: of each pair's plain text (:func:`temperature_slopes`).

    >>> print(equivalent_temperature([0.1, 0.2, 0.3], [5.0, 5.0, 5.0]))
    1.04 (0.99 to 1.09), n = 3
    """
    slopes = np.asarray(slopes, float)
    return stats.ratio(slopes + changes, slopes, cluster)
