"""Prompts and responses as token ids, checked once, where they enter the library.

Token ids are whole numbers from 0 to V − 1, V the size of the vocabulary. A text is a sequence of
ids: a list, a tensor or an array. A :class:`Reader` knows what a model can read, and turns a
caller's texts into plain lists of ``int``, or raises InvalidTextError:

=============  =================================================================================
``pairs``      prompts with the responses to be scored: neither may be empty in the end
``prompt``     one prompt to be continued; an empty prompt becomes the start token
``texts``      texts that are only edited or counted: they may be empty, and of any length
``ids``        one text
=============  =================================================================================
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
    """A checked language model, as the reader of token ids.

    Attributes:
        config: the configuration of its language part, also for a model that sees or hears.
        vocabulary: every id is below this number.
        context: the most tokens that the model can read; None if its config does not say.
        start: what the first token is predicted from: the start token, or the end token if there is
            no start token; empty if the config names neither.

    Raises:
        InvalidModelError: anything but a model, such as the ``LM`` that holds it.

    Example:
        >>> from gaussmark_lib import models
        >>> reader = Reader(models.load("doclm").model)
        >>> reader.texts([(5, 6), []], "response")
        [[5, 6], []]
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
        if isinstance(start, list):  # some configs list several end tokens
            start = start[0]
        self.start: list[int] = [] if start is None else [start]

    def pairs(
        self, prompts: Texts, responses: Texts, failed: dict | None = None
    ) -> dict[int, Pair]:
        """Return the checked (prompt, response) of each text, by the text's number.

        An empty prompt becomes the start token. A response has at least one token, and fits into
        the context after its prompt.

        Args:
            failed: if given, it gets the error of each text that cannot be scored, by the text's
                number, and the text is left out of the result. Otherwise the first error is raised.

        Raises:
            InvalidTextError: the numbers of prompts and responses differ, or as said above.

        >>> from gaussmark_lib import models
        >>> reader = Reader(models.load("doclm").model)
        >>> failed = {}
        >>> reader.pairs([[], [5]], [[6, 7], []], failed)
        {0: ([0], [6, 7])}
        >>> str(failed[1])
        'response 1: expected at least one token to score, got none'
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
                response_ids = self.ids(response, f"response {i}")
                if not response_ids:
                    raise InvalidTextError(
                        f"response {i}: expected at least one token to score, got none"
                    )
                prompt_ids = self.prompt(prompt, i, len(response_ids))
                pairs[i] = (prompt_ids, response_ids)
            except GaussMarkError as error:
                if failed is None:
                    raise
                failed[i] = error
        return pairs

    def texts(self, texts: Texts, what: str) -> list[list[int]]:
        """Return the ids of each text, however long or empty. Errors call a text ``what``.

        >>> from gaussmark_lib import models
        >>> Reader(models.load("doclm").model).texts([np.array([5, 6]), []], "response")
        [[5, 6], []]
        """
        texts = require_list(texts, f"expected a list of {what}s, each a list of token ids")
        return [self.ids(ids, f"{what} {i}") for i, ids in enumerate(texts)]

    def prompt(self, prompt: Ids, i: int = 0, n: int = 0) -> list[int]:
        """Return the ids of prompt number i. An empty prompt becomes the start token.

        Raise InvalidTextError if the context cannot hold the prompt and n more tokens, or if the
        prompt is empty and the model has no start token.

        >>> from gaussmark_lib import models
        >>> Reader(models.load("doclm").model).prompt([])
        [0]
        """
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
        """Return the ids of one text as plain integers. Errors call the text ``what``.

        Raise InvalidTextError for an id outside the vocabulary, or for a string, which must be
        encoded first.

        >>> from gaussmark_lib import models
        >>> Reader(models.load("doclm").model).ids(np.array([5, 6]), "prompt")
        [5, 6]
        """
        last = self.vocabulary - 1
        expected = f"{what}: expected token ids from 0 to {last}"
        if isinstance(ids, str):
            raise InvalidTextError(f"{expected}, got text; encode it first, e.g. lm.encode(text)")
        if hasattr(ids, "tolist"):  # a tensor or an array
            ids = ids.tolist()
        return [
            require_int(token, f"{what}, token {i}", least=0, most=last)
            for i, token in enumerate(require_list(ids, expected))
        ]


def config(model: PreTrainedModel) -> PreTrainedConfig:
    """Return the configuration of a model's language part, also for a model that sees or hears.

    >>> from gaussmark_lib import models
    >>> config(models.load("doclm").model).vocab_size
    4096
    """
    return Reader(model).config


def check_text(text: Any, what: str = "text") -> None:
    r"""Raise InvalidTextError for anything but a string of whole characters.

    Half a character (a lone surrogate) is a valid Python string, but tokenizers refuse it.

    >>> check_text("naïve")
    >>> check_text("na\ud83dve")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gaussmark_lib.errors.InvalidTextError: text: expected whole Unicode characters, got ...
    """
    if not isinstance(text, str):
        raise InvalidTextError(f"{what}: expected a string, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half a character ({text[error.start]!a}) at position {error.start}"
        raise InvalidTextError(f"{what}: expected whole Unicode characters, got {got}") from None
