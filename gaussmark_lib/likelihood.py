"""log p_θ(y_t | x, y_<t) of every response token, the cross-entropy of passages, and the entropy of
what the model could have said instead.

Padding is on the right, where a causal model cannot see it. The arithmetic after the logits is in
float32 at least, sums in float64.

The logits of a batch are most of its memory: texts × positions × vocabulary numbers, and as many
again for their gradient. A token's log-probability depends on the head's input h at its own
position alone. So the head is applied to ``ROWS`` positions at a time, and where a gradient is
wanted, ∂ log p/∂h is found with it and the logits are gone. For a model that changes its logits
after the head (as by a soft cap), and for a watermark in the head itself, h are the logits, and the
head is the identity.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from gaussmark_lib import checks, models, tokens
from gaussmark_lib.errors import InvalidModelError, InvalidTextError, StatisticsError
from gaussmark_lib.tokens import Pair, Texts

ROWS = 512  # positions whose logits are held at a time
TRIED = 8  # tokens
Head = Callable[[Tensor], Tensor]
_ends_in_its_head: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no parameter requires a gradient, so that the graph begins at the traced
    layer; restored afterwards.

    What the head does is tried out before, since hooks on the layers would see that pass.
    """
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with (
            models.evaluating(model),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):  # in any mode of the caller
            ends_in_its_head(model)
            yield
    finally:
        for p in wanted:
            p.requires_grad_(True)


def cross_entropy(
    model: PreTrainedModel, passages: Texts, *, prompts: Texts | None = None, batch_size: int = 8
) -> Float[np.ndarray, " passages"]:
    """−(1/T) Σ_t log p(y_t | x, y_<t) of each passage, nats a token.

    Args:
        model: also inside ``watermarked()``, unlike for a score.
        passages: token ids, none empty; all their tokens count.
        prompts: what stands before each passage, and does not count; the model's start token by
            default.

    Raises:
        InvalidTextError: no passages, an empty one, ids outside the vocabulary, or a passage too
            long for the context.
    """
    if not (
        passages := tokens.listed(passages, "expected a list of passages, each a list of token ids")
    ):
        raise InvalidTextError("expected at least one passage, got none")
    before, passages = tokens.as_many(
        tokens.checked_prompts(model, [[]] * len(passages) if prompts is None else prompts),
        passages,
    )
    texts = enumerate(zip(before, passages, strict=True))
    pairs = [
        (prompt, tokens.checked_response(model, prompt, passage, f"passage {i}"))
        for i, (prompt, passage) in texts
    ]
    log_p = _per_text(model, pairs, _of_targets, batch_size)
    return -np.array([values.mean() for values in log_p])


def bits_per_character(
    nats_per_token: ArrayLike, n_tokens: ArrayLike, n_characters: ArrayLike
) -> Float[np.ndarray, " passages"]:
    """The same in bits a character, which does not depend on the tokenizer: nats a token · tokens /
    (ln 2 · characters).

    >>> bits_per_character([np.log(2)], [10], [40]).tolist()
    [0.25]
    """
    values = (nats_per_token, n_tokens, n_characters)
    nats, n_tokens, n_characters = map(
        checks.numbers, values, ("nats_per_token", "n_tokens", "n_characters")
    )
    if (n_characters <= 0).any():
        raise StatisticsError(
            "n_characters: expected at least one character each, got"
            f" {checks.shown(n_characters.tolist())}"
        )
    return nats * n_tokens / (np.log(2) * n_characters)


def entropies(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 8
) -> list[Float[np.ndarray, " _"]]:
    """H_t = −Σ_v p(v | x, y_<t) log p(v | x, y_<t) at each response position, nats: how much
    freedom the model had there.
    """
    return _per_text(
        model, list(tokens.checked_pairs(model, prompts, responses).values()), _entropy, batch_size
    )


def _entropy(logits: Tensor, _: Tensor) -> Tensor:
    log_p = log_softmax(logits)
    return torch.special.entr(log_p.exp()).sum(-1)  # 0 where p is 0


def log_softmax(logits: Tensor) -> Tensor:
    """log p of every token of the vocabulary, the last dimension; in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


@torch.no_grad()
def _per_text(
    model: PreTrainedModel,
    pairs: Sequence[Pair],
    measure: Callable[[Tensor, Tensor], Tensor],
    batch_size: int,
) -> list[Float[np.ndarray, " _"]]:
    """``measure(logits, targets)`` at each response token of each text, float64, in batches of like
    length.
    """
    checks.whole(batch_size, "batch_size")
    order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    found: dict[int, np.ndarray] = {}
    with models.evaluating(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            read = states(model, [pairs[i] for i in batch])
            rows = zip(read.of_tokens().split(ROWS), read.targets().split(ROWS), strict=True)
            values = torch.cat([measure(read.head(h), to) for h, to in rows]).double().cpu().numpy()
            found |= zip(
                batch,
                np.split(values, np.cumsum([len(pairs[i][1]) for i in batch])[:-1]),
                strict=True,
            )
    return [found[i] for i in range(len(pairs))]


def token_log_p(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[Float[Tensor, "texts n"], Int[Tensor, "texts n"]]:
    """log p_θ of each response token, nats, and its number within its response, from 1; both 0
    where a row has no token.

    Differentiable; all pairs (prompt, response) are one batch.
    """
    read = states(model, pairs)
    return read.log_p(), read.number


class States(NamedTuple):
    """A pass over a batch: ``h``, of which ``head`` makes the logits that predict the tokens
    ``ids``; ``number`` is 0 where no response token is.
    """

    h: Float[Tensor, "texts n d"]
    head: Head
    ids: Int[Tensor, "texts n"]
    number: Int[Tensor, "texts n"]

    def of_tokens(self) -> Float[Tensor, "tokens d"]:
        """h where it predicts a response token, texts in their order."""
        return self.h[self.number > 0]

    def targets(self) -> Int[Tensor, " tokens"]:
        return self.ids[self.number > 0]

    def log_p(self) -> Float[Tensor, "texts n"]:
        """log p_θ of each token, nats, 0 where there is none; differentiable in h."""
        found = _LogLikelihood.apply(self.of_tokens(), self.targets(), self.head)
        return found.new_zeros(self.number.shape).masked_scatter(self.number > 0, found)


def states(model: PreTrainedModel, pairs: Sequence[Pair]) -> States:
    """One pass of the model over a batch of pairs (prompt, response), from the first position that
    predicts a response token of some text.
    """
    ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
    first = min(len(x) for x, _ in pairs) - 1
    n = ids.shape[1] - first
    number = torch.stack([torch.arange(first + 1, ids.shape[1]) - len(x) + 1 for x, _ in pairs])
    beyond = number > torch.tensor([[len(y)] for _, y in pairs])
    kept = {"logits_to_keep": n} if model._supports_logits_to_keep() else {}
    head, given = model.get_output_embeddings() if ends_in_its_head(model) else None, []
    if (
        head is None or head._forward_hooks or head._forward_pre_hooks
    ):  # of one who wants to see, or to change, what the head makes of this pass
        h, head = model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits, _same
    else:
        narrowed = head.register_forward_pre_hook(
            lambda _, inputs: given.append(inputs[0]) or (inputs[0][:, -1:],)
        )
        with (
            narrowed,
            head.register_forward_hook(lambda _, __, output: given.append(output.detach().clone())),
        ):
            last = model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits[:, -1:]
        [h, made] = given
        _check_still(model, made.to(last), last)  # some models round their logits
    h = h[:, -n:-1].to(ids.device)  # the last predicts nothing
    return States(
        h, head, ids[:, first + 1 :], number.clamp_min(0).masked_fill(beyond, 0).to(ids.device)
    )


def ends_in_its_head(model: PreTrainedModel) -> bool:
    """Whether the model's logits are what its head (``get_output_embeddings``) gives, unchanged.
    Tried out once for each model, on a few tokens.
    """
    if model not in _ends_in_its_head:
        _ends_in_its_head[model] = _tried(model, model.get_output_embeddings())
    return _ends_in_its_head[model]


def _check_still(model: PreTrainedModel, made: Tensor, logits: Tensor) -> None:
    """InvalidModelError where the model changes what its head made, as it did not when it was
    tried: its hooks or its config are others now.
    """
    if not bool(((made == logits) | (made.isnan() & logits.isnan())).all()):
        _ends_in_its_head[model] = False
        raise InvalidModelError(
            "the model's logits are no longer those of its head, as they were when it was first"
            " read; read the texts again"
        )


@torch.no_grad()
def _tried(model: PreTrainedModel, head: nn.Module | None) -> bool:
    if head is None:
        return False
    vocabulary, calls = model.get_input_embeddings().num_embeddings, []
    ids = (
        torch.linspace(0, vocabulary - 1, TRIED, dtype=torch.float64)
        .long()[:, None]
        .to(model.device)
    )
    with head.register_forward_hook(
        lambda _, inputs, output: calls.append((inputs, output.clone()))
    ):
        logits = model(input_ids=ids, use_cache=False).logits
    if len(calls) != 1:
        return False
    [(inputs, made)] = calls
    is_whole = len(inputs) == 1 and inputs[0].shape[:2] == ids.shape and made.dtype == logits.dtype
    made = made.to(logits.device)  # the head may be on another one
    return (
        is_whole and bool(made.any()) and torch.equal(made, logits)
    )  # what a soft cap or a scale leaves of 0 tells nothing


def _same(h: Tensor) -> Tensor:
    return h


def _of_targets(
    logits: Float[Tensor, "tokens vocabulary"], targets: Int[Tensor, " tokens"]
) -> Float[Tensor, " tokens"]:
    return log_softmax(logits).gather(-1, targets[:, None].to(logits.device))[:, 0]


class _LogLikelihood(torch.autograd.Function):
    """log softmax(head(h))[target] of each row, with its gradient (onehot − softmax)·∂head/∂h,
    found in the forward pass.

    h (tokens, d), targets (tokens,), head → (tokens,), in float32 at least.
    """

    @staticmethod
    def forward(ctx, h: Tensor, targets: Tensor, head: Head) -> Tensor:
        each = [
            _log_p_of(*rows, head, ctx.needs_input_grad[0])
            for rows in zip(h.split(ROWS), targets.split(ROWS), strict=True)
        ]
        log_p, slope = map(torch.cat, zip(*each, strict=True))
        ctx.save_for_backward(slope)
        return log_p

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        [slope] = ctx.saved_tensors
        return (grad[:, None] * slope).to(slope.dtype), None, None


def _log_p_of(h: Tensor, targets: Tensor, head: Head, is_wanted: bool) -> tuple[Tensor, Tensor]:
    """log p of some rows, and its gradient by h, where it is wanted."""
    with torch.set_grad_enabled(is_wanted):
        logits = head(h := h.detach().requires_grad_(is_wanted))
    if is_wanted and not logits.requires_grad:
        raise InvalidModelError(
            "expected a head (get_output_embeddings) that has a derivative; one that is quantised"
            " to whole numbers may have none"
        )
    log_p, targets = log_softmax(logits.detach()), targets[:, None].to(logits.device)
    found = log_p.gather(-1, targets)
    if not is_wanted:
        return found[:, 0].to(h.device), h
    slope = log_p.exp_().neg_().scatter_add_(-1, targets, torch.ones_like(found))
    return found[:, 0].to(h.device), *torch.autograd.grad(logits, h, slope.to(logits.dtype))
