"""One text in several versions, such as the text as it came and the same text with plain spaces.

Each version has its own direction u_i = G_i/‖G_i‖, so ψ_i = ⟨z, u_i⟩ with z ~ N(0, I) over keys,
and jointly

    (ψ_1, …, ψ_n) ~ N(0, K),   K_ij = ⟨u_i, u_j⟩

The p-value is that of the largest ψ_i under this law. It is exact as long as no version depends on
the key. For two versions it is between the smaller of the two p-values and twice that.
"""

from collections.abc import Sequence

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import perturb, score, tokens
from gaussmark_lib.beyond.tracing.authors import summed
from gaussmark_lib.gradients import of_pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark


def any_version(
    model: PreTrainedModel,
    versions: Sequence[tuple[Texts, Texts]],
    wm: Watermark,
    keys: Sequence[Key],
    *,
    edited: float = 0.0,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Test a text in several versions against each key.

    Args:
        versions: of each version its prompts and responses, several if it is longer than the
            context (``authors.windows``).
        edited, batch_size: as in ``score.score``.

    Returns:
        One row per key: ``score.score``'s columns without ``text``, and ``psi_of_each``, the ψ of
        each version. ``psi`` is Φ⁻¹(1 − p); ``grad_norm``, ``log_lik`` and ``n_tokens`` are those
        of the first version.
    """
    wm, keys = perturb.ready(model, wm, keys)
    directions = []
    for prompts, responses in versions:
        pairs = tokens.checked_pairs(model, prompts, responses)
        gradients = of_pairs(wm, pairs, edited=[edited], batch_size=batch_size)
        directions.append(summed(gradients))
    psi = score.psi(directions, wm, keys)  # (versions, keys)
    largest = score.largest(directions, psi)
    key_ids = [key.key_id for key in keys]
    table = score.table([(directions[0], largest)], [key_ids])
    return table.drop(columns="text").assign(psi_of_each=psi.T.tolist())
