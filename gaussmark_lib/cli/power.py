"""How much text a key needs, kind by kind of prompt, predicted without writing with the key.

The base model continues prompts of a kind, n texts of T₀ tokens. To first order ψ of a marked text
is N(σ‖G‖, 1), and ‖G‖ grows like T^a, with a fitted to beginnings of these texts. Beyond first
order a marked text has the longer gradient, by a factor that texts under other, fresh keys tell:

    power(T) = mean over texts of Φ(σ‖G‖ (T/T₀)^a / bend − τ),   bend = mean ‖G_marked‖ / mean ‖G‖

A scheme that changes the sampler is predicted by what it would draw. At each place of a plain text
a fresh key draws one token, which is scored by the h tokens before it. T tokens of mean m and
variance v add up to about N(Tm, Tv), m and v of each text; detected is what exceeds the sum that T
tokens without a mark exceed with probability α. The draws differ from key to key and from token to
token as surprisal does: where the model is sure, no scheme has a choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import optimize
from scipy.stats import binom, gamma, norm
from tqdm import tqdm

from gaussmark_lib import divergence, generate, models, schemes, score, stats, texts
from gaussmark_lib.cli.audit import KINDS, N_PROMPT
from gaussmark_lib.experiments import detectability, pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import SamplerScheme

POWERS, LEVELS = (0.5, 0.9, 0.99), (0.05, 0.01, 1e-6)
LAST = 1e7  # tokens up to which a length is looked for
# h, the column of the scores, and which sum n tokens without a mark exceed with probability α
KGW = 1, "n_green", cache(lambda level, n: binom.isf(level, n, 0.25) + 0.5)
SAMPLERS = {
    "KGW-1": KGW,
    "KGW-2": KGW,
    "SynthID": (4, "ones", cache(lambda level, n: binom.isf(level, 30 * n, 0.5) + 0.5)),
    "Gumbel-max": (4, "statistic", cache(gamma.isf)),
}
Reached = Callable[[Float[np.ndarray, "texts 2"], float, float], Float[np.ndarray, " texts"]]


def table(
    key_file: Path, model: str, kinds: Sequence[str], n_texts: int, n_tokens: int, scheme: str
) -> list[dict[str, Any]]:
    """A row per kind, level and power: the tokens that are needed, an estimate over texts."""
    wm = Key.load(key_file).watermark  # refuses an unbound key before the model is loaded
    lm, rows = models.load(model), []
    for kind in tqdm(kinds or KINDS, "predicting", leave=False, disable=None):
        drawn = pairs.draw(lm, kind, n_texts, N_PROMPT)
        n = texts.fit(lm, drawn.prompts, n_tokens)
        if scheme in SAMPLERS:
            tested = schemes.named(wm, drawn.keys[0], [scheme])[scheme]
            numbers, reached = by_draws(lm, drawn, n, tested), partial(by_sum, scheme=scheme)
        else:
            marked, plain = pairs.written(lm, drawn, wm, n)
            lengths = [n // 4, n // 2, n]
            scores = score.score(
                lm.model, drawn.prompts, plain, wm, drawn.keys[:1], lengths=lengths
            )
            own = score.score(lm.model, drawn.prompts, marked, wm, drawn.keys, paired=True)
            norms = scores.loc[scores["n_tokens"] == n, "grad_norm"]
            numbers = wm.sigma * np.column_stack([norms, own["grad_norm"]])
            grows = detectability.exponent(scores).value
            reached = partial(by_gradient, n_tokens=n, exponent=grows)
        for level in LEVELS:
            for power in POWERS:
                of = partial(needed, reached, level=level, power=power)
                tokens = stats.interval(numbers, of, n_resamples=200)
                rows.append({"kind": kind, "level": level, "power": power} | tokens.row())
    return rows


def needed(
    reached: Reached, numbers: Float[np.ndarray, "texts 2"], level: float, power: float
) -> float:
    """The fewest tokens, with a fraction, at which the mean of ``reached`` over the texts is the
    wanted power, or LAST. Where a sum takes whole numbers, power goes up and down with the length.
    """

    def missing(tokens: float) -> float:
        return reached(numbers, tokens, level).mean() - power

    if missing(LAST) < 0:  # as where ‖G‖ does not grow
        return LAST
    for n in range(1, 64 * (missing(64) >= 0)):
        if missing(n) >= 0:
            return n - missing(n) / (missing(n) - missing(n - 1))
    ends = np.log([1e-3, LAST])
    return np.exp(optimize.brentq(lambda log: missing(np.exp(log)), *ends, xtol=1e-3))


def by_gradient(
    numbers: Float[np.ndarray, "texts 2"],
    tokens: float,
    level: float,
    *,
    n_tokens: int,
    exponent: float,
) -> Float[np.ndarray, " texts"]:
    """The power of each text at this length; numbers are σ‖G‖ of plain and of marked texts."""
    shift, of_marked = numbers.T
    bend = of_marked.mean() / shift.mean()
    return norm.cdf(shift * (tokens / n_tokens) ** exponent / bend - stats.threshold(level))


def by_draws(
    lm: models.LM, drawn: pairs.Pairs, n_tokens: int, scheme: SamplerScheme
) -> Float[np.ndarray, "texts 2"]:
    """Mean and variance of what a token adds, by text, under that text's key."""
    context, column, _ = SAMPLERS[scheme.name]
    silent = {0, lm.model.config.bos_token_id}  # KGW scores nothing after these
    plain = generate.sample(lm.model, drawn.prompts, n_tokens)
    coins, numbers = generate.uniform(1, range(drawn.n), n_tokens), []
    for x, y, key, u in zip(drawn.prompts, plain, drawn.keys, coins, strict=True):
        one = replace(scheme, key=key)
        process, (inputs, _) = one.processor(lm.model), divergence.laid_out(lm.model, [(x, y)])
        with torch.no_grad():
            [logits] = divergence.logits(lm.model, inputs, n_tokens)
        seen = inputs["input_ids"]
        steps = [process(seen[:, : len(x) + t], logits[t : t + 1]) for t in range(n_tokens)]
        tokens = generate.pick(torch.cat(steps), torch.from_numpy(u).to(seen.device), 1.0, 1.0)
        places = [t for t in range(context, n_tokens) if y[t - context] not in silent]
        grams = [[*y[t - context : t], int(tokens[t])] for t in places]
        added = one.score(lm.model, [x] * len(grams), grams)[column]
        numbers.append((added.mean(), added.var(), len(added)))
    mean, variance, n = np.array(numbers).T
    spread = mean - mean.mean()  # of the texts, and of the draws
    of_texts = max(0.0, 1 - (variance / n).mean() / (spread.var() or 1.0))
    return np.column_stack([mean.mean() + spread * of_texts**0.5, variance])


def by_sum(
    numbers: Float[np.ndarray, "texts 2"], tokens: float, level: float, *, scheme: str
) -> Float[np.ndarray, " texts"]:
    """The same of a sum over tokens; numbers are a token's mean and variance, by text."""
    context, _, least = SAMPLERS[scheme]
    n, (mean, variance) = int(tokens) - context, numbers.T  # n are scored
    if n < 1:
        return np.zeros(len(mean))
    return norm.cdf((n * mean - least(level, n)) / np.sqrt(n * variance))


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A line per kind and level, for a terminal."""
    lines: dict[Any, dict[str, str]] = {}
    for row in rows:
        named = {"kind": row["kind"], "level": f"{row['level']:g}"}
        tokens = f"{row['value']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"
        lines.setdefault((*named.values(),), named)[f"power {row['power']:g}"] = tokens
    return [*lines.values()]
