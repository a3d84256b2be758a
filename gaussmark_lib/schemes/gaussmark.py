"""The paper's scheme, vanilla and rank-reduced, as a ``Scheme``."""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, score
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Keys, Scheme, register
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark


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
        self,
        model: PreTrainedModel,
        prompts: Texts,
        n_tokens: int,
        *,
        keys: Keys = None,
        **sampling,
    ) -> list[list[int]]:
        marks = [(self.wm, key) for key in self.key_of_each(len(prompts), keys)]
        return generate.sample(model, prompts, n_tokens, marks=marks, **sampling)

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        keys = self.key_of_each(len(responses), keys)
        table = score.score(model, prompts, responses, self.wm, keys, dtype=self.dtype, paired=True)
        return table.rename(columns={"psi": "statistic"})

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> Float[np.ndarray, " texts"]:
        if keys is None:
            return divergence.per_text(model, prompts, responses, self.wm, self.key)
        each = zip(prompts, responses, keys, strict=True)
        return np.array([divergence.per_text(model, [x], [y], self.wm, key) for x, y, key in each])[
            :, 0
        ]


register("GaussMark")(lambda wm, key: GaussMark(replace(wm, rank_dropped=0), key))


@register("rank-reduced")
def rank_reduced(wm: Watermark, key: Key) -> GaussMark:
    if not wm.rank_dropped:
        raise InvalidWatermarkError(
            "rank-reduced: expected a watermark with rank_dropped ≥ 1, got 0, which is the vanilla"
            " scheme"
        )
    return GaussMark(wm, key, name="rank-reduced")
