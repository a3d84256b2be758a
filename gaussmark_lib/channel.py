"""How an edited text is tested: which of its tokens still say something about the key.

For any direction u that does not look at the key, ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys. ∇log p_θ(y)
is the best one for a text as it was written. Let a share f of its tokens have been exchanged since,
in runs: with probability ½ a token shares the fate of the one before it, or else it is kept with
probability 1 − f. A kept token after a kept one has the probability p_t = p_θ(y_t | x, y_<t). A
foreign one comes from a distribution q that knows no key, such as the frequencies of tokens; and a
kept one after it, which was written in a context that nobody knows, counts as q too. So, with s_t
for the fate of token t and s_0 = kept,

    L(y) = Σ_s Π_t P(s_t | s_{t−1}) · (p_t if s_{t−1} = s_t = kept, else q(y_t))

    ∇log L = Σ_t w_t ∇log p_t,      w_t = P(s_{t−1} = s_t = kept | y)

(Fisher's identity): w_t is the posterior that token t and the one before it were kept, by one
recursion forwards and one backwards. Where texts are edited in this way, and each p_t is taken
given the text as it is, ⟨ξ, ∇log L⟩ is the locally most powerful statistic, as σ → 0: it is the
slope of log L(y) along ξ. It is not where σ is large, where f is not the texts', or where the edit
leaves nothing foreign to see, as a deletion does. The level is exact in any case.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from transformers import PreTrainedModel

from gaussmark_lib import tokens
from gaussmark_lib.errors import InvalidTextError, is_number, require_list, shown

MOST = 300.0  # nats, of log p_t/q(y_t): e to its square is still a number


def fractions(edited: float | Sequence[float]) -> tuple[float, ...]:
    """The f of one direction or of several; InvalidTextError where one is not in [0, 1) or twice
    there, since a direction beside itself says nothing.
    """
    expected = "edited: expected shares of exchanged tokens, 0 ≤ f < 1, each once"
    several = edited if isinstance(edited, list | tuple) else [edited]
    values = require_list(several, expected, least=1)
    if not all(is_number(f) and 0 <= f < 1 for f in values) or len({*values}) < len(values):
        raise InvalidTextError(f"{expected}, got {shown(edited)}")
    return tuple(map(float, values))


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
    [0.98, 0.95, 0.97, 1.0]
    """
    if not f:
        return np.ones_like(log_ratio)
    stay, lose, heal, lost = 1 - f / 2, f / 2, (1 - f) / 2, (1 + f) / 2  # P(s_t | s_{t−1})
    ratio = np.exp(np.clip(log_ratio, -MOST, MOST)).tolist()
    n, kept_so_far, odds = len(ratio), [1.0], [1.0]
    for r in ratio:  # P(s_t = kept | y_≤t)
        a = kept_so_far[-1]
        good, bad = a * stay * r + (1 - a) * heal, a * lose + (1 - a) * lost
        kept_so_far.append(good / (good + bad))
    for r in reversed(ratio):  # P(y_>t | s_t = kept) / P(y_>t | s_t = foreign)
        odds.append((stay * r * odds[-1] + lose) / (heal * odds[-1] + lost))
    a, b, r = np.array(kept_so_far[:n]), np.array(odds[n - 1 :: -1]), np.array(ratio)
    both = a * stay * r * b
    return both / (both + a * lose + (1 - a) * (heal * b + lost))
