"""How much text a key needs, kind by kind of prompt, predicted without writing with the key.

The base model continues prompts of a kind, n texts of T₀ tokens. To first order ψ of a marked text
is N(σ‖G‖, 1), and ‖G‖ grows like T^a, with a fitted to beginnings of these texts. Beyond first
order a marked text has the longer gradient, by a factor that texts under other, fresh keys tell:

    power(T) = mean over texts of Φ(σ‖G‖ (T/T₀)^a / bend − τ),   bend = mean ‖G_marked‖ / mean ‖G‖

Gumbel-max is predicted by surprisal: a token that has the probability p adds −ln(1 − r) with r of
Beta(1/p, 1), of mean H(1/p) = digamma(1 + 1/p) + γ and variance π²/6 − trigamma(1 + 1/p), to which
the variance of that mean over tokens comes; T tokens without a mark add up to Gamma(T, 1).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import optimize, special
from scipy.stats import gamma, norm

from gaussmark_lib import likelihood, models, score, stats, texts, words
from gaussmark_lib.cli.audit import KINDS, N_PROMPT, OURS
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments import detectability, pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.schemes import GumbelMax

GUMBEL = "Gumbel-max"
POWERS, LEVELS = (0.5, 0.9, 0.99), (0.05, 0.01, 1e-6)
FIRST, LAST = 1e-3, 1e7  # tokens between which a length is looked for
Reached = Callable[[Float[np.ndarray, "texts 2"], float, float], Float[np.ndarray, " texts"]]


def table(
    key_file: str, model: str, kinds: Sequence[str], n_texts: int, n_tokens: int, scheme: str
) -> list[dict[str, Any]]:
    """A row per kind, level and power: the tokens that are needed, an estimate over texts."""
    if scheme not in (OURS, GUMBEL):
        raise GaussMarkError(f"--scheme: expected {OURS} or {GUMBEL}, got {scheme!r}")
    wm = Key.load(key_file).watermark  # refuses an unbound key before the model is loaded
    lm, rows = models.load(model), []
    for kind in kinds or KINDS:
        drawn = pairs.draw(lm, kind, n_texts, N_PROMPT)
        n = texts.fit(lm, drawn.prompts, n_tokens)
        marked, plain = pairs.written(lm, drawn, wm, n)
        texts_of_kind = lm.model, drawn.prompts
        if scheme == GUMBEL:
            log_p = likelihood.per_token(*texts_of_kind, plain)
            numbers, reached = np.array([_surprisal(one) for one in log_p]), by_surprisal
        else:
            lengths = sorted({n // 4, n // 2, n})
            scores = score.score(*texts_of_kind, plain, wm, drawn.keys[:1], lengths=lengths)
            own = score.score(*texts_of_kind, marked, wm, drawn.keys, paired=True)
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
    """The tokens at which the mean of ``reached`` over the texts is the wanted power, or LAST."""

    def missing(log_tokens: float) -> float:
        return float(reached(numbers, np.exp(log_tokens), level).mean() - power)

    ends = np.log(FIRST), np.log(LAST)
    if missing(ends[1]) < 0:  # as where ‖G‖ does not grow
        return LAST
    return float(np.exp(optimize.brentq(missing, *ends, xtol=1e-3)))


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


def by_surprisal(
    numbers: Float[np.ndarray, "texts 2"], tokens: float, level: float
) -> Float[np.ndarray, " texts"]:
    """The same of Gumbel-max; numbers are a token's mean and variance, by text."""
    mean, variance = numbers.T
    n = tokens - GumbelMax.context  # are scored
    if n < 1:
        return np.zeros(len(mean))
    return norm.cdf((n * mean - gamma.isf(level, n)) / np.sqrt(n * variance))


def _surprisal(log_p: Float[np.ndarray, " tokens"]) -> tuple[float, float]:
    inverse = np.exp(np.minimum(-log_p, 700))
    mean = special.digamma(1 + inverse) + np.euler_gamma
    variance = np.pi**2 / 6 - special.polygamma(1, 1 + inverse)
    return float(mean.mean()), float(variance.mean() + mean.var())


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A line per kind and level, for a terminal."""
    table = pd.DataFrame(rows)
    table["tokens"] = [
        f"{words.number(row['value'], 0)} ({words.number(row['low'], 0)} to"
        f" {words.number(row['high'], 0)})"
        for row in rows
    ]
    wide = table.set_index(["kind", "level", "power"])["tokens"].unstack(sort=False)
    return [
        {"kind": kind, "level": f"{level:g}"}
        | {f"power {power:g}": tokens for power, tokens in row.items()}
        for (kind, level), row in wide.to_dict("index").items()
    ]
