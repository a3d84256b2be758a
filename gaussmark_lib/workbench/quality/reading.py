"""log p of thousands of texts in few forward passes, for benchmarks and judges.

``likelihood`` counts the logits of all positions of a batch. Here only the positions count that
predict a response, so many questions with long contexts and short answers fit into one pass.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib import likelihood
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.tokens import Pair

LOGITS = {"cpu": 1 << 26, "cuda": 1 << 29}  # numbers of logits in a pass with several texts
TOKENS = 1 << 13  # in such a pass, padding included


@torch.no_grad()
def log_p(model: PreTrainedModel, pairs: Sequence[Pair]) -> Float[np.ndarray, " pairs"]:
    """log p(y | x) of each pair (x, y) of checked token ids, neither empty: nats, summed over y."""
    vocabulary = model.get_input_embeddings().num_embeddings
    most_positions = LOGITS.get(model.device.type, LOGITS["cpu"]) // vocabulary
    sums = np.zeros(len(pairs))
    with evaluating(model):
        for batch in batches(pairs, most_positions):
            of_tokens, _ = likelihood.token_log_p(model, [pairs[i] for i in batch])
            sums[batch] = of_tokens.double().sum(-1).cpu().numpy()
    return sums


def batches(pairs: Sequence[Pair], most_positions: int) -> Iterator[list[int]]:
    """The numbers of the pairs, those with the shortest prompts first. A batch of several pairs has
    at most ``TOKENS`` tokens, and at most ``most_positions`` after its shortest prompt.
    """
    batch: list[int] = []
    longest = 0
    for i in sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), len(pairs[i][1]))):
        prompt, response = pairs[i]
        n_tokens = len(prompt) + len(response)
        if batch:
            n_rows = len(batch) + 1
            width = max(longest, n_tokens)
            n_predicted = width - len(pairs[batch[0]][0]) + 1
            if n_rows * width > TOKENS or n_rows * n_predicted > most_positions:
                yield batch
                batch = []
                longest = 0
        batch.append(i)
        longest = max(longest, n_tokens)
    if batch:
        yield batch
