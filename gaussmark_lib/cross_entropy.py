"""How well a model predicts human text: −log p_θ(y) per token, a passage at a time, so that two models can be compared in pairs.

    H(θ) = −(1/T) Σ_t log p_θ(y_t | y_<t)      nats a token

The watermarked model is measured as it is, at θ + ξ: unlike a score, a cross-entropy has no reason to stay at θ.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import models, tokens
from gaussmark_lib.errors import InvalidTextError


@torch.no_grad()
def per_passage(
    model: PreTrainedModel,
    passages: Sequence[Sequence[int]],
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> Float[np.ndarray, " passages"]:
    """Nats a token of each passage, all its tokens scored, each passage after its prompt.

    Args:
        model: any model, also one inside ``watermarked()``.
        passages: token ids without a start token.
        prompts: what stands before each, and is not scored; the model's start token if not given.

    Raises:
        InvalidTextError: an empty passage, an id outside the vocabulary, or a passage longer than the context.
    """
    before = tokens.checked_prompts(model, prompts if prompts is not None else [[]] * len(passages))
    rows = [[*prompt, *_checked(model, prompt, passage, i)] for i, (prompt, passage) in enumerate(zip(before, passages, strict=True))]
    found = np.empty(len(rows))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    with models.evaluating(model), tqdm(total=len(rows), desc="cross-entropy", unit="passage", disable=not progress) as bar:
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids, mask = tokens.pad([rows[i] for i in batch], "right", model.device)
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            logits = logits if logits.dtype == torch.float64 else logits.float()
            nats = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").double()
            for row, i in zip(nats, batch, strict=True):
                found[i] = row[len(before[i]) - 1 : len(rows[i]) - 1].mean().item()
            bar.update(len(batch))
    return found


def _checked(model: PreTrainedModel, prompt: list[int], passage: Sequence[int], i: int) -> list[int]:
    ids = tokens.checked(model, passage, f"passage {i}")
    if not ids:
        raise InvalidTextError(f"passage {i}: expected at least one token, got none")
    tokens.check_fits(model, len(prompt), len(ids), f"passage {i}")
    return ids


def bits_per_character(nats_per_token: Float[np.ndarray, " passages"], n_tokens: Sequence[int], n_characters: Sequence[int]) -> np.ndarray:
    """The same in bits a character, which does not depend on the tokenizer: nats a token · tokens / (ln 2 · characters).

    >>> bits_per_character(np.array([math.log(2)]), [10], [40]).tolist()
    [0.25]
    """
    return np.asarray(nats_per_token) * np.asarray(n_tokens) / (math.log(2) * np.asarray(n_characters))
