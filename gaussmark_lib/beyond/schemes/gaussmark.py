"""The paper's schemes, each as a ``Scheme``: vanilla, rank-reduced, and with token-level keys.

Token-level keys (Algs. 3 and 4) are tested by hits or by a weighted sum.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import PreTrainedModel

from gaussmark_lib import score
from gaussmark_lib.beyond import channel
from gaussmark_lib.beyond.token_level import divergence as token_divergence
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Keys, Scheme, register
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark


@dataclass(frozen=True)
class GaussMark(Scheme):
    """Noise on one weight; ``statistic`` is ψ.

    Args:
        edited: the share of replaced tokens that the test is tuned for (``channel``).
        dtype: the lowest precision in which texts may be scored (``score.score``).
    """

    wm: Watermark
    key: Key
    name: str = "GaussMark"
    edited: float = 0.0
    dtype: str | None = field(default=None, repr=False)  # has no effect on writing

    def writing(
        self, model: PreTrainedModel, n: int, keys: Keys = None, is_greedy: bool = False
    ) -> dict:
        """Return the arguments of ``generate.sample`` that watermark n rows."""
        marks = [(self.wm, key) for key in self.key_of_each(n, keys)]  # one per row
        return {"marks": marks}

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Score texts with the base model; return a table with ``scheme.COLUMNS``."""
        keys = self.key_of_each(len(responses), keys)
        table = score.score(
            model,
            prompts,
            responses,
            self.wm,
            keys,
            paired=True,
            token_weights=channel.weights(model, self.edited),
            dtype=self.dtype,
        )
        return table.rename(columns={"psi": "statistic"})


register("GaussMark")(lambda wm, key: GaussMark(replace(wm, rank_dropped=0), key))


@register("GaussMark, sharper")
def sharper(wm: Watermark, key: Key) -> GaussMark:
    """Return the vanilla scheme with a test that is tuned for 10% replaced tokens."""
    vanilla = replace(wm, rank_dropped=0)
    return GaussMark(vanilla, key, name="GaussMark, sharper", edited=0.1)


@register("rank-reduced")
def rank_reduced(wm: Watermark, key: Key) -> GaussMark:
    """Return the scheme without the top singular directions of the weight."""
    if not wm.rank_dropped:
        raise InvalidWatermarkError(
            "rank-reduced: expected a watermark with rank_dropped ≥ 1, got 0, which is the vanilla"
            " scheme"
        )
    return GaussMark(wm, key, name="rank-reduced")


@dataclass(frozen=True)
class TokenKeys(Scheme):
    """Fresh noise for each token.

    Args:
        alpha_0: level of the test of one token.
        test: ``"hits"`` counts the tokens that are significant at ``alpha_0`` (Alg. 4); ``"sum"``
            takes the weighted sum of the Γ_k.
    """

    wm: Watermark
    key: Key
    alpha_0: float = 0.5  # the sign test
    test: str = "hits"

    @property
    def name(self) -> str:
        """Return the name with its test."""
        return f"token keys, {self.test}"

    def generate(
        self,
        model: PreTrainedModel,
        prompts: Texts,
        n_tokens: int,
        *,
        keys: Keys = None,
        **sampling,
    ) -> list[list[int]]:
        """Write a response to each prompt, under its own key."""
        keys = self.key_of_each(len(prompts), keys)
        return token_keys.sample(model, prompts, n_tokens, self.wm, keys, **sampling)

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Score texts with the base model; return a table with ``scheme.COLUMNS``."""
        keys = self.key_of_each(len(responses), keys)
        gammas = token_keys.per_token(model, prompts, responses, self.wm, keys)
        return token_keys.from_gammas(gammas, self.test, self.alpha_0)

    def divergences(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> Float[np.ndarray, " texts"]:
        """Return KL(q ‖ p_θ) along each text, in nats."""
        keys = self.key_of_each(len(responses), keys)
        return token_divergence.per_text(model, prompts, responses, self.wm, keys)


register("token keys")(TokenKeys)
register("token keys, sum")(partial(TokenKeys, test="sum"))
