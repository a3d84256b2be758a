"""The tests of texts. This is the only file of the command line that calls them; the others arrange
texts and answers.

In each function ``texts`` are pairs of prompts and responses as token ids. The tables have one row
per text and key. The control key, which nobody writes with, is the last key.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import score
from gaussmark_lib.beyond import joint, promise, tracing
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench.cli.question import Question

Windows = tuple[list[list[int]], list[list[int]]]  # prompts and responses that fit the context
CONTROL = Key.from_seed(2**64)  # what the test says of a wrong key
LARGEST_LOG = 709  # of a float


def alone(question: Question, texts: Windows) -> pd.DataFrame:
    """Each text's own scores. What cannot be scored has a reason in the column ``error``."""
    prompts, responses = texts
    table = score.score(
        question.lm.model,
        prompts,
        responses,
        question.watermark,
        [*question.keys, CONTROL],
        token_weights=question.token_weights,
        on_error="record",
    )
    return _with_e_value(table, question.sigma)


def together(question: Question, versions: Sequence[Windows]) -> pd.DataFrame:
    """The scores of one text that is longer than the context, or that has several versions."""
    keys = [*question.keys, CONTROL]
    model = question.lm.model
    if len(versions) == 1:
        [(prompts, responses)] = versions
        table = tracing.author(
            model,
            prompts,
            responses,
            question.watermark,
            keys,
            token_weights=question.token_weights,
            batch_size=1,
        )
    else:
        table = tracing.any_version(
            model,
            versions,
            question.watermark,
            keys,
            token_weights=question.token_weights,
            batch_size=1,
        )
    return _with_e_value(table.assign(error=None), question.sigma)


def in_stream(
    question: Question,
    texts: Windows,
    state: joint.State,
    share: float,
    given: Windows | None,
) -> pd.DataFrame:
    """Each text's scores given all earlier answers, without a control key. ``state`` is
    extended.
    """
    prompts, responses = texts
    return joint.sequence(
        question.lm.model,
        prompts,
        responses,
        question.watermark,
        question.keys,
        share=share,
        state=state,
        given=given,
        token_weights=question.token_weights,
        on_error="record",
    )


def users(
    question: Question, texts: Windows, book: tracing.Codebook, *, together: bool = False
) -> pd.DataFrame:
    """The user that each text leans to most; ``together``: the one that the windows of a single
    text lean to, in one row. DegenerateScoreError if a text has no gradient.
    """
    prompts, responses = texts
    return tracing.attribute(
        question.lm.model,
        prompts,
        responses,
        question.watermark,
        book,
        together=together,
        token_weights=question.token_weights,
        batch_size=1 if together else 8,
    )


def with_promise(question: Question, scores: pd.DataFrame, texts: Windows) -> pd.DataFrame:
    """The scores of texts in one window each, with what each text promises."""
    promised = _promised(question, texts).drop(columns="n_tokens")  # which the scores have
    return scores.merge(promised, on="text")


def promised_together(question: Question, windows: Windows) -> dict[str, float]:
    """What one text in several windows promises."""
    return promise.together(_promised(question, windows, batch_size=1))


def _promised(question: Question, texts: Windows, batch_size: int = 8) -> pd.DataFrame:
    """What each text promises: one more forward and backward pass."""
    prompts, responses = texts
    return promise.table(
        question.lm.model,
        prompts,
        responses,
        question.watermark,
        token_weights=question.token_weights,
        unknown_prompt=question.lm.unknown_prompt(),
        batch_size=batch_size,
    )


def _with_e_value(table: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """The table with e = exp(λψ − λ²/2) and λ = σ‖G‖, which has the mean 1 over keys, and is large
    for a text that is marked as predicted.
    """
    shift = sigma * table["grad_norm"].astype(float)
    log_e = shift * table["psi"].astype(float) - shift**2 / 2
    return table.assign(e_value=np.exp(log_e.clip(upper=LARGEST_LOG)))
