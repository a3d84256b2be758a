"""Watermarks of different kinds behind one face, so that one experiment compares them on the same prompts with the same random numbers.

A scheme is a frozen dataclass that inherits from :class:`Scheme` and is registered under a name:

    @register("my scheme")
    def make(wm: Watermark, key: Key) -> Scheme:
        return MyScheme(key)

``schemes.named`` then makes it, and every level test runs over it. Its score table has one row a text with at least the columns ``COLUMNS``,
where ``statistic`` is its own (ψ, z, …) and ``p_value`` says how likely a value as large is without the key: schemes are compared by their
p-values only.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import Watermark

COLUMNS = ["text", "n_tokens", "statistic", "p_value", "log10_p"]


@runtime_checkable
class Scheme(Protocol):
    """What an experiment asks of a watermark. A scheme is a frozen dataclass with a field ``key``; its ``repr`` says all fields but the secret.

    Args:
        name: what tables and figures call it.
        key: its secret.
        exact: whether P(p_value ≤ α) ≤ α over keys holds for every text; the level tests check it where this is True.
    """

    name: str
    key: Key
    exact: bool = True

    @abstractmethod
    def generate(self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0) -> list[list[int]]:
        """Watermarked continuations at temperature 1, one a prompt; the same seed gives every scheme the same random numbers."""

    @abstractmethod
    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        """One row a text, in order, with ``COLUMNS`` and perhaps more. ``model`` is the base model."""

    @abstractmethod
    def divergences(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> Float[np.ndarray, " texts"]:
        """Σ_t KL(q_t ‖ p_t) along each of its own texts, nats a text: how far from the base model it wrote them (``divergence``)."""

    def rekeyed(self, seed: int) -> Self:
        """The same scheme under another, guessable key."""
        return replace(self, key=Key.from_seed(seed))

    def score_keys(self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Sequence[Key]) -> list[pd.DataFrame]:
        """:meth:`score` under each of several keys; a scheme whose keys share work says so here."""
        return [replace(self, key=key).score(model, prompts, responses) for key in keys]


Maker = Callable[[Watermark, Key], Scheme]
_makers: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Registers a function (watermark, key) → scheme under a name. Schemes that change the sampler, not the weights, ignore the watermark."""

    def kept(maker: Maker) -> Maker:
        if _makers.setdefault(name, maker) is not maker:
            raise InvalidWatermarkError(f"two schemes are called {name!r}; give one of them another name")
        return maker

    return kept


def named(wm: Watermark, key: Key, names: Sequence[str] | None = None) -> dict[str, Scheme]:
    """The registered schemes of these names, or all of them, with this key.

    Args:
        wm: weight, σ and number of dropped directions for the schemes that change a weight.

    Raises:
        InvalidWatermarkError: a name that no scheme has.
    """
    if unknown := [name for name in names or () if name not in _makers]:
        raise InvalidWatermarkError(f"no scheme is called {unknown[0]!r}: expected some of {', '.join(_makers)}")
    return {name: _makers[name](wm, key) for name in (_makers if names is None else names)}


def scores(model: PreTrainedModel, prompts: Texts, responses: Texts, schemes: Sequence[Scheme]) -> list[pd.DataFrame]:
    """What each scheme's ``score`` says of the same texts. Schemes that differ in their key alone are scored together."""
    alike: dict[Scheme, list[int]] = defaultdict(list)
    for place, scheme in enumerate(schemes):
        alike[replace(scheme, key=schemes[0].key)].append(place)
    found: dict[int, pd.DataFrame] = {}
    for scheme, places in alike.items():
        tables = scheme.score_keys(model, prompts, responses, [schemes[place].key for place in places])
        found |= dict(zip(places, tables, strict=True))
    return [found[place] for place in range(len(schemes))]
