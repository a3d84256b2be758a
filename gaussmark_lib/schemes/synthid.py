"""SynthID-Text's tournament sampling (Dathathri et al., Nature 634, 2024), by transformers' own
processor.

The four tokens before seed, for each of m keys, a fair bit g for every token of the vocabulary; m
knock-out rounds between draws prefer bits of 1, so that over keys the text keeps the model's
distribution. The bits lie in a table of fair coins, in which the key and a public hash of five
tokens name a place. A repeated context counts once, as it is watermarked once, and so does a place:
two of them are one coin, by chance in a long text, and in one that somebody wrote for the purpose,
since texts with equal hashes can be found without the key. So under the null n places are n fair
coins for every text, the number of ones is Binomial(n, ½), and its tail exact. The table is 16
times transformers' default, so that few places are lost.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, SynthIDTextWatermarkLogitsProcessor

from gaussmark_lib import generate, kgw, tokens
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import SamplerScheme, register
from gaussmark_lib.tokens import Texts

NGRAM = 5
TABLE, HISTORY = 1 << 20, 4096  # coins, and contexts that are remembered while a text is written


@dataclass(frozen=True)
class SynthID(SamplerScheme):
    """Tournament sampling with ``depth`` rounds (m)."""

    key: Key
    depth: int = 30
    name: str = "SynthID"

    def processor(self, model: PreTrainedModel) -> SynthIDTextWatermarkLogitsProcessor:
        """A fresh one: it remembers the contexts of the batch it has seen."""
        seed = int.from_bytes(
            self.key.derived("SynthID"), "big"
        )  # the processor holds what is drawn from it in the open
        seeds = np.random.default_rng(seed).integers(1 << 31, size=self.depth + 1).tolist()
        return SynthIDTextWatermarkLogitsProcessor(
            NGRAM, seeds[1:], TABLE, seeds[0], context_history_size=HISTORY, device=model.device
        )

    def generate(
        self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0, **sampling
    ) -> list[list[int]]:
        """At temperature 0 there is no choice, and no watermark."""
        write = generate.sample if sampling.get("temperature") == 0 else super().generate
        return write(model, prompts, n_tokens, seed=seed, **sampling)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        """``scheme.COLUMNS`` with the share of ones as ``statistic``, and ``n_bits``, ``ones``;
        InvalidTextError for less than five tokens.
        """
        processor, rows = self.processor(model), []
        for i, response in enumerate(responses):
            ids = tokens.checked(model, response, f"response {i}")
            if len(ids) < NGRAM:
                raise InvalidTextError(
                    f"response {i}: expected at least {NGRAM} tokens, since SynthID scores a token"
                    f" by the four before it, got {len(ids)}"
                )
            grams = torch.tensor([ids], device=model.device).unfold(1, NGRAM, 1)  # (1, t, NGRAM)
            first = {
                tuple(gram[:-1]): t for t, gram in reversed(list(enumerate(grams[0].tolist())))
            }  # of equal contexts, the first
            hashes = processor.compute_ngram_keys(grams[:, sorted(first.values())])
            places = (hashes % TABLE).unique()
            rows.append((i, len(ids), len(places), int(processor.sampling_table[places].sum())))
        table = pd.DataFrame(rows, columns=["text", "n_tokens", "n_bits", "ones"])
        return table.assign(
            statistic=table["ones"] / table["n_bits"],
            **kgw.exact_tail(table["ones"], table["n_bits"], 0.5),
        )


register("SynthID")(lambda wm, key: SynthID(key))
