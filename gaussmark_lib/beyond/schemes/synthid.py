"""SynthID-Text's tournament sampling (Dathathri et al., Nature 634, 2024), by transformers' own
processor.

The four tokens before seed, for each of m rounds, a fair bit g for every token of the vocabulary; m
knock-out rounds between draws prefer bits of 1, so that over keys the text keeps the model's
distribution. The bits lie in a table of fair coins, in which the key and a public hash of five
tokens name a place. A repeated context counts once, as it is watermarked once, and so does a place:
two of them are one coin, by chance in a long text, and in one that somebody wrote for the purpose,
since texts with equal hashes can be found without the key. So under the null n places are n fair
coins for every text. The table is 16 times transformers' default, so that few places are lost.

Two tests, both exact: the number of ones is Binomial(n, ½); and, since the first rounds decide
most, the weighted sum Σ w_d g with weights that fall from 10 in the first round to 1 in the last
(the authors' weighted mean, with whole numbers).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from scipy.optimize import brentq
from scipy.special import expit
from transformers import PreTrainedModel, SynthIDTextWatermarkLogitsProcessor

from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import COLUMNS, Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

NGRAM = 5
TABLE, HISTORY = 1 << 20, 4096  # coins, and contexts that are remembered while a text is written


@dataclass(frozen=True)
class SynthID(SamplerScheme):
    """Tournament sampling with ``depth`` rounds (m); ``weighted`` chooses the test."""

    key: Key
    depth: int = 30
    weighted: bool = False

    @property
    def name(self) -> str:
        return "SynthID weighted" if self.weighted else "SynthID"

    @property
    def weights(self) -> list[int]:
        """Of the rounds, in the test."""
        falling = np.linspace(10, 1, self.depth).round().astype(int)
        return falling.tolist() if self.weighted else [1] * self.depth

    def processor(self, model: PreTrainedModel) -> SynthIDTextWatermarkLogitsProcessor:
        """A fresh one: it remembers the contexts of the batch it has seen."""
        # the processor holds what is drawn from this seed in the open
        seed = int.from_bytes(self.key.derived("SynthID"), "big")
        seeds = np.random.default_rng(seed).integers(1 << 31, size=self.depth + 1).tolist()
        return SynthIDTextWatermarkLogitsProcessor(
            NGRAM, seeds[1:], TABLE, seeds[0], context_history_size=HISTORY, device=model.device
        )

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """``scheme.COLUMNS`` with the weighted share of ones as ``statistic``, and ``n_bits``,
        ``ones``; InvalidTextError for less than five tokens.
        """
        rows, processor, last = [], None, None
        for i, ids, scheme in self.keyed(model, responses, keys):
            if len(ids) < NGRAM:
                raise InvalidTextError(
                    f"response {i}: expected at least {NGRAM} tokens, since SynthID scores a token"
                    f" by the four before it, got {len(ids)}"
                )
            if scheme != last:
                processor, last = scheme.processor(model), scheme
            bits, weights = self._coins(processor, ids)
            total = int(bits @ weights)
            log10_p = weighted_tail(total, np.bincount(weights))
            share = total / weights.sum()
            rows.append((i, len(ids), share, 10**log10_p, log10_p, len(bits), bits.sum()))
        return pd.DataFrame(rows, columns=[*COLUMNS, "n_bits", "ones"])

    def _coins(
        self, processor: SynthIDTextWatermarkLogitsProcessor, ids: list[int]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The bits of a text and their weights, each place of the table once."""
        grams = torch.tensor([ids], device=processor.device).unfold(1, NGRAM, 1)  # (1, t, NGRAM)
        reverse = reversed(list(enumerate(grams[0].tolist())))
        first = {tuple(gram[:-1]): t for t, gram in reverse}  # of equal contexts, the first
        hashes = processor.compute_ngram_keys(grams[:, sorted(first.values())])  # (1, t, depth)
        places, index = np.unique((hashes % TABLE).cpu().numpy(), return_index=True)
        bits = processor.sampling_table.cpu().numpy()[places]
        return bits, np.tile(self.weights, len(first))[index]


def weighted_tail(total: int, n: Int[np.ndarray, " weights"]) -> float:
    """log₁₀ P(Σ_w w·Binomial(n_w, ½) ≥ total), exact up to rounding.

    The distribution comes from its Fourier transform. For a far tail the coins are tilted first,
    P(1) ∝ exp(θw), so that ``total`` is about their mean and no digit is lost.

    >>> two_of_weight_1 = np.array([0, 2])
    >>> [round(10 ** weighted_tail(total, two_of_weight_1), 6) for total in (2, 0)]
    [0.25, 1.0]
    """
    w, n = np.arange(len(n)), np.asarray(n)
    top = int(w @ n)

    def excess(theta: float) -> float:
        return n * w @ expit(theta * w) - (total - 0.5)

    theta = brentq(excess, 0, 50) if excess(0) < 0 else 0.0
    q = expit(theta * w)[:, None]  # P(1) of a tilted coin
    angles = np.arange((top + 1) // 2 + 1) * (2 * np.pi / (top + 1))
    waves = np.prod((1 - q + q * np.exp(-1j * w[:, None] * angles)) ** n[:, None], axis=0)
    tilted = np.fft.irfft(waves, top + 1)  # P(sum = s)
    log_mass = n @ (np.logaddexp(0, theta * w) - np.log(2)) - theta * total
    beyond = tilted[total:] @ np.exp(-theta * np.arange(top + 1 - total))
    return min(0.0, float((log_mass + np.log(beyond)) / np.log(10)))


register("SynthID")(lambda wm, key: SynthID(key))
register("SynthID weighted")(lambda wm, key: SynthID(key, weighted=True))
