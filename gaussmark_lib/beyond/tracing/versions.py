"""One test of several versions of a text, such as the original and the same text with plain spaces.

Each version has its own direction, so this is a test of several directions (``largest``). It is
exact if no version depends on the key.
"""

from collections.abc import Sequence

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import perturb, score
from gaussmark_lib.beyond import largest
from gaussmark_lib.beyond.tracing.authors import summed
from gaussmark_lib.gradients import Weigh, of_pairs, require_one
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark


def any_version(
    model: PreTrainedModel,
    versions: Sequence[tuple[Texts, Texts]],
    wm: Watermark,
    keys: Sequence[Key],
    *,
    token_weights: Weigh | None = None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Test a text in several versions against each key.

    Args:
        versions: prompts and responses of each version; a version that is longer than the context
            has several of them (``authors.windows``).
        token_weights: as in ``score.score``, one function.
        batch_size: as in ``score.score``.

    Returns:
        One row per key: the columns of ``score.score`` without ``text``, and ``psi_of_each``, the ψ
        of each version. ``psi`` is Φ⁻¹(1 − p); ``grad_norm``, ``log_lik`` and ``n_tokens`` are
        those of the first version.
    """
    wm, keys = perturb.ready(model, wm, keys)
    weigh = require_one(token_weights)
    directions = []  # one gradient per version
    for prompts, responses in versions:
        pairs = wm.reader.pairs(prompts, responses)
        gradients = of_pairs(wm, pairs, token_weights=weigh, batch_size=batch_size)
        directions.append(summed(gradients))
    psi = score.psi(directions, wm, keys)  # (versions, keys)
    psi_largest = largest.psi_of_largest(directions, psi)
    key_ids = [key.key_id for key in keys]
    table = score.table([(directions[0], psi_largest)], [key_ids])
    return table.drop(columns="text").assign(psi_of_each=psi.T.tolist())
