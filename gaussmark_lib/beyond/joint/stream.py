"""A stream of texts under one key: for each text what is new in it, and for all of them together
when to stop.

The evidence for "a share π of these texts carries the key" after n texts is

    E_n = Π_{i ≤ n} (1 − π + π e_i),   e_i = exp(λ_i r_i − λ_i²/2),   λ_i = σ‖G_i‖s_i

λ_i is what text i promises as the mean of r_i if it carries the key (in the linear regime), and is
known without the key.

**Proposition 3 (a stream may be watched).** Where no text carries the key, P(sup_n E_n ≥ 1/α) ≤ α,
for one key, for any texts, even chosen by looking at the answers before, and at any stopping time.
*Proof.* Given everything before text i, λ_i is fixed and r_i is N(0, 1) (``law``, proposition 2),
so e_i has the mean exp(λ²/2 − λ²/2) = 1, and so has its factor: E_n is a martingale that is never
negative and begins at 1, for which this is Ville's inequality. ∎

In a stream that holds marked texts, the innovations of the unmarked ones are N(0, 1) to first order
only, since marked gradients depend on z.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from gaussmark_lib import gradients, perturb, score
from gaussmark_lib.beyond.joint import directions
from gaussmark_lib.beyond.joint.memory import GIVEN, Answer
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
from gaussmark_lib.weights import PlacedWatermark, Watermark

COLUMNS = [
    *score.COLUMNS,
    "innovation",
    "p_given",
    "residual",
    "e_value",
    "log_e",
    "repeats",
]
AT_ONCE = 8  # texts whose gradients are held while the keys' noises are drawn


def sequence(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    share: float = 0.1,
    state: State | None = None,
    given: tuple[Texts, Texts] | None = None,
    token_weights: Weigh | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 1,
    on_error: str = "raise",
) -> pd.DataFrame:
    """Tests texts one after the other, each for what the earlier ones had not said: per key, the
    false alarms of any texts are binomial.

    Args:
        model, prompts, responses, wm, keys, token_weights, dtype, batch_size, on_error: as
            ``score.score``, with one function as ``token_weights``; the texts in the order in which
            they came.
        share: π, the share of marked texts that the running evidence bets on.
        state: what was asked before. **It is extended**; without one, the stream begins here and is
            forgotten. A stream that is cut and resumed differs by rounding alone.
        given: prompts and responses of reference texts, human and of the stream's kind: what they
            have in common is then known before the first text.

    Returns:
        One row per text and key, texts in the order given: ``score.score``'s columns (ψ is what the
        memory expects of it where nothing is new), then ``innovation`` (r, N(0, 1) given all
        answers before), ``p_given`` (1 − Φ(r), and 1 where there is no r), ``residual`` (s, 0
        where nothing is new: r is then that of the same text asked before, or NaN where several
        together had said it all), ``e_value`` (e_i), ``log_e`` (natural log of E_n so far),
        ``repeats`` (the place in the stream, from 0, of the same text, or −1).

    Raises:
        KeyMismatchError: a state of another weight, model or set of keys, or a key twice;
            GaussMarkError: the state's memory is full; and the errors of ``score.score``.
    """
    share = require_between(share, "share", high=1)
    require_one_of(on_error, "on_error", ("raise", "record"), InvalidTextError)
    wm, keys = perturb.ready(model, wm, keys)
    failed: dict[int, GaussMarkError] | None = {} if on_error == "record" else None
    pairs = wm.reader.pairs(prompts, responses, failed)
    state = State() if state is None else state
    memory = state.use(wm, keys)
    settings = {
        "token_weights": require_one(token_weights),
        "dtype": dtype,
        "batch_size": require_int(batch_size, "batch_size"),
    }
    references = wm.reader.pairs(*given) if given else {}
    for gradient, psi in _statistics(references, wm, keys, settings, None):
        memory.ask(directions.kept(gradient), psi, GIVEN)
    ids, rows = [key.key_id for key in keys], []
    for gradient, psi in _statistics(pairs, wm, keys, settings, failed):
        try:
            answer = memory.ask(directions.kept(gradient), psi, state.n_texts)
        except GaussMarkError as error:
            if failed is None:
                raise
            failed[gradient.text] = error
            continue
        state.n_texts += 1
        found = score.table([(gradient, answer.psi)], {gradient.text: ids})
        rows.append(found.assign(**_evidence(gradient.norm, answer, wm.sigma, share, state)))
    rows += [score.failure(text, responses[text], ids) for text in failed or ()]
    table = pd.concat(rows).sort_values("text", kind="stable", ignore_index=True)
    table = table.reindex(columns=COLUMNS)
    table["repeats"] = table["repeats"].fillna(GIVEN).astype(int)
    if failed is not None:
        table["error"] = table["text"].map({text: str(error) for text, error in failed.items()})
    return table


def log_bets(
    innovation: NDArray[np.float64], promised: NDArray[np.float64] | float, share: float
) -> NDArray[np.float64]:
    """log(1 − π + π exp(λr − λ²/2)) of each innovation r, for λ = ``promised``: what it adds to log
    E.
    """
    return np.logaddexp(
        np.log1p(-share), np.log(share) + promised * innovation - np.square(promised) / 2
    )


def _evidence(
    grad_norm: float, answer: Answer, sigma: float, share: float, state: State
) -> dict[str, object]:
    """A text's further columns; its bets are added to the state's."""
    promised, r = sigma * grad_norm * answer.residual, np.nan_to_num(answer.innovation)
    if answer.residual:
        for key_id, gain in zip(state.log_e, log_bets(r, promised, share).tolist(), strict=True):
            state.log_e[key_id] += gain
    e_value = np.exp(np.minimum(promised * r - promised**2 / 2, 700.0))  # float64 ends at exp(709)
    columns = {name: value for name, value in answer._asdict().items() if name != "psi"}
    return columns | {"e_value": e_value, "log_e": list(state.log_e.values())}


def _statistics(
    pairs: dict[int, Pair],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    settings: dict,
    failed: dict[int, Exception] | None,
) -> Iterator[tuple[TextGradient, NDArray[np.float64]]]:
    """Each text's gradient and its ψ under all keys, texts in their order. Those without a gradient
    go to ``failed`` with their error, or raise it.
    """
    texts, at_once = list(pairs), max(AT_ONCE, settings["batch_size"])
    for start in range(0, len(texts), at_once):
        several = {text: pairs[text] for text in texts[start : start + at_once]}
        each = gradients.of_pairs(wm, several, form=directions.form, failed=failed, **settings)
        each = sorted(each, key=lambda gradient: gradient.text)
        yield from score.statistics(each, wm, keys)
