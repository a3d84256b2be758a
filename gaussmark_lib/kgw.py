"""The baseline: soft red lists of Kirchenbauer et al. (arXiv:2301.10226), by transformers' own
processor.

The token before seeds a random split of the vocabulary; a share γ of it is *green*, and green
tokens' logits are raised by δ. Text that knows nothing of the key has a share γ of green tokens, so
the number of green ones among n scored is about Binomial(n, γ).

    z = (green − γn) / √(nγ(1 − γ)),     p = 1 − Φ(z)     (the detector's)
    p = P(Binomial(n, γ) ≥ green)        (ours: exact where the normal tail is too small)

The paper (App. KGW) has γ = 0.25, δ = 1 (KGW-1) or 2 (KGW-2), and a context of one token,
transformers' "lefthash". Of V tokens ⌊γV⌋ are green, and that share is what the exact tail uses.

The response alone is scored, without its first token, and each pair of neighbouring tokens once
(``ignore_repeated_ngrams``, else repetition counts as evidence). Green lists come from the random
numbers of the model's device: what was written on a GPU must be tested on one. A list's seed is the
key times the token, so that after token 0 it is the same under every key: those pairs are no
secret, and are not counted.
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
    """One soft red list watermark.

    Args:
        bias: δ > 0, nats.
        key: a hash of its secret starts the lists; transformers' config shows that number.
        green_share: γ, 0 < γ < 1.
        test: whose tail ``p_value`` is: ``"exact"``, or ``"z"`` for the detector's own normal one,
            which exceeds its level.
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
        return f"KGW-{self.bias:g}" + (" z-test" if self.test == "z" else "")

    @property
    def exact(self) -> bool:
        return self.test == "exact"

    @property
    def config(self) -> WatermarkingConfig:
        """As ``model.generate(watermarking_config=…)`` takes it."""
        seed = int.from_bytes(self.key.derived("KGW")[:8], "big") >> 1  # torch takes those < 2⁶³
        return WatermarkingConfig(
            greenlist_ratio=self.green_share, bias=self.bias, hashing_key=seed, context_width=1
        )

    def processor(self, model: PreTrainedModel) -> WatermarkLogitsProcessor:
        self.n_green(model)  # raises where there is none
        return self.config.construct_processor(tokens.config(model).vocab_size, str(model.device))

    def n_green(self, model: PreTrainedModel) -> int:
        """⌊γV⌋, the tokens of a green list."""
        vocabulary = tokens.config(model).vocab_size
        if not (n := int(vocabulary * self.green_share)):
            none = f"green_share = {self.green_share} of {vocabulary} tokens is none"
            raise InvalidWatermarkError(f"{none}; choose a larger one")
        return n

    def greens(self, model: PreTrainedModel, before: int) -> set[int]:
        """The green tokens after a token, as transformers' processor draws them."""
        rng = torch.Generator(model.device)
        rng.manual_seed(self.config.hashing_key * before % (2**64 - 1))
        n = tokens.config(model).vocab_size
        order = torch.randperm(n, device=model.device, generator=rng)
        return set(order[: self.n_green(model)].tolist())

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """``n_scored`` counts distinct pairs. InvalidTextError where there is none to count."""
        rows = []
        for i, ids, scheme in self.keyed(model, responses, keys):
            text = ids[ids[:1] == [tokens.config(model).bos_token_id] :]
            pairs = {(before, token) for before, token in pairwise(text) if before != 0}
            if not pairs:
                expected = "expected at least 2 tokens, the first of them not 0, to score as a pair"
                raise InvalidTextError(f"response {i}: {expected}, got {len(ids)} tokens")
            greens = {before: scheme.greens(model, before) for before, _ in pairs}
            n_green = sum(token in greens[before] for before, token in pairs)
            rows.append((i, len(ids), len(pairs), n_green))
        table = pd.DataFrame(rows, columns=COLUMNS[:4])
        n, n_green = table["n_scored"], table["n_green"]
        z = z_score(n_green, n, self.green_share)
        share = self.n_green(model) / tokens.config(model).vocab_size
        normal = {"p_value": stats.norm.sf(z), "log10_p": stats.norm.logsf(z) / np.log(10)}
        tail = normal if self.test == "z" else exact_tail(n_green, n, share)
        return table.assign(statistic=z, p_normal=normal["p_value"], **tail)[COLUMNS]


register("KGW-1")(lambda wm, key: KGW(1.0, key))
register("KGW-2")(lambda wm, key: KGW(2.0, key))
register("KGW-2 z-test")(lambda wm, key: KGW(2.0, key, test="z"))


def z_score(n_green: ArrayLike, n: ArrayLike, share: float) -> ArrayLike:
    return (n_green - share * n) / np.sqrt(n * share * (1 - share))


def exact_tail(hits: ArrayLike, n: ArrayLike, share: float) -> dict[str, np.ndarray]:
    """P(Binomial(n, share) ≥ hits) as ``p_value``, and its ``log10_p``, which does not underflow.

    >>> exact_tail(np.array([2]), np.array([2]), 0.25)["p_value"]
    array([0.0625])
    """
    first = stats.binom.logpmf(hits, n, share)  # what is left of a tail that underflows
    log_p = np.maximum(stats.binom.logsf(hits - 1, n, share), first)
    return {"p_value": stats.binom.sf(hits - 1, n, share), "log10_p": log_p / np.log(10)}
