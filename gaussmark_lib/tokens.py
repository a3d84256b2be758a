"""Prompts and responses as token ids, checked once, by a :class:`Reader`: what is scored by its
``pairs``, what is continued by ``prompt``, and what is only changed or counted by ``texts``.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from gaussmark_lib.errors import (
    GaussMarkError,
    InvalidModelError,
    InvalidTextError,
    require_int,
    require_list,
    shown,
)

Ids = Sequence[SupportsIndex] | Tensor | np.ndarray  # token ids of one text
Texts = Sequence[Ids]
Pair = tuple[Ids, Ids]  # prompt, response


class Reader:
    """A language model, checked to be one, as the reader of token ids.

    Attributes:
        config: the configuration of its language part, also of a model that sees or hears.
        vocabulary: every id is below it.
        context: how many tokens the model reads at most; None where its config does not say.
        start: what the first token is predicted from: the start token, or the end token for want of
            it; empty where the config names neither.

    Raises:
        InvalidModelError: anything but a model, such as the ``LM`` that holds it.
    """

    def __init__(self, model: PreTrainedModel):
        if not isinstance(model, nn.Module) or not hasattr(model, "config"):
            expected = "model: expected a language model of transformers"
            raise InvalidModelError(f"{expected}, such as models.load().model, got {shown(model)}")
        self.config: PreTrainedConfig = model.config.get_text_config(decoder=True)
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.context: int | None = getattr(self.config, "max_position_embeddings", None)
        start = getattr(self.config, "bos_token_id", None)
        if start is None:
            start = getattr(self.config, "eos_token_id", None)
        starts = start if isinstance(start, list) else [start]
        self.start: list[int] = [] if start is None else starts[:1]

    def pairs(
        self, prompts: Texts, responses: Texts, failed: dict | None = None
    ) -> dict[int, Pair]:
        """(prompt, response) of each text by its number; an error goes to ``failed``, or is
        raised.
        """
        expected = "expected one prompt per response, each a list of token ids"
        prompts = require_list(prompts, expected)
        responses = require_list(responses, expected)
        if not prompts or len(prompts) != len(responses):
            got = f"{len(prompts)} prompts and {len(responses)} responses"
            raise InvalidTextError(f"{expected}, got {got}")
        pairs = {}
        for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            try:
                ids = self.ids(response, f"response {i}")
                if not ids:
                    none = f"response {i}: expected at least one token to score, got none"
                    raise InvalidTextError(none)
                pairs[i] = self.prompt(prompt, i, len(ids)), ids
            except GaussMarkError as error:
                if failed is None:
                    raise
                failed[i] = error
        return pairs

    def texts(self, texts: Texts, what: str) -> list[list[int]]:
        """The ids of each text, however long or empty. ``what`` one is called in errors."""
        texts = require_list(texts, f"expected a list of {what}s, each a list of token ids")
        return [self.ids(ids, f"{what} {i}") for i, ids in enumerate(texts)]

    def prompt(self, prompt: Ids, i: int = 0, n: int = 0) -> list[int]:
        """The ids of prompt i; the context has room for n more. An empty one is the start token."""
        ids = self.ids(prompt, f"prompt {i}") or [*self.start]
        if not ids:
            lacking = "an empty prompt needs a start token, and this config names none"
            raise InvalidTextError(
                f"prompt {i}: {lacking} (bos_token_id); give a prompt of at least one token"
            )
        if self.context is not None and len(ids) + n > self.context:
            expected = f"text {i}: expected at most {self.context} tokens (the model's context)"
            got = f"{len(ids)} of prompt + {n} of response"
            raise InvalidTextError(f"{expected}, got {got}; shorten it, or cut it in two")
        return ids

    def ids(self, ids: Ids, what: str) -> list[int]:
        """The ids as plain integers of the model's vocabulary."""
        last = self.vocabulary - 1
        expected = f"{what}: expected token ids from 0 to {last}"
        if isinstance(ids, str):
            raise InvalidTextError(f"{expected}, got text; encode it first, e.g. lm.encode(text)")
        ids = require_list(ids.tolist() if hasattr(ids, "tolist") else ids, expected)
        return [
            require_int(token, f"{what}, token {i}", least=0, most=last)
            for i, token in enumerate(ids)
        ]


def config(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration of a model's language part, also of a model that sees or hears."""
    return Reader(model).config


def check_text(text: Any, what: str = "text") -> None:
    """InvalidTextError for anything but a string of whole characters, as tokenizers read it."""
    if not isinstance(text, str):
        raise InvalidTextError(f"{what}: expected a string, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half a character ({text[error.start]!a}) at position {error.start}"
        raise InvalidTextError(f"{what}: expected whole Unicode characters, got {got}") from None
