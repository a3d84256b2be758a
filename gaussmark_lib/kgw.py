"""The baseline: soft red lists of Kirchenbauer et al. (arXiv:2301.10226), by transformers' own
processor.

The previous token and the key seed a random split of the vocabulary. A share γ of the tokens is
*green*, and the logits of green tokens are raised by δ. A test counts the green tokens among n
scored tokens. In a text that does not depend on the key, each of them is green with probability γ.

    z = (green − γn) / √(nγ(1 − γ)),     p = 1 − Φ(z)
    p = P(Binomial(n, γ) ≥ green)

The first line is ``test="z"``, transformers' detector; the second is ``test="exact"``, the default.
*Exact* says that the binomial tail is summed up, and not replaced by the normal tail. A green token
is a rare hit (γ = 1/4), so the binomial tail is heavier than the normal one: the p of the z-test is
too small, and it raises too many false alarms. The count itself is binomial if the n previous
tokens are all different, because each of them has a list of its own. Tokens after the same previous
token share a list, which is drawn without replacement. The count then varies a little less, and the
exact test is on the safe side.

The paper (App. KGW) has γ = 0.25, δ = 1 (KGW-1) or 2 (KGW-2), and a context of one token,
transformers' "lefthash". ⌊γV⌋ of V tokens are green, and the exact tail uses the share ⌊γV⌋/V.
Paper → here: γ → ``green_share``, δ → ``bias``, z → ``statistic``.

The response alone is scored, without its first token, and each pair of neighbouring tokens once
(``ignore_repeated_ngrams``; otherwise repetition would count as evidence). Green lists come from
the random numbers of the model's device: a text that was written on a GPU must be tested on a GPU.
The seed of a list is the key times the token, so after token 0 the list is the same under every
key. Such pairs are not secret, and are not counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel, WatermarkingConfig
from transformers.generation.logits_process import WatermarkLogitsProcessor

from gaussmark_lib import tokens
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.engine.decoding import Processor
from gaussmark_lib.errors import (
    InvalidTextError,
    InvalidWatermarkError,
    require_between,
    require_one_of,
)
from gaussmark_lib.keys import Key, listed
from gaussmark_lib.scheme import Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

COLUMNS = ["text", "n_tokens", "n_scored", "n_green", "statistic", "p_normal", "p_value", "log10_p"]
Bigram = tuple[int, int]  # a token and the next one
LISTS = 64  # green lists at a time


class _Pairs(NamedTuple):
    """The distinct pairs of neighbouring tokens of a text, and the key of their green lists."""

    number: int
    n_tokens: int
    pairs: set[Bigram]
    hashing_key: int


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
        listed([self.key])
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
        return WatermarkingConfig(
            greenlist_ratio=self.green_share,
            bias=self.bias,
            hashing_key=self.hashing_key,
            context_width=1,
        )

    @property
    def hashing_key(self) -> int:
        """Return the number below 2⁶³ that, times the previous token, seeds a list."""
        return int.from_bytes(self.key.derived("KGW")[:8], "big") >> 1

    def processor(self, model: PreTrainedModel) -> WatermarkLogitsProcessor:
        """Return transformers' logits processor of this scheme."""
        self.n_green(model)  # raises if there are none
        return self.config.construct_processor(tokens.config(model).vocab_size, str(model.device))

    def processor_of_rows(self, model: PreTrainedModel, keys: Sequence[Key]) -> Processor:
        """Return what transformers' processors of these keys do, all rows at once, bit for bit."""
        hashing_keys = [replace(self, key=key).hashing_key for key in keys]

        def raised(ids: Tensor, logits: Tensor) -> Tensor:
            lists = [*zip(hashing_keys, ids[:, -1].tolist(), strict=True)]
            green = self.green_ids(model, lists)
            return logits.scatter_add(1, green, logits.new_full(green.shape, self.bias))

        return raised

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

    def green_ids(
        self, model: PreTrainedModel, lists: Sequence[tuple[int, int]]
    ) -> Int[Tensor, "lists n_green"]:
        """Return the green tokens of each list, (hashing key, previous token), as transformers'
        processor draws them.
        """
        vocabulary = tokens.config(model).vocab_size
        rng = torch.Generator(model.device)
        orders = torch.empty(len(lists), vocabulary, dtype=torch.long, device=model.device)
        for order, (hashing_key, previous) in zip(orders, lists, strict=True):
            rng.manual_seed(hashing_key * previous % (2**64 - 1))
            torch.randperm(vocabulary, generator=rng, out=order)
        return orders[:, : self.n_green(model)]

    def greens(self, model: PreTrainedModel, before: int) -> set[int]:
        """Return the green tokens after a token."""
        return set(self.green_ids(model, [(self.hashing_key, before)])[0].tolist())

    def green_pairs(
        self, model: PreTrainedModel, hashing_key: int, pairs: Iterable[Bigram]
    ) -> set[Bigram]:
        """Return the pairs (previous token, token) whose second token is green after the first.

        ``hashing_key`` is :meth:`KGW.hashing_key` of the key that the lists belong to.
        """
        vocabulary = tokens.config(model).vocab_size
        after = defaultdict(list)
        for previous, token in pairs:
            after[previous].append(token)
        green = set()
        for some in in_lists(after, LISTS):
            green_ids = self.green_ids(model, [(hashing_key, previous) for previous in some])
            is_green = torch.zeros(len(some), vocabulary, dtype=torch.bool, device=model.device)
            is_green = is_green.scatter_(1, green_ids, True).cpu().numpy()  # (some, vocabulary)
            for previous, is_green_after in zip(some, is_green, strict=True):
                green |= {(previous, token) for token in after[previous] if is_green_after[token]}
        return green

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Return a row per text, with the columns ``kgw.COLUMNS``.

        * ``n_scored``: n, the number of distinct pairs of neighbouring tokens;
        * ``n_green``: how many of these pairs have a green second token;
        * ``statistic``: z, and ``p_normal`` = 1 − Φ(z);
        * ``p_value``, ``log10_p``: of the binomial tail, or of z if ``test="z"``.

        The prompts have no effect. Raise InvalidTextError for a text that has no pair to count.

        >>> from gaussmark_lib import models
        >>> lm = models.load("doclm")
        >>> text = lm.encode("Return the mean of all values.")
        >>> table = KGW(bias=2.0, key=Key.from_seed(1)).score(lm.model, [[]], [text])
        >>> table[["n_scored", "n_green"]].to_dict("records")
        [{'n_scored': 6, 'n_green': 2}]
        """
        start = tokens.config(model).bos_token_id
        pairs_of_texts: list[_Pairs] = []
        pairs_of_key: dict[int, set[Bigram]] = defaultdict(set)
        for i, ids, scheme in self.keyed(model, responses, keys):
            text = ids[1:] if ids[:1] == [start] else ids  # the start token was not sampled
            # a set: each pair counts once; after token 0 every key has the same list
            pairs = {(previous, token) for previous, token in pairwise(text) if previous != 0}
            if not pairs:
                expected = "expected at least 2 tokens, the first of them not 0, to score as a pair"
                raise InvalidTextError(f"response {i}: {expected}, got {len(ids)} tokens")
            hashing_key = scheme.hashing_key
            pairs_of_key[hashing_key] |= pairs
            pairs_of_texts.append(_Pairs(i, len(ids), pairs, hashing_key))
        green = {
            hashing_key: self.green_pairs(model, hashing_key, of_key)
            for hashing_key, of_key in pairs_of_key.items()
        }
        rows = []
        for of_text in pairs_of_texts:
            n_green = len(of_text.pairs & green[of_text.hashing_key])
            rows.append((of_text.number, of_text.n_tokens, len(of_text.pairs), n_green))
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
    """Return z = (green − γn) / √(nγ(1 − γ)), γ = ``share``: N(0, 1) for large n without the key.

    >>> float(z_score(n_green=40, n=100, share=0.25).round(3))
    3.464
    """
    return (n_green - share * n) / np.sqrt(n * share * (1 - share))


def exact_tail(hits: ArrayLike, n: ArrayLike, share: float) -> dict[str, np.ndarray]:
    """Return P(Binomial(n, share) ≥ hits) as ``p_value``, and ``log10_p``, which never underflows.

    ``hits`` and ``n`` are whole numbers of any one shape; the results are float64 of this shape.

    >>> exact_tail(np.array([2]), np.array([2]), 0.25)["p_value"]  # 0.25², both are green
    array([0.0625])
    """
    # SciPy takes the logarithm of the tail, which may underflow; its first term does not.
    log_first_term = stats.binom.logpmf(hits, n, share)
    log_p = np.maximum(stats.binom.logsf(hits - 1, n, share), log_first_term)
    return {
        "p_value": stats.binom.sf(hits - 1, n, share),
        "log10_p": log_p / np.log(10),
    }
