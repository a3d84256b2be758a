"""Token-level keys (paper, Algs. 3 and 4) as a ``Scheme``: what ``token_level`` computes, tested by
hits or by a weighted sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Scheme, register
from gaussmark_lib.token_level import divergence
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import Watermark


@dataclass(frozen=True)
class TokenKeys(Scheme):
    """Fresh noise for each token, tested by the number of hits at level ``alpha_0`` (``"hits"``,
    Alg. 4) or by the weighted sum of the Γ_k.
    """

    wm: Watermark
    key: Key
    alpha_0: float = 0.5
    test: str = "hits"

    @property
    def name(self) -> str:
        return f"token keys, {self.test}"

    def generate(
        self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0, **sampling
    ) -> list[list[int]]:
        return token_keys.sample(model, prompts, n_tokens, self.wm, self.key, seed=seed, **sampling)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        [table] = self.score_keys(model, prompts, responses, [self.key])
        return table

    def score_keys(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Sequence[Key]
    ) -> list[pd.DataFrame]:
        """All keys share the gradients."""
        statistic = "hits" if self.test == "hits" else "psi"
        chosen = {f"p_{statistic}": "p_value", f"log10_p_{statistic}": "log10_p"}
        of_keys = token_keys.per_token_of_keys(model, prompts, responses, self.wm, keys)
        tables = [token_keys.from_gammas(gammas, self.alpha_0) for gammas in of_keys]
        return [table.rename(columns=chosen).assign(statistic=table[statistic]) for table in tables]

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts
    ) -> Float[np.ndarray, " texts"]:
        return divergence.per_text(model, prompts, responses, self.wm, self.key)


register("token keys")(TokenKeys)
register("token keys, sum")(partial(TokenKeys, test="sum"))
