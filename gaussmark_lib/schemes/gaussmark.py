"""The paper's scheme, vanilla and rank-reduced, as a ``Scheme``."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, perturb, score
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Scheme, register
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import Watermark


@dataclass(frozen=True)
class GaussMark(Scheme):
    """Noise on one weight; ``statistic`` is ψ. ``dtype`` is the lowest precision of scoring that
    will do (``score.score``).
    """

    wm: Watermark
    key: Key
    name: str = "GaussMark"
    dtype: str | None = field(default=None, repr=False)  # no part of who writes a text

    def generate(
        self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0, **sampling
    ) -> list[list[int]]:
        with perturb.watermarked(model, self.wm, self.key):
            return generate.sample(model, prompts, n_tokens, seed=seed, **sampling)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        [table] = self.score_keys(model, prompts, responses, [self.key])
        return table

    def score_keys(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Sequence[Key]
    ) -> list[pd.DataFrame]:
        """All keys share the gradients, which are nearly all of the work."""
        table = score.score(model, prompts, responses, self.wm, keys, dtype=self.dtype)
        table = table.rename(columns={"psi": "statistic"})  # a text's rows are in the keys' order
        return [table.iloc[j :: len(keys)].reset_index(drop=True) for j in range(len(keys))]

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts
    ) -> Float[np.ndarray, " texts"]:
        return divergence.per_text(model, prompts, responses, self.wm, self.key)


register("GaussMark")(lambda wm, key: GaussMark(replace(wm, rank_dropped=0), key))


@register("rank-reduced")
def rank_reduced(wm: Watermark, key: Key) -> GaussMark:
    if not wm.rank_dropped:
        raise InvalidWatermarkError(
            "rank-reduced: expected a watermark with rank_dropped ≥ 1, got 0, which is the vanilla"
            " scheme"
        )
    return GaussMark(wm, key, name="rank-reduced")
