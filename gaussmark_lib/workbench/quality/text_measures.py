"""Generated texts, measured without the key.

Can they be told apart? x_i is by one model and y_i by the other, to prompt i, and a classifier is
trained on embeddings of other prompts' texts. If the models do not differ, it only names the author
of a pair by the toss of a fair coin, whatever the classifier; it says nothing about a better one.

Do they repeat themselves, or end sooner?

    distinct-2  =  different pairs of neighbouring tokens / such pairs       (Li et al. 2016)
    length      =  tokens before the first end token, or all of them
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf
from transformers import PreTrainedModel

from gaussmark_lib import tokens
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.tokens import Texts

Embeddings = Float[np.ndarray, "n d"]


@torch.no_grad()
def embed(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 32
) -> Embeddings:
    """The base model's last hidden states, averaged over each response's tokens, float64."""
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    means = []
    with evaluating(model):
        for start in range(0, len(pairs), batch_size):
            batch = pairs[start : start + batch_size]
            texts = [[*prompt, *response] for prompt, response in batch]
            ids, mask = blocks.padded(texts, "right", model.device)
            states = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
            for (prompt, _), text, row in zip(batch, texts, states.last_hidden_state, strict=True):
                means.append(row[len(prompt) : len(text)].double().mean(0))  # row: (tokens, d)
    return torch.stack(means).cpu().numpy()


def told_apart(references: Sequence[Embeddings], y: Embeddings) -> Float[np.ndarray, " pairs"]:
    """Half of the prompts give Fisher's discriminant w = S⁻¹d̄, of the differences d between y and
    each reference, with the shrunken covariance S of Ledoit and Wolf. Of each other prompt: the
    share of references beside which it knows the text of y; a tie counts ½.
    """
    differences = y - np.stack(references)  # (references, prompts, d)
    train, test = np.array_split(np.random.default_rng(0).permutation(len(y)), 2)
    known = np.concatenate(differences[:, train])
    w = np.linalg.lstsq(ledoit_wolf(known)[0], known.mean(0))[0]  # S is 0 for equal texts
    return (1 + np.sign(differences[:, test] @ w)).mean(0) / 2


def until_end(response: Sequence[int], ends: Collection[int]) -> list[int]:
    """The tokens before the first end token; all of them where there is none.

    >>> until_end([7, 8, 0, 9], {0})
    [7, 8]
    """
    stop = next((i for i, token in enumerate(response) if token in ends), len(response))
    return list(response[:stop])


def diversity(responses: Texts, ends: Collection[int]) -> pd.DataFrame:
    """One row per text: ``distinct_2`` over the whole response, ``length`` to its first end token.

    Give responses of one length, sampled through their end tokens: distinct-2 falls with length.

    >>> diversity([[5, 6, 5, 6, 5]], {0}).to_dict("records")
    [{'distinct_2': 0.5, 'length': 5}]
    """
    return pd.DataFrame(
        {
            "distinct_2": len({*pairwise(response)}) / (len(response) - 1),
            "length": len(until_end(response, ends)),
        }
        for response in responses
    )
