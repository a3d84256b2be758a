"""Watermarks of different kinds with the same interface, compared by their p-values only.

A scheme is a frozen dataclass that inherits from :class:`Scheme`, and is registered under a name:

    @register("my scheme")
    def mine(wm: Watermark, key: Key) -> MyScheme:
        return MyScheme(key, wm.sigma)

:func:`named` then makes it. A scheme that needs nothing but a key is shorter: a
:class:`SimpleScheme` has two functions, and ``register`` takes the class itself. A scheme in a
module of yours has the name ``"my_module:my scheme"`` for :func:`named`, the command line and the
notebooks; one in ``beyond/schemes`` has its name alone, and the level tests
(tests/core/test_levels.py) run over it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Self

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, tokens
from gaussmark_lib.engine.registry import Registry
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError, kind
from gaussmark_lib.keys import Key, listed
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark

COLUMNS = ["text", "n_tokens", "statistic", "p_value", "log10_p"]  # statistic: ψ, z, …
Keys = Sequence[Key] | None  # a key per text; None: the scheme's key for all texts


class Scheme(ABC):
    """What an experiment needs of a watermark: it writes, tests, and says what writing cost.

    Attributes:
        name: what tables and figures call it; the same for every key.
        key: the secret.
        exact: whether the test keeps its level: P(p_value ≤ α) ≤ α over keys, for any text that
            does not depend on the key.
    """

    name: str  # what tables and figures call it; the same for every key
    key: Key
    exact: bool = True  # P(p_value ≤ α) ≤ α over keys for any text that does not depend on the key

    def generate(
        self,
        model: PreTrainedModel,
        prompts: Texts,
        n_tokens: int,
        *,
        keys: Keys = None,
        **sampling,
    ) -> list[list[int]]:
        """Return watermarked continuations, one per prompt.

        ``sampling`` has arguments of ``generate.sample``. The same seed gives every scheme the same
        random numbers.
        """
        is_greedy = sampling.get("temperature", 1.0) == 0
        settings = self.writing(model, len(prompts), keys, is_greedy) | sampling
        return generate.sample(model, prompts, n_tokens, **settings)

    def writing(
        self, model: PreTrainedModel, n: int, keys: Keys = None, is_greedy: bool = False
    ) -> dict:
        """Return the arguments of ``generate.sample`` for n watermarked texts.

        They are ``marks``, or a ``processor``.
        """
        raise NotImplementedError(f"{self.name}: expected writing(), or generate()")

    @abstractmethod
    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Return one row per text, in order, with at least ``COLUMNS``: ``text`` (its number),
        ``n_tokens``, ``statistic``, ``p_value`` and ``log10_p``.

        ``model`` is the base model. ``keys`` has a key per text; None is the scheme's key for all.
        """

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> Float[np.ndarray, " texts"]:
        """Return ``divergence.per_text`` of texts that it wrote under these keys, at temperature 1.

        A scheme that keeps the model's distribution on average over keys has a divergence too.
        """
        writing = self.writing(model, len(prompts), keys)
        return divergence.per_text(model, prompts, responses, **writing)

    def rekeyed(self, seed: int) -> "Scheme":
        """Return the same scheme under another, guessable key.

        >>> from gaussmark_lib import kgw
        >>> kgw.KGW(2.0, Key.from_seed(1)).rekeyed(5).key == Key.from_seed(5)
        True
        """
        return replace(self, key=Key.from_seed(seed))

    def key_of_each(self, n: int, keys: Keys) -> list[Key]:
        """Return the key of each of n texts."""
        if keys is None:
            return [self.key for _ in range(n)]
        keys = list(keys)
        if len(keys) != n:
            raise InvalidTextError(f"keys: expected one per text, got {len(keys)} for {n} texts")
        return keys


class SamplerScheme(Scheme):
    """A scheme that changes the logits before each token is drawn, and no weight."""

    marks_greedy: bool = False  # whether it changes logits at temperature 0 too

    @abstractmethod
    def processor(self, model: PreTrainedModel) -> generate.Processor:
        """Return a fresh logits processor for one batch of texts."""

    def processor_of_rows(self, model: PreTrainedModel, keys: Sequence[Key]) -> generate.Processor:
        """Return a fresh logits processor for a batch whose row i is written under ``keys[i]``.

        It takes row by row. Override it if all rows can be computed at once.
        """
        processors = [replace(self, key=key).processor(model) for key in keys]

        def process(ids: Tensor, logits: Tensor) -> Tensor:
            of_rows = [
                processor(ids[i : i + 1], logits[i : i + 1])
                for i, processor in enumerate(processors)
            ]
            return torch.cat(of_rows)

        return process

    def keyed(
        self, model: PreTrainedModel, responses: Texts, keys: Keys
    ) -> Iterator[tuple[int, list[int], Self]]:
        """Yield the number of each text, its checked ids, and the scheme under its key."""
        responses = tokens.Reader(model).texts(responses, "response")
        key_of_each = self.key_of_each(len(responses), keys)
        for i, (response, key) in enumerate(zip(responses, key_of_each, strict=True)):
            yield i, response, replace(self, key=key)

    def writing(
        self, model: PreTrainedModel, n: int, keys: Keys = None, is_greedy: bool = False
    ) -> dict:
        """Return a ``processor``; with a key per text, each row of a batch has its own."""
        if is_greedy and not self.marks_greedy:
            return {}
        if keys is None:
            return {"processor": lambda rows: self.processor(model)}
        return {"processor": lambda rows: self.processor_of_rows(model, keys[rows])}


@dataclass(frozen=True)
class SimpleScheme(SamplerScheme):
    """A scheme without settings: ``processor`` writes, ``log_p`` tests, the rest has defaults.

    A subclass with settings is a frozen dataclass again. Its name is that of :func:`register`.

    >>> class Sure(SimpleScheme):
    ...     name = "sure of token 5"
    ...
    ...     def processor(self, model):
    ...         return lambda ids, logits: logits.index_fill(1, torch.tensor([5]), 100.0)
    ...
    ...     def log_p(self, model, ids):
    ...         return 0.0  # its p-value is 1: it finds nothing
    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model
    >>> Sure(Key.from_seed(1)).generate(model, [[7]], n_tokens=3)
    [[5, 5, 5]]
    """

    key: Key

    @abstractmethod
    def log_p(self, model: PreTrainedModel, ids: list[int]) -> float:
        """Return log p (natural) of the test of one response under this key.

        The level holds if P(p ≤ α) ≤ α over keys for every response that does not depend on the
        key.
        """

    def rng(self) -> np.random.Generator:
        """Return a generator that is seeded by key and name, the same at each call."""
        return np.random.default_rng(int.from_bytes(self.key.derived(self.name), "big"))

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Return one row per text, with ``COLUMNS``; ``statistic`` is −log₁₀ p."""
        rows = []
        for i, ids, scheme in self.keyed(model, responses, keys):
            log_p = float(scheme.log_p(model, ids))
            log10_p = log_p / np.log(10)
            rows.append((i, len(ids), -log10_p, np.exp(log_p), log10_p))
        return pd.DataFrame(rows, columns=COLUMNS)


makers = Registry("scheme", InvalidWatermarkError)  # (watermark, key) → scheme
Maker = Callable[[Watermark, Key], Scheme] | type[SimpleScheme]


def register(name: str) -> Callable[[Maker], Maker]:
    """Return a decorator that registers a scheme under a name.

    It takes a function of (watermark, key) that returns the scheme, or a :class:`SimpleScheme`,
    which gets this ``name`` if it has none. Raise InvalidWatermarkError if the name is taken. The
    recipe in CONTRIBUTING.md is an example.
    """

    def add(maker: Maker) -> Maker:
        is_simple = isinstance(maker, type) and issubclass(maker, SimpleScheme)
        if not is_simple:
            return makers.register(name)(maker)
        make = wraps(maker, updated=())(lambda wm, key: maker(key))
        makers.register(name)(make)
        if "name" not in vars(maker):  # a parent's name is another scheme's
            maker.name = name
        return maker

    return add


def named(wm: Watermark, key: Key, names: Sequence[str] | None = None) -> dict[str, Scheme]:
    """Return the schemes of these names, or all of them, with this key.

    A name ``"my_module:my scheme"`` imports the module first (``engine.registry``). ``wm`` is for
    the schemes that change a weight. Raise InvalidWatermarkError for a name that no scheme has, a
    module that cannot be imported, or a watermark that a scheme cannot use.

    >>> from gaussmark_lib import kgw  # registers its schemes
    >>> wm = Watermark("model.layers.4.mlp.down_proj.weight", sigma=0.01)
    >>> named(wm, Key.from_seed(1), ["KGW-2"])["KGW-2"].bias
    2.0
    """
    if not isinstance(wm, Watermark):
        raise InvalidWatermarkError(f"wm: expected a perturb.Watermark, got {kind(wm)}")
    [key] = listed([key])
    return {name: make(wm, key) for name, make in makers.chosen(names).items()}
