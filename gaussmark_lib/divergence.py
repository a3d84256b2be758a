"""What a watermark costs a language model, in nats: how far the model that writes, q, is from p_θ
on the texts that it writes.

    KL(q ‖ p_θ)  =  E_{y ~ q} Σ_t KL(q(· | x, y_<t) ‖ p_θ(· | x, y_<t))

by the chain rule; q is p_{θ+ξ}, or what a scheme makes of p_θ while it samples. The texts y are
samples. The sum over the next token is exact, so its noise is far below that of
log q(y) − log p_θ(y).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate, perturb, tokens
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.arithmetic import wide
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

    Raise PerturbedModelError for a watermarked model, and InvalidTextError as for a score.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> wm = perturb.Watermark(models.default_weight(lm.model), sigma=0.01)
    >>> marks = [(wm, perturb.Key.from_seed(1))]
    >>> [nats] = per_text(lm.model, [[]], [lm.encode("Return the mean.")], marks=marks)
    >>> bool(nats > 0)
    True
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    nats = []
    for rows, marked in generate.in_batches(model, len(pairs), batch_size, marks):
        inputs, is_token = laid_out(model, pairs[rows])
        n_tokens = is_token.shape[1]  # of the longest response
        p = logits(model, inputs, n_tokens)
        q = p
        if marks is not None:
            with marked:
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
