"""log p_θ(y_t | x, y_<t), cross-entropy, and the entropy of the model's next-token distribution.

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
    """Return log p_θ of each response token, nats, and its number within its response, from 1.

    Both are 0 at a position that has no response token. The pairs are one batch, and the result is
    differentiable.
    """
    logits, targets, number = predictions(model, pairs)
    log_q = wide(logits).log_softmax(-1)  # (texts, n, vocabulary)
    log_p = log_q.gather(-1, targets[..., None])[..., 0]
    return log_p.masked_fill(number == 0, 0.0), number


def _entropy(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """Return the entropy where each response token is predicted, nats, and the token's number."""
    logits, _, number = predictions(model, pairs)
    p = wide(logits).log_softmax(-1).exp()  # (texts, n, vocabulary)
    terms = torch.special.entr(p)  # −p log p, and 0 where p is 0
    return terms.sum(-1), number


def predictions(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n vocabulary"], Int[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """Return logits, the tokens that they predict, and the numbers of these tokens from 1.

    The first position is the first that predicts a response token of any text. A number is 0 where
    no response token follows, as at the last position: to cut its logits off would copy all logits
    and all their gradients.
    """
    texts = [[*x, *y] for x, y in pairs]
    ids, mask = blocks.padded(texts, "right", model.device)
    length = ids.shape[1]
    first = min(len(x) for x, _ in pairs) - 1
    settings = {}
    if model._supports_logits_to_keep():
        # By index: a slice of the hidden states is not contiguous, so its product is slower.
        settings["logits_to_keep"] = torch.arange(first, length, device=ids.device)
    output = model(input_ids=ids, attention_mask=mask, use_cache=False, **settings)
    logits = output.logits if settings else output.logits[:, first:]
    # No token follows the last position; 0 stands there.
    targets = torch.nn.functional.pad(ids[:, first + 1 :], (0, 1))
    number = torch.zeros(len(pairs), length - first, dtype=torch.long)
    for row, (x, y) in zip(number, pairs, strict=True):
        start = len(x) - 1 - first
        row[start : start + len(y)] = torch.arange(1, len(y) + 1)
    return logits, targets.to(logits.device), number.to(logits.device)


def cross_entropy(
    model: PreTrainedModel, passages: Texts, *, prompts: Texts | None = None, batch_size: int = 8
) -> Float[np.ndarray, " passages"]:
    """Return −(1/T) Σ_t log p(y_t | x, y_<t) of each passage, nats per token.

    Args:
        model: the base model or, unlike for a score, a model inside ``watermarked()``.
        passages: token ids, none empty.
        prompts: what stands before each passage; the model's start token by default.

    Example:
        >>> from gaussmark_lib import models
        >>> lm = models.load("doclm")
        >>> [nats] = cross_entropy(lm.model, [lm.encode("Return the mean of all values.")])
        >>> bool(0 < nats < 10)
        True
    """
    expected = "expected a list of at least one passage, each a list of token ids"
    passages = require_list(passages, expected, least=1)
    if prompts is None:
        prompts = [[] for _ in passages]
    log_p = log_probabilities(model, prompts, passages, batch_size=batch_size)
    means = np.array([of_passage.mean() for of_passage in log_p])
    return -means


def log_probabilities(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8
) -> list[Float[np.ndarray, " _"]]:
    """Return log p(y_t | x, y_<t) of each response token of each text, nats.

    The result is a list of one float64 array per text, as long as its response. The model may be
    watermarked. Raise InvalidTextError as ``tokens.Reader.pairs`` does.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> ids = lm.encode("Return the mean.")
    >>> [log_p] = log_probabilities(lm.model, [[]], [ids])
    >>> len(log_p) == len(ids), bool((log_p < 0).all())
    (True, True)
    """
    return _per_text(model, prompts, responses, token_log_p, batch_size)


def entropies(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8
) -> list[Float[np.ndarray, " _"]]:
    """Return H_t = −Σ_v p(v | x, y_<t) log p(v | x, y_<t) at each response position, nats.

    The result is a list of one float64 array per text, as long as its response. H_t is 0 where the
    model is certain of the next token, and log V where all V tokens are equally likely.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> ids = lm.encode("Return the mean.")
    >>> [entropy] = entropies(lm.model, [[]], [ids])
    >>> bool((entropy > 0).all() and (entropy < np.log(4096)).all())
    True
    """
    return _per_text(model, prompts, responses, _entropy, batch_size)


@torch.no_grad()
def _per_text(
    model: PreTrainedModel, prompts: Texts, responses: Texts, quantity: Callable, batch_size: int
) -> list[Float[np.ndarray, " _"]]:
    """Return the quantity at each response token of each text, float64."""
    reader = tokens.Reader(model)
    pairs = reader.pairs(prompts, responses)
    lengths = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    values = {}
    with evaluating(model):
        for batch in blocks.batches(reader.vocabulary, lengths, batch_size):
            per_position, number = quantity(model, [pairs[i] for i in batch])
            per_position = per_position.double().cpu()  # (texts, n)
            is_token = number.cpu() > 0  # (texts, n)
            for row, i in enumerate(batch):
                values[i] = per_position[row][is_token[row]].numpy()
    return [values[i] for i in pairs]
