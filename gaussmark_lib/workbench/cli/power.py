"""How much text a key needs, by kind of prompt, predicted without writing text with the key.

Fresh keys, one per text, continue prompts of a kind: n texts of T₀ tokens, with the given sampling.
The mean of ψ of each text is computed without its key (``promise``), with the known temperature and
top-p. It grows like T^a, where a is fitted to beginnings of these texts:

    power(T) = mean over texts of Φ(E ψ (T/T₀)^a − τ)

For a scheme that changes the sampler, the prediction uses single draws. At each position of an
unwatermarked text, a fresh key draws a token from the tempered distribution; its score depends on
the h preceding tokens. With the mean m and the variance v of these scores in a text, T tokens add
up to about N(Tm, Tv). A text is detected if its sum exceeds the threshold that T unwatermarked
tokens exceed with probability α. The scores vary between keys and tokens as surprisal does: where
the model is certain, no scheme has a choice.

For any other registered scheme, each fresh key writes a text of T₀ tokens and tests it. The score
of a text is z = Φ⁻¹(1 − p), which is N(0, 1) without the watermark if the test is exact. Its mean
is taken to grow like √T. This needs no more of a scheme than that it writes and scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import optimize, special
from scipy.stats import binom, gamma, norm
from tqdm import tqdm

from gaussmark_lib import divergence, generate, gradients, models, stats, texts
from gaussmark_lib.beyond import promise, schemes
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import SamplerScheme, Scheme
from gaussmark_lib.weights import Watermark
from gaussmark_lib.workbench import pairs
from gaussmark_lib.workbench.cli.audit import N_PROMPT, default_kinds

POWERS = (0.5, 0.9, 0.99)
LEVELS = (0.05, 0.01, 1e-6)
LAST = 1e7  # tokens: the longest text in a search
OURS = "GaussMark"


class Sampler(NamedTuple):
    """What the prediction needs to know of a scheme that changes the sampler."""

    context: int  # h
    column: str  # of its scores: what a token adds
    threshold: Callable[[float, int], float]  # (α, n): n unwatermarked tokens exceed it


KGW = Sampler(1, "n_green", cache(lambda level, n: binom.isf(level, n, 0.25) + 0.5))
SAMPLERS = {
    "KGW-1": KGW,
    "KGW-2": KGW,
    "SynthID": Sampler(4, "ones", cache(lambda level, n: binom.isf(level, 30 * n, 0.5) + 0.5)),
    "Gumbel-max": Sampler(4, "statistic", cache(gamma.isf)),
}
BAR = "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
WRITING = 0.3  # share of a kind's time in which its texts are written
# Is told which share of a kind's work was done.
Advance = Callable[[float], object]
# The power of each text: from (numbers of the texts, tokens, level).
Reached = Callable[[Float[np.ndarray, "texts *columns"], float, float], Float[np.ndarray, " texts"]]


def unseen(share: float) -> None:
    """Show nothing."""


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
    """Return the number of tokens that is needed for each kind, level and power.

    It is an estimate over texts.

    Raises:
        GaussMarkError: if the temperature is 0, at which no token is drawn.
        InvalidWatermarkError: if no scheme has this name.
    """
    if temperature == 0:
        raise GaussMarkError(
            "--temperature: expected more than 0, got 0; a text without random choices has too"
            " little evidence for a prediction"
        )
    shape = top_p, temperature
    key = Key.load(key_file)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    [(scheme, tested)] = schemes.named(wm, key, [scheme]).items()  # without its module
    lm = models.load(model)
    rows = []
    kinds = kinds or default_kinds(lm)
    bar = tqdm(total=len(kinds), bar_format=BAR, leave=False, disable=None)
    for i, kind in enumerate(kinds, 1):
        bar.set_description(f"predicting {kind}")
        drawn = pairs.draw(lm, kind, n_texts, N_PROMPT)
        n = texts.fit(lm, drawn.prompts, n_tokens)
        if scheme in SAMPLERS:
            numbers = by_draws(lm, drawn, n, tested, shape, bar.update)
            reached = partial(by_sum, scheme=scheme)
        elif scheme == OURS:
            numbers, exponent = by_keys(lm, drawn, wm, n, shape, bar.update)
            reached = partial(by_gradient, n_tokens=n, exponent=exponent)
        else:
            numbers = by_texts(lm, drawn, n, tested, shape)
            reached = partial(by_score, n_tokens=n)
        for level in LEVELS:
            for power in POWERS:
                tokens_needed = partial(needed, reached, level=level, power=power)
                tokens = stats.interval(numbers, tokens_needed, n_resamples=200)
                rows.append({"kind": kind, "level": level, "power": power} | tokens.row())
        bar.update(i - bar.n)  # what no step has said
    bar.close()
    return rows


def needed(
    reached: Reached, numbers: Float[np.ndarray, "texts *columns"], level: float, power: float
) -> float:
    """Return the smallest number of tokens, with a fraction, that gives the power, at most LAST.

    The power is the mean of ``reached`` over the texts. A test of whole numbers has a power that
    goes up and down with the length, so that short lengths are tried one by one.
    """

    def missing(tokens: float) -> float:
        return reached(numbers, tokens, level).mean() - power

    if missing(LAST) < 0:  # for example if ‖G‖ does not grow
        return LAST
    if missing(64) >= 0:
        for n in range(1, 64):
            if missing(n) >= 0:
                return n - missing(n) / (missing(n) - missing(n - 1))
    log_tokens = optimize.brentq(
        lambda log: missing(np.exp(log)), np.log(1e-3), np.log(LAST), xtol=1e-3
    )
    return np.exp(log_tokens)


def written(
    lm: models.LM,
    drawn: pairs.Pairs,
    n_tokens: int,
    shape: tuple[float, float],
    advance: Advance,
    **marks: Any,
) -> list[list[int]]:
    """Return the texts of all prompts, sampled with (top_p, temperature)."""
    top_p, temperature = shape
    return generate.sample(
        lm.model,
        drawn.prompts,
        n_tokens,
        top_p=top_p,
        temperature=temperature,
        on_step=lambda _, n_steps: advance(WRITING / n_steps),
        **marks,
    )


def by_keys(
    lm: models.LM,
    drawn: pairs.Pairs,
    wm: Watermark,
    n_tokens: int,
    shape: tuple[float, float],
    advance: Advance = unseen,
) -> tuple[Float[np.ndarray, " texts"], float]:
    """Return the mean of ψ of each text, and the exponent with which the means grow with length.

    The texts are sampled with (top_p, temperature), each under its key.
    """
    top_p, temperature = shape
    marked = written(lm, drawn, n_tokens, shape, advance, marks=[(wm, key) for key in drawn.keys])
    sampled = promise.Sampled(temperature, top_p)
    tables = []
    for part, n in ((0.1, n_tokens // 4), (0.2, n_tokens // 2), (0.4, n_tokens)):
        beginnings = [text[:n] for text in marked]
        of_text = gradients.gradients(lm.model, drawn.prompts, beginnings, wm)
        norms = pd.Series({gradient.text: gradient.norm for gradient in of_text})
        promised = promise.table(lm.model, drawn.prompts, beginnings, wm, sampled=sampled)
        means = promise.mean_psi(promised["information"], norms, wm.sigmas[0])
        tables.append(promised.assign(grad_norm=means))  # the name that ``exponent`` reads
        advance(part)
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
    """Return the power of each text at this length, given the mean of its ψ at ``n_tokens``."""
    means_there = means * (tokens / n_tokens) ** exponent
    return norm.cdf(means_there - stats.threshold(level))


def by_texts(
    lm: models.LM, drawn: pairs.Pairs, n_tokens: int, scheme: Scheme, shape: tuple[float, float]
) -> Float[np.ndarray, " texts"]:
    """Return z of each text, where fresh keys write the texts and test them.

    The texts are sampled with (top_p, temperature).
    """
    top_p, temperature = shape
    sampling = {"top_p": top_p, "temperature": temperature, "keys": drawn.keys}
    marked = scheme.generate(lm.model, drawn.prompts, n_tokens, **sampling)
    scored = scheme.score(lm.model, drawn.prompts, marked, drawn.keys)
    log_p = scored["log10_p"].to_numpy() * np.log(10)
    return -special.ndtri_exp(np.minimum(log_p, np.log(0.999)))  # p = 1 has no finite z


def by_score(
    z: Float[np.ndarray, " texts"], tokens: float, level: float, *, n_tokens: int
) -> Float[np.ndarray, " texts"]:
    """Return the power of each text at this length, given z at ``n_tokens``."""
    # Given its mean, z has the variance 1: shrink to the variance of the means.
    spread = z - z.mean()
    of_means = max(0.0, 1 - 1 / (spread.var() or 1.0))
    means = z.mean() + spread * of_means**0.5
    return by_gradient(means, tokens, level, n_tokens=n_tokens, exponent=0.5)


def by_draws(
    lm: models.LM,
    drawn: pairs.Pairs,
    n_tokens: int,
    scheme: SamplerScheme,
    shape: tuple[float, float] = (1.0, 1.0),
    advance: Advance = unseen,
) -> Float[np.ndarray, "texts 2"]:
    """Return mean and variance of what a token adds to the score, for each text under its key.

    Tokens are sampled with (top_p, temperature).
    """
    context, column, _ = SAMPLERS[scheme.name]
    silent = {0, lm.model.config.bos_token_id}  # KGW scores nothing after these
    plain = written(lm, drawn, n_tokens, shape, advance)
    coins = generate.uniform(1, range(drawn.n), n_tokens)
    numbers = []
    for x, y, key, u in zip(drawn.prompts, plain, drawn.keys, coins, strict=True):
        scheme_of_text = replace(scheme, key=key)
        process = scheme_of_text.processor(lm.model)
        inputs, _ = divergence.laid_out(lm.model, [(x, y)])
        with torch.no_grad():
            [logits] = divergence.logits(lm.model, inputs, n_tokens)
            if shape != (1, 1):
                logits = generate.probabilities(logits, *shape).log()
        seen = inputs["input_ids"]
        steps = [process(seen[:, : len(x) + t], logits[t : t + 1]) for t in range(n_tokens)]
        tokens = generate.pick(torch.cat(steps), torch.from_numpy(u).to(seen.device), 1.0, 1.0)
        places = [t for t in range(context, n_tokens) if y[t - context] not in silent]
        grams = [[*y[t - context : t], int(tokens[t])] for t in places]
        prompts = [x for _ in grams]
        added = scheme_of_text.score(lm.model, prompts, grams)[column]
        numbers.append((added.mean(), added.var(), len(added)))
        advance((1 - WRITING) / drawn.n)
    mean, variance, n = np.array(numbers).T
    # The means vary between texts and by the draws: shrink them to the variance between texts.
    spread = mean - mean.mean()
    of_texts = max(0.0, 1 - (variance / n).mean() / (spread.var() or 1.0))
    shrunk = mean.mean() + spread * of_texts**0.5
    return np.column_stack([shrunk, variance])


def by_sum(
    numbers: Float[np.ndarray, "texts 2"], tokens: float, level: float, *, scheme: str
) -> Float[np.ndarray, " texts"]:
    """Return the power of each text for a sum over tokens.

    ``numbers`` are mean and variance of what a token adds, for each text.
    """
    context, _, threshold = SAMPLERS[scheme]
    mean, variance = numbers.T
    n = int(tokens) - context  # the first tokens have no context and are not scored
    if n < 1:
        return np.zeros(len(mean))
    return norm.cdf((n * mean - threshold(level, n)) / np.sqrt(n * variance))


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a line per kind and level, for a terminal."""
    lines: dict[tuple[str, float], dict[str, str]] = {}
    for row in rows:
        group = (row["kind"], row["level"])
        if group not in lines:
            lines[group] = {"kind": row["kind"], "level": f"{row['level']:g}"}
        tokens = f"{row['value']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"
        lines[group][f"power {row['power']:g}"] = tokens
    return list(lines.values())
