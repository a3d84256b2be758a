"""How much text a key needs, kind by kind of prompt, predicted without writing with the key.

Fresh keys, one per text, continue prompts of a kind: n texts of T₀ tokens, sampled as asked for. Of
each the mean of ψ is measured without its key (``promise``), here with the temperature and top-p
that are known. It grows like T^a, with a fitted to beginnings of these texts:

    power(T) = mean over texts of Φ(E ψ (T/T₀)^a − τ)

A scheme that changes the sampler is predicted by what it would draw. At each place of a plain text
a fresh key draws one token from the tempered distribution, and the h tokens before it decide its
score. T tokens of mean m and variance v add up to about N(Tm, Tv), m and v of each text; detected
is what exceeds the sum that T tokens without a mark exceed with probability α. The draws differ
from key to key and from token to token as surprisal does: where the model is sure, no scheme has a
choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import optimize
from scipy.stats import binom, gamma, norm
from tqdm import tqdm

from gaussmark_lib import divergence, generate, gradients, models, stats, texts
from gaussmark_lib.beyond import promise, schemes
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import SamplerScheme
from gaussmark_lib.weights import Watermark
from gaussmark_lib.workbench import pairs
from gaussmark_lib.workbench.cli.audit import N_PROMPT, default_kinds

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
Reached = Callable[[Float[np.ndarray, "texts *columns"], float, float], Float[np.ndarray, " texts"]]


def table(
    key_file: Path,
    model: str,
    kinds: Sequence[str],
    n_texts: int,
    n_tokens: int,
    scheme: str,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[dict[str, Any]]:
    """A row per kind, level and power: the tokens that are needed, an estimate over texts.
    GaussMarkError for a temperature of 0, at which no token is drawn.
    """
    if temperature == 0:
        raise GaussMarkError(
            "--temperature: expected more than 0, got 0; without random choices a text carries too"
            " little evidence for a prediction"
        )
    shape = top_p, temperature
    wm = Key.load(key_file).watermark  # refuses an unbound key before the model is loaded
    lm, rows = models.load(model), []
    for kind in tqdm(kinds or default_kinds(lm), "predicting", leave=False, disable=None):
        drawn = pairs.draw(lm, kind, n_texts, N_PROMPT)
        n = texts.fit(lm, drawn.prompts, n_tokens)
        if scheme in SAMPLERS:
            tested = schemes.named(wm, drawn.keys[0], [scheme])[scheme]
            numbers = by_draws(lm, drawn, n, tested, shape)
            reached = partial(by_sum, scheme=scheme)
        else:
            numbers, exponent = by_keys(lm, drawn, wm, n, shape)
            reached = partial(by_gradient, n_tokens=n, exponent=exponent)
        for level in LEVELS:
            for power in POWERS:
                of = partial(needed, reached, level=level, power=power)
                tokens = stats.interval(numbers, of, n_resamples=200)
                rows.append({"kind": kind, "level": level, "power": power} | tokens.row())
    return rows


def needed(
    reached: Reached, numbers: Float[np.ndarray, "texts *columns"], level: float, power: float
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


def by_keys(
    lm: models.LM, drawn: pairs.Pairs, wm: Watermark, n_tokens: int, shape: tuple[float, float]
) -> tuple[Float[np.ndarray, " texts"], float]:
    """The mean of ψ of each text, sampled with (top_p, temperature) under its key, and the power of
    the length with which these means grow.
    """
    top_p, temperature = shape
    marks = [(wm, key) for key in drawn.keys]
    marked = generate.sample(
        lm.model, drawn.prompts, n_tokens, marks=marks, top_p=top_p, temperature=temperature
    )
    sampled = promise.Sampled(temperature, top_p)
    tables = []
    for n in (n_tokens // 4, n_tokens // 2, n_tokens):
        beginnings = [text[:n] for text in marked]
        of_text = gradients.gradients(lm.model, drawn.prompts, beginnings, wm)
        norms = pd.Series({gradient.text: gradient.norm for gradient in of_text})
        found = promise.table(lm.model, drawn.prompts, beginnings, wm, sampled=sampled)
        means = promise.mean_psi(found["information"], norms, wm.sigma)
        tables.append(found.assign(grad_norm=means))
    exponent = stats.exponent(pd.concat(tables)).value
    return tables[-1]["grad_norm"].to_numpy(), exponent


def by_gradient(
    means: Float[np.ndarray, " texts"],
    tokens: float,
    level: float,
    *,
    n_tokens: int,
    exponent: float,
) -> Float[np.ndarray, " texts"]:
    """The power of each text at this length, from the mean of its ψ at ``n_tokens``."""
    return norm.cdf(means * (tokens / n_tokens) ** exponent - stats.threshold(level))


def by_draws(
    lm: models.LM,
    drawn: pairs.Pairs,
    n_tokens: int,
    scheme: SamplerScheme,
    shape: tuple[float, float] = (1.0, 1.0),
) -> Float[np.ndarray, "texts 2"]:
    """Mean and variance of what a token adds, by text, under that text's key, sampled with (top_p,
    temperature).
    """
    top_p, temperature = shape
    context, column, _ = SAMPLERS[scheme.name]
    silent = {0, lm.model.config.bos_token_id}  # KGW scores nothing after these
    plain = generate.sample(lm.model, drawn.prompts, n_tokens, top_p=top_p, temperature=temperature)
    coins, numbers = generate.uniform(1, range(drawn.n), n_tokens), []
    for x, y, key, u in zip(drawn.prompts, plain, drawn.keys, coins, strict=True):
        one = replace(scheme, key=key)
        process, (inputs, _) = one.processor(lm.model), divergence.laid_out(lm.model, [(x, y)])
        with torch.no_grad():
            [logits] = divergence.logits(lm.model, inputs, n_tokens)
            if shape != (1, 1):
                logits = generate.probabilities(logits, *shape).log()
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
