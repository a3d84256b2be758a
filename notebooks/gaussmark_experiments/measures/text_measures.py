"""Generated texts, measured without the key.

Can the two models be told apart? x_i is by the first model and y_i by the second, both to prompt i,
and a classifier is trained on embeddings of other prompts' texts. If the models do not differ, any
classifier names the author of a pair as by the toss of a fair coin. If it cannot tell them apart, a
better classifier still may.

Do they repeat themselves, or end sooner?

    distinct-2  =  different pairs of neighbouring tokens / such pairs       (Li et al. 2016)
    length      =  tokens before the first end token, or all of them
"""

from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile

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
    """Average the base model's last hidden states over each response's tokens, in float64."""
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    means = []
    with evaluating(model):
        for start in range(0, len(pairs), batch_size):
            batch = pairs[start : start + batch_size]
            texts = [[*prompt, *response] for prompt, response in batch]
            ids, mask = blocks.padded(texts, "right", model.device)
            output = model.base_model(
                input_ids=ids,
                attention_mask=mask,
                use_cache=False,
            )
            states = output.last_hidden_state  # (texts, tokens, d)
            for (prompt, _), text, row in zip(batch, texts, states, strict=True):
                of_response = row[len(prompt) : len(text)]
                means.append(of_response.double().mean(0))
    return torch.stack(means).cpu().numpy()


def told_apart(references: Sequence[Embeddings], y: Embeddings) -> Float[np.ndarray, " pairs"]:
    """Return, for half of the prompts, the share of references from which a classifier tells the
    text of y; a tie counts ½.

    The other half of the prompts gives the classifier. It is Fisher's discriminant w = S⁻¹d̄ of the
    differences d between y and each reference, with the shrunken covariance S of Ledoit and Wolf.
    """
    differences = y - np.stack(references)  # (references, prompts, d)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = np.array_split(order, 2)
    training_rows = np.concatenate(differences[:, train])  # (references · prompts, d)
    covariance, _ = ledoit_wolf(training_rows)
    # least squares, because the covariance is 0 for equal texts
    w, *_ = np.linalg.lstsq(covariance, training_rows.mean(0))
    signs = np.sign(differences[:, test] @ w)  # (references, prompts)
    return (1 + signs).mean(0) / 2


def until_end(response: Sequence[int], ends: Collection[int]) -> list[int]:
    """Return the tokens before the first end token, or all tokens if there is no end token.

    >>> until_end([7, 8, 0, 9], {0})
    [7, 8]
    """
    return list(takewhile(lambda token: token not in ends, response))


def diversity(responses: Texts, ends: Collection[int]) -> pd.DataFrame:
    """Return a row per text: ``distinct_2`` over the whole response, ``length`` to its first end
    token.

    Responses should have the same length, sampled beyond their end tokens, because distinct-2 falls
    with length.

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
