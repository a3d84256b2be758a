"""Gumbel-max sampling (Aaronson, lecture of 28 November 2022; scored as in Fernandez et al.,
arXiv:2308.00113).

The h tokens before, with the key, give each token v of the vocabulary a uniform number r_v. The
token that is written is

    v* = argmax_v r_v^(1/p_v) = argmin_v −ln(r_v)/p_v,      P(v* = v) = p_v over keys,

since −ln(r_v)/p_v is exponential with rate p_v (the Gumbel-max trick, and Kuditipudi et al.'s
exponential minimum, arXiv:2307.15593). So over keys every token has the model's distribution, and
under one key the text is a function of its prompt: no random number of the sampler matters. Where
the same h tokens came before in the same response, they would give the same r again; there the
sampler draws from p as without a watermark, and the whole text keeps the model's distribution over
keys.

    score = Σ_t −ln(1 − r_{v_t}),      each context counted once

A chosen r is large, and r of a text that does not depend on the key is uniform: n terms are n
exponential numbers of mean 1, and their sum is Gamma(n, 1), exactly.

The divergence of this key from the model: q_t is certain of one token, so KL(q_t ‖ p_t) = −ln
p_t(v*_t), the surprisal, whose mean is the entropy of the model. It is the largest of all schemes,
and is no loss of quality: averaged over keys it is 0.

r comes from a counter: Philox4x64-10 with the first 128 bits of HMAC-SHA256(key, context) as its
key, r_v = (k + ½)·2⁻⁵² from the top 52 bits of its v-th output. NumPy promises these bits on every
machine. A whole vocabulary is one call; a single r_v needs no others.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logsumexp
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

_BLOCK = 4  # outputs of Philox for one value of its counter


@dataclass(frozen=True)
class GumbelMax(SamplerScheme):
    """Gumbel-max sampling with numbers from the ``context`` tokens before (h).

    Args:
        once: count each context once in the test. Engines that count every token take the same r
            for new evidence in a text that repeats itself; their level is not exact.
    """

    key: Key
    context: int = 4
    once: bool = True

    @property
    def name(self) -> str:
        return "Gumbel-max" if self.once else "Gumbel-max, every token"

    @property
    def exact(self) -> bool:
        return self.once

    def uniforms(self, before: Sequence[int], n: int, first: int = 0) -> Float[np.ndarray, " n"]:
        """r_v for the tokens v = first … first + n − 1 after a context, float64 in (0, 1)."""
        context = np.asarray(before, dtype="<i8").tobytes()
        drawn = hmac.digest(self.key.derived("Gumbel-max"), context, "sha256")
        bits = np.random.Philox(key=int.from_bytes(drawn[:16], "big")).advance(first // _BLOCK)
        skipped = first % _BLOCK
        return ((bits.random_raw(skipped + n)[skipped:] >> np.uint64(12)) + 0.5) * 2.0**-52

    def processor(self, model: PreTrainedModel) -> "_Chooser":
        """A fresh one for each batch, of which the first call gets the prompts. It leaves one token
        possible, or does nothing.
        """
        return _Chooser(self)

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """``scheme.COLUMNS`` with the sum as ``statistic``, and ``n_scored``; the prompts are
        ignored. InvalidTextError for h tokens or less.
        """
        rows, h = [], self.context
        for i, ids, scheme in self.keyed(model, responses, keys):
            if len(ids) <= h:
                raise InvalidTextError(
                    f"response {i}: expected at least {h + 1} tokens, since Gumbel-max scores a"
                    f" token by the {h} before it, got {len(ids)}"
                )
            after = [(tuple(ids[t - h : t]), ids[t]) for t in range(h, len(ids))]
            if self.once:
                after = dict(reversed(after)).items()  # of equal contexts, the first stays
            r = np.concatenate([scheme.uniforms(before, 1, token) for before, token in after])
            rows.append((i, len(ids), len(after), -np.log1p(-r).sum()))
        table = pd.DataFrame(rows, columns=["text", "n_tokens", "n_scored", "statistic"])
        return table.assign(**exact_tail(table["statistic"], table["n_scored"]))


class _Chooser:
    """Logits of a batch → 0 for the chosen token and −∞ for all others; unchanged where a response
    repeats a context.
    """

    def __init__(self, scheme: GumbelMax):
        self.scheme = scheme
        self.start: int | None = None  # of the responses

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        h = self.scheme.context
        self.start = ids.shape[1] if self.start is None else self.start
        ids = torch.nn.functional.pad(
            ids[:, max(self.start - h, 0) :], (max(h - self.start, 0), 0)
        )  # as a longer prompt beside it would pad it
        contexts = ids.unfold(1, h, 1)  # (rows, tokens so far + 1, h)
        new = ~(contexts[:, :-1] == contexts[:, -1:]).all(-1).any(-1)
        if not new.any() or not logits.amax(-1).isfinite().all():  # which the sampler refuses
            return logits
        p = generate.probabilities(logits[new], 1.0, 1.0)
        r = np.stack([self.scheme.uniforms(c, p.shape[1]) for c in contexts[new, -1].tolist()])
        chosen = (torch.from_numpy(-np.log(r)).to(p.device) / p).argmin(-1)
        only = torch.full_like(logits[new], -torch.inf).scatter_(-1, chosen[:, None], 0.0)
        return logits.index_put((new,), only)


def exact_tail(total: ArrayLike, n: ArrayLike) -> dict[str, np.ndarray]:
    """P(Gamma(n, 1) ≥ total) as ``p_value``, and its ``log10_p``, which does not underflow: a Gamma
    exceeds x if a Poisson of mean x is below n.

    >>> exact_tail(np.array([2.0]), np.array([1]))["p_value"].round(4)
    array([0.1353])
    """
    log_p = [
        logsumexp(stats.poisson.logpmf(np.arange(k), x)) for x, k in zip(total, n, strict=True)
    ]
    return {"p_value": stats.gamma.sf(total, n), "log10_p": np.array(log_p) / np.log(10)}


register("Gumbel-max")(lambda wm, key: GumbelMax(key))
