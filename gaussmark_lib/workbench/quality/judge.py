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

:class:`ModelJudge` needs no network either. It prefers the answer with the higher mean
log p(token | the question, the tokens before it) under a language model, which should not be the
one that wrote the answers. It reads an answer alone, so it has no favourite place.

:class:`EndpointJudge` is any OpenAI-compatible endpoint (paper, App. on quality: GPT-4o), from

    GAUSSMARK_JUDGE_URL    e.g. https://api.openai.com/v1, or a server of your own
    GAUSSMARK_JUDGE_MODEL  e.g. gpt-4o
    GAUSSMARK_JUDGE_KEY    the secret; sent to that address and nowhere else, never recorded

Its answers are kept in a cache by model, address and question, so that a comparison started again
asks only what is missing. A question that fails after the client's retries is recorded with the
reason.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
from joblib import Memory

from gaussmark_lib import models, tokens
from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.workbench.quality import reading

VARIABLES = ("GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL", "GAUSSMARK_JUDGE_KEY")
INSTRUCTIONS = (
    "You compare two continuations of the same beginning of a text. Judge which one a careful"
    " reader would find better: more coherent, fluent and fitting. Do not let their order or their"
    " length influence you. Answer with one letter and nothing else: A if the first is better, B if"
    " the second is, T for a tie."
)
PREFERENCE = {"A": 1.0, "B": 0.0, "T": 0.5}


@dataclass(frozen=True)
class Question:
    """One comparison. The judge sees the two answers in this order, and not who wrote them."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Answer:
    """``preference`` for the first answer: 1, 0, ½ for a tie; nan if there is none, for the reason
    in ``error``. ``tokens_in``: of the question, when it was asked.
    """

    preference: float
    error: str | None = None
    tokens_in: int = 0


@runtime_checkable
class Judge(Protocol):
    """One answer per question, in order. A question that fails is an answer with its error."""

    name: str

    def ask(self, questions: Sequence[Question]) -> list[Answer]: ...


def compare(
    judge: Judge, prompts: Sequence[str], candidates: Sequence[str], references: Sequence[str]
) -> pd.DataFrame:
    """Asks about each prompt in both orders. Identical answers are a tie, without a question.

    Returns:
        One row per prompt: ``item``, ``score`` of the candidate (0 to 1; nan if an order failed),
        ``candidate_first`` and ``reference_first`` (the judge's preference for the first text),
        ``error``, and sums over both orders: ``asked, tokens_in``.
    """
    texts = list(zip(prompts, candidates, references, strict=True))
    differ = [i for i, (_, ours, theirs) in enumerate(texts) if ours != theirs]
    questions = [Question(*texts[i]) for i in differ]
    answers = judge.ask(questions + [Question(q.prompt, q.second, q.first) for q in questions])
    both = {i: (answers[k], answers[k + len(differ)]) for k, i in enumerate(differ)}
    return pd.DataFrame([{"item": i} | _row(both.get(i, ())) for i in range(len(texts))])


def _row(answers: Sequence[Answer]) -> dict:
    ours, theirs = (answer.preference for answer in answers) if answers else (0.5, 0.5)
    errors = dict.fromkeys(answer.error for answer in answers if answer.error)
    return {
        "score": (ours + 1 - theirs) / 2,
        "candidate_first": ours,
        "reference_first": theirs,
        "error": "; ".join(errors) or None,
        "asked": len(answers),
        "tokens_in": sum(answer.tokens_in for answer in answers),
    }


class Ngram:
    """q above, over token ids from 0 to ``vocabulary`` − 1. Id 0 stands before each text."""

    def __init__(self, texts: Texts, vocabulary: int, *, order: int = 3):
        self.vocabulary, self.order = vocabulary, order
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
        ids = [*[0] * n, *prompt, *response]
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
    """The offline judge above; ``encode`` turns text into token ids."""

    name = "likelihood under an n-gram model of human text"

    def __init__(self, model: Ngram, encode: Callable[[str], list[int]]):
        self.model, self.encode = model, encode
        self._mean_log_q = cache(self._read)  # a text is asked about in several questions

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        return [Answer(self._preference(question)) for question in questions]

    def _preference(self, question: Question) -> float:
        first = self._mean_log_q(question.prompt, question.first)
        second = self._mean_log_q(question.prompt, question.second)
        return _larger(first, second)

    def _read(self, prompt: str, text: str) -> float:
        """Per token; an empty text has no likelihood, and loses to any other."""
        ids = self.encode(text)
        return float(self.model.log_q(self.encode(prompt), ids).mean()) if ids else -np.inf


class ModelJudge:
    """Prefers the answer that a language model finds likelier, per token. An empty answer loses to
    any other.
    """

    def __init__(self, lm: models.LM):
        self.lm = lm
        self.name = f"likelihood under {lm.title}"
        self._means: dict[tuple[str, str], float] = {}  # (prompt, answer) → mean log p

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """One answer per question; each text is read once."""
        texts = [(q.prompt, answer) for q in questions for answer in (q.first, q.second)]
        unread = [text for text in dict.fromkeys(texts) if text not in self._means]
        self._means |= zip(unread, self._read(unread), strict=True)
        return [
            Answer(_larger(self._means[q.prompt, q.first], self._means[q.prompt, q.second]))
            for q in questions
        ]

    def _read(self, texts: Sequence[tuple[str, str]]) -> np.ndarray:
        prompts = [self.lm.prompt(prompt) for prompt, _ in texts]
        answers = [self.lm.encode(answer) for _, answer in texts]
        lengths = np.array([len(ids) for ids in answers])
        means = np.full(len(texts), -np.inf)
        readable = np.flatnonzero(lengths)
        if len(readable):
            pairs = tokens.Reader(self.lm.model).pairs(
                [prompts[i] for i in readable], [answers[i] for i in readable]
            )
            log_p = reading.log_p(self.lm.model, list(pairs.values()))
            means[readable] = log_p / lengths[readable]
        return means


def _larger(first: float, second: float) -> float:
    """The preference of a judge that likes the larger of two numbers."""
    return 0.5 if first == second else float(first > second)


@dataclass(frozen=True)
class EndpointJudge:
    """A chat model as a judge, at temperature 0.

    Args:
        url, model: the endpoint's base address, and the model's name there.
        key: its secret; not in ``repr``, not in the cache, and removed from every error.
        cache: a folder of answers (``joblib.Memory``); None to keep none.
        timeout: seconds for one attempt.
        retries: further attempts of the client after a failure that may pass.
        concurrent: questions asked at the same time.
    """

    url: str
    model: str
    key: str = field(repr=False)
    cache: Path | None = None
    timeout: float = 60.0
    retries: int = 4
    concurrent: int = 4

    @classmethod
    def from_environment(cls, **settings) -> "EndpointJudge":
        """The judge that the three variables describe; ``settings`` are the other arguments."""
        if missing := [name for name in VARIABLES if not os.environ.get(name)]:
            raise ParameterError(
                f"no judge is set up: expected {', '.join(missing)} in the environment. The offline"
                " judge needs none"
            )
        return cls(*(os.environ[name] for name in VARIABLES), **settings)

    def __post_init__(self):
        if not re.match(r"https?://([^/@]*@)?[\w.-]+(:\d+)?(/|$)", self.url):
            raise ParameterError(
                f"expected the judge's address as http(s)://host/…, got {self._clean(self.url)!r}"
            )
        if not (self.key.isascii() and self.key.isprintable()):
            raise ParameterError(
                "expected the judge's key to be printable ASCII, since a header holds it, got other"
                " characters (it is not shown)"
            )

    @property
    def name(self) -> str:
        return f"{self.model} at {urlsplit(self.url).hostname}"

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """One answer per question; those in the cache cost nothing."""
        from openai import OpenAI

        client = OpenAI(
            api_key=self.key, base_url=self.url, timeout=self.timeout, max_retries=self.retries
        )
        kept = Memory(self.cache and str(self.cache), verbose=0).cache(_kept, ignore=["ask"])
        distinct = list(dict.fromkeys(questions))
        with client, ThreadPoolExecutor(self.concurrent) as pool:
            answers = pool.map(partial(self._answer, client, kept), distinct)
            by_question = dict(zip(distinct, answers, strict=True))
        return [by_question[question] for question in questions]

    def _answer(self, client, kept: Callable, question: Question) -> Answer:
        from openai import OpenAIError

        messages = _messages(question)
        digest = hashlib.sha256(json.dumps([self.url, self.model, messages]).encode()).hexdigest()
        try:
            preference, tokens_in = kept(digest, partial(self._asked, client, messages))
        except (OpenAIError, ValueError) as error:  # half a character cannot be sent
            return Answer(math.nan, self._clean(f"{type(error).__name__}: {error}"))
        return Answer(preference, None, tokens_in)

    def _asked(self, client, messages: list[dict[str, str]]) -> tuple[float, int]:
        """The preference, and tokens in; GaussMarkError for an answer that is none."""
        reply = client.chat.completions.create(
            model=self.model, messages=messages, temperature=0, max_tokens=4
        )
        try:
            preference = parse(reply.choices[0].message.content)
        except (AttributeError, IndexError, TypeError):
            raise GaussMarkError("expected a chat completion as JSON, got another answer") from None
        return preference, reply.usage.prompt_tokens if reply.usage else 0

    def _clean(self, text: str) -> str:
        """An error's text on one line, without the key, which a server may have sent back."""
        return " ".join((text.replace(self.key, "•••") if self.key else text).split())[:300]


def _messages(question: Question) -> list[dict[str, str]]:
    parts = {
        "Beginning": question.prompt,
        "Continuation A": question.first,
        "Continuation B": question.second,
        "Your answer (A, B or T)": "",
    }
    text = "\n\n".join(f"# {heading}\n{content}" for heading, content in parts.items())
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}]


def parse(text: str) -> float:
    """The preference in a judge's reply: one letter, perhaps in quotes or brackets or with a full
    stop; GaussMarkError for anything else.

    >>> parse(" (A)."), parse("T")
    (1.0, 0.5)
    """
    match = re.fullmatch(r"[\s\"'(\[*]*([ABT])[\s\"')\].*]*", text.strip())
    if not match:
        raise GaussMarkError("expected the answer A, B or T, got other words")
    return PREFERENCE[match[1]]


def _kept(digest: str, ask: Callable[[], tuple]) -> tuple:
    """What joblib keeps under the digest; a failure raises, and is not kept."""
    return ask()
