"""What a watermark costs a language model, in nats: how far p_{θ+ξ} is from p_θ where the
watermarked model writes.

    KL(p_{θ+ξ} ‖ p_θ)  =  E_{y ~ p_{θ+ξ}} Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t))
    (chain rule)

The texts y are samples; over the next token the sum is exact. That has the mean of log p_{θ+ξ}(y) −
log p_θ(y), with far less noise. To second order the price is ψ²/2 nats per text, ψ being the mean
statistic (``stats.predicted_price`` per token).
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import checks, generate, perturb, tokens
from gaussmark_lib.likelihood import log_softmax
from gaussmark_lib.tokens import Texts


@torch.no_grad()
def per_text(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    key: perturb.Key,
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t)) over the response's positions, nats per text;
    its mean over y ~ p_{θ+ξ} is the price.

    ``model`` is the base model. There is one prompt per response; an empty prompt stands for the
    model's start token.
    """
    perturb.refuse_perturbed(model)
    checks.whole(batch_size, "batch_size")
    texts = list(tokens.checked_pairs(model, prompts, responses).values())
    wm = perturb.placed(model, wm)
    xi = perturb.noise(model, wm, key)
    found = []
    for start in range(0, len(texts), batch_size):
        pairs = texts[start : start + batch_size]
        ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
        with perturb.moved(model, wm, xi, by=key.key_id):
            marked = log_p(model, ids, mask)
        per_position = _kl(marked, log_p(model, ids, mask))
        found += [
            per_position[i, len(x) - 1 : len(x) + len(y) - 1].sum().item()
            for i, (x, y) in enumerate(pairs)
        ]
    return np.array(found)


@torch.no_grad()
def per_text_of_processor(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    processor: Callable[[slice], generate.Processor],
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """The same for a scheme that changes the logits while it samples: Σ_t KL(q_t ‖ p_t) with q_t
    from the processed logits, nats per text.

    ``processor`` is as for ``generate.sample``, and sees the texts step by step, as while sampling.
    """
    perturb.refuse_perturbed(model)
    checks.whole(batch_size, "batch_size")
    pairs = list(tokens.checked_pairs(model, prompts, responses).values())
    found = []
    for start in range(0, len(pairs), batch_size):
        rows = slice(start, start + batch_size)
        before, after = (
            tokens.pad(texts, side, model.device)
            for texts, side in zip(zip(*pairs[rows], strict=True), ("left", "right"), strict=True)
        )
        ids, mask = (torch.cat(parts, dim=1) for parts in zip(before, after, strict=True))
        n_prompt, n_tokens = before[0].shape[1], after[0].shape[1]
        position = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False
        ).logits[:, n_prompt - 1 : -1]
        process, total = processor(rows), 0.0
        for t in range(n_tokens):
            marked = process(ids[:, : n_prompt + t], logits[:, t])
            total = (
                total + _kl(log_softmax(marked), log_softmax(logits[:, t])) * after[1][:, t]
            )  # 0 behind a shorter response
        found += total.tolist()
    return np.array(found)


def log_p(
    model: PreTrainedModel, ids: Tensor, mask: Tensor
) -> Float[Tensor, "texts positions vocabulary"]:
    """log p of every token of the vocabulary at every position of padded texts, nats."""
    return log_softmax(model(input_ids=ids, attention_mask=mask, use_cache=False).logits)


def _kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """KL(q ‖ p) over the last dimension, nats, float64; a token that q excludes adds nothing."""
    return (log_q.exp() * (log_q - log_p)).masked_fill(log_q == -torch.inf, 0.0).sum(-1).double()
