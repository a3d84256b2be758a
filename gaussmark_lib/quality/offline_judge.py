"""A judge that needs no network: of two continuations it prefers the one that an n-gram model of
human text finds likelier, per token.

The rule: higher mean log q(token | the two before it), q an interpolated trigram model with Witten
and Bell's weights,

    q_n(w | h) = (c(h, w) + N(h) · q_{n−1}(w | h')) / (c(h) + N(h)),      q_0 = 1/V

where c counts, N(h) is how many different tokens follow h, and h' is h without its first token. It
is fitted on human text, without the language model's weights or any key.

Its limits. It reads three tokens at a time: it sees broken words and broken grammar, never sense,
truth or relevance. It prefers common and repeated phrases, so text at a lower temperature would
beat human text. A win rate of ½ under it is evidence against gross damage, not for quality.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gaussmark_lib.errors import JudgeError
from gaussmark_lib.quality.win_rate import Answer, Question
from gaussmark_lib.tokens import Ids, Texts


class Ngram:
    """q above, over token ids.

    Args:
        vocabulary: V, one more than the largest id.
        start: the id that stands before each text, ``order − 1`` times.
        order: 3 for a trigram model; V^order must fit 63 bits.
    """

    def __init__(self, texts: Texts, vocabulary: int, *, start: int = 0, order: int = 3):
        if vocabulary**order >= 2**63:
            raise JudgeError(
                f"expected vocabulary^order below 2^63, got {vocabulary}^{order}; use a lower order"
            )
        if not any(map(len, texts)):
            raise JudgeError("expected at least one token to fit an n-gram model on, got none")
        self.vocabulary, self.start, self.order = vocabulary, start, order
        windows = np.concatenate([self._windows([], text) for text in texts if len(text)])
        self._counts = [_Counts(self._codes(windows, n), vocabulary) for n in range(1, order + 1)]

    def log_q(self, prompt: Ids, response: Ids) -> np.ndarray:
        """log q of each response token, nats; float64, shape (len(response),)."""
        windows = self._windows(prompt, response)
        q = np.full(len(response), 1 / self.vocabulary)
        for n, counts in enumerate(self._counts, 1):
            q = counts.interpolate(self._codes(windows, n), q)
        return np.log(q)

    def _windows(self, prompt: Ids, response: Ids) -> np.ndarray:
        """(tokens, order): each response token with what stands before it."""
        ids = np.array([*[self.start] * (self.order - 1), *prompt, *response], dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise JudgeError(
                f"expected token ids from 0 to {self.vocabulary - 1}, got {ids.min()} to"
                f" {ids.max()}; use one tokenizer throughout"
            )
        return sliding_window_view(ids, self.order)[len(prompt) :]

    def _codes(self, windows: np.ndarray, n: int) -> np.ndarray:
        """The last n tokens of each window as one number in base V."""
        return windows[:, -n:] @ (self.vocabulary ** np.arange(n - 1, -1, -1, dtype=np.int64))


class _Counts:
    """c(h, w), c(h) and N(h) of one order, as sorted arrays."""

    def __init__(self, codes: np.ndarray, vocabulary: int):
        self.vocabulary = vocabulary
        self.grams, self.count = np.unique(codes, return_counts=True)
        self.histories, inverse = np.unique(self.grams // vocabulary, return_inverse=True)
        self.total = np.bincount(inverse, weights=self.count)
        self.followers = np.bincount(inverse)

    def interpolate(self, codes: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """The formula's q_n of these codes, where ``lower`` is q_{n−1}."""
        seen = _look_up(self.grams, self.count, codes)
        total, followers = (
            _look_up(self.histories, values, codes // self.vocabulary)
            for values in (self.total, self.followers)
        )
        known = total > 0
        return np.where(
            known, (seen + followers * lower) / np.where(known, total + followers, 1), lower
        )


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is none."""
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


class LikelihoodJudge:
    """The rule above as a judge; ``encode`` turns text into token ids. Asked in the other order, it
    gives the opposite answer.
    """

    name = "likelihood under an n-gram model of human text"

    def __init__(self, model: Ngram, encode: Callable[[str], list[int]]):
        self.model, self.encode = model, encode

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]:
        return [self._one(question) for question in questions]

    def _one(self, question: Question) -> Answer:
        prompt = self.encode(question.prompt)
        responses = [self.encode(text) for text in (question.first, question.second)]
        # an empty continuation has no likelihood per token, and loses to any other
        first, second = (
            self.model.log_q(prompt, response).mean() if response else -np.inf
            for response in responses
        )
        return Answer(0.5 if first == second else float(first > second))
