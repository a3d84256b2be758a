"""Several texts as one: whether one author, with one key, wrote them.

    ψ = ⟨ξ, Σ_i G_i⟩ / (σ‖Σ_i G_i‖)

The sum of log-likelihoods has the sum of the gradients, so this is the test of one long text: N(0,
1) for any texts that do not depend on the key, whatever they have in common. Adding up their ψ
instead, or their p-values, takes them for independent, which they are not under one key. Where the
texts are marked, the mean of ψ is about σ‖Σ_i G_i‖: √n times that of one text, if there are n of
one length and their gradients are orthogonal.

So is a text that is longer than the model's context tested: in windows that fit, each token scored
once. Which tokens stand before it changes the power only.
"""

from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from transformers import PreTrainedModel

from gaussmark_lib import perturb, score, tokens
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import TextGradient, Weigh, of_pairs, require_one
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.weights import Watermark

# a further window begins with the last context/4 tokens before it, which are not scored again
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
    """Tests all texts together against each key; arguments and errors are those of ``score.score``,
    with one function as ``token_weights``.

    Returns:
        One row per key: ``n_texts`` and ``score.score``'s columns but ``text``; ``grad_norm``,
        ``log_lik`` and ``n_tokens`` are of all texts together.
    """
    wm, keys = perturb.ready(model, wm, keys)
    pairs = wm.reader.pairs(prompts, responses)
    weigh = require_one(token_weights)
    gradients = of_pairs(wm, pairs, token_weights=weigh, dtype=dtype, batch_size=batch_size)
    total = summed(gradients)
    tested = [(total, score.psi([total], wm, keys)[0])]
    rows = score.table(tested, [[key.key_id for key in keys]])
    rows = rows.drop(columns="text")
    rows.insert(0, "n_texts", len(pairs))
    return rows


def summed(gradients: Iterable[TextGradient]) -> TextGradient:
    """The gradient of several texts' summed log-likelihood, as that of one text."""
    total, log_lik, n_tokens = None, 0.0, 0
    for one in gradients:
        _ = one.norm  # refuses a gradient that is zero or not finite
        total = one.G.clone() if total is None else total.add_(one.G)
        log_lik, n_tokens = log_lik + one.log_lik, n_tokens + one.n_tokens
    if total is None:
        raise InvalidTextError("expected at least one text's gradient, got none")
    return TextGradient(0, [total], [1.0], 0.0, log_lik, n_tokens)


def windows(
    model: PreTrainedModel, prompt: Ids, response: Ids
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses for ``tracing.author``: together the whole response, in one window
    where the context has room for it.

    Raises:
        InvalidTextError: no token to score, ids that the model does not have, or a prompt that
            leaves no room for a token.
    """
    reader = tokens.Reader(model)
    before = reader.prompt(prompt, n=1)
    rest = reader.ids(response, "text 0")
    if not rest:
        raise InvalidTextError("expected at least one token to score, got none")
    context = reader.context or len(before) + len(rest)
    prompts, responses = [], []
    while rest:
        n = context - len(before)
        prompts.append(before)
        responses.append(rest[:n])
        before, rest = (before + rest[:n])[-max(1, context // BEFORE) :], rest[n:]
    return prompts, responses
