"""SynthID-Text's tournament sampling (Dathathri et al., Nature 634, 2024), with the processor of
transformers.

The four preceding tokens (the context) seed, for each of m rounds, a fair bit g for every token of
the vocabulary. Candidate tokens are drawn, and m knock-out rounds between them prefer bits of 1.
Over keys, the text has the model's distribution. The bits lie in a table of fair coins; the key and
a public hash of five tokens select a place in the table.

A repeated context is watermarked once and counts once. A place of the table counts once, too,
because it is a single coin. A long text meets the same place twice by chance; an attacker can
arrange it, since texts with equal hashes can be found without the key. So under the null, n places
are n fair coins for every text. The table has 16 times the default size of transformers, so that
few places are lost.

There are two tests, both exact. The number of ones is Binomial(n, ½). The first rounds carry most
of the evidence; hence the weighted sum Σ w_d g, with weights that fall from 10 in the first round
to 1 in the last (the authors' weighted mean, with whole numbers).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor
from transformers import PreTrainedModel, SynthIDTextWatermarkLogitsProcessor

from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import COLUMNS, Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

NGRAM = 5  # a token and its context
TABLE = 1 << 20  # coins
HISTORY = 4096  # contexts that are remembered while a text is written


@dataclass(frozen=True)
class SynthID(SamplerScheme):
    """Tournament sampling with ``depth`` rounds (m); ``weighted`` selects the test."""

    key: Key
    depth: int = 30
    weighted: bool = False

    @property
    def name(self) -> str:
        """Return the name with its test."""
        return "SynthID weighted" if self.weighted else "SynthID"

    @property
    def weights(self) -> list[int]:
        """Return the weight of each round in the test."""
        if not self.weighted:
            return [1 for _ in range(self.depth)]
        falling = np.linspace(10, 1, self.depth).round()
        return falling.astype(int).tolist()

    def processor(self, model: PreTrainedModel) -> SynthIDTextWatermarkLogitsProcessor:
        """Return a new processor, which remembers the contexts of its batch."""
        # The processor's attributes are public, so its numbers are drawn from a derived secret.
        seed = int.from_bytes(self.key.derived("SynthID"), "big")
        rng = np.random.default_rng(seed)
        table_seed, *keys_of_rounds = rng.integers(1 << 31, size=self.depth + 1).tolist()
        return SynthIDTextWatermarkLogitsProcessor(
            ngram_len=NGRAM,
            keys=keys_of_rounds,
            sampling_table_size=TABLE,
            sampling_table_seed=table_seed,
            context_history_size=HISTORY,
            device=model.device,
        )

    def processor_of_rows(self, model: PreTrainedModel, keys: Sequence[Key]) -> "_Tournament":
        return _Tournament([replace(self, key=key).processor(model) for key in keys])

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Score texts; return ``scheme.COLUMNS`` with the weighted share of ones as ``statistic``,
        and the columns ``n_bits`` and ``ones``.

        Raises:
            InvalidTextError: if a response has fewer than five tokens.
        """
        rows = []
        processor = None
        scheme_of_processor = None
        for i, ids, scheme in self.keyed(model, responses, keys):
            if len(ids) < NGRAM:
                raise InvalidTextError(
                    f"response {i}: expected at least {NGRAM} tokens, because SynthID scores a"
                    f" token by the four tokens before it, got {len(ids)}"
                )
            if scheme != scheme_of_processor:  # one processor for all texts of a key
                processor = scheme.processor(model)
                scheme_of_processor = scheme
            bits, weights = self._coins(processor, ids)
            total = int(bits @ weights)
            log10_p = weighted_tail(total, np.bincount(weights))
            share = total / weights.sum()
            p_value = 10**log10_p
            rows.append((i, len(ids), share, p_value, log10_p, len(bits), bits.sum()))
        return pd.DataFrame(rows, columns=[*COLUMNS, "n_bits", "ones"])

    def _coins(
        self, processor: SynthIDTextWatermarkLogitsProcessor, ids: list[int]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The bits of a text and their weights, with each place of the table once."""
        grams = torch.tensor([ids], device=processor.device).unfold(1, NGRAM, 1)  # (1, t, NGRAM)
        in_reverse = reversed(list(enumerate(grams[0].tolist())))
        first = {tuple(gram[:-1]): t for t, gram in in_reverse}  # of equal contexts, the first
        hashes = processor.compute_ngram_keys(grams[:, sorted(first.values())])  # (1, t, depth)
        places, index = np.unique((hashes % TABLE).cpu().numpy(), return_index=True)
        bits = processor.sampling_table.cpu().numpy()[places]
        return bits, np.tile(self.weights, len(first))[index]  # rounds of a token are adjacent


class _Tournament:
    """What transformers' processors of several keys do to their rows, all rows at once and one
    round after the other, so that memory holds one round.
    """

    def __init__(self, processors: Sequence[SynthIDTextWatermarkLogitsProcessor]):
        self.hash = processors[0].accumulate_hash
        self.keys = torch.stack([one.keys for one in processors])  # (rows, depth)
        tables = [one.sampling_table.to(torch.int8) for one in processors]
        self.tables = torch.stack(tables)  # (rows, TABLE)
        self.context = self.keys.new_zeros(len(processors), NGRAM - 1)
        self.seen = self.keys.new_zeros(len(processors), 0)  # hashes of earlier contexts
        self.is_first = True

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        if not self.is_first:
            self.context = torch.cat([self.context, ids[:, -1:]], dim=1)[:, 1:]
        self.is_first = False
        start = torch.ones_like(self.context[:, 0])
        of_context = self.hash(start, self.context)[:, None]  # (rows, 1)
        vocabulary = torch.arange(logits.shape[1], device=logits.device)
        of_token = self.hash(of_context, vocabulary[None, :, None])  # (rows, vocabulary)
        p = logits.softmax(1)
        for key in self.keys.T:
            # the same as "% TABLE", since TABLE is a power of two, but faster
            places = self.hash(of_token, key[:, None, None]) & (TABLE - 1)
            g = self.tables.gather(1, places)
            p = p * (1 + g - (g * p).sum(1, keepdim=True))
        marked = p.log()
        marked = marked.where(marked.isfinite(), torch.finfo(marked.dtype).min)
        is_repeated = (self.seen == of_context).any(1, keepdim=True)
        self.seen = torch.cat([of_context, self.seen], dim=1)[:, :HISTORY]
        return logits.where(is_repeated, marked)


def weighted_tail(total: int, n: Int[np.ndarray, " weights"]) -> float:
    """Return log₁₀ P(Σ_w w·Binomial(n_w, ½) ≥ total), exact up to rounding.

    The distribution comes from its Fourier transform. For a far tail, the coins are tilted first,
    P(1) ∝ exp(θw), so that ``total`` is about their mean and no digit is lost.

    >>> two_of_weight_1 = np.array([0, 2])
    >>> [round(10 ** weighted_tail(total, two_of_weight_1), 6) for total in (2, 0)]
    [0.25, 1.0]
    """
    n = np.asarray(n)  # coins of each weight
    w = np.arange(len(n))
    top = int(w @ n)  # the largest possible sum

    def excess(theta: float) -> float:
        return n * w @ expit(theta * w) - (total - 0.5)

    theta = brentq(excess, 0, 50) if excess(0) < 0 else 0.0
    q = expit(theta * w)[:, None]  # P(1) of a tilted coin
    angles = np.arange((top + 1) // 2 + 1) * (2 * np.pi / (top + 1))
    of_coin = 1 - q + q * np.exp(-1j * w[:, None] * angles)  # (weights, angles)
    of_sum = np.prod(of_coin ** n[:, None], axis=0)
    tilted = np.fft.irfft(of_sum, top + 1)  # P(sum = s)
    log_mass = n @ (np.logaddexp(0, theta * w) - np.log(2)) - theta * total
    beyond = tilted[total:] @ np.exp(-theta * np.arange(top + 1 - total))
    return min(0.0, float((log_mass + np.log(beyond)) / np.log(10)))


register("SynthID")(lambda wm, key: SynthID(key))
register("SynthID weighted")(lambda wm, key: SynthID(key, weighted=True))
