"""How often a judge prefers the watermarked model's answer, after AlpacaEval: two answers to one
prompt, which is better?

    score_i  =  ½ · [preference(a_i first, b_i second) + 1 − preference(b_i first, a_i second)]
    a tie counts ½ win rate =  mean of score_i

Judges favour a place (first or second), whatever its text. Asked in both orders, that bias cancels
in each item, exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.errors import JudgeError
from gaussmark_lib.stats import Estimate, Paired


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
    retries: int = 0


@runtime_checkable
class Judge(Protocol):
    """Anything with a public ``name`` that answers questions, one answer a question, in order. It
    does not raise for a question that fails.
    """

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
        One row a prompt: ``item``, ``score`` of the candidate (0 to 1; nan if an order failed),
        ``candidate_first`` and ``reference_first`` (the judge's preference for the first text),
        ``error``, and sums over both orders: ``asked, cached, tokens_in, tokens_out, retries``.
    """
    if not len(prompts) == len(candidates) == len(references) > 0:
        raise JudgeError(
            f"expected one candidate and one reference a prompt, got {len(prompts)},"
            f" {len(candidates)} and {len(references)}"
        )
    differ = [i for i in range(len(prompts)) if candidates[i] != references[i]]
    questions = [Question(prompts[i], candidates[i], references[i]) for i in differ]
    questions += [Question(prompts[i], references[i], candidates[i]) for i in differ]
    answers = judge.ask(questions, progress=progress) if questions else []
    both = {i: (answers[k], answers[k + len(differ)]) for k, i in enumerate(differ)}
    return pd.DataFrame([_row(i, both.get(i, ())) for i in range(len(prompts))])


def _row(item: int, answers: Sequence[Answer]) -> dict:
    ours_first, theirs_first = (answer.preference for answer in answers) if answers else (0.5, 0.5)
    preferences = {
        "score": (ours_first + 1 - theirs_first) / 2,
        "candidate_first": ours_first,
        "reference_first": theirs_first,
    }
    error = "; ".join(dict.fromkeys(answer.error for answer in answers if answer.error)) or None
    counts = {
        name: sum(getattr(answer, name) for answer in answers)
        for name in ("cached", "tokens_in", "tokens_out", "retries")
    }
    return {"item": item, **preferences, "error": error, "asked": len(answers), **counts}


def summary(table: pd.DataFrame, confidence: float = 0.95) -> Paired:
    """Win rate − ½ of :func:`compare`'s table, with the paired bootstrap's interval over the
    prompts answered in both orders.

    Where one side wins every one of them, resampling says nothing, and the interval is the exact
    binomial one. ``n_equal`` counts identical answers. With fewer than two answered prompts, all
    numbers except n are nan.
    """
    answered = table.dropna(subset=["score"])
    n, n_equal = len(answered), int((answered["asked"] == 0).sum())
    if n < 2:
        return Paired(Estimate(np.nan, np.nan, np.nan, n), np.nan, n_equal)
    change, p_value, _ = stats.paired(np.full(n, 0.5), answered["score"], confidence=confidence)
    if abs(change.value) == 0.5:
        exact = stats.rate(answered["score"], confidence)
        change = replace(change, low=exact.low - 0.5, high=exact.high - 0.5)
    return Paired(change, p_value, n_equal)


def position_bias(table: pd.DataFrame) -> float:
    """How much more often than ½ the judge prefers the first text, over the prompts answered in
    both orders.
    """
    return float(
        table.dropna(subset=["score"])[["candidate_first", "reference_first"]].to_numpy().mean()
        - 0.5
    )
