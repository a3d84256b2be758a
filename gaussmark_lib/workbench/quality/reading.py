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
    """The numbers of the pairs, the shortest first, which keeps padding short. A batch of several
    pairs has at most ``TOKENS`` tokens, and at most ``most_positions`` after its shortest prompt.
    """
    lengths = [len(prompt) + len(response) for prompt, response in pairs]
    batch: list[int] = []
    shortest = 0  # prompt of the batch
    for i in sorted(range(len(pairs)), key=lengths.__getitem__):
        n_rows = len(batch) + 1
        shortest_with_i = min(shortest, len(pairs[i][0])) if batch else len(pairs[i][0])
        n_predicted = n_rows * (lengths[i] - shortest_with_i + 1)
        if batch and (n_rows * lengths[i] > TOKENS or n_predicted > most_positions):
            yield batch
            batch = []
            shortest_with_i = len(pairs[i][0])
        batch.append(i)
        shortest = shortest_with_i
    if batch:
        yield batch
