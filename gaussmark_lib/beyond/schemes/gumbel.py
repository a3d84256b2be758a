"""Gumbel-max sampling (Aaronson, lecture of 28 November 2022; scored as in Fernandez et al.,
arXiv:2308.00113).

The key and the h preceding tokens (the context) give each token v of the vocabulary a uniform
number r_v. The sampler writes

    v* = argmax_v r_v^(1/p_v) = argmin_v −ln(r_v)/p_v,      P(v* = v) = p_v over keys,

since −ln(r_v)/p_v is exponential with rate p_v (the Gumbel-max trick, and Kuditipudi et al.'s
exponential minimum, arXiv:2307.15593). So over keys every token has the model's distribution.
Under one key the text is a function of its prompt: the sampler's own random numbers have no effect.

A context that repeats in the same response would give the same r again. There the sampler draws
from p, as without a watermark, so that the whole text has the model's distribution over keys.

    score = Σ_t −ln(1 − r_{v_t}),      each context counted once

The r of a chosen token is large. In a text that does not depend on the key, r is uniform: the n
terms are exponential with mean 1, and their sum is Gamma(n, 1), exactly.

The divergence of one key from the model: q_t is certain of a single token, so KL(q_t ‖ p_t) = −ln
p_t(v*_t). This is the surprisal, whose mean is the entropy of the model. It is the largest
divergence of all schemes, but not a loss of quality: averaged over keys, q_t equals p_t.

r comes from a counter: Philox4x64-10 with the first 128 bits of HMAC-SHA256(key, context) as its
key. With k the top 52 bits of the v-th output, r_v = (k + ½)·2⁻⁵². NumPy promises these bits on
every machine. One call gives the r of a whole vocabulary; a single r_v does not need the others.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

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
from gaussmark_lib.engine import philox
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts

_BLOCK = 4  # outputs of Philox for one value of its counter


@dataclass(frozen=True)
class GumbelMax(SamplerScheme):
    """Gumbel-max sampling.

    Args:
        context: number of preceding tokens that determine r (h).
        once: count each context once in the test. Without this, a text that repeats itself counts
            the same r as new evidence, and the level is not exact. Some engines do so.
    """

    key: Key
    context: int = 4
    once: bool = True

    @property
    def name(self) -> str:
        """Return the name with its test."""
        return "Gumbel-max" if self.once else "Gumbel-max, every token"

    @property
    def exact(self) -> bool:
        """Return whether the level is exact for every text."""
        return self.once

    def uniforms(self, before: Sequence[int], n: int, first: int = 0) -> Float[np.ndarray, " n"]:
        """Return r_v for n tokens v = first, first + 1, … after a context, float64 in (0, 1)."""
        generator = np.random.Philox(key=self.seed(before))
        generator.advance(first // _BLOCK)
        skipped = first % _BLOCK  # outputs of the same block before the first token's
        raw = generator.random_raw(skipped + n)[skipped:]
        return of_bits(raw)

    def seed(self, before: Sequence[int]) -> int:
        """Return Philox' key after a context."""
        context = np.asarray(before, dtype="<i8").tobytes()
        digest = hmac.digest(self.key.derived("Gumbel-max"), context, "sha256")
        return int.from_bytes(digest[:16], "big")

    def processor(self, model: PreTrainedModel) -> "_Chooser":
        """Return a new processor for one batch; its first call gets the prompts.

        It leaves a single token possible, or changes nothing in a row that repeats a context.
        """
        return _Chooser([self])

    def processor_of_rows(self, model: PreTrainedModel, keys: Sequence[Key]) -> "_Chooser":
        return _Chooser([replace(self, key=key) for key in keys])

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Score texts; return ``scheme.COLUMNS`` with the sum as ``statistic``, and ``n_scored``.

        The prompts have no effect.

        Raises:
            InvalidTextError: if a response has h tokens or fewer.
        """
        h = self.context
        rows = []
        for i, ids, scheme in self.keyed(model, responses, keys):
            if len(ids) <= h:
                raise InvalidTextError(
                    f"response {i}: expected at least {h + 1} tokens, because Gumbel-max scores a"
                    f" token by the {h} tokens before it, got {len(ids)}"
                )
            scored = [(tuple(ids[t - h : t]), ids[t]) for t in range(h, len(ids))]
            if self.once:
                scored = dict(reversed(scored)).items()  # of equal contexts, the first stays
            r = np.concatenate([scheme.uniforms(context, 1, token) for context, token in scored])
            rows.append((i, len(ids), len(scored), -np.log1p(-r).sum()))
        table = pd.DataFrame(rows, columns=["text", "n_tokens", "n_scored", "statistic"])
        return table.assign(**exact_tail(table["statistic"], table["n_scored"]))


class _Chooser:
    """Set the logits of a batch to 0 for the chosen token and to −∞ for all others.

    The logits of a row stay as they are if its response repeats a context.
    """

    def __init__(self, schemes: Sequence[GumbelMax]):
        self.schemes = schemes  # of each row, or one scheme for all rows
        self.start: int | None = None  # length of the prompts

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        h = self.schemes[0].context
        if self.start is None:
            self.start = ids.shape[1]
        # The response and the h tokens before it. A prompt of fewer tokens is padded on the left,
        # as it is next to a longer prompt.
        from_context = ids[:, max(self.start - h, 0) :]
        n_padding = max(h - self.start, 0)
        padded = torch.nn.functional.pad(from_context, (n_padding, 0))
        contexts = padded.unfold(1, h, 1)  # (rows, tokens so far + 1, h)
        is_new = ~(contexts[:, :-1] == contexts[:, -1:]).all(-1).any(-1)
        is_valid = logits.amax(-1).isfinite().all()  # the sampler refuses other logits
        if not is_new.any() or not is_valid:
            return logits
        p = generate.probabilities(logits[is_new], 1.0, 1.0)  # (new rows, vocabulary)
        schemes = [*islice(cycle(self.schemes), len(ids))]
        new_rows = is_new.nonzero()[:, 0].tolist()
        current = contexts[is_new, -1].tolist()
        seeds = [schemes[row].seed(context) for row, context in zip(new_rows, current, strict=True)]
        chosen = (exponentials(seeds, p) / p).argmin(-1)
        certain = torch.full_like(logits[is_new], -torch.inf)
        certain.scatter_(-1, chosen[:, None], 0.0)
        return logits.index_put((is_new,), certain)


def exponentials(
    seeds: Sequence[int], p: Float[Tensor, "contexts vocabulary"]
) -> Float[Tensor, "contexts vocabulary"]:
    """Return −ln r_v after each context (:meth:`GumbelMax.seed`), float64, on the device of ``p``.

    A GPU makes the numbers itself, from the same bits.
    """
    n = p.shape[1]
    if p.device.type == "cuda":
        bits = philox.bits(seeds, n, p.device) >> 12 & (1 << 52) - 1  # the top 52 of 64
        return -((bits.double() + 0.5) * 2.0**-52).log()
    r = np.stack([of_bits(np.random.Philox(key=seed).random_raw(n)) for seed in seeds])
    return torch.from_numpy(-np.log(r)).to(p.device)


def of_bits(raw: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the uniform numbers (k + ½)·2⁻⁵², k the top 52 of 64 bits."""
    return ((raw >> np.uint64(12)) + 0.5) * 2.0**-52


def exact_tail(total: ArrayLike, n: ArrayLike) -> dict[str, np.ndarray]:
    """Return P(Gamma(n, 1) ≥ total) as ``p_value``, and its ``log10_p``, which does not underflow.

    A Gamma(n, 1) exceeds x exactly as often as a Poisson of mean x is below n.

    >>> exact_tail(np.array([2.0]), np.array([1]))["p_value"].round(4)
    array([0.1353])
    """
    log_p = []
    for x, n_terms in zip(total, n, strict=True):
        log_of_each = stats.poisson.logpmf(np.arange(n_terms), x)
        log_p.append(logsumexp(log_of_each))
    return {
        "p_value": stats.gamma.sf(total, n),
        "log10_p": np.array(log_p) / np.log(10),
    }


register("Gumbel-max")(lambda wm, key: GumbelMax(key))
