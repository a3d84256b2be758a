"""A judge behind any OpenAI-compatible endpoint (paper, App. on quality: GPT-4o), from three
environment variables:

    GAUSSMARK_JUDGE_URL    e.g. https://api.openai.com/v1, or a server of your own
    GAUSSMARK_JUDGE_MODEL  e.g. gpt-4o
    GAUSSMARK_JUDGE_KEY    the secret; sent to that address and nowhere else, never recorded

Answers are kept in a cache by model, address and question, so that a comparison started again asks
only what is missing. A question that fails after its retries is recorded with the reason, and the
rest goes on. If several in a row fail, the judge is down, and the rest is not asked.
"""

import hashlib
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import AliasPath, BaseModel, Field, ValidationError
from tqdm.auto import tqdm

from gaussmark_lib import checks
from gaussmark_lib.errors import JudgeError
from gaussmark_lib.quality.win_rate import Answer, Question

VARIABLES = ("GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL", "GAUSSMARK_JUDGE_KEY")
INSTRUCTIONS = (
    "You compare two continuations of the same beginning of a text. Judge which one a careful"
    " reader would find better: more coherent, fluent and fitting. Do not let their order or their"
    " length influence you. Answer with one letter and nothing else: A if the first is better, B if"
    " the second is, T for a tie."
)
PREFERENCE = {"A": 1.0, "B": 0.0, "T": 0.5}


class _Reply(BaseModel):
    """What we read of a chat completion; servers differ in the rest."""

    text: str = Field(validation_alias=AliasPath("choices", 0, "message", "content"))
    tokens_in: float | None = Field(0, validation_alias=AliasPath("usage", "prompt_tokens"))
    tokens_out: float | None = Field(0, validation_alias=AliasPath("usage", "completion_tokens"))


@dataclass(frozen=True)
class EndpointJudge:
    """A chat model as a judge, at temperature 0.

    Args:
        url, model: the endpoint's base address, and the model's name there.
        key: its secret; not in ``repr``, not in the cache, and removed from every error.
        cache: an SQLite file of answers; None to keep none.
        timeout: seconds for one attempt.
        retries: further attempts after a timeout, a lost connection, 408, 409, 429 (after what
            Retry-After says) or 5xx.
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
        """The judge that the three variables describe; ``settings`` are the other arguments.
        JudgeError names the variables that are missing.
        """
        if missing := [name for name in VARIABLES if not os.environ.get(name)]:
            raise JudgeError(
                f"no judge is set up: expected {', '.join(missing)} in the environment. The offline"
                " judge needs none"
            )
        url, model, key = (os.environ[name] for name in VARIABLES)
        return cls(url, model, key, **settings)

    def __post_init__(self):
        if not isinstance(self.url, str) or not isinstance(self.key, str):
            raise JudgeError(
                f"expected the judge's address and its key as text, got {type(self.url).__name__}"
                f" and {type(self.key).__name__}"
            )
        if not _is_address(self.url):
            raise JudgeError(
                f"expected the judge's address as http(s)://host/…, got {self._clean(self.url)!r}"
            )
        if not (self.key.isascii() and self.key.isprintable()):
            raise JudgeError(
                "expected the judge's key to be printable ASCII, since a header holds it, got other"
                " characters (it is not shown)"
            )
        checks.positive(self.timeout, "timeout", JudgeError)
        for name, least in (("retries", 0), ("concurrent", 1), ("give_up", 1)):
            checks.whole(getattr(self, name), name, JudgeError, least=least)

    @property
    def name(self) -> str:
        return f"{self.model} at {urlsplit(self.url).hostname}"

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]:
        """One answer a question; those in the cache cost nothing."""
        names = [self._digest(question) for question in questions]
        with closing(_cache(self.cache)) as cache:
            known = {
                name: (
                    cache.execute(
                        "SELECT preference FROM answers WHERE digest = ?", [name]
                    ).fetchone()
                )
                for name in names
            }
            answers = {
                name: Answer(row[0], cached=True)
                for name, row in known.items()
                if row and row[0] in PREFERENCE.values()
            }
            missing = {
                name: question
                for name, question in zip(names, questions, strict=True)
                if name not in answers
            }
            with tqdm(
                total=len(missing), desc=self.name, unit="question", disable=not progress
            ) as bar:
                for name, answer in self._fresh(missing) if missing else ():
                    answers[name] = answer
                    if answer.error is None:
                        with cache:
                            row = [name, answer.preference, answer.tokens_in, answer.tokens_out]
                            cache.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)
                    asked = answers.values()
                    bar.set_postfix(
                        failed=sum(a.error is not None for a in asked),
                        tokens=sum(a.tokens_in + a.tokens_out for a in asked),
                    )
                    bar.update()
        return [answers[name] for name in names]

    def _fresh(self, missing: dict[str, Question]) -> Iterator[tuple[str, Answer]]:
        """Answers as they come in; ``give_up`` failures in a row cancel the rest."""
        from openai import OpenAI

        with OpenAI(
            api_key=self.key, base_url=self.url, timeout=self.timeout, max_retries=self.retries
        ) as client:
            pool = ThreadPoolExecutor(self.concurrent)
            try:
                names: dict[Future, str] = {
                    pool.submit(self._one, client, question): name
                    for name, question in missing.items()
                }
                in_a_row, last = 0, ""
                for future in as_completed(names):
                    if future.cancelled():
                        answer = Answer(
                            math.nan,
                            f"not asked: {self.give_up} questions in a row had failed, the last"
                            f" with: {last}",
                        )
                    else:
                        answer = future.result()
                        in_a_row, last = (in_a_row + 1, answer.error) if answer.error else (0, last)
                        if in_a_row >= self.give_up:
                            for waiting in names:
                                waiting.cancel()
                    yield names[future], answer
            finally:
                pool.shutdown(cancel_futures=True)

    def _one(self, client, question: Question) -> Answer:
        from openai import OpenAIError

        try:
            raw = client.chat.completions.with_raw_response.create(
                model=self.model, messages=self._messages(question), temperature=0, max_tokens=4
            )
            reply = _Reply.model_validate_json(raw.text)
        except (
            OpenAIError,
            UnicodeError,
        ) as error:  # after its retries; half a character in a question cannot be sent
            return Answer(
                math.nan, self._clean(f"{type(error).__name__}: {error}"), retries=self.retries
            )
        except ValidationError:
            return Answer(
                math.nan,
                f"expected a chat completion as JSON, got {self._clean(raw.text)[:80]!r}",
                retries=raw.retries_taken,
            )
        preference = parse(reply.text)
        error = (
            None
            if preference is not None
            else f"expected the answer A, B or T, got {self._clean(reply.text)[:60]!r}"
        )
        n_tokens = [int(number or 0) for number in (reply.tokens_in, reply.tokens_out)]
        return Answer(math.nan if error else preference, error, False, *n_tokens, raw.retries_taken)

    def _messages(self, question: Question) -> list[dict[str, str]]:
        parts = {
            "Beginning": question.prompt,
            "Continuation A": question.first,
            "Continuation B": question.second,
            "Your answer (A, B or T)": "",
        }
        text = "\n\n".join(f"# {heading}\n{content}" for heading, content in parts.items())
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}]

    def _digest(self, question: Question) -> str:
        """The name of a question in the cache; the key is no part of it."""
        return hashlib.sha256(
            json.dumps([self.url, self.model, self._messages(question)]).encode()
        ).hexdigest()

    def _clean(self, text: str) -> str:
        """An error's text on one line, without the key, which a server may have sent back."""
        return " ".join((text.replace(self.key, "•••") if self.key else text).split())[:300]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # brackets without an address in them, a port that is no number
        return False


def parse(text: str) -> float | None:
    """The preference in a judge's reply: one letter, perhaps in quotes or brackets or with a full
    stop; None for anything else.

    >>> parse(" (A)."), parse("T"), parse("A or B, hard to say")
    (1.0, 0.5, None)
    """
    match = re.fullmatch(r"[\s\"'(\[*]*([ABT])[\s\"')\].*]*", text.strip())
    return PREFERENCE[match[1]] if match else None


def cost(tokens_in: int, tokens_out: int, price_in: float, price_out: float) -> float:
    """Cost of these tokens, in the currency of the prices, which are per million tokens.

    >>> cost(1_000_000, 500_000, price_in=2.5, price_out=10.0)
    7.5
    """
    for name, value in {
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "price_in": price_in,
        "price_out": price_out,
    }.items():
        checks.positive(value, name, JudgeError, or_zero=True)
    return (tokens_in * price_in + tokens_out * price_out) / 1e6


def _cache(path: Path | None) -> sqlite3.Connection:
    """Answers by digest in one SQLite table, in memory if there is no path: never half written, and
    safe for several processes.
    """
    try:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path or ":memory:", timeout=30)
        db.execute(
            "CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, preference REAL,"
            " tokens_in INTEGER, tokens_out INTEGER)"
        )
        db.execute(
            "SELECT digest, preference, tokens_in, tokens_out FROM answers LIMIT 1"
        )  # another program's table of this name
    except (sqlite3.DatabaseError, OSError) as error:
        raise JudgeError(
            f"cannot use the judge's cache {path}: {error}; expected an SQLite file of its own,"
            " name another or remove it"
        ) from None
    return db
