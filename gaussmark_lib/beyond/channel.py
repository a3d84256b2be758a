"""Token weights for testing an edited text: which tokens still carry evidence about the key.

For any direction u that does not depend on the key, ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys. For a text
that was not edited, the best direction is ∇log p_θ(y). Suppose that an edit replaced each token
with probability f, and drew the new token from a distribution q that does not depend on the key,
such as the frequencies of tokens. With p_t = p_θ(y_t | x, y_<t),

    log L(y) = Σ_t log((1 − f) p_t + f q(y_t)),      ∇log L = Σ_t v_t ∇log p_t,
    v_t = (1 − f) p_t / ((1 − f) p_t + f q(y_t)),

v_t is the posterior probability that token t was kept. ⟨ξ, ∇log L⟩ is the slope of log L along ξ.
It is the locally most powerful statistic as σ → 0 if each kept token was written in the context
that now stands before it. A token after a foreign token was not; hence the weight

    w_t = v_t · v_{t−1},      v_0 = 1.

:func:`weights` returns them in the form that ``score.score`` takes as ``token_weights``; the score
takes log p_t from its own forward pass.

Inserted tokens are best removed before the text is scored (:func:`cleaned`).

Other directions may be better if σ is large, if f is wrong for these texts, or if an edit leaves no
foreign token, as a deletion does. The level is exact in any case.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import expit
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, tokens
from gaussmark_lib.errors import InvalidTextError, is_number, shown
from gaussmark_lib.gradients import Weigh
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts

FOREIGN = 0.1  # a token with v_t below this may have been inserted


def weights(model: PreTrainedModel, exchanged: float = 0.1, q: ArrayLike | None = None) -> Weigh:
    """Return the ``token_weights`` for texts in which a share f of tokens may have been replaced.

    Args:
        exchanged: f, 0 ≤ f < 1; with 0 all tokens have equal weights, which is the paper's ψ.
        q: distribution of the new tokens, one positive number per token of the vocabulary; by
            default the model's ``unigrams``, or Zipf's law over the ids if it has none.

    Raises:
        InvalidTextError: if f is not in [0, 1), or q does not fit the vocabulary.
    """
    f = share(exchanged)
    log_q = log_frequencies(model, q)

    def weigh(ids: Sequence[int], log_p: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        log_ratio = log_p - log_q[np.array(ids)]
        return kept(log_ratio, f)

    return weigh


def allowing(key: Key, exchanged: float) -> Key:
    """Return the bound key with a note of the share of replaced tokens that its test allows for."""
    binding = key.binding.model_copy(update={"edited": share(exchanged)})
    return replace(key, binding=binding)


def share(exchanged: float, name: str = "exchanged") -> float:
    """Return the share of replaced tokens; raise InvalidTextError if it is not in [0, 1)."""
    if not is_number(exchanged) or not 0 <= exchanged < 1:
        expected = "expected a share of replaced tokens, 0 ≤ f < 1"
        raise InvalidTextError(f"{name}: {expected}, got {shown(exchanged)}")
    return float(exchanged)


def log_frequencies(
    model: PreTrainedModel, q: ArrayLike | None
) -> Float[np.ndarray, " vocabulary"]:
    """Return log q of every token of the model's vocabulary.

    By default q is proportional to the counts of training tokens in the model's config
    (``unigrams``) plus ½. If the config has no counts, q follows Zipf's law, 1/(100 + id): most
    tokenizers number their tokens from frequent to rare.

    Raises:
        InvalidTextError: if q has another size, or a number that is not positive and finite.
    """
    size = model.get_input_embeddings().num_embeddings
    if q is None:
        counts = getattr(tokens.config(model), "unigrams", None)
        q = 1 / (100.0 + np.arange(size)) if counts is None else np.add(counts, 0.5)
    try:
        numbers = np.asarray(q, dtype=float)
    except (TypeError, ValueError):  # not numbers, or rows of unequal length
        numbers = np.empty(0)
    is_positive = (numbers > 0) & (numbers < np.inf)
    if numbers.shape != (size,) or not is_positive.all():
        expected = f"q: expected {size} positive numbers, one per token of the vocabulary"
        raise InvalidTextError(f"{expected}, got {shown(q)}")
    return np.log(numbers / numbers.sum())


def kept(log_ratio: Float[np.ndarray, " n"], f: float) -> Float[np.ndarray, " n"]:
    """Return w_t of each token, given log p_t/q(y_t); f = 0 gives 1 everywhere.

    >>> kept(np.array([3.0, -3.0, 3.0, 3.0]), 0.1).round(2).tolist()
    [0.99, 0.31, 0.31, 0.99]
    """
    if not f:
        return np.ones_like(log_ratio)
    v = expit(log_ratio + np.log((1 - f) / f))
    return v * np.append(1.0, v[:-1])  # nothing precedes the first token: v_0 = 1


def cleaned(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    exchanged: float = 0.1,
    q: ArrayLike | None = None,
    *,
    batch_size: int = 8,
) -> list[list[int]]:
    """Remove inserted tokens from each response.

    A foreign token has v_t < .1. If the remaining tokens are more likely under the channel without
    the foreign tokens, these were probably inserted, and the response is returned without them.
    Otherwise they probably replaced other tokens, and the response is returned unchanged.

    The decision looks at the text alone, not at a key: a test of the result is as exact as a test
    of the text. ``exchanged`` and ``q`` are as in :func:`weights`, the other arguments as in
    ``score.score``.
    """
    f = share(exchanged)
    smallest = np.finfo(float).tiny  # f = 0 may not divide by zero
    log_odds = np.log((1 - f) / max(f, smallest))
    log_q = log_frequencies(model, q)
    pairs = tokens.Reader(model).pairs(prompts, responses).values()
    prompts = [x for x, _ in pairs]
    responses = [y for _, y in pairs]

    def log_posterior_odds(texts: list[list[int]]) -> list[Float[np.ndarray, " _"]]:
        """log (1 − f) p_t/(f q(y_t)) of each token."""
        log_p = likelihood.log_probabilities(model, prompts, texts, batch_size=batch_size)
        return [
            log_p_of_text - log_q[np.array(ids)] + log_odds
            for log_p_of_text, ids in zip(log_p, texts, strict=True)
        ]

    odds_of_responses = log_posterior_odds(responses)
    is_native = [expit(odds) >= FOREIGN for odds in odds_of_responses]
    shortened = [
        _selected(ids, mask) or ids  # a text without native tokens stays whole
        for ids, mask in zip(responses, is_native, strict=True)
    ]
    odds_of_shortened = log_posterior_odds(shortened)
    results = []
    for i, response in enumerate(responses):
        # log L of the native tokens, up to Σ log f q(y_t), which is the same in both versions
        likelihood_before = np.logaddexp(odds_of_responses[i][is_native[i]], 0.0).sum()
        likelihood_after = np.logaddexp(odds_of_shortened[i], 0.0).sum()
        is_better = is_native[i].any() and likelihood_after > likelihood_before
        results.append(shortened[i] if is_better else response)
    return results


def _selected(ids: list[int], mask: Bool[np.ndarray, " n"]) -> list[int]:
    """The token ids whose place in the mask is true."""
    return [token for token, is_selected in zip(ids, mask, strict=True) if is_selected]
