"""Several texts as one: whether one author, with one key, wrote them.

    ψ = ⟨ξ, Σ_i G_i⟩ / (σ‖Σ_i G_i‖)

The sum of log-likelihoods has the sum of the gradients, so this is the test of one long text: N(0,
1) for any texts that do not depend on the key, whatever they have in common. Adding up their ψ
instead, or their p-values, takes them for independent, which they are not under one key. Where the
texts are marked, the mean of ψ is about σ‖Σ_i G_i‖: √n times that of one text, if there are n of
one length and their gradients are orthogonal.
"""

from collections.abc import Iterable, Sequence

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import score
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.keys import Key, listed
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark, checked


def author(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    dtype=None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Tests all texts together against each key; arguments and errors are those of ``score.score``.

    Returns:
        One row per key: ``n_texts`` and ``score.score``'s columns but ``text``; ``grad_norm``,
        ``log_lik`` and ``n_tokens`` are of all texts together.
    """
    keys, wm = listed(keys), checked(wm).on(model)
    gradients = list(
        score.gradients(model, prompts, responses, wm, dtype=dtype, batch_size=batch_size)
    )
    total = summed(gradients)
    rows = score.table(total.facts, score.psi([total], wm, keys)[0], [key.key_id for key in keys])
    rows = rows.drop(columns="text")
    rows.insert(0, "n_texts", len(gradients))
    return rows


def summed(gradients: Iterable[TextGradient]) -> TextGradient:
    """The gradient of several texts' summed log-likelihood, as that of one text."""
    total, log_lik, n_tokens = None, 0.0, 0
    for one in gradients:
        one.unit()  # refuses a gradient that is zero or not finite
        total = one.G.clone() if total is None else total.add_(one.G)
        log_lik, n_tokens = log_lik + one.log_lik, n_tokens + one.n_tokens
    if total is None:
        raise InvalidTextError("expected at least one text's gradient, got none")
    return TextGradient(0, [total], [1.0], 0.0, log_lik, n_tokens)
