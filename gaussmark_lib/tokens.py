"""Prompts and responses as token ids: checked once, at the door, then padded."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel

from gaussmark_lib.errors import GaussMarkError, InvalidModelError, InvalidTextError, is_int, shown

Ids = Sequence[SupportsIndex] | Tensor | np.ndarray  # token ids of one text
Texts = Sequence[Ids]
Pair = tuple[Ids, Ids]  # prompt, response
NOT_LISTS = (str, bytes, bytearray, memoryview, Mapping, AbstractSet)  # have other items, no order


def listed(values: Any, expected: str, error: type[GaussMarkError] = InvalidTextError) -> list:
    """A new list of the items; refuses text, bytes, mappings and sets."""
    if not isinstance(values, Iterable) or isinstance(values, NOT_LISTS):
        raise error(f"{expected}, got {shown(values)}")
    return list(values)


def checked(model: PreTrainedModel, ids: Ids, what: str) -> list[int]:
    """The ids as plain integers of the model's vocabulary; InvalidTextError for anything else."""
    check_model(model)
    size = model.get_input_embeddings().num_embeddings
    expected = f"{what}: expected token ids from 0 to {size - 1}"
    if isinstance(ids, str):
        raise InvalidTextError(f"{expected}, got text; encode it first, e.g. lm.encode(text)")
    values = listed(ids.tolist() if hasattr(ids, "tolist") else ids, expected)
    for i, value in enumerate(values):
        if not is_int(value) or not 0 <= value < size:
            raise InvalidTextError(
                f"{expected}, got {shown(value)} at position {i}; was it made by another tokenizer?"
            )
    return [index(value) for value in values]


def checked_prompts(model: PreTrainedModel, prompts: Texts) -> list[list[int]]:
    """Checked ids of each of at least one prompt."""
    expected = "expected a list of at least one prompt, each a list of token ids"
    if not (prompts := listed(prompts, expected)):
        raise InvalidTextError(f"{expected}, got none")
    return [checked_prompt(model, prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]


def checked_prompt(model: PreTrainedModel, prompt: Ids, what: str) -> list[int]:
    """Checked ids; for an empty prompt the start (or end) token, which the first token needs."""
    if ids := checked(model, prompt, what):
        return ids
    for name in ("bos_token_id", "eos_token_id"):
        start = getattr(config(model), name, None)
        if start is not None:
            return start[:1] if isinstance(start, list) else [start]
    raise InvalidTextError(
        f"{what}: an empty prompt needs a start token, and this config names none (bos_token_id);"
        " give a prompt of at least one token"
    )


def checked_response(
    model: PreTrainedModel, prompt: list[int], response: Ids, what: str
) -> list[int]:
    """Checked ids: at least one, and no more than the context has room for after the prompt."""
    ids = checked(model, response, what)
    if not ids:
        raise InvalidTextError(f"{what}: expected at least one token to score, got none")
    check_fits(model, len(prompt), len(ids), what)
    return ids


def check_fits(model: PreTrainedModel, n_prompt: int, n_response: int, what: str) -> None:
    """InvalidTextError if prompt and response together exceed the model's context."""
    longest = context(model)
    if longest is not None and n_prompt + n_response > longest:
        raise InvalidTextError(
            f"{what}: expected at most {longest} tokens (the model's context), got {n_prompt} of"
            f" prompt + {n_response} of response = {n_prompt + n_response}; shorten one of them"
        )


def checked_pairs(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    failed: dict[int, GaussMarkError] | None = None,
) -> dict[int, Pair]:
    """(prompt, response) of each text by its number. The error of a text that cannot be scored goes
    to ``failed``, or is raised; InvalidTextError for no texts, or unequal numbers of both.
    """
    pairs = {}
    for i, (prompt, response) in enumerate(zip(*as_many(prompts, responses), strict=True)):
        try:
            before = checked_prompt(model, prompt, f"prompt {i}")
            pairs[i] = before, checked_response(model, before, response, f"response {i}")
        except GaussMarkError as error:
            if failed is None:
                raise
            failed[i] = error
    return pairs


def as_many(prompts: Texts, responses: Texts) -> tuple[list[Ids], list[Ids]]:
    """Both as lists, of one length, at least 1."""
    expected = "expected one prompt per response, each a list of token ids"
    prompts, responses = (listed(texts, expected) for texts in (prompts, responses))
    if not prompts or len(prompts) != len(responses):
        raise InvalidTextError(
            f"{expected}, got {len(prompts)} prompts and {len(responses)} responses"
        )
    return prompts, responses


def config(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration of a model's language part, also of a model that sees or hears."""
    return model.config.get_text_config(decoder=True)


def context(model: PreTrainedModel) -> int | None:
    """How many tokens the model reads at most; None where its config names no bound."""
    return getattr(config(model), "max_position_embeddings", None)


def check_model(model: Any) -> None:
    """InvalidModelError for anything but a model, such as the ``LM`` that holds it."""
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        advice = "write lm.model" if hasattr(model, "tokenizer") else "models.load() gives an LM"
        raise InvalidModelError(
            f"model: expected a language model of transformers, got {shown(model)}; {advice}"
        )


def check_lm(lm: Any) -> None:
    """InvalidModelError for anything but an ``LM``, such as the model that it holds."""
    if not hasattr(lm, "tokenizer") or not hasattr(lm, "model"):
        raise InvalidModelError(
            f"lm: expected an LM, a model with its tokenizer, got {shown(lm)};"
            " models.load() gives one"
        )


def check_text(text: Any, what: str = "text") -> None:
    """InvalidTextError for anything but a string of whole characters, as tokenizers read it."""
    if not isinstance(text, str):
        raise InvalidTextError(f"{what}: expected a string, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidTextError(
            f"{what}: expected whole Unicode characters, got half a character"
            f" ({text[error.start]!a}) at position {error.start}; was it read as UTF-8?"
        ) from None


def pad(rows: Texts, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both (rows, longest row), int64; shorter rows are filled with 0 on one side,
    where mask is 0 too.
    """
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    both = ids, [torch.ones_like(row) for row in ids]
    return tuple(pad_sequence(part, True, padding_side=side).to(device) for part in both)
