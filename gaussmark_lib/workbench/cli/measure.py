"""The tests of texts. Only this file of the command line calls them; the others arrange texts and
answers.

In each function, ``texts`` are prompts and responses as token ids. The tables have one row per text
and key. The last key is the control key, an unrelated key.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import score
from gaussmark_lib.beyond import joint, promise, tracing
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench.cli.question import Question

Windows = tuple[list[list[int]], list[list[int]]]  # prompts and responses that fit the context
CONTROL = Key.from_seed(2**64)  # an unrelated key, for comparison
LARGEST_LOG = 709  # of a float64


def alone(question: Question, texts: Windows) -> pd.DataFrame:
    """Score each text. The column ``error`` says why a text cannot be scored."""
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
    """Score a text that is longer than the context, or has several versions."""
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
    share: float | None,
    given: Windows | None,
) -> pd.DataFrame:
    """Score each text given all earlier answers, without a control key. Extends ``state``."""
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
    """Return the user with the largest ψ for each text.

    With ``together``, the texts are the windows of a single text, and there is one row.

    Raises:
        DegenerateScoreError: if a text has no gradient.
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
    """Add the columns of ``promise.table`` to the scores of texts in one window each."""
    promised = _promised(question, texts).drop(columns="n_tokens")  # the scores have it
    return scores.merge(promised, on="text")


def promised_together(question: Question, windows: Windows) -> dict[str, float]:
    """Return the promise of a text in several windows."""
    return promise.together(_promised(question, windows, batch_size=1))


def _promised(question: Question, texts: Windows, batch_size: int = 8) -> pd.DataFrame:
    """The promise of each text, by another forward and backward pass."""
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
    """Add the e-value e = exp(λψ − λ²/2) with λ = σ‖G‖.

    Its mean over keys is 1; for a watermarked text with ψ as predicted it is large.
    """
    shift = sigma * table["grad_norm"].astype(float)
    log_e = shift * table["psi"].astype(float) - shift**2 / 2
    return table.assign(e_value=np.exp(log_e.clip(upper=LARGEST_LOG)))
