"""A stream of texts under one key: the new evidence of each text, and a running test of them all.

The running evidence E_n for "some of these texts carry the key" is the wealth of bets on the
innovations (``bets``). A bet needs the mean of r_i that is predicted if text i carries the key. In
the linear regime this is

    λ_i = σ‖G_i‖s_i

which is known without the key. E_n may be looked at after every text: if no text carries the key,
P(sup_n E_n ≥ 1/α) ≤ α (proposition 3 in ``bets``).

In a stream with watermarked texts, the innovations of the other texts are N(0, 1) to first order
only, because watermarked gradients depend on z.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from transformers import PreTrainedModel

from gaussmark_lib import gradients, perturb, score
from gaussmark_lib.beyond.joint import bets, directions
from gaussmark_lib.beyond.joint.bets import Bet
from gaussmark_lib.beyond.joint.memory import GIVEN, NO_REPEAT, Answer
from gaussmark_lib.beyond.joint.state import State
from gaussmark_lib.errors import (
    GaussMarkError,
    InvalidTextError,
    require_between,
    require_int,
    require_one_of,
)
from gaussmark_lib.gradients import TextGradient, Weigh, require_one
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark, require_single

COLUMNS = [
    *score.COLUMNS,
    "innovation",
    "p_given",
    "residual",
    "e_value",
    "log_e",
    "repeats",
]
AT_ONCE = 8  # texts whose gradients are in memory while the noises of the keys are drawn


def sequence(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    share: float | None = None,
    state: State | None = None,
    given: tuple[Texts, Texts] | None = None,
    token_weights: Weigh | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 1,
    on_error: str = "raise",
) -> pd.DataFrame:
    """Test texts one after the other, each for what is new in it given the earlier texts.

    For each key, the number of false alarms among any texts is binomial.

    Args:
        model, prompts, responses, wm, keys, token_weights, dtype, batch_size, on_error: as in
            ``score.score``, with one function as ``token_weights``; texts are in the order of the
            stream.
        share: π, the share of watermarked texts that the running evidence bets on. None divides the
            first wealth among bets on several shares and strengths (``bets.MIXTURE``).
        state: the earlier texts and answers. **The state is extended.** Without a state, the stream
            begins here and is not stored. A stream that is cut and resumed differs only by
            rounding.
        given: prompts and responses of reference texts: human texts of the stream's kind. What they
            have in common is then known before the first text.

    Returns:
        One row per text and key, texts in the given order. First the columns of ``score.score``; if
        nothing in the text is new, ψ is the value that the memory expects. Then

        * ``innovation``: r, N(0, 1) given all earlier answers;
        * ``p_given``: 1 − Φ(r), and 1 if there is no r;
        * ``residual``: s. It is 0 if nothing is new: r is then that of the same text earlier in the
          stream, or NaN if several earlier texts together determine the answer;
        * ``e_value``: e_i;
        * ``log_e``: natural logarithm of E_n so far;
        * ``repeats``: the place of the same text in the stream, from 0, or −1.

    Raises:
        KeyMismatchError: if the state belongs to another weight, model or set of keys, or a key
            occurs twice.
        InvalidWatermarkError: if the watermark is on several weights.
        GaussMarkError: if the state's memory is full.

    It raises the errors of ``score.score``, too.
    """
    if share is not None:
        share = require_between(share, "share", high=1)
    require_one_of(on_error, "on_error", ("raise", "record"), InvalidTextError)
    wm, keys = perturb.ready(model, wm, keys)
    require_single(wm, "a stream")
    failed: dict[int, GaussMarkError] | None = {} if on_error == "record" else None
    pairs = wm.reader.pairs(prompts, responses, failed)
    state = State() if state is None else state
    memory = state.use(wm, keys)
    gradients_of = partial(
        gradients.of_pairs,
        wm,
        form=directions.form,
        token_weights=require_one(token_weights),
        dtype=dtype,
        batch_size=require_int(batch_size, "batch_size"),
    )
    n_at_once = max(AT_ONCE, batch_size)
    # Reference texts enter the memory, but are not answered.
    references = wm.reader.pairs(*given) if given else {}
    for gradient, psi in _statistics(references, wm, keys, gradients_of, n_at_once):
        memory.ask(directions.kept(gradient), psi, GIVEN)
    ids = [key.key_id for key in keys]
    rows = []
    for gradient, psi in _statistics(pairs, wm, keys, gradients_of, n_at_once, failed):
        try:
            answer = memory.ask(directions.kept(gradient), psi, state.n_texts)
        except GaussMarkError as error:
            if failed is None:
                raise
            failed[gradient.text] = error  # for example no room in the memory
            continue
        state.n_texts += 1
        promised = wm.sigma * gradient.norm * answer.residual  # λ
        rows_of_text = score.table([(gradient, answer.psi)], {gradient.text: ids})
        rows.append(rows_of_text.assign(**_evidence(promised, answer, bets.of(share), state)))
    for text in failed or ():
        rows.append(score.failure(text, responses[text], ids))
    table = pd.concat(rows).sort_values("text", kind="stable", ignore_index=True)
    table = table.reindex(columns=COLUMNS)
    table["repeats"] = table["repeats"].fillna(NO_REPEAT).astype(int)
    if failed is not None:
        messages = {text: str(error) for text, error in failed.items()}
        table["error"] = table["text"].map(messages)
    return table


def _evidence(
    promised: float, answer: Answer, of_stream: list[Bet], state: State
) -> dict[str, object]:
    """The further columns of a text; its evidence is added to the state's."""
    r = np.nan_to_num(answer.innovation)
    if answer.residual:  # a repeated text is no new evidence
        state.bet_on(of_stream)
        gains = bets.gains(r, promised, of_stream)  # (bets, keys)
        for key_id, of_key in zip(state.log_e, gains.T, strict=True):
            wealths = of_key + state.wealths[key_id]  # logarithms, one per bet
            state.wealths[key_id] = wealths.tolist()
            state.log_e[key_id] = float(logsumexp(wealths))
    log_e = promised * r - promised**2 / 2
    return {
        "innovation": answer.innovation,
        "p_given": answer.p_given,
        "residual": answer.residual,
        "repeats": answer.repeats,
        "e_value": np.exp(np.minimum(log_e, 700.0)),  # float64 ends at exp(709)
        "log_e": list(state.log_e.values()),
    }


def _statistics(
    pairs: dict[int, Pair],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    gradients_of: Callable[..., Iterator[TextGradient]],
    n_at_once: int,
    failed: dict[int, Exception] | None = None,
) -> Iterator[tuple[TextGradient, NDArray[np.float64]]]:
    """The gradient of each text and its ψ under all keys, texts in their order.

    The error of a text without a gradient goes to ``failed``, or is raised if ``failed`` is None.
    """
    texts = list(pairs)
    for start in range(0, len(texts), n_at_once):
        group = {text: pairs[text] for text in texts[start : start + n_at_once]}
        # Batches hold texts of similar lengths: back to the order of the stream.
        in_order = sorted(gradients_of(group, failed=failed), key=lambda gradient: gradient.text)
        yield from score.statistics(in_order, wm, keys)
