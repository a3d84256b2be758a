"""A judge behind any OpenAI-compatible endpoint (paper, App. on quality: GPT-4o), from three
environment variables:

    GAUSSMARK_JUDGE_URL    e.g. https://api.openai.com/v1, or a server of your own
    GAUSSMARK_JUDGE_MODEL  e.g. gpt-4o
    GAUSSMARK_JUDGE_KEY    the secret; sent to that address and nowhere else, never recorded

Answers are kept in a cache by model, address and question, so that a comparison started again asks
only what is missing. A question that fails after the client's retries is recorded with the reason.
If several in a row fail, the judge is down, and the rest is not asked.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from joblib import Memory
from tqdm.auto import tqdm

from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.quality.win_rate import Answer, Question

VARIABLES = ("GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL", "GAUSSMARK_JUDGE_KEY")
INSTRUCTIONS = (
    "You compare two continuations of the same beginning of a text. Judge which one a careful"
    " reader would find better: more coherent, fluent and fitting. Do not let their order or their"
    " length influence you. Answer with one letter and nothing else: A if the first is better, B if"
    " the second is, T for a tie."
)
PREFERENCE = {"A": 1.0, "B": 0.0, "T": 0.5}


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
        give_up: after this many failures in a row, the rest is not asked.
    """

    url: str
    model: str
    key: str = field(repr=False)
    cache: Path | None = None
    timeout: float = 60.0
    retries: int = 4
    concurrent: int = 4
    give_up: int = 8

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

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]:
        """One answer per question; those in the cache cost nothing."""
        from openai import OpenAI

        client = OpenAI(
            api_key=self.key, base_url=self.url, timeout=self.timeout, max_retries=self.retries
        )
        kept = Memory(self.cache and str(self.cache), verbose=0).cache(_kept, ignore=["ask"])
        failed: list[str] = []  # in a row
        distinct = list(dict.fromkeys(questions))
        with client, ThreadPoolExecutor(self.concurrent) as pool:
            answers = pool.map(partial(self._answer, client, kept, failed), distinct)
            bar = tqdm(answers, self.name, len(distinct), unit="question", disable=not progress)
            by_question = dict(zip(distinct, bar, strict=True))
        return [by_question[question] for question in questions]

    def _answer(self, client, kept: Callable, failed: list[str], question: Question) -> Answer:
        from openai import OpenAIError

        messages = _messages(question)
        digest = hashlib.sha256(json.dumps([self.url, self.model, messages]).encode()).hexdigest()
        ask = partial(self._asked, client, messages)
        if kept.check_call_in_cache(digest, ask):
            return Answer(kept(digest, ask)[0], cached=True)
        if len(failed) >= self.give_up:
            reason = f"{self.give_up} questions in a row had failed, the last with: {failed[-1]}"
            return Answer(math.nan, f"not asked: {reason}")
        try:
            preference, *counts = kept(digest, ask)
        except (OpenAIError, ValueError) as error:  # half a character cannot be sent
            failed.append(self._clean(f"{type(error).__name__}: {error}"))
            return Answer(math.nan, failed[-1])
        failed.clear()
        return Answer(preference, None, False, *counts)

    def _asked(self, client, messages: list[dict[str, str]]) -> tuple[float, int, int]:
        """The preference, tokens in and out; GaussMarkError for an answer that is none."""
        reply = client.chat.completions.create(
            model=self.model, messages=messages, temperature=0, max_tokens=4
        )
        try:
            preference = parse(reply.choices[0].message.content)
        except (AttributeError, IndexError, TypeError):
            raise GaussMarkError("expected a chat completion as JSON, got another answer") from None
        usage = reply.usage
        return preference, *((usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0))

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
