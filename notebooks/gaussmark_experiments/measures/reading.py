"""log p of thousands of texts in few forward passes, for benchmarks and judges.

``likelihood`` counts the logits of all positions of a batch. Here only the positions that predict a
response count, so many questions with long contexts and short answers fit into one pass.
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
    """Return log p(y | x) of each pair (x, y) of checked token ids, neither empty: nats, summed
    over y.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    most_positions = LOGITS.get(model.device.type, LOGITS["cpu"]) // vocabulary
    sums = np.zeros(len(pairs))
    with evaluating(model):
        for batch in batches(pairs, most_positions):
            pairs_of_batch = [pairs[number] for number in batch]
            of_tokens, _ = likelihood.token_log_p(model, pairs_of_batch)  # (pairs, tokens)
            sums[batch] = of_tokens.double().sum(-1).cpu().numpy()
    return sums


def batches(pairs: Sequence[Pair], most_positions: int) -> Iterator[list[int]]:
    """Yield the numbers of the pairs, the shortest pairs first, which keeps padding short. A batch
    of several pairs has at most ``TOKENS`` tokens, and at most ``most_positions`` positions after
    its shortest prompt.
    """
    lengths = [len(prompt) + len(response) for prompt, response in pairs]
    batch: list[int] = []
    shortest = 0  # prompt of the batch
    for number in sorted(range(len(pairs)), key=lengths.__getitem__):
        prompt, _ = pairs[number]
        length = lengths[number]  # the longest so far
        n_rows = len(batch) + 1
        shortest_with_it = min(shortest, len(prompt)) if batch else len(prompt)
        n_predicted = n_rows * (length - shortest_with_it + 1)
        is_too_large = n_rows * length > TOKENS or n_predicted > most_positions
        if batch and is_too_large:
            yield batch
            batch = []
            shortest_with_it = len(prompt)
        batch.append(number)
        shortest = shortest_with_it
    if batch:
        yield batch
