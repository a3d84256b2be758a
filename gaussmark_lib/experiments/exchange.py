"""The change of cross-entropy, mean over ξ and −ξ; goes with its last caller, ``low_rank``."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, perturb


def delta(
    model: PreTrainedModel,
    prompts,
    texts,
    base: np.ndarray,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    batch_size: int = 16,
):
    """(Δ(ξ) + Δ(−ξ))/2 of each text under each key, against its cross-entropy ``base`` under the
    base model: ``key_id, item, value``.
    """
    wm, tables = wm.on(model), []
    for key in keys:
        xi = perturb.noise(model, wm, key)
        both = []
        for signed in (xi, -xi):
            with perturb.moved(model, wm, signed):
                both.append(
                    likelihood.cross_entropy(model, texts, prompts=prompts, batch_size=batch_size)
                    - base
                )
        tables.append(
            pd.DataFrame(
                {"key_id": key.key_id, "item": range(len(texts)), "value": np.mean(both, axis=0)}
            )
        )
    return pd.concat(tables)
