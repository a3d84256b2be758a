"""Prompts and responses as token ids: checked at the door, then padded.

What is scored comes in by :func:`checked_pairs`, what is continued by :func:`checked_prompt`, and
what is only edited or counted by :func:`checked_texts`.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
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


def checked_pairs(
    model: PreTrainedModel, prompts: Texts, responses: Texts, failed: dict | None = None
) -> dict[int, Pair]:
    """(prompt, response) of each text by its number; an error goes to ``failed``, or is raised."""
    expected = "expected one prompt per response, each a list of token ids"
    prompts, responses = (require_list(texts, expected) for texts in (prompts, responses))
    if not prompts or len(prompts) != len(responses):
        got = f"{len(prompts)} prompts and {len(responses)} responses"
        raise InvalidTextError(f"{expected}, got {got}")
    pairs = {}
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        try:
            if not (ids := checked_ids(model, response, f"response {i}")):
                none = f"response {i}: expected at least one token to score, got none"
                raise InvalidTextError(none)
            pairs[i] = checked_prompt(model, prompt, i, len(ids)), ids
        except GaussMarkError as error:
            if failed is None:
                raise
            failed[i] = error
    return pairs


def checked_texts(model: PreTrainedModel, texts: Texts, what: str) -> list[list[int]]:
    """The ids of each text, however long or empty. ``what`` one is called in errors."""
    texts = require_list(texts, f"expected a list of {what}s, each a list of token ids")
    return [checked_ids(model, ids, f"{what} {i}") for i, ids in enumerate(texts)]


def checked_prompt(model: PreTrainedModel, prompt: Ids, i: int = 0, n: int = 0) -> list[int]:
    """The ids of prompt i; the context has room for n more. An empty one is the start token."""
    if not (ids := checked_ids(model, prompt, f"prompt {i}") or start(model)):
        lacking = "an empty prompt needs a start token, and this config names none (bos_token_id)"
        raise InvalidTextError(f"prompt {i}: {lacking}; give a prompt of at least one token")
    longest = getattr(config(model), "max_position_embeddings", None)  # as in context()
    if longest is not None and len(ids) + n > longest:
        expected = f"text {i}: expected at most {longest} tokens (the model's context)"
        got = f"{len(ids)} of prompt + {n} of response"
        raise InvalidTextError(f"{expected}, got {got}; shorten it, or cut it in two")
    return ids


def checked_ids(model: PreTrainedModel, ids: Ids, what: str) -> list[int]:
    """The ids as plain integers of the model's vocabulary."""
    config(model)  # refuses what is no model
    last = model.get_input_embeddings().num_embeddings - 1
    expected = f"{what}: expected token ids from 0 to {last}"
    if isinstance(ids, str):
        raise InvalidTextError(f"{expected}, got text; encode it first, e.g. lm.encode(text)")
    ids = require_list(ids.tolist() if hasattr(ids, "tolist") else ids, expected)
    return [
        require_int(token, f"{what}, token {i}", least=0, most=last) for i, token in enumerate(ids)
    ]


def start(model: PreTrainedModel) -> list[int]:
    """What the first token is predicted from: the start token, or the end token for want of it."""
    for name in ("bos_token_id", "eos_token_id"):
        if (start := getattr(config(model), name, None)) is not None:
            return start[:1] if isinstance(start, list) else [start]
    return []


def context(model: PreTrainedModel) -> int | None:
    """How many tokens the model reads at most; None where its config does not say."""
    return getattr(config(model), "max_position_embeddings", None)


def config(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration of a model's language part, also of a model that sees or hears.
    InvalidModelError for anything but a model, such as the ``LM`` that holds it.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        expected = "model: expected a language model of transformers, such as models.load().model"
        raise InvalidModelError(f"{expected}, got {shown(model)}")
    return model.config.get_text_config(decoder=True)


def check_text(text: Any, what: str = "text") -> None:
    """InvalidTextError for anything but a string of whole characters, as tokenizers read it."""
    if not isinstance(text, str):
        raise InvalidTextError(f"{what}: expected a string, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half a character ({text[error.start]!a}) at position {error.start}"
        raise InvalidTextError(f"{what}: expected whole Unicode characters, got {got}") from None


def pad(rows: Texts, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both (rows, longest row), int64; shorter rows have 0 in both on one side."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    both = ids, [torch.ones_like(row) for row in ids]
    return tuple(pad_sequence(part, True, padding_side=side).to(device) for part in both)
