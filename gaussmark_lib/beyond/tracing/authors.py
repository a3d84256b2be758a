"""One test of several texts: did one author, with one key, write them?

    ψ = ⟨ξ, Σ_i G_i⟩ / (σ‖Σ_i G_i‖)

A sum of log-likelihoods has the sum of the gradients, so this is the test of a single long text. ψ
is N(0, 1) for any texts that do not depend on the key, whatever they have in common. To add
up their ψ instead, or their p-values, would treat the texts as independent, which they are not
under one key. For watermarked texts, the mean of ψ is about σ‖Σ_i G_i‖. For n texts of the same
length with orthogonal gradients, this is √n times that of one text.

A text that is longer than the model's context is tested in the same way: in windows that fit, with
each token scored once. The tokens before a window affect only the power.
"""

from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import perturb, score, tokens
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import TextGradient, Weigh, of_pairs, require_one
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

# The last context/4 tokens of a window are the prompt of the next window, and not scored again.
BEFORE = 4


def author(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    token_weights: Weigh | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Test all texts together against each key.

    Arguments and errors are those of ``score.score``, with one function as ``token_weights``.

    Returns:
        One row per key: ``n_texts``, and the columns of ``score.score`` without ``text``.
        ``grad_norm``, ``log_lik`` and ``n_tokens`` are those of all texts together.
    """
    wm, keys = perturb.ready(model, wm, keys)
    pairs = wm.reader.pairs(prompts, responses)
    weigh = require_one(token_weights)
    gradients = of_pairs(wm, pairs, token_weights=weigh, dtype=dtype, batch_size=batch_size)
    rows = together(gradients, wm, keys)
    rows.insert(0, "n_texts", len(pairs))
    return rows


def together(
    gradients: Iterable[TextGradient], wm: PlacedWatermark, keys: Sequence[Key]
) -> pd.DataFrame:
    """Return the rows of :func:`author`, without ``n_texts``, from the gradients of the texts."""
    total = summed(gradients)
    tested = [(total, score.psi([total], wm, keys)[0])]
    rows = score.table(tested, [[key.key_id for key in keys]])
    return rows.drop(columns="text")  # there is only one


def summed(gradients: Iterable[TextGradient]) -> TextGradient:
    """Return the gradient of the summed log-likelihood of several texts, as if of one text."""
    totals: list[Tensor] = []  # Σ G in each weight
    scales: list[float] = []
    log_lik = 0.0
    n_tokens = 0
    for gradient in gradients:
        _ = gradient.norm  # refuses a gradient that is zero or not finite
        scales = gradient.scales
        totals = totals or [torch.zeros_like(G) for G in gradient.matrices]
        for total, G in zip(totals, gradient.matrices, strict=True):
            total.add_(G)
        log_lik += gradient.log_lik
        n_tokens += gradient.n_tokens
    if not totals:
        raise InvalidTextError("expected the gradient of at least one text, got no gradient")
    return TextGradient(0, totals, scales, 0.0, log_lik, n_tokens)


def windows(
    model: PreTrainedModel, prompt: Ids, response: Ids
) -> tuple[list[list[int]], list[list[int]]]:
    """Cut a response into windows that fit into the model's context.

    A response that fits is one window.

    Returns:
        Prompts and responses for ``tracing.author``; the responses together are the whole response.

    Raises:
        InvalidTextError: if there is no token to score, the model does not have the ids, or the
            prompt fills the context.
    """
    reader = tokens.Reader(model)
    window_prompt = reader.prompt(prompt, n=1)
    unscored = reader.ids(response, "text 0")
    if not unscored:
        raise InvalidTextError("expected at least one token to score, got none")
    context = reader.context or len(window_prompt) + len(unscored)
    n_overlap = max(1, context // BEFORE)
    prompts = []
    responses = []
    while unscored:
        n = context - len(window_prompt)
        window = unscored[:n]
        prompts.append(window_prompt)
        responses.append(window)
        window_prompt = (window_prompt + window)[-n_overlap:]
        unscored = unscored[n:]
    return prompts, responses
