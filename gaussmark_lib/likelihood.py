"""log p_θ(y_t | x, y_<t), cross-entropy, and the entropy of what the model could have said instead.

Padding is on the right, where a causal model cannot see it. The arithmetic after the logits is in
float32 at least, sums in float64.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import tokens
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.arithmetic import evaluating, wide
from gaussmark_lib.errors import require_list
from gaussmark_lib.tokens import Pair, Texts


def token_log_p(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """log p_θ of each response token, nats, and its number within its response, from 1; both 0
    where a row has no token. Differentiable; the pairs are one batch.
    """
    logits, targets, number = predictions(model, pairs)
    log_p = wide(logits).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return log_p.masked_fill(number == 0, 0.0), number


def _entropy(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    logits, _, number = predictions(model, pairs)
    return torch.special.entr(wide(logits).log_softmax(-1).exp()).sum(-1), number  # 0 where p is 0


def predictions(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n vocabulary"], Int[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """Logits from the first that predicts a response token, the tokens that come next, and their
    numbers: 0 where there is none, and so after the last one. (Cutting its logits off would copy
    all of them, and their gradients.)
    """
    ids, mask = blocks.padded([[*x, *y] for x, y in pairs], "right", model.device)
    first = min(len(x) for x, _ in pairs) - 1
    n = ids.shape[1] - first
    # by index, since a slice of the hidden states is not contiguous, and its product slower
    last = torch.arange(first, ids.shape[1], device=ids.device)
    kept = {"logits_to_keep": last} if model._supports_logits_to_keep() else {}
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits
    if not kept:
        logits = logits[:, -n:]
    targets = torch.nn.functional.pad(ids[:, first + 1 :], (0, 1))  # none after the last token
    number = torch.zeros(len(pairs), n, dtype=torch.long)
    for row, (x, y) in zip(number, pairs, strict=True):
        start = len(x) - 1 - first
        row[start : start + len(y)] = torch.arange(1, len(y) + 1)
    return logits, targets.to(logits.device), number.to(logits.device)


def cross_entropy(
    model: PreTrainedModel, passages: Texts, *, prompts: Texts | None = None, batch_size: int = 8
) -> Float[np.ndarray, " passages"]:
    """−(1/T) Σ_t log p(y_t | x, y_<t) of each passage, nats per token.

    Args:
        model: also inside ``watermarked()``, unlike for a score.
        passages: token ids, none empty.
        prompts: what stands before each passage; the model's start token by default.
    """
    expected = "expected a list of at least one passage, each a list of token ids"
    passages = require_list(passages, expected, least=1)
    before = [[]] * len(passages) if prompts is None else prompts
    each = log_probabilities(model, before, passages, batch_size=batch_size)
    return -np.array([log_p.mean() for log_p in each])


def log_probabilities(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8
) -> list[Float[np.ndarray, " _"]]:
    """log p(y_t | x, y_<t) of each response token of each text, nats, float64."""
    return _per_text(model, prompts, responses, token_log_p, batch_size)


def entropies(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8
) -> list[Float[np.ndarray, " _"]]:
    """H_t = −Σ_v p(v | x, y_<t) log p(v | x, y_<t) at each response position, nats."""
    return _per_text(model, prompts, responses, _entropy, batch_size)


@torch.no_grad()
def _per_text(
    model: PreTrainedModel, prompts: Texts, responses: Texts, quantity: Callable, batch_size: int
) -> list[Float[np.ndarray, " _"]]:
    """What ``quantity`` is at each response token of each text, float64."""
    reader = tokens.Reader(model)
    pairs = reader.pairs(prompts, responses)
    values = {}
    lengths = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    with evaluating(model):
        for batch in blocks.batches(reader.vocabulary, lengths, batch_size):
            rows, number = quantity(model, [pairs[i] for i in batch])
            for i, row, is_token in zip(batch, rows.double().cpu(), number.cpu() > 0, strict=True):
                values[i] = row[is_token].numpy()
    return [values[i] for i in pairs]
