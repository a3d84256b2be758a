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

Beyond the memory's room (``memory``) r_i depends on earlier ones, so nothing is bet there: e_i
keeps its mean of 1, and E_n stays where it is. In a stream that holds marked texts, the innovations
of the unmarked ones are N(0, 1) to first order only, since marked gradients depend on z.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import checks, gradients, perturb, score, tokens
from gaussmark_lib.errors import InvalidTextError, StateError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.joint import directions, repeats
from gaussmark_lib.joint.directions import Direction, Directions
from gaussmark_lib.joint.memory import GIVEN, Answer
from gaussmark_lib.joint.state import State
from gaussmark_lib.keys import listed
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import PlacedWatermark, placed

COLUMNS = [
    *score.COLUMNS,
    "innovation",
    "p_given",
    "residual",
    "e_value",
    "log_e",
    "repeats",
    "correlation",
]


def sequence(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    *,
    share: float = 0.1,
    state: State | None = None,
    given: tuple[Texts, Texts] | None = None,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 1,
    on_error: str = "raise",
) -> pd.DataFrame:
    """Tests texts one after the other, each for what the earlier ones had not said: per key, the
    false alarms of any texts are binomial.

    Args:
        model, prompts, responses, wm, keys, xis, dtype, on_error: as ``score.score``; the texts in
            the order in which they came.
        share: π, the share of marked texts that the running evidence bets on.
        state: what was asked before. **It is extended**; without one, the stream begins here and is
            forgotten.
        given: prompts and responses of reference texts, human and of the stream's kind: what they
            have in common is then known before the first text.
        batch_size: as ``score.score``. A stream that is resumed from a saved state gives the same
            bits as in one go where it was cut at a multiple of it, as long as the noises of all
            keys fit in memory (``score.HELD``); otherwise the last digits may differ.

    Returns:
        One row per text × key, texts in the order given: ``score.score``'s columns (ψ is what the
        memory expects of it where nothing is new), then ``innovation`` (r, N(0, 1) given all
        answers before), ``p_given`` (the p-value to act on: 1 − Φ(r), or for a text that repeats
        an earlier one the greater of that one's and 1 − Φ(ψ)), ``residual`` (s, 0 where nothing
        is new: r is then that of the text it repeats, or NaN and p = 1 where several together had
        said it all), ``e_value`` (e_i), ``log_e`` (natural log of E_n so far), ``repeats`` (the
        place in the stream, from 0, of the text that it repeats, or −1), ``correlation`` (with the
        innovations before: 0 within the state's budget, beyond it the mean).

    Raises:
        StateError: a state of another weight, model or set of keys, or a key twice;
            StatisticsError: a share outside (0, 1); and the errors of ``score.score``.
    """
    share, keys = checks.share(share, "share"), listed(keys)
    checks.chosen(on_error, "on_error", ("raise", "record"), InvalidTextError)
    prompts, responses = tokens.as_many(prompts, responses)
    pairs, failed = tokens.usable_pairs(model, prompts, responses)
    if failed and on_error == "raise":
        raise next(iter(failed.values()))
    perturb.refuse_perturbed(model)
    reader = _Reader(placed(model, wm), keys, xis, dtype, checks.whole(batch_size, "batch_size"))
    state = State() if state is None else state
    if not isinstance(state, State):
        raise StateError(f"state: expected a joint.State, got {checks.kind(state)}")
    memory = state.use(reader.wm, keys)
    for text in reader.texts(_references(model, given)):
        memory.ask(text.direction, text.psi, text.runs, GIVEN)
    ids, rows = [key.key_id for key in keys], []
    for text in reader.texts(pairs, failed if on_error == "record" else None):
        answer = memory.ask(text.direction, text.psi, text.runs, state.n_texts)
        rows.append(
            score.rows([text.facts], answer.psi[None], ids).assign(
                **_evidence(text.facts["grad_norm"], answer, reader.wm.sigma, share, state, ids)
            )
        )
        state.n_texts += 1
    rows += [score.failure(text, responses[text], keys) for text in failed]
    table = (
        pd.concat(rows)
        .sort_values("text", kind="stable", ignore_index=True)
        .reindex(columns=COLUMNS)
    )
    table["repeats"] = table["repeats"].fillna(GIVEN).astype(int)
    return (
        table
        if on_error == "raise"
        else table.assign(
            error=table["text"].map({text: str(error) for text, error in failed.items()})
        )
    )


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
    grad_norm: float, answer: Answer, sigma: float, share: float, state: State, ids: Sequence[str]
) -> dict[str, object]:
    """A text's further columns; its bets are added to the state's."""
    promised, r = sigma * grad_norm * answer.residual, np.nan_to_num(answer.innovation)
    if answer.kept:
        for key_id, gain in zip(ids, log_bets(r, promised, share).tolist(), strict=True):
            state.log_e[key_id] += gain
    e_value = np.exp(np.minimum(promised * r - promised**2 / 2, 700.0))  # float64 ends at exp(709)
    columns = {name: value for name, value in answer._asdict().items() if name != "psi"}
    return columns | {"e_value": e_value, "log_e": [state.log_e[key_id] for key_id in ids]}


def _references(model: PreTrainedModel, given: tuple[Texts, Texts] | None) -> Mapping[int, Pair]:
    if given is None:
        return {}
    both = tokens.listed(
        given, "given: expected a pair, the prompts and the responses of reference texts"
    )
    if len(both) != 2:
        raise InvalidTextError(
            "given: expected a pair, the prompts and the responses of reference texts, got"
            f" {len(both)} items"
        )
    return tokens.checked_pairs(model, *both)


class _Text(NamedTuple):
    facts: dict[str, int | float]
    direction: Direction
    psi: NDArray[np.float64]
    runs: NDArray[np.uint64]


class _Reader:
    """Gradients and statistics of texts, in their order, with bounded memory."""

    def __init__(
        self,
        wm: PlacedWatermark,
        keys: Sequence[perturb.Key],
        xis: Tensor | None,
        dtype: str | torch.dtype | None,
        batch_size: int,
    ):
        self.wm, self.settings = wm, {"dtype": dtype, "batch_size": batch_size}
        self.noises = score.Noises(wm, keys, xis)
        self.at_a_time = batch_size * (
            1 if self.noises.held is not None else max(1, self.noises.n_texts // batch_size)
        )

    def texts(self, pairs: Mapping[int, Pair], failed: dict | None = None) -> Iterator[_Text]:
        """The texts that can be scored; the others raise, or go to ``failed`` with their error."""
        each = (
            found for batch in self._batches(list(pairs)) for found in self._gradients(pairs, batch)
        )
        most = max(1, min(self.at_a_time, len(pairs)))
        units = Directions(math.prod(self.wm.linear.shape), most)

        def put(place: int, found: TextGradient) -> None:
            u = directions.kept(found)
            if place == 0:
                units.clear()
            units.add(u)

        for facts in score.in_blocks(each, most, failed, put):
            for of_text, u, psi in zip(facts, units, self._psi(units), strict=True):
                yield _Text(of_text, u, psi, repeats.runs(pairs[of_text["text"]][1]))

    def _batches(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        size = self.settings["batch_size"]
        return (numbers[i : i + size] for i in range(0, len(numbers), size))

    def _gradients(self, pairs: Mapping[int, Pair], batch: Sequence[int]) -> list[TextGradient]:
        found = gradients.of_pairs(
            self.wm.model,
            {i: pairs[i] for i in batch},
            self.wm,
            form=directions.smaller,
            **self.settings,
        )
        return sorted(found, key=lambda one: one.text)

    def _psi(self, units: Directions) -> Float[np.ndarray, "texts k"]:
        found = [units.along(part.flatten(1)) for part in self.noises.parts()]
        return score.finite(np.hstack(found) / self.wm.sigma)
