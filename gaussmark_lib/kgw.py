"""The baseline: soft red lists of Kirchenbauer et al. (arXiv:2301.10226), by transformers' own
processor.

The previous token seeds a random split of the vocabulary. A share γ of the tokens is *green*, and
the logits of green tokens are raised by δ. A text that does not depend on the key has a share γ of
green tokens, so the number of green tokens among n scored tokens is about Binomial(n, γ).

    z = (green − γn) / √(nγ(1 − γ)),     p = 1 − Φ(z)     (transformers' detector)
    p = P(Binomial(n, γ) ≥ green)        (ours: exact; the normal tail is too small)

The paper (App. KGW) has γ = 0.25, δ = 1 (KGW-1) or 2 (KGW-2), and a context of one token,
transformers' "lefthash". ⌊γV⌋ of V tokens are green, and the exact tail uses the share ⌊γV⌋/V.

The response alone is scored, without its first token, and each pair of neighbouring tokens once
(``ignore_repeated_ngrams``; otherwise repetition would count as evidence). Green lists come from
the random numbers of the model's device: a text that was written on a GPU must be tested on a GPU.
The seed of a list is the key times the token, so after token 0 the list is the same under every
key. Such pairs are not secret, and are not counted.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from scipy import stats
from transformers import PreTrainedModel, WatermarkingConfig
from transformers.generation.logits_process import WatermarkLogitsProcessor

from gaussmark_lib import keys, tokens
from gaussmark_lib.errors import (
    InvalidTextError,
    InvalidWatermarkError,
    require_between,
    require_one_of,
)
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

COLUMNS = ["text", "n_tokens", "n_scored", "n_green", "statistic", "p_normal", "p_value", "log10_p"]


@dataclass(frozen=True)
class KGW(SamplerScheme):
    """A soft red list watermark.

    Args:
        bias: δ > 0, nats.
        key: a hash of its secret seeds the lists; transformers' config shows that number.
        green_share: γ, 0 < γ < 1.
        test: which tail gives ``p_value``: ``"exact"``, or ``"z"`` for the normal tail of
            transformers' detector, which exceeds its level.

    >>> KGW(bias=2.0, key=Key.from_seed(1)).name
    'KGW-2'
    """

    bias: float
    key: Key
    green_share: float = 0.25
    test: str = "exact"
    marks_greedy: ClassVar[bool] = True

    def __post_init__(self):
        keys.listed([self.key])
        require_between(self.bias, "bias", InvalidWatermarkError)
        require_between(self.green_share, "green_share", InvalidWatermarkError, high=1)
        require_one_of(self.test, "test", ("exact", "z"), InvalidWatermarkError)

    @property
    def name(self) -> str:
        """Return the scheme's name with its bias and, if it is not exact, its test."""
        name = f"KGW-{self.bias:g}"
        return f"{name} z-test" if self.test == "z" else name

    @property
    def exact(self) -> bool:
        """Return whether the test keeps its level."""
        return self.test == "exact"

    @property
    def config(self) -> WatermarkingConfig:
        """Return the argument of ``model.generate(watermarking_config=…)``."""
        seed = int.from_bytes(self.key.derived("KGW")[:8], "big") >> 1  # torch takes seeds < 2⁶³
        return WatermarkingConfig(
            greenlist_ratio=self.green_share,
            bias=self.bias,
            hashing_key=seed,
            context_width=1,
        )

    def processor(self, model: PreTrainedModel) -> WatermarkLogitsProcessor:
        """Return transformers' logits processor of this scheme."""
        self.n_green(model)  # raises if there are none
        return self.config.construct_processor(tokens.config(model).vocab_size, str(model.device))

    def n_green(self, model: PreTrainedModel) -> int:
        """Return ⌊γV⌋, how many tokens a green list has."""
        vocabulary = tokens.config(model).vocab_size
        n = int(vocabulary * self.green_share)
        if n == 0:
            raise InvalidWatermarkError(
                f"green_share = {self.green_share} of {vocabulary} tokens is less than one token;"
                " choose a larger share"
            )
        return n

    def greens(self, model: PreTrainedModel, before: int) -> set[int]:
        """Return the green tokens after a token, as transformers' processor draws them."""
        rng = torch.Generator(model.device)
        rng.manual_seed(self.config.hashing_key * before % (2**64 - 1))
        vocabulary = tokens.config(model).vocab_size
        order = torch.randperm(vocabulary, device=model.device, generator=rng)
        return set(order[: self.n_green(model)].tolist())

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Return a row per text; ``n_scored`` counts distinct pairs of neighbouring tokens.

        Raise InvalidTextError for a text that has no pair to count.
        """
        start = tokens.config(model).bos_token_id
        rows = []
        for i, ids, scheme in self.keyed(model, responses, keys):
            text = ids[1:] if ids[:1] == [start] else ids  # the start token was not sampled
            # a set: each pair counts once; after token 0 every key has the same list
            pairs = {(previous, token) for previous, token in pairwise(text) if previous != 0}
            if not pairs:
                expected = "expected at least 2 tokens, the first of them not 0, to score as a pair"
                raise InvalidTextError(f"response {i}: {expected}, got {len(ids)} tokens")
            greens = {previous: scheme.greens(model, previous) for previous, _ in pairs}
            n_green = sum(token in greens[previous] for previous, token in pairs)
            rows.append((i, len(ids), len(pairs), n_green))
        table = pd.DataFrame(rows, columns=COLUMNS[:4])
        n_scored = table["n_scored"]
        n_green = table["n_green"]
        table["statistic"] = z_score(n_green, n_scored, self.green_share)
        table["p_normal"] = stats.norm.sf(table["statistic"])
        if self.test == "z":
            table["p_value"] = table["p_normal"]
            table["log10_p"] = stats.norm.logsf(table["statistic"]) / np.log(10)
        else:
            share = self.n_green(model) / tokens.config(model).vocab_size
            tail = exact_tail(n_green, n_scored, share)
            table["p_value"] = tail["p_value"]
            table["log10_p"] = tail["log10_p"]
        return table[COLUMNS]


register("KGW-1")(lambda wm, key: KGW(1.0, key))
register("KGW-2")(lambda wm, key: KGW(2.0, key))
register("KGW-2 z-test")(lambda wm, key: KGW(2.0, key, test="z"))


def z_score(n_green: ArrayLike, n: ArrayLike, share: float) -> ArrayLike:
    """Return (green − γn) / √(nγ(1 − γ)).

    >>> float(z_score(n_green=40, n=100, share=0.25).round(3))
    3.464
    """
    return (n_green - share * n) / np.sqrt(n * share * (1 - share))


def exact_tail(hits: ArrayLike, n: ArrayLike, share: float) -> dict[str, np.ndarray]:
    """Return P(Binomial(n, share) ≥ hits) as ``p_value``, and ``log10_p``, which never underflows.

    >>> exact_tail(np.array([2]), np.array([2]), 0.25)["p_value"]
    array([0.0625])
    """
    # SciPy takes the logarithm of the tail, which may underflow; its first term does not.
    log_first_term = stats.binom.logpmf(hits, n, share)
    log_p = np.maximum(stats.binom.logsf(hits - 1, n, share), log_first_term)
    return {
        "p_value": stats.binom.sf(hits - 1, n, share),
        "log10_p": log_p / np.log(10),
    }
