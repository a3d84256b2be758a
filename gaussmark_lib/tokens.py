"""Prompts and responses as token ids: checked once, at the door, then padded."""

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from gaussmark_lib.errors import GaussMarkError, InvalidTextError

Ids = Sequence[SupportsIndex] | Tensor | np.ndarray  # token ids of one text
Texts = Sequence[Ids]
Pair = tuple[Ids, Ids]  # prompt, response


def checked(model: PreTrainedModel, ids: Ids, what: str) -> list[int]:
    """The ids as a plain list of integers inside the model's vocabulary.

    Raises:
        InvalidTextError: text instead of ids, anything but whole numbers, or an id that the model does not have.
    """
    if isinstance(ids, str):
        raise InvalidTextError(f"{what}: expected token ids, got text; encode it first, e.g. lm.encode(text)")
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, Iterable):
        raise InvalidTextError(f"{what}: expected a list of token ids, got {ids!r}")
    values = list(values)
    vocabulary = model.get_input_embeddings().num_embeddings
    for position, value in enumerate(values):
        if not hasattr(value, "__index__") or isinstance(value, bool):
            raise InvalidTextError(f"{what}: expected whole numbers, got {value!r} at position {position}")
        if not 0 <= value < vocabulary:
            raise InvalidTextError(
                f"{what}: expected token ids from 0 to {vocabulary - 1}, got {value} at position {position}; was it made by another tokenizer?"
            )
    return [int(value) for value in values]


def checked_prompts(model: PreTrainedModel, prompts: Texts) -> list[list[int]]:
    """Checked ids of each prompt. An empty prompt becomes the model's start (or end) token, since the first token needs something before it."""
    if isinstance(prompts, str) or len(prompts) == 0:
        raise InvalidTextError(f"expected a list of at least one prompt, each a list of token ids, got {prompts!r}")
    return [checked_prompt(model, prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]


def checked_prompt(model: PreTrainedModel, prompt: Ids, what: str) -> list[int]:
    return checked(model, prompt, what) or [_start_token(model)]


def checked_response(model: PreTrainedModel, prompt: list[int], response: Ids, what: str) -> list[int]:
    """Checked ids of a response: at least one, and no more than the context has room for after the prompt."""
    ids = checked(model, response, what)
    if not ids:
        raise InvalidTextError(f"{what}: expected at least one token to score, got none")
    check_fits(model, len(prompt), len(ids), what)
    return ids


def checked_pairs(model: PreTrainedModel, prompts: Texts, responses: Texts) -> dict[int, Pair]:
    """(prompt, response) of each text by its number, ready to be scored; the first error of :func:`usable_pairs` is raised."""
    pairs, failed = usable_pairs(model, prompts, responses)
    for error in failed.values():
        raise error
    return pairs


def usable_pairs(model: PreTrainedModel, prompts: Texts, responses: Texts) -> tuple[dict[int, Pair], dict[int, GaussMarkError]]:
    """The pairs that can be scored, by number, and the error of each other pair. InvalidTextError for no texts or unequal numbers of them."""
    if isinstance(responses, str) or len(prompts) != len(responses):
        raise InvalidTextError(f"expected one prompt a response, got {len(prompts)} prompts and {len(responses)} responses")
    if len(prompts) == 0:
        raise InvalidTextError("expected at least one prompt with its response, got none")
    pairs, failed = {}, {}
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        try:
            before = checked_prompt(model, prompt, f"prompt {i}")
            pairs[i] = before, checked_response(model, before, response, f"response {i}")
        except GaussMarkError as error:
            failed[i] = error
    return pairs, failed


def _start_token(model: PreTrainedModel) -> int:
    for name in ("bos_token_id", "eos_token_id"):
        value = getattr(model.config, name, None)
        if value is not None:
            return value[0] if isinstance(value, list) else value
    raise InvalidTextError("an empty prompt needs a start token, and this config names none (bos_token_id); give a prompt of at least one token")


def check_count(value: object, what: str) -> None:
    if not isinstance(value, int) or value < 1:
        raise InvalidTextError(f"{what}: expected a whole number ≥ 1, got {value!r}")


def check_fits(model: PreTrainedModel, n_prompt: int, n_response: int, what: str) -> None:
    """InvalidTextError if prompt and response together exceed the model's context."""
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and n_prompt + n_response > context:
        raise InvalidTextError(
            f"{what}: expected at most {context} tokens (the model's context), got {n_prompt} of prompt + {n_response} of response"
            f" = {n_prompt + n_response}; shorten one of them"
        )


def pad(rows: Texts, side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), both (rows, longest row), int64: shorter rows are filled with 0 on one side, where mask is 0 too."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    ids, mask = (pad_sequence(each, batch_first=True, padding_side=side).to(device) for each in (ids, mask))
    return ids, mask
