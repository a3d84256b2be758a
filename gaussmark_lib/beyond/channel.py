"""How an edited text is tested: which of its tokens still say something about the key.

For any direction u that does not look at the key, ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys. ∇log p_θ(y)
is the best one for a text as it was written. Let each token have been exchanged since with
probability f, for one from a distribution q that knows no key, such as the frequencies of tokens.
With p_t = p_θ(y_t | x, y_<t),

    log L(y) = Σ_t log((1 − f) p_t + f q(y_t)),      ∇log L = Σ_t v_t ∇log p_t,
    v_t = (1 − f) p_t / ((1 − f) p_t + f q(y_t)),

the posterior that token t was kept. ⟨ξ, ∇log L⟩ is the slope of log L along ξ, and so the locally
most powerful statistic as σ → 0, if each kept token was written in the context that now stands
before it. After a foreign token it was not, hence the weight

    w_t = v_t · v_{t−1},      v_0 = 1.

:func:`weights` makes of them the ``token_weights`` of a score, which takes log p_t from its own
forward pass.

What was put in between a text's tokens is best left out before the text is read (:func:`cleaned`).

Where σ is large, f not the texts', or nothing foreign to be seen, as after a deletion, other
directions may be better. The level is exact in any case.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import expit
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, tokens
from gaussmark_lib.errors import InvalidTextError, is_number, shown
from gaussmark_lib.gradients import Weigh
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts

FOREIGN = 0.1  # v_t below which a token may have been put in


def weights(model: PreTrainedModel, exchanged: float = 0.1, q: ArrayLike | None = None) -> Weigh:
    """The ``token_weights`` of a text of which a share f may have been exchanged.

    Args:
        exchanged: f, 0 ≤ f < 1; 0 weighs all tokens alike, which is the paper's ψ.
        q: what exchanged tokens come from, a positive number per token of the vocabulary; by
            default the model's ``unigrams``, or else Zipf's law over the ids.

    Raises:
        InvalidTextError: no such share, or numbers for another vocabulary.
    """
    f = share(exchanged)
    log_q = log_frequencies(model, q)

    def weigh(ids: Sequence[int], log_p: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return kept(log_p - log_q[np.array(ids)], f)

    return weigh


def allowing(key: Key, exchanged: float) -> Key:
    """The bound key with a note of the share that the test of its texts allows for."""
    binding = key.binding.model_copy(update={"edited": share(exchanged)})
    return replace(key, binding=binding)


def share(exchanged: float, name: str = "exchanged") -> float:
    """A share of exchanged tokens; InvalidTextError for one that is not in [0, 1)."""
    if not is_number(exchanged) or not 0 <= exchanged < 1:
        expected = "expected a share of exchanged tokens, 0 ≤ f < 1"
        raise InvalidTextError(f"{name}: {expected}, got {shown(exchanged)}")
    return float(exchanged)


def log_frequencies(
    model: PreTrainedModel, q: ArrayLike | None
) -> Float[np.ndarray, " vocabulary"]:
    """log q of every token of the model's vocabulary; InvalidTextError for a q of another size, or
    one that is not positive. By default the counts of training tokens that the model's config has
    as ``unigrams``, and ½ more of each; without these Zipf's law, 1/(100 + id), since most
    tokenizers number their tokens by how often these occurred.
    """
    size = model.get_input_embeddings().num_embeddings
    if q is None:
        counts = getattr(tokens.config(model), "unigrams", None)
        q = 1 / (100.0 + np.arange(size)) if counts is None else np.add(counts, 0.5)
    try:
        numbers = np.asarray(q, dtype=float)
    except (TypeError, ValueError):  # no numbers, or rows of unequal length
        numbers = np.empty(0)
    if numbers.shape != (size,) or not ((numbers > 0) & (numbers < np.inf)).all():
        expected = f"q: expected {size} positive numbers, one per token of the vocabulary"
        raise InvalidTextError(f"{expected}, got {shown(q)}")
    return np.log(numbers / numbers.sum())


def kept(log_ratio: Float[np.ndarray, " n"], f: float) -> Float[np.ndarray, " n"]:
    """w_t of each token, from log p_t/q(y_t); 1 everywhere for f = 0.

    >>> kept(np.array([3.0, -3.0, 3.0, 3.0]), 0.1).round(2).tolist()
    [0.99, 0.31, 0.31, 0.99]
    """
    if not f:
        return np.ones_like(log_ratio)
    v = expit(log_ratio + np.log((1 - f) / f))
    return v * np.append(1.0, v[:-1])


def cleaned(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    exchanged: float = 0.1,
    q: ArrayLike | None = None,
    *,
    batch_size: int = 8,
) -> list[list[int]]:
    """Each response without its foreign tokens (v_t < .1), if its other tokens are then more likely
    under the channel than they were, as where these were inserted; else as it is, as where they
    replaced others.

    It looks at the text alone: the test of what it returns is as exact as that of the text.
    ``exchanged`` and ``q`` are those of :func:`weights`, the rest those of ``score.score``.
    """
    f = share(exchanged)
    log_odds = np.log((1 - f) / max(f, np.finfo(float).tiny))
    log_q = log_frequencies(model, q)
    pairs = tokens.Reader(model).pairs(prompts, responses).values()
    prompts = [x for x, _ in pairs]
    responses = [y for _, y in pairs]

    def against_q(texts: list[list[int]]) -> list[Float[np.ndarray, " _"]]:
        """log (1 − f) p_t/(f q(y_t)) of each token."""
        log_p = likelihood.log_probabilities(model, prompts, texts, batch_size=batch_size)
        return [
            log_p_of_text - log_q[np.array(ids)] + log_odds
            for log_p_of_text, ids in zip(log_p, texts, strict=True)
        ]

    log_ratios = against_q(responses)
    is_kept = [expit(log_ratio) >= FOREIGN for log_ratio in log_ratios]
    shortened = [
        [token for token, is_own in zip(ids, own, strict=True) if is_own] or ids
        for ids, own in zip(responses, is_kept, strict=True)
    ]
    results = []
    for i, log_ratio in enumerate(against_q(shortened)):
        likelihood_before = np.logaddexp(log_ratios[i][is_kept[i]], 0.0).sum()
        likelihood_after = np.logaddexp(log_ratio, 0.0).sum()
        is_better = is_kept[i].any() and likelihood_after > likelihood_before
        results.append(shortened[i] if is_better else responses[i])
    return results
