"""How often does a judge prefer the watermarked model's answer to the base model's? As in
AlpacaEval:

    score_i  =  ½ · [preference(a_i first, b_i second) + 1 − preference(b_i first, a_i second)]

A tie counts ½. Judges favour a position (first or second), whatever the text. They are asked in
both orders, so this bias cancels in each item.

:class:`LikelihoodJudge` needs no network. It prefers the continuation with the higher mean
log q(token | the two tokens before it), where q is an interpolated trigram model of human text with
Witten and Bell's weights,

    q_n(w | h) = (c(h, w) + N(h) · q_{n−1}(w | h')) / (c(h) + N(h)),      q_0 = 1/V

c counts, N(h) is the number of different tokens after h, and h' is h without its first token. The
judge reads three tokens at a time: it sees broken words and broken grammar, never sense or truth,
and it prefers common phrases. A win rate of ½ is evidence against gross damage, not for quality.

:class:`ModelJudge` needs no network either. It prefers the answer with the higher mean
log p(token | the question, the tokens before it) under a language model, which should not be the
model that wrote the answers. It reads each answer alone, so it does not favour a position.

:class:`EndpointJudge` is any OpenAI-compatible endpoint (paper, App. on quality: GPT-4o), from

    GAUSSMARK_JUDGE_URL    e.g. https://api.openai.com/v1, or a server of your own
    GAUSSMARK_JUDGE_MODEL  e.g. gpt-4o
    GAUSSMARK_JUDGE_KEY    the secret; sent to that address and nowhere else, never recorded

Its answers are cached by model, address and question, so that a repeated comparison asks only the
missing questions. A question that fails after the client's retries is recorded with the reason.
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

from gaussmark_experiments.measures import reading
from gaussmark_lib import models, tokens
from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.tokens import Ids, Texts

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
    """A comparison. The judge sees the two answers in this order, but not their authors."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Answer:
    """``preference`` for the first answer: 1, 0, or ½ for a tie; nan if the judge gave none, with
    the reason in ``error``. ``tokens_in``: the length of the question, when it was asked.
    """

    preference: float
    error: str | None = None
    tokens_in: int = 0


@runtime_checkable
class Judge(Protocol):
    """Gives one answer per question, in order. If a question fails, its answer has the error."""

    name: str

    def ask(self, questions: Sequence[Question]) -> list[Answer]: ...


def compare(
    judge: Judge, prompts: Sequence[str], candidates: Sequence[str], references: Sequence[str]
) -> pd.DataFrame:
    """Ask about each prompt in both orders. Identical answers are a tie, without a question.

    Returns:
        One row per prompt: ``item``, ``score`` of the candidate (0 to 1; nan if an order failed),
        ``candidate_first`` and ``reference_first`` (the judge's preference for the first text),
        ``error``, and sums over both orders: ``asked, tokens_in``.
    """
    candidate_first = []
    reference_first = []
    asked_items = []
    texts = zip(prompts, candidates, references, strict=True)
    for item, (prompt, candidate, reference) in enumerate(texts):
        if candidate != reference:
            asked_items.append(item)
            candidate_first.append(Question(prompt, candidate, reference))
            reference_first.append(Question(prompt, reference, candidate))

    # in one call, so that a judge may answer many questions at the same time
    answers = judge.ask(candidate_first + reference_first)
    n_asked = len(asked_items)
    answers_by_item = {}
    for item, first, second in zip(asked_items, answers[:n_asked], answers[n_asked:], strict=True):
        answers_by_item[item] = (first, second)
    rows = [{"item": item, **_row(answers_by_item.get(item, ()))} for item in range(len(prompts))]
    return pd.DataFrame(rows)


def _row(answers: Sequence[Answer]) -> dict:
    """The result of an item from its two answers, or of a tie without answers."""
    tie = PREFERENCE["T"]
    candidate_first, reference_first = [answer.preference for answer in answers] or (tie, tie)
    errors = dict.fromkeys(answer.error for answer in answers if answer.error)
    return {
        "score": (candidate_first + 1 - reference_first) / 2,
        "candidate_first": candidate_first,
        "reference_first": reference_first,
        "error": "; ".join(errors) or None,
        "asked": len(answers),
        "tokens_in": sum(answer.tokens_in for answer in answers),
    }


class Ngram:
    """q above, over token ids from 0 to ``vocabulary`` − 1. Id 0 stands before each text."""

    def __init__(self, texts: Texts, vocabulary: int, *, order: int = 3):
        self.vocabulary = vocabulary
        self.order = order
        self.after: dict[tuple, Counter] = defaultdict(Counter)  # history → its next tokens
        for text in texts:
            for history, token in self._windows([], text):
                for n_left_out in range(order):
                    shorter = history[n_left_out:]
                    self.after[shorter][token] += 1
        # numbers of tokens after each history
        self.total = {history: counts.total() for history, counts in self.after.items()}

    def log_q(self, prompt: Ids, response: Ids) -> np.ndarray:
        """Return log q of each response token, nats."""
        windows = self._windows(prompt, response)
        return np.log([self._q(history, token) for history, token in windows])

    def _windows(self, prompt: Ids, response: Ids) -> list[tuple[tuple, int]]:
        """Each response token with the ``order − 1`` tokens before it: (history, token)."""
        n = self.order - 1
        start = [0] * n  # id 0, so that the first token has a history, too
        ids = [*start, *prompt, *response]
        windows = []
        for position in range(n + len(prompt), len(ids)):
            history = tuple(ids[position - n : position])
            windows.append((history, ids[position]))
        return windows

    def _q(self, history: tuple, token: int) -> float:
        q = 1 / self.vocabulary
        for n_left_out in range(len(history), -1, -1):  # shorter histories first
            shorter = history[n_left_out:]
            if shorter in self.total:
                counts = self.after[shorter]
                n_different = len(counts)
                q = (counts[token] + n_different * q) / (self.total[shorter] + n_different)
        return q


class LikelihoodJudge:
    """The offline judge above; ``encode`` turns text into token ids."""

    name = "likelihood under an n-gram model of human text"

    def __init__(self, model: Ngram, encode: Callable[[str], list[int]]):
        self.model = model
        self.encode = encode
        self._mean_log_q = cache(self._read)  # several questions have the same text

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Return one answer per question."""
        return [Answer(self._preference(question)) for question in questions]

    def _preference(self, question: Question) -> float:
        first = self._mean_log_q(question.prompt, question.first)
        second = self._mean_log_q(question.prompt, question.second)
        return _larger(first, second)

    def _read(self, prompt: str, text: str) -> float:
        """The mean log q per token. An empty text loses to any other text."""
        ids = self.encode(text)
        if not ids:
            return -np.inf
        log_q = self.model.log_q(self.encode(prompt), ids)
        return float(log_q.mean())


class ModelJudge:
    """Prefers the answer that is more likely per token under a language model. An empty answer
    loses to any other answer.
    """

    def __init__(self, lm: models.LM):
        self.lm = lm
        self.name = f"likelihood under {lm.title}"
        self._means: dict[tuple[str, str], float] = {}  # (prompt, answer) → mean log p

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Return one answer per question; each text is read once."""
        texts: dict[tuple[str, str], None] = {}  # (prompt, answer), without repetition
        for question in questions:
            texts[question.prompt, question.first] = None
            texts[question.prompt, question.second] = None
        unread = [text for text in texts if text not in self._means]
        self._means |= zip(unread, self._read(unread), strict=True)
        return [Answer(self._preference(question)) for question in questions]

    def _preference(self, question: Question) -> float:
        first = self._means[question.prompt, question.first]
        second = self._means[question.prompt, question.second]
        return _larger(first, second)

    def _read(self, texts: Sequence[tuple[str, str]]) -> np.ndarray:
        prompts = [self.lm.prompt(prompt) for prompt, _ in texts]
        answers = [self.lm.encode(answer) for _, answer in texts]
        lengths = np.array([len(ids) for ids in answers])
        means = np.full(len(texts), -np.inf)  # the value of an empty answer
        readable = np.flatnonzero(lengths)
        if len(readable) == 0:
            return means
        reader = tokens.Reader(self.lm.model)
        pairs = reader.pairs(
            [prompts[number] for number in readable],
            [answers[number] for number in readable],
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
        key: the secret; not in ``repr``, not in the cache, and removed from every error.
        cache: a folder of answers (``joblib.Memory``); None to keep none.
        timeout: seconds for one attempt.
        retries: further attempts of the client after a temporary failure.
        concurrent: number of questions asked at the same time.
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
        """Make the judge of the three variables; ``settings`` are the other arguments."""
        missing = [name for name in VARIABLES if not os.environ.get(name)]
        if missing:
            raise ParameterError(
                f"no judge is set up: expected {', '.join(missing)} in the environment. The offline"
                " judge needs no variables"
            )
        url, model, key = (os.environ[name] for name in VARIABLES)
        return cls(url, model, key, **settings)

    def __post_init__(self):
        if not re.match(r"https?://([^/@]*@)?[\w.-]+(:\d+)?(/|$)", self.url):
            raise ParameterError(
                f"expected the judge's address as http(s)://host/…, got {self._clean(self.url)!r}"
            )
        if not (self.key.isascii() and self.key.isprintable()):
            raise ParameterError(
                "expected the judge's key to be printable ASCII, because a header contains it, got"
                " other characters (the key is not shown)"
            )

    @property
    def name(self) -> str:
        """The model and its host, without the rest of the address."""
        return f"{self.model} at {urlsplit(self.url).hostname}"

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Return one answer per question; cached answers cost nothing."""
        from openai import OpenAI

        client = OpenAI(
            api_key=self.key,
            base_url=self.url,
            timeout=self.timeout,
            max_retries=self.retries,
        )
        memory = Memory(self.cache and str(self.cache), verbose=0)
        cached = memory.cache(_kept, ignore=["ask"])
        distinct = list(dict.fromkeys(questions))  # in order
        with client, ThreadPoolExecutor(self.concurrent) as pool:
            answers = pool.map(partial(self._answer, client, cached), distinct)
            by_question = dict(zip(distinct, answers, strict=True))
        return [by_question[question] for question in questions]

    def _answer(self, client, cached: Callable, question: Question) -> Answer:
        from openai import OpenAIError

        messages = _messages(question)
        identity = json.dumps([self.url, self.model, messages])
        digest = hashlib.sha256(identity.encode()).hexdigest()
        ask = partial(self._asked, client, messages)
        try:
            preference, tokens_in = cached(digest, ask)
        except (OpenAIError, ValueError) as error:  # ValueError: half a character cannot be sent
            message = self._clean(f"{type(error).__name__}: {error}")
            return Answer(math.nan, error=message)
        return Answer(preference, tokens_in=tokens_in)

    def _asked(self, client, messages: list[dict[str, str]]) -> tuple[float, int]:
        """The preference and tokens in; GaussMarkError if the reply is not an answer."""
        reply = client.chat.completions.create(
            model=self.model,
            messages=messages,
            temperature=0,
            max_tokens=4,
        )
        try:
            preference = parse(reply.choices[0].message.content)
        except (AttributeError, IndexError, TypeError):
            raise GaussMarkError("expected a chat completion as JSON, got another answer") from None
        tokens_in = reply.usage.prompt_tokens if reply.usage else 0
        return preference, tokens_in

    def _clean(self, text: str) -> str:
        """An error's text on one line, without the key, which a server may have sent back."""
        if self.key:
            text = text.replace(self.key, "•••")
        in_one_line = " ".join(text.split())
        return in_one_line[:300]


def _messages(question: Question) -> list[dict[str, str]]:
    parts = {
        "Beginning": question.prompt,
        "Continuation A": question.first,
        "Continuation B": question.second,
        "Your answer (A, B or T)": "",
    }
    text = "\n\n".join(f"# {heading}\n{content}" for heading, content in parts.items())
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": text},
    ]


def parse(text: str) -> float:
    """Return the preference in a judge's reply: a letter, perhaps in quotes or brackets or with a
    full stop. GaussMarkError for anything else.

    >>> parse(" (A)."), parse("T")
    (1.0, 0.5)
    """
    match = re.fullmatch(r"[\s\"'(\[*]*([ABT])[\s\"')\].*]*", text.strip())
    if not match:
        raise GaussMarkError("expected the answer A, B or T, got other words")
    return PREFERENCE[match[1]]


# joblib finds an answer by this function's name and the digest: a new name empties the cache
def _kept(digest: str, ask: Callable[[], tuple]) -> tuple:
    """The answer that joblib caches under the digest. A failure raises, and is not cached."""
    return ask()
