"""How often a judge prefers the watermarked model's answer, after AlpacaEval: two answers to one prompt, which is better?

    score_i  =  ½ · [preference(a_i first, b_i second) + 1 − preference(b_i first, a_i second)]      a tie counts ½
    win rate =  mean of score_i

Judges favour a place: first or second, whatever stands there. Asked in both orders, that bias cancels in each item, exactly. The paper compares the
watermarked model with its own base model, and the base model with itself under another seed: the second is what no difference looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from gaussmark_lib import stats


@dataclass(frozen=True)
class Question:
    """One comparison. The judge sees the two answers in this order, and not who wrote them."""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Answer:
    """``preference`` for the first answer: 1, 0, ½ for a tie, nan if there is none, for the reason in ``error``."""

    preference: float
    error: str | None = None
    cached: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    retries: int = 0


class Judge(Protocol):
    """Anything with a public ``name`` that answers questions, one answer a question, in order. It does not raise for a question that fails."""

    name: str

    def ask(self, questions: Sequence[Question], *, progress: bool = False) -> list[Answer]: ...


def compare(judge: Judge, prompts: Sequence[str], candidates: Sequence[str], references: Sequence[str], *, progress: bool = False) -> pd.DataFrame:
    """Asks about each prompt in both orders. Identical answers are a tie, and nobody is asked.

    Returns:
        One row a prompt: ``item``, ``score`` of the candidate (0 to 1; nan if an order failed), ``candidate_first`` and ``reference_first`` (the
        judge's preference for whatever stood first), ``error``, ``asked``, ``cached``, ``tokens_in``, ``tokens_out``, ``retries``.
    """
    if not len(prompts) == len(candidates) == len(references) > 0:
        raise ValueError(f"expected one candidate and one reference a prompt, got {len(prompts)}, {len(candidates)} and {len(references)}")
    differ = [i for i in range(len(prompts)) if candidates[i] != references[i]]
    questions = [Question(prompts[i], candidates[i], references[i]) for i in differ]
    questions += [Question(prompts[i], references[i], candidates[i]) for i in differ]
    answers = judge.ask(questions, progress=progress) if questions else []
    rows = {i: _row(i, Answer(0.5), Answer(0.5), asked=0) for i in range(len(prompts))}
    rows |= {i: _row(i, answers[k], answers[k + len(differ)], asked=2) for k, i in enumerate(differ)}
    return pd.DataFrame([rows[i] for i in range(len(prompts))])


def _row(item: int, ours_first: Answer, theirs_first: Answer, asked: int) -> dict:
    both = (ours_first, theirs_first)
    return {
        "item": item,
        "score": (ours_first.preference + 1 - theirs_first.preference) / 2,
        "candidate_first": ours_first.preference,
        "reference_first": theirs_first.preference,
        "error": "; ".join(dict.fromkeys(answer.error for answer in both if answer.error)) or None,
        "asked": asked,
        "cached": sum(answer.cached for answer in both),
        "tokens_in": sum(answer.tokens_in for answer in both),
        "tokens_out": sum(answer.tokens_out for answer in both),
        "retries": sum(answer.retries for answer in both),
    }


def summary(table: pd.DataFrame, confidence: float = 0.95) -> dict[str, float | None]:
    """The win rate of :func:`compare`'s table over the prompts answered in both orders, with the paired bootstrap's interval over prompts.

    Returns:
        ``win_rate, low, high, p_value`` (against ½; None where fewer than two prompts were answered), ``n``, ``failed``, and ``position_bias``:
        how much more often than ½ the judge prefers what stands first.
    """
    answered = table.dropna(subset=["score"])
    counts = {"n": len(answered), "failed": len(table) - len(answered)}
    if len(answered) < 2:
        return dict.fromkeys(("win_rate", "low", "high", "p_value", "position_bias")) | counts
    found = stats.paired(np.full(len(answered), 0.5), answered["score"], confidence=confidence)
    return {
        "win_rate": 0.5 + found["mean"],
        "low": 0.5 + found["low"],
        "high": 0.5 + found["high"],
        "p_value": found["p_value"],
        "position_bias": float(answered[["candidate_first", "reference_first"]].to_numpy().mean() - 0.5),
    } | counts
