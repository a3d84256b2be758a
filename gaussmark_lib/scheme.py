"""Watermarks of different kinds with one interface, so that one experiment compares them on the
same prompts with the same random numbers.

A scheme is a frozen dataclass that inherits from :class:`Scheme`, in a file of the folder
``schemes``, and is registered under a name:

    @register("my scheme")
    def mine(wm: Watermark, key: Key) -> MyScheme:
        return MyScheme(key)

``schemes.named`` then makes it, and the level tests (tests/oracle/test_levels.py) run over it.
Schemes are compared by their p-values only.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, tokens
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.keys import Key, listed
from gaussmark_lib.keys import checked as checked_key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark
from gaussmark_lib.weights import checked as checked_wm

COLUMNS = ["text", "n_tokens", "statistic", "p_value", "log10_p"]


@runtime_checkable
class Scheme(Protocol):
    """What an experiment asks of a watermark; ``isinstance(x, Scheme)`` is true for what has all
    the members below.

    A scheme is a frozen dataclass with a field ``key``: equal fields mean the same scheme, and its
    ``repr``, which names the fields but no secret, tells the cache of texts what wrote them.

    Args:
        name: what tables and figures call it; the same for every key.
        exact: whether P(p_value ≤ α) ≤ α over keys for every text that does not depend on the key.
            The level tests check it where it is True.
    """

    name: str
    key: Key
    exact: bool = True

    @abstractmethod
    def generate(
        self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0, **sampling
    ) -> list[list[int]]:
        """Watermarked continuations, one per prompt; the same seed gives every scheme the same
        random numbers.

        Args:
            sampling: ``top_p, temperature, until_end`` of ``generate.sample``.
        """

    @abstractmethod
    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        """One row per text, in order, with at least ``COLUMNS``; ``statistic`` is the scheme's own
        (ψ, z, …). ``model`` is the base model.
        """

    @abstractmethod
    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts
    ) -> Float[np.ndarray, " texts"]:
        """Σ_t KL(q_t ‖ p_t) along each of its own texts, nats per text: how far from the base model
        it wrote them (``divergence``).
        """

    def rekeyed(self, seed: int) -> "Scheme":
        """The same scheme under another, guessable key."""
        return replace(self, key=Key.from_seed(seed))

    def score_keys(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Sequence[Key]
    ) -> list[pd.DataFrame]:
        """:meth:`score` under each of several keys. A scheme whose keys share work
        overrides this.
        """
        return [replace(self, key=key).score(model, prompts, responses) for key in listed(keys)]


class SamplerScheme(Scheme, Protocol):
    """A scheme that changes the logits before each token is drawn, and no weight."""

    @abstractmethod
    def processor(self, model: PreTrainedModel) -> generate.Processor:
        """A fresh logits processor for one batch of texts."""

    def generate(
        self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0, **sampling
    ) -> list[list[int]]:
        """The scheme changes what ``temperature`` and ``top_p`` leave, as in transformers. At
        temperature 0 it changes the logits themselves.
        """
        shape = {name: sampling.pop(name, 1.0) for name in ("top_p", "temperature")}
        prompts = generate.checked(model, prompts, n_tokens, *shape.values(), 1)
        if shape["temperature"] == 0 or set(shape.values()) == {1.0}:
            return generate.sample(
                model,
                prompts,
                n_tokens,
                seed=seed,
                processor=lambda rows: self.processor(model),
                **shape,
                **sampling,
            )

        def shaped(rows: slice) -> generate.Processor:
            process = self.processor(model)
            return lambda ids, logits: process(ids, generate.probabilities(logits, **shape).log())

        return generate.sample(model, prompts, n_tokens, seed=seed, processor=shaped, **sampling)

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts
    ) -> Float[np.ndarray, " texts"]:
        """Under *this* key, at temperature 1: a scheme that keeps the model's distribution on
        average over keys has a divergence too.
        """
        return divergence.per_text_of_processor(
            model, prompts, responses, lambda rows: self.processor(model)
        )


Maker = Callable[[Watermark, Key], Scheme]
_makers: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Registers a function (watermark, key) → scheme under a name that no other scheme has. A
    :class:`SamplerScheme` ignores the watermark.
    """

    def kept(maker: Maker) -> Maker:
        if _makers.setdefault(name, maker) is not maker:
            raise InvalidWatermarkError(
                f"two schemes are called {name!r}; give one of them another name"
            )
        return maker

    return kept


def named(wm: Watermark, key: Key, names: Sequence[str] | None = None) -> dict[str, Scheme]:
    """The registered schemes of these names, or all of them, with this key. ``wm`` is for the
    schemes that change a weight.

    Raises:
        InvalidWatermarkError: a name that no scheme has, a watermark that a scheme cannot use, or a
            maker that returns no scheme.
    """
    wm, key = checked_wm(wm), checked_key(key)
    names = (
        None
        if names is None
        else tokens.listed(
            names, f"names: expected some of {', '.join(_makers)}", InvalidWatermarkError
        )
    )
    if unknown := [name for name in names or () if name not in _makers]:
        raise InvalidWatermarkError(
            f"no scheme is called {unknown[0]!r}: expected some of {', '.join(_makers)}"
        )
    made = {name: _makers[name](wm, key) for name in (_makers if names is None else names)}
    for name, scheme in made.items():
        if not (isinstance(scheme, Scheme) and is_dataclass(scheme) and scheme.key == key):
            raise InvalidWatermarkError(
                f"{name!r}: expected a frozen dataclass that is a Scheme and holds the key, got"
                f" {type(scheme).__name__}"
            )
    return made


def scores(
    model: PreTrainedModel, prompts: Texts, responses: Texts, schemes: Sequence[Scheme]
) -> list[pd.DataFrame]:
    """Each scheme's :meth:`Scheme.score` of the same texts. Schemes that differ in their key alone
    are scored together.
    """
    alike: dict[Scheme, list[int]] = defaultdict(list)
    for place, scheme in enumerate(schemes):
        alike[replace(scheme, key=schemes[0].key)].append(place)
    tables: dict[int, pd.DataFrame] = {}
    for scheme, places in alike.items():
        tables |= zip(
            places,
            scheme.score_keys(model, prompts, responses, [schemes[place].key for place in places]),
            strict=True,
        )
    return [tables[place] for place in range(len(schemes))]
