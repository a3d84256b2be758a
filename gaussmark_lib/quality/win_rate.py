"""How often does a judge prefer the watermarked model's answer to the base model's, after
AlpacaEval?

    score_i  =  ½ · [preference(a_i first, b_i second) + 1 − preference(b_i first, a_i second)]

A tie counts ½. Judges favour a place (first or second), whatever its text; asked in both orders,
that bias cancels in each item.

:class:`LikelihoodJudge` needs no network. It prefers the continuation with the higher mean
log q(token | the two before it), q being an interpolated trigram model of human text with Witten
and Bell's weights,

    q_n(w | h) = (c(h, w) + N(h) · q_{n−1}(w | h')) / (c(h) + N(h)),      q_0 = 1/V

c counts, N(h) is the number of different tokens after h, and h' is h without its first token. It
reads three tokens at a time: it sees broken words and broken grammar, never sense or truth, and it
prefers common phrases. A win rate of ½ is evidence against gross damage, not for quality.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from gaussmark_lib.tokens import Ids, Texts


@dataclass(frozen=True)
class Question:
    """One comparison. The judge sees the two answers in this order, and not who wrote them."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Answer:
    """``preference`` for the first answer: 1, 0, ½ for a tie; nan if there is none, for the reason
    in ``error``.
    """

    preference: float
    error: str | None = None
    cached: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


@runtime_checkable
class Judge(Protocol):
    """One answer per question, in order. A question that fails is an answer with its error."""

    name: str

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]: ...


def compare(
    judge: Judge,
    prompts: Sequence[str],
    candidates: Sequence[str],
    references: Sequence[str],
    *,
    progress: bool = False,
) -> pd.DataFrame:
    """Asks about each prompt in both orders. Identical answers are a tie, without a question.

    Returns:
        One row per prompt: ``item``, ``score`` of the candidate (0 to 1; nan if an order failed),
        ``candidate_first`` and ``reference_first`` (the judge's preference for the first text),
        ``error``, and sums over both orders: ``asked, cached, tokens_in, tokens_out``.
    """
    texts = list(zip(prompts, candidates, references, strict=True))
    differ = [i for i, (_, ours, theirs) in enumerate(texts) if ours != theirs]
    questions = [Question(*texts[i]) for i in differ]
    questions += [Question(q.prompt, q.second, q.first) for q in questions]
    answers = judge.ask(questions, progress=progress)
    both = {i: (answers[k], answers[k + len(differ)]) for k, i in enumerate(differ)}
    return pd.DataFrame([{"item": i} | _row(both.get(i, ())) for i in range(len(texts))])


def _row(answers: Sequence[Answer]) -> dict:
    ours, theirs = (answer.preference for answer in answers) if answers else (0.5, 0.5)
    errors = dict.fromkeys(answer.error for answer in answers if answer.error)
    counts = {
        name: sum(getattr(answer, name) for answer in answers)
        for name in ("cached", "tokens_in", "tokens_out")
    }
    return {
        "score": (ours + 1 - theirs) / 2,
        "candidate_first": ours,
        "reference_first": theirs,
        "error": "; ".join(errors) or None,
        "asked": len(answers),
        **counts,
    }


class Ngram:
    """q above, over token ids from 0 to ``vocabulary`` − 1. ``start`` stands before each text."""

    def __init__(self, texts: Texts, vocabulary: int, *, start: int = 0, order: int = 3):
        self.vocabulary, self.start, self.order = vocabulary, start, order
        self.after: dict[tuple, Counter] = defaultdict(Counter)  # what follows each history
        for text in texts:
            for history, token in self._windows([], text):
                for n in range(order):
                    self.after[history[n:]][token] += 1
        self.total = {history: counts.total() for history, counts in self.after.items()}

    def log_q(self, prompt: Ids, response: Ids) -> np.ndarray:
        """log q of each response token, nats."""
        return np.log([self._q(*window) for window in self._windows(prompt, response)])

    def _windows(self, prompt: Ids, response: Ids) -> list[tuple[tuple, int]]:
        """Each response token with the ``order − 1`` before it: (history, token)."""
        n = self.order - 1
        ids = [*[self.start] * n, *prompt, *response]
        first = n + len(prompt)
        return [(tuple(ids[t - n : t]), ids[t]) for t in range(first, len(ids))]

    def _q(self, history: tuple, token: int) -> float:
        q = 1 / self.vocabulary
        for n in range(len(history), -1, -1):  # shorter histories first
            if (known := history[n:]) in self.total:
                counts = self.after[known]
                q = (counts[token] + len(counts) * q) / (self.total[known] + len(counts))
        return q


class LikelihoodJudge:
    """The judge above; ``encode`` turns text into token ids."""

    name = "likelihood under an n-gram model of human text"

    def __init__(self, model: Ngram, encode: Callable[[str], list[int]]):
        self.model, self.encode = model, encode
        self._mean_log_q = cache(self._read)  # a text is asked about in several questions

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]:
        return [Answer(self._preference(question)) for question in questions]

    def _preference(self, question: Question) -> float:
        first = self._mean_log_q(question.prompt, question.first)
        second = self._mean_log_q(question.prompt, question.second)
        return 0.5 if first == second else float(first > second)

    def _read(self, prompt: str, text: str) -> float:
        """Per token; an empty text has no likelihood, and loses to any other."""
        ids = self.encode(text)
        return float(self.model.log_q(self.encode(prompt), ids).mean()) if ids else -np.inf
