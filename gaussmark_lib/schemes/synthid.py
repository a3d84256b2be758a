"""SynthID-Text's tournament sampling (Dathathri et al., Nature 634, 2024), by transformers' own processor.

The four tokens before seed, for each of m keys, a fair bit g for every token of the vocabulary; m knock-out rounds between draws prefer bits of 1,
so that over keys the text keeps the model's distribution. Under the null the bits of n distinct contexts are m·n fair coins, so the number of ones
is Binomial(m·n, ½) and its tail exact. The table that the bits are read from is 16 times transformers' default: 6,000 bits read from
65,536 collide often enough to make the level too large.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, SynthIDTextWatermarkLogitsProcessor

from gaussmark_lib import checks, kgw, tokens
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError
from gaussmark_lib.keys import Key, checked
from gaussmark_lib.scheme import SamplerScheme, register
from gaussmark_lib.tokens import Texts

NGRAM = 5


@dataclass(frozen=True)
class SynthID(SamplerScheme):
    """Tournament sampling with ``depth`` rounds (m)."""

    key: Key
    depth: int = 30
    name: str = "SynthID"

    def __post_init__(self):
        checked(self.key)
        checks.whole(self.depth, "depth", InvalidWatermarkError)

    def processor(self, model: PreTrainedModel) -> SynthIDTextWatermarkLogitsProcessor:
        """A fresh one: it remembers the contexts of the batch it has seen."""
        seed = int.from_bytes(self.key.derived("SynthID"), "big")  # the processor holds what is drawn from it in the open
        seeds = np.random.default_rng(seed).integers(1 << 31, size=self.depth + 1).tolist()
        return SynthIDTextWatermarkLogitsProcessor(NGRAM, seeds[1:], 1 << 20, seeds[0], context_history_size=1024, device=model.device)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        """``scheme.COLUMNS`` with the share of ones as ``statistic``, and ``n_bits``, ``ones``; InvalidTextError for less than five tokens."""
        tokens.check_model(model)
        processor, rows = self.processor(model), []
        for i, response in enumerate(tokens.listed(responses, "responses: expected lists of token ids")):
            ids = torch.tensor([tokens.checked(model, response, f"response {i}")], device=model.device)
            if ids.shape[1] < NGRAM:
                wanted = f"expected at least {NGRAM} tokens, since SynthID scores a token by the four before it"
                raise InvalidTextError(f"response {i}: {wanted}, got {ids.numel()}")
            bits = processor.compute_g_values(ids)[processor.compute_context_repetition_mask(ids)]
            rows.append((i, ids.numel(), bits.numel(), int(bits.sum())))
        table = pd.DataFrame(rows, columns=["text", "n_tokens", "n_bits", "ones"])
        return table.assign(statistic=table["ones"] / table["n_bits"], **kgw.exact_tail(table["ones"], table["n_bits"], 0.5))


register("SynthID")(lambda wm, key: SynthID(key))
