"""What a watermark costs a language model, in nats: how far the model that writes, q, is from p_θ
where it writes.

    KL(q ‖ p_θ)  =  E_{y ~ q} Σ_t KL(q(· | x, y_<t) ‖ p_θ(· | x, y_<t))

by the chain rule; q is p_{θ+ξ}, or what a scheme makes of p_θ while it samples. The texts y are
samples; over the next token the sum is exact, so that its noise is far less than that of
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
    """Σ_t KL(q_t ‖ p_t) over the response's positions, nats per text; its mean over y ~ q is the
    price. Either ``marks`` or a ``processor``, as for ``generate.sample``, make q of the base p.
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    nats = []
    for rows, marked in generate.in_batches(model, len(pairs), batch_size, marks):
        inputs, is_token = laid_out(model, pairs[rows])
        ids, n_tokens = inputs["input_ids"], is_token.shape[1]
        p = q = logits(model, inputs, n_tokens)
        if marks is not None:
            with marked:
                q = logits(model, inputs, n_tokens)
        if processor:
            process, start = processor(rows), ids.shape[1] - n_tokens
            steps = [process(ids[:, : start + t], p[:, t]) for t in range(n_tokens)]
            q = torch.stack(steps, dim=1)
        nats += summed(q, p, is_token)
    return np.array(nats)


def laid_out(model: PreTrainedModel, pairs: Sequence[Pair]) -> tuple[dict[str, Tensor], Tensor]:
    """A batch whose responses begin together, and the mask of these, (texts, longest response)."""
    prompts, responses = zip(*pairs, strict=True)
    x, before = blocks.padded(prompts, "left", model.device)
    y, is_token = blocks.padded(responses, "right", model.device)
    ids, mask = torch.cat([x, y], dim=1), torch.cat([before, is_token], dim=1)
    position = (mask.cumsum(-1) - 1).clamp_min(0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": position}, is_token


def logits(
    model: PreTrainedModel, inputs: dict[str, Tensor], n_tokens: int
) -> Float[Tensor, "texts n_tokens vocabulary"]:
    """What predicts each response token."""
    return model(**inputs, use_cache=False).logits[:, -n_tokens - 1 : -1]


def summed(q: Tensor, p: Tensor, is_token: Tensor) -> list[float]:
    """Σ_t KL(q_t ‖ p_t) of each text, from logits; a token that q excludes adds nothing."""
    q, p = wide(q).log_softmax(-1), wide(p).log_softmax(-1)
    terms = (q.exp() * (q - p)).masked_fill(q == -torch.inf, 0.0)
    return (terms.sum(-1).double().to(is_token.device) * is_token).sum(-1).tolist()
