"""What a watermark costs a language model, in nats: how far p_{θ+ξ} is from p_θ where the
watermarked model writes.

    KL(p_{θ+ξ} ‖ p_θ)  =  E_{y ~ p_{θ+ξ}} Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t))

by the chain rule. The texts y are samples; over the next token the sum is exact, so that its noise
is far less than that of log p_{θ+ξ}(y) − log p_θ(y). To second order the price is ψ²/2 nats per
text, ψ being the mean statistic (``stats.predicted_price`` per token).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate, perturb, tokens
from gaussmark_lib.likelihood import log_softmax
from gaussmark_lib.tokens import Pair, Texts

BATCH = 16  # texts


@torch.no_grad()
def per_text(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    key: perturb.Key,
) -> Float[np.ndarray, " texts"]:
    """Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t)) over the response's positions, nats per text;
    its mean over y ~ p_{θ+ξ} is the price. ``model`` is the base model.
    """
    perturb.refuse_perturbed(model)
    texts = list(tokens.checked_pairs(model, prompts, responses).values())
    xi, nats = perturb.noise(model, wm, key), []
    for start in range(0, len(texts), BATCH):
        pairs = texts[start : start + BATCH]
        ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
        with perturb.moved(model, wm, xi, by=key.key_id):
            marked = log_p(model, ids, mask)
        nats += over_responses(marked, log_p(model, ids, mask), pairs)
    return np.array(nats)


@torch.no_grad()
def per_text_of_processor(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    processor: Callable[[slice], generate.Processor],
) -> Float[np.ndarray, " texts"]:
    """The same for a scheme that changes the logits while it samples: Σ_t KL(q_t ‖ p_t) with q_t
    from the processed logits, nats per text.

    ``processor`` is as for ``generate.sample``, and sees the texts step by step, as while sampling.
    """
    perturb.refuse_perturbed(model)
    pairs, nats = list(tokens.checked_pairs(model, prompts, responses).values()), []
    for start in range(0, len(pairs), BATCH):
        rows = slice(start, start + BATCH)
        x, x_mask = tokens.pad([prompt for prompt, _ in pairs[rows]], "left", model.device)
        y, y_mask = tokens.pad([response for _, response in pairs[rows]], "right", model.device)
        ids, mask = torch.cat([x, y], dim=1), torch.cat([x_mask, y_mask], dim=1)
        position = (mask.cumsum(-1) - 1).clamp_min(0)
        out = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False)
        logits = out.logits[:, x.shape[1] - 1 : -1]
        process, total = processor(rows), torch.zeros(len(x), dtype=torch.float64)
        for t in range(y.shape[1]):
            marked = process(ids[:, : x.shape[1] + t], logits[:, t])
            step = _kl(log_softmax(marked), log_softmax(logits[:, t])) * y_mask[:, t]
            total += step.cpu()  # 0 behind a shorter response
        nats += total.tolist()
    return np.array(nats)


def log_p(
    model: PreTrainedModel, ids: Tensor, mask: Tensor
) -> Float[Tensor, "texts positions vocabulary"]:
    """log p of every token of the vocabulary at every position of padded texts, nats."""
    return log_softmax(model(input_ids=ids, attention_mask=mask, use_cache=False).logits)


def over_responses(log_q: Tensor, log_p: Tensor, pairs: Sequence[Pair]) -> list[float]:
    """Σ_t KL(q_t ‖ p_t) over the positions that predict each text's response, nats."""
    per_position = _kl(log_q, log_p)  # (texts, positions)
    predicting = [slice(len(x) - 1, len(x) + len(y) - 1) for x, y in pairs]
    return [row[of].sum().item() for row, of in zip(per_position, predicting, strict=True)]


def _kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """KL(q ‖ p) over the last dimension, nats, float64; a token that q excludes adds nothing."""
    return (log_q.exp() * (log_q - log_p)).masked_fill(log_q == -torch.inf, 0.0).sum(-1).double()
