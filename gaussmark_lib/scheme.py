"""Watermarks of different kinds with the same interface, compared by their p-values only.

A scheme is a frozen dataclass that inherits from :class:`Scheme`, in a file of the folder
``schemes``, and is registered under a name:

    @register("my scheme")
    def mine(wm: Watermark, key: Key) -> MyScheme:
        return MyScheme(key)

``schemes.named`` then makes it, and the level tests (tests/core/test_levels.py) run over it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, keys, tokens
from gaussmark_lib.engine.registry import Registry
from gaussmark_lib.errors import InvalidWatermarkError, kind
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark

COLUMNS = ["text", "n_tokens", "statistic", "p_value", "log10_p"]  # statistic: ψ, z, …
Keys = Sequence[Key] | None  # a key per text; None: the scheme's key for all texts


class Scheme(ABC):
    """What an experiment needs of a watermark: it writes, tests, and says what writing cost."""

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
        """Return one row per text, in order, with at least ``COLUMNS``.

        ``model`` is the base model.
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
        """Return the same scheme under another, guessable key."""
        return replace(self, key=Key.from_seed(seed))

    def key_of_each(self, n: int, keys: Keys) -> list[Key]:
        """Return the key of each of n texts."""
        if keys is None:
            return [self.key for _ in range(n)]
        return list(keys)


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


makers = Registry("scheme", InvalidWatermarkError)  # (watermark, key) → scheme
register = makers.register


def named(wm: Watermark, key: Key, names: Sequence[str] | None = None) -> dict[str, Scheme]:
    """Return the schemes of these names, or all of them, with this key.

    ``wm`` is for the schemes that change a weight. Raise InvalidWatermarkError for a name that no
    scheme has, or for a watermark that a scheme cannot use.

    >>> from gaussmark_lib import kgw  # registers its schemes
    >>> wm = Watermark("model.layers.4.mlp.down_proj.weight", sigma=0.01)
    >>> named(wm, Key.from_seed(1), ["KGW-2"])["KGW-2"].bias
    2.0
    """
    if not isinstance(wm, Watermark):
        raise InvalidWatermarkError(f"wm: expected a perturb.Watermark, got {kind(wm)}")
    [key] = keys.listed([key])
    return {name: make(wm, key) for name, make in makers.chosen(names).items()}
