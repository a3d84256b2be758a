"""log p_θ(y_t | x, y_<t) of every response token, the cross-entropy of passages, and the entropy of what the model could have said instead.

Padding is on the right, where a causal model cannot see it. The arithmetic after the logits is in float32 at least, sums in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from gaussmark_lib import checks, models, tokens
from gaussmark_lib.errors import InvalidTextError, StatisticsError
from gaussmark_lib.tokens import Pair, Texts


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no parameter requires a gradient, so that the graph begins at the traced layer; restored afterwards."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with models.evaluating(model), torch.inference_mode(False), torch.enable_grad():  # in any mode of the caller
            yield
    finally:
        for p in wanted:
            p.requires_grad_(True)


def cross_entropy(model: PreTrainedModel, passages: Texts, *, prompts: Texts | None = None, batch_size: int = 8) -> Float[np.ndarray, " passages"]:
    """−(1/T) Σ_t log p(y_t | x, y_<t) of each passage, nats a token.

    Args:
        model: also inside ``watermarked()``, unlike for a score.
        passages: token ids, none empty; all their tokens count.
        prompts: what stands before each passage, and does not count; the model's start token by default.

    Raises:
        InvalidTextError: no passages, an empty one, ids outside the vocabulary, or a passage too long for the context.
    """
    if not (passages := tokens.listed(passages, "expected a list of passages, each a list of token ids")):
        raise InvalidTextError("expected at least one passage, got none")
    before, passages = tokens.as_many(tokens.checked_prompts(model, [[]] * len(passages) if prompts is None else prompts), passages)
    texts = enumerate(zip(before, passages, strict=True))
    pairs = [(prompt, tokens.checked_response(model, prompt, passage, f"passage {i}")) for i, (prompt, passage) in texts]
    log_p = _per_text(model, pairs, _LogLikelihood.apply, batch_size)
    return -np.array([values.mean() for values in log_p])


def bits_per_character(nats_per_token: ArrayLike, n_tokens: ArrayLike, n_characters: ArrayLike) -> Float[np.ndarray, " passages"]:
    """The same in bits a character, which does not depend on the tokenizer: nats a token · tokens / (ln 2 · characters).

    >>> bits_per_character([np.log(2)], [10], [40]).tolist()
    [0.25]
    """
    values = (nats_per_token, n_tokens, n_characters)
    nats, n_tokens, n_characters = map(checks.numbers, values, ("nats_per_token", "n_tokens", "n_characters"))
    if (n_characters <= 0).any():
        raise StatisticsError(f"n_characters: expected at least one character each, got {checks.shown(n_characters.tolist())}")
    return nats * n_tokens / (np.log(2) * n_characters)


def entropies(model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8) -> list[Float[np.ndarray, " _"]]:
    """H_t = −Σ_v p(v | x, y_<t) log p(v | x, y_<t) at each response position, nats: how much freedom the model had there."""
    return _per_text(model, list(tokens.checked_pairs(model, prompts, responses).values()), _entropy, batch_size)


def _entropy(logits: Tensor, _: Tensor) -> Tensor:
    log_p = log_softmax(logits)
    return -(log_p.exp() * log_p).sum(-1)


def log_softmax(logits: Tensor) -> Tensor:
    """log p of every token of the vocabulary, the last dimension; in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


@torch.no_grad()
def _per_text(
    model: PreTrainedModel, pairs: Sequence[Pair], measure: Callable[[Tensor, Tensor], Tensor], batch_size: int
) -> list[Float[np.ndarray, " _"]]:
    """``measure(logits, targets)`` at each response token of each text, float64, in batches of like length."""
    checks.whole(batch_size, "batch_size")
    order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    found: dict[int, np.ndarray] = {}
    with models.evaluating(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            logits, targets, number = _predictions(model, [pairs[i] for i in batch])
            for i, values, where in zip(batch, measure(logits, targets).double().cpu().numpy(), (number > 0).cpu().numpy(), strict=True):
                found[i] = values[where]
    return [found[i] for i in range(len(pairs))]


def token_log_p(model: PreTrainedModel, pairs: Sequence[Pair]) -> tuple[Float[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """log p_θ of each response token, nats, and its number within its response, from 1; both 0 where a row has no token.

    Differentiable; all pairs (prompt, response) are one batch.
    """
    logits, targets, number = _predictions(model, pairs)
    return _LogLikelihood.apply(logits, targets).masked_fill(number == 0, 0.0), number


def _predictions(model: PreTrainedModel, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """The logits that predict a response token of some row, (texts, n, vocabulary); the tokens there; their numbers."""
    ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
    first = min(len(x) for x, _ in pairs) - 1  # the earliest position that predicts a response token
    kept = {"logits_to_keep": ids.shape[1] - first} if model._supports_logits_to_keep() else {}
    with _contiguous_head(model):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits
    logits = logits[:, logits.shape[1] - (ids.shape[1] - first) : -1]  # the last position predicts nothing that we have
    number = torch.stack([torch.arange(first + 1, ids.shape[1]) - len(x) + 1 for x, _ in pairs])
    beyond = number > torch.tensor([[len(y)] for _, y in pairs])
    return logits, ids[:, first + 1 :], number.clamp_min(0).masked_fill(beyond, 0).to(ids.device)


@contextmanager
def _contiguous_head(model: PreTrainedModel) -> Iterator[None]:
    """Inside the ``with``, the positions that are kept are copied before their product with the vocabulary, which takes half as long again else."""
    head = model.get_output_embeddings()
    if head is None:
        yield
        return
    with head.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(), *inputs[1:])):
        yield


class _LogLikelihood(torch.autograd.Function):
    """log softmax(logits)[target], with its gradient onehot − softmax in closed form; a text at a time, so that the vocabulary stays in the cache.

    logits (texts, n, vocabulary), targets (texts, n) → (texts, n), in float32 at least.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = torch.stack([log_softmax(row).gather(-1, to[:, None])[:, 0] for row, to in zip(logits, targets, strict=True)])
        ctx.save_for_backward(logits, targets, logits.gather(-1, targets[..., None])[..., 0].to(log_p) - log_p)
        return log_p

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        logits, targets, normaliser = ctx.saved_tensors
        out = torch.empty_like(logits)
        for row, into in enumerate(out):
            same = into.dtype == normaliser.dtype
            p = torch.sub(logits[row].to(normaliser.dtype), normaliser[row, :, None], out=into if same else None).exp_()
            p.mul_(-grad[row, :, None]).scatter_add_(-1, targets[row, :, None], grad[row, :, None])
            if not same:
                into.copy_(p)
        return out, None
