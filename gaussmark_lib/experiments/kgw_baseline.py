"""Schemes side by side: how many tokens each needs, what it does to the text, and what its evidence
costs.

A text's measures, less those of plain texts to the same prompts:

=================  ================================================================================
``cross-entropy``  −(1/T) log p_θ(y | x) of the text under the *base* model, nats per token: how
                   unlikely it finds it
``distinct-2``     share of a text's pairs of tokens that are new (``quality.diversity``)
``seq-rep-4``      share of its runs of four that are repetitions
=================  ================================================================================

The cross-entropy of sampled text is no divergence. With q_t the distributions that a text y was
sampled from, and p_t the base model's,

    E[−log p_t(y_t)]  =  KL(q_t ‖ p_t) + H(q_t),
    so  Δ cross-entropy  =  price + change of entropy

(:func:`in_parts`): a scheme that is near p and less certain than p raises it, and one that is far
from p and certain need not.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ndtri_exp

from gaussmark_lib import corrupt, likelihood, models, perturb, stats
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.experiments.written_and_scored import labelled
from gaussmark_lib.quality import diversity
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

MEASURES = ("cross-entropy", "distinct-2", "seq-rep-4")
LEVELS = (1e-2, 1e-4, 1e-6)
PARTS = ("price", "change of entropy", "Δ cross-entropy")
AT_RANDOM = (
    "substitute at random",
    "substitute own tokens",
    "delete at random",
)  # edits that spare or take each token alike


def long_enough(texts: Sequence[Texts], least: int) -> list[int]:
    """The prompts whose texts all have at least so many tokens: all prompts, unless texts end at
    their end token.

    Raises:
        InvalidTextError: fewer than two.
    """
    kept = [i for i in range(len(texts[0])) if min(len(own[i]) for own in texts) >= least]
    if len(kept) < 2:
        raise InvalidTextError(
            f"expected two or more prompts with texts of at least {least} tokens, got {len(kept)};"
            " set until_end to false"
        )
    return kept


def by_prefix(
    lm: models.LM,
    keyed: Sequence[Scheme],
    prompts: Texts,
    texts: Sequence[Texts],
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Each scheme's test of the first n tokens of its own texts, for several n: the scheme's
    columns, ``scheme, key_id, prompt, n_tokens``.

    A text of fewer than n tokens is tested whole.
    """
    tables = []
    for scheme, own in zip(keyed, texts, strict=True):
        for n in lengths:
            table = scheme.score(lm.model, prompts, [text[:n] for text in own])
            tables.append(labelled(scheme, table).assign(n_tokens=n))
    return pd.concat(tables, ignore_index=True)


def tokens_needed(
    table: pd.DataFrame, levels: Sequence[float] = LEVELS, *, n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    """The tokens at which half of a scheme's texts are detected at each level: where the median of
    log p, linear between lengths, reaches log α.

    Since the p-values are exact, the level is the false positive rate, also where no sample of
    plain texts is large enough to show it.

    Args:
        table: from :func:`by_prefix`.

    Returns:
        ``scheme, level, value, low, high, n``, the interval over prompts and keys; infinity stands
        for "not within the longest length", the shortest length for that or fewer, NaN for an end
        that is not known, since all resamples agree.
    """
    rows = []
    for scheme, own in table.groupby("scheme", sort=False):
        lengths = np.sort(own["n_tokens"].unique())
        matrices = [stats.matrix(own[own["n_tokens"] == n], "log10_p") for n in lengths]
        for level in levels:
            found = stats.crossed_interval(
                lambda *at, lengths=lengths, level=level: first_below(
                    [*map(np.median, at)], lengths, level
                ),
                *matrices,
                n_resamples=n_resamples,
            )
            bounds = {
                name: np.inf if number > lengths[-1] else number
                for name, number in found.row().items()
                if name != "n"
            }
            rows.append({"scheme": scheme, "level": level} | bounds | {"n": found.n})
    return pd.DataFrame(rows)


def first_below(log10_p: ArrayLike, lengths: ArrayLike, level: float) -> float:
    """The first length at which log₁₀ p, linear between lengths, reaches log₁₀ of the level: the
    first one if it does so there, which is then an upper bound, and one token beyond the last if it
    never does.

    >>> first_below([-1.0, -3.0], [10, 20], 1e-2), first_below([-1.0, -3.0], [10, 20], 1e-4)
    (15.0, 21.0)
    """
    y, x = np.asarray(log10_p, float), np.asarray(lengths, float)
    wanted = np.log10(level)
    below = np.flatnonzero(y <= wanted)
    if not below.size:
        return float(x[-1] + 1)
    i = below[0]
    return float(
        x[i - 1] + (x[i] - x[i - 1]) * (wanted - y[i - 1]) / (y[i] - y[i - 1]) if i else x[0]
    )


def in_words(needed: float, lengths: Sequence[int]) -> str:
    """A number of :func:`tokens_needed` with what is known of it: "34", "at most 8", or "not within
    96".

    >>> in_words(33.6, [8, 96]), in_words(8.0, [8, 96]), in_words(np.inf, [8, 96])
    ('34', 'at most 8', 'not within 96')
    """
    if needed > lengths[-1]:
        return f"not within {lengths[-1]}"
    return f"{needed:.0f}" if needed > lengths[0] else f"at most {lengths[0]}"


def left_whole(edit: str, fraction: float, n: int) -> float:
    """The share of the runs of n tokens that are still there, side by side, after a share f of the
    tokens is edited: (1 − f)ⁿ at random, else NaN.

    Each token of a run has to be spared. NaN for edits that put tokens between others, or that
    choose their places otherwise.

    >>> round(left_whole("substitute at random", 0.3, 2), 2), left_whole("no prompt", 0.3, 2)
    (0.49, nan)
    """
    return (1 - fraction) ** n if edit in AT_RANDOM else float("nan")


def edit_in_words(edit: str, fraction: float) -> str:
    """An edit of ``corrupt.named`` with its strength, where it has one.

    >>> edit_in_words("delete at random", 0.3), edit_in_words("no prompt", 0.3)
    ('delete at random, f = 0.3', 'no prompt (all or nothing)')
    """
    return (
        f"{edit} (all or nothing)"
        if edit in corrupt.ALL_OR_NOTHING
        else f"{edit}, f = {fraction:g}"
    )


def signed(estimate: stats.Estimate) -> str:
    """A change with its sign.

    >>> signed(stats.Estimate(0.25, 0.125, 0.5, 9)), signed(stats.Estimate(0.0, np.nan, np.nan, 9))
    ('+0.2500 (+0.1250 to +0.5000)', '+0.0000 (no interval)')
    """
    interval = (
        "no interval" if np.isnan(estimate.low) else f"{estimate.low:+.4f} to {estimate.high:+.4f}"
    )
    return f"{estimate.value:+.4f} ({interval})"


def evidence(log10_p: float) -> float:
    """ψ²/2 of the ψ that would have this p-value, nats; 0 for p ≥ ½. Without the factor of −ln p
    that grows like ln ψ and flatters a weak test.

    >>> evidence(0.0), round(evidence(-2.8697), 3)
    (0.0, 4.5)
    """
    return max(-float(ndtri_exp(log10_p * np.log(10))), 0.0) ** 2 / 2


def evidence_per_nat(
    table: pd.DataFrame, prices: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    """The median text's :func:`evidence` over the mean price of a text: ``scheme, value, low, high,
    n``, with ``evidence`` and ``nats`` of a text.

    Where one of the two has no interval, neither has their ratio: resamples would vary by the other
    alone.

    Args:
        table: of whole texts: ``scheme, key_id, prompt, log10_p``. prices: from
            ``written_and_scored.prices``; its prompts and keys are taken.
    """
    both = prices.merge(
        table[["scheme", "key_id", "prompt", "log10_p"]], on=["scheme", "key_id", "prompt"]
    )
    both["nats"] = both["price"] * both["n_tokens"]
    rows = []
    for scheme, own in both.groupby("scheme", sort=False):
        matrices = stats.matrix(own, "log10_p"), stats.matrix(own, "nats")
        parts = {
            name: stats.crossed_interval(statistic, *matrices, n_resamples=n_resamples)
            for name, statistic in {
                "": lambda log10_p, nats: evidence(float(np.median(log10_p))) / nats.mean(),
                "evidence": lambda log10_p, nats: evidence(float(np.median(log10_p))),
                "nats": lambda log10_p, nats: nats.mean(),
            }.items()
        }
        if any(np.isnan(parts[name].low) for name in ("evidence", "nats")):
            parts[""] = replace(parts[""], low=np.nan, high=np.nan)
        rows.append(
            {"scheme": scheme}
            | {k: v for name, estimate in parts.items() for k, v in estimate.row(name).items()}
        )
    return pd.DataFrame(rows)


def measures(lm: models.LM, prompts: Texts, responses: Texts) -> pd.DataFrame:
    """One row a text, one column a measure."""
    varied = diversity.table(responses, ends=())
    nats = likelihood.cross_entropy(lm.model, responses, prompts=prompts)
    return pd.DataFrame(
        dict(zip(MEASURES, (nats, varied["distinct_2"], varied["seq_rep_4"]), strict=True))
    )


def against_plain(
    lm: models.LM,
    prompts: Texts,
    written: Sequence[tuple[str, Texts, Texts]],
    *,
    n_resamples: int = stats.N_RESAMPLES,
) -> tuple[pd.DataFrame, dict[str, Float[np.ndarray, "prompts keys"]]]:
    """Mean change of each measure, prompt by prompt, with a 95% interval: ``scheme, measure,
    plain`` (its mean), ``value, low, high, n``.

    Args:
        written: for every scheme and key: the scheme's name, its responses, and plain ones. Give
            each key other plain texts: the random numbers of the same ones would shift all schemes
            alike, and the intervals over keys would not show it.

    Returns:
        The table, and the change of the cross-entropy of each text, prompts × keys, for
        :func:`in_parts`.
    """
    pairs = defaultdict(list)
    known: dict[int, pd.DataFrame] = {}  # plain texts come many times
    for name, own, plain in written:
        if id(plain) not in known:
            known[id(plain)] = measures(lm, prompts, plain)
        pairs[name].append((measures(lm, prompts, own), known[id(plain)]))
    rows, of_cross_entropy = [], {}
    for name, tables in pairs.items():
        for measure in MEASURES:
            marked, plain = (
                np.column_stack([pair[which][measure] for pair in tables]) for which in (0, 1)
            )
            change = stats.crossed_interval(np.mean, marked - plain, n_resamples=n_resamples)
            rows.append({"scheme": name, "measure": measure, "plain": plain.mean()} | change.row())
            if measure == "cross-entropy":
                of_cross_entropy[name] = marked - plain
    return pd.DataFrame(rows), of_cross_entropy


def in_parts(
    of_cross_entropy: dict[str, Float[np.ndarray, "prompts keys"]],
    prices: pd.DataFrame,
    *,
    n_resamples: int = stats.N_RESAMPLES,
) -> pd.DataFrame:
    """Δ cross-entropy = price + change of entropy, nats a token: ``scheme, part`` (of ``PARTS``),
    ``value, low, high, n``.

    Args:
        of_cross_entropy: from :func:`against_plain`. prices: from ``written_and_scored.prices``, of
            the first of these prompts; those are taken.
    """
    rows = []
    for scheme, own in prices.groupby("scheme", sort=False):
        price = stats.matrix(own, "price")
        change = of_cross_entropy[scheme][: len(price)]
        for part, values in zip(PARTS, (price, change - price, change), strict=True):
            rows.append(
                {"scheme": scheme, "part": part}
                | stats.crossed_interval(np.mean, values, n_resamples=n_resamples).row()
            )
    return pd.DataFrame(rows)


def entropy_changes(
    lm: models.LM, prompts: Texts, texts: Texts, wm: perturb.Watermark, keys: Sequence[perturb.Key]
) -> Float[np.ndarray, " keys"]:
    """Mean of H(p_{θ+ξ}) − H(p_θ) over the same contexts, nats a token, one number a key."""
    base = np.concatenate(likelihood.entropies(lm.model, prompts, texts)).mean()
    changes = []
    for key in keys:
        with perturb.watermarked(lm.model, wm, key):
            changes.append(
                np.concatenate(likelihood.entropies(lm.model, prompts, texts)).mean() - base
            )
    return np.array(changes)
