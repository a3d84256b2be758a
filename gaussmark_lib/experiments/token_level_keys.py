"""Token-level keys beside one key: the same prompts, random numbers, weight and σ, and so the same
price; what each test detects, and why.

Hits and weighted sums at every length and every α₀ are computed from the tables of Γ_k
(``token_keys.per_token``). Texts are written once and changed in several ways; all versions under
one key are tested together, so that a noise is drawn once for all of them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, score, stats
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.errors import BoundError
from gaussmark_lib.experiments import crossed
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN
from gaussmark_lib.token_level import gradients as token_gradients
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.token_level import quantile_test
from gaussmark_lib.tokens import Texts

ONE, HITS, SUM = "one key", "token keys, hits", "token keys, sum"
Change = Callable[
    [Texts, Texts], Pairs
]  # (prompts, responses) → changed ones, of as many texts or of the first of them
Cells = Mapping[tuple[str, float], Change]  # by name and fraction
CELL = ["corruption", "fraction"]
TEXT = [*CELL, "kind", "key_id", "prompt"]
COLUMNS = ["scheme", *TEXT, "n_tokens", "statistic", "p_value", "log10_p"]


def small_weight(model: PreTrainedModel) -> str:
    """The smallest matrix of the last block whose Γ_k one backward pass gives
    (``gradients.is_local``), else the block's default one.
    """
    default = models.default_weight(model, block=-1)
    block = re.match(r".+?\.\d+\.", default)[0]
    linears = [
        models.linear(model, name) for name in models.watermarkable(model) if name.startswith(block)
    ]
    local = [linear for linear in linears if token_gradients.is_local(model, linear)]
    return min(local, key=lambda linear: math.prod(linear.shape)).name if local else default


def measure(
    lm: models.LM,
    prompts: Texts,
    one_key: Sequence[Texts],
    token_level: Sequence[Texts],
    plain: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    cells: Cells,
    *,
    alpha_0: float = 0.5,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Changes the texts of both schemes (for each key, one a prompt) and plain ones in every way,
    and tests them.

    Returns:
        ``robustness.measure``'s columns, for the schemes ``ONE``, ``HITS`` and ``SUM``; and the
        Γ_k: one row a token, ``TEXT``'s columns with ``position, token_id, gamma, grad_norm``.
    """
    *control, places = _changed(prompts, plain, cells)
    groups = [(*control, keys)]
    groups += [
        (*_changed(prompts, texts, cells)[:2], [key])
        for texts, key in zip(token_level, keys, strict=True)
    ]
    of_each = token_keys.per_token_by_owner(
        lm.model, groups, wm
    )  # plain texts under each key, then each key's own
    once = score.score(lm.model, *control, wm, keys)
    tables, gammas = [], []
    for number, key in enumerate(keys):
        own = score.score(lm.model, *_changed(prompts, one_key[number], cells)[:2], wm, [key])
        for kind, rows in ((OWN, own), (PLAIN, once[once["key_id"] == key.key_id])):
            tables.append(
                rows.join(places, on="text").assign(scheme=ONE, kind=kind, statistic=rows["psi"])
            )
        for kind, rows in ((OWN, of_each[len(keys) + number]), (PLAIN, of_each[number])):
            gammas.append(rows.join(places, on="text").assign(key_id=key.key_id, kind=kind))
    gammas = pd.concat(gammas, ignore_index=True)[
        [*TEXT, "position", "token_id", "gamma", "grad_norm"]
    ]
    return pd.concat([*tables, from_gammas(gammas, alpha_0)], ignore_index=True)[COLUMNS], gammas


def _changed(prompts: Texts, responses: Texts, cells: Cells) -> tuple[list, list, pd.DataFrame]:
    """All versions of the texts in a row: prompts, responses, and which version of which prompt's
    text each is.
    """
    x, y, places = [], [], []
    for cell, change in cells.items():
        versions = change(prompts, responses)
        x += versions[0]
        y += versions[1]
        places += [(*cell, prompt) for prompt in range(len(versions[1]))]
    return x, y, pd.DataFrame(places, columns=[*CELL, "prompt"]).astype({"fraction": float})


def first(n: int, change: Change) -> Change:
    """A change for :func:`measure` of the first n texts only."""
    return lambda prompts, responses: change(prompts[:n], responses[:n])


def from_gammas(gammas: pd.DataFrame, alpha_0: float = 0.5) -> pd.DataFrame:
    """Hits and weighted sum of each text, from those of its Γ_k that are given: two rows a text,
    like :func:`measure`'s first table.
    """
    number = gammas.groupby(TEXT, sort=False).ngroup()
    found = token_keys.from_gammas(gammas.assign(text=number), alpha_0)
    where = (
        gammas.assign(text=number).drop_duplicates("text")[["text", *TEXT]].merge(found, on="text")
    )
    tables = [
        where.assign(
            scheme=scheme,
            statistic=where[statistic],
            p_value=where[f"p_{statistic}"],
            log10_p=where[f"log10_p_{statistic}"],
        )
        for scheme, statistic in ((HITS, "hits"), (SUM, "psi"))
    ]
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def by_length(
    lm: models.LM,
    prompts: Texts,
    one_key: Sequence[Texts],
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    gammas: pd.DataFrame,
    lengths: Sequence[int],
    *,
    level: float,
    alpha_0: float = 0.5,
) -> pd.DataFrame:
    """The share that each test detects of the first n tokens of unedited watermarked texts:
    ``n_tokens, scheme, value, low, high, n``.

    ``gammas`` are from :func:`measure`, of unedited texts.
    """
    own = gammas[gammas["kind"] == OWN]
    tables = [from_gammas(own[own["position"] < n], alpha_0) for n in lengths]
    for texts, key in zip(one_key, keys, strict=True):
        found = score.score(lm.model, prompts, texts, wm, [key], lengths=lengths)
        tables.append(found.rename(columns={"text": "prompt"}).assign(scheme=ONE))
    table = pd.concat(tables, ignore_index=True)
    hits = table.assign(hit=table["p_value"] <= level)
    return crossed.by_cell(
        hits, ["n_tokens", "scheme"], lambda cell: crossed.mean(cell, "hit").row()
    )


def by_alpha(gammas: pd.DataFrame, alphas: Sequence[float], level: float) -> pd.DataFrame:
    """What counting hits detects at each α₀, with the λ' that is best for the level: ``alpha_0,
    quantile, value, low, high, efficiency``.
    """
    rows = []
    for alpha_0 in alphas:
        found = from_gammas(gammas, alpha_0).query("scheme == @HITS")
        quantile = quantile_test.quantile_for(int(found["n_tokens"].max()), level, alpha_0)
        detected = crossed.mean(found.assign(hit=found["p_value"] <= level), "hit")
        rows.append(
            {
                "alpha_0": alpha_0,
                "quantile": quantile,
                "efficiency": quantile_test.efficiency(alpha_0),
            }
            | detected.row()
        )
    return pd.DataFrame(rows)


def by_quantile(gammas: pd.DataFrame, quantiles: Sequence[float], alpha_0: float) -> pd.DataFrame:
    """Level and power of the quantile test for each λ'.

    Returns:
        One row a λ': ``quantile``, ``needed`` (hits), ``exact`` and ``bound`` (levels; NaN: not
        proved); the share detected, ``value, low, high``.
    """
    found = from_gammas(gammas, alpha_0).query("scheme == @HITS")
    [n_tokens] = found["n_tokens"].unique()
    rows = []
    for quantile in quantiles:
        needed = quantile_test.hits_needed(n_tokens, quantile)
        detected = crossed.mean(found.assign(hit=found["statistic"] >= needed), "hit")
        rows.append(
            {"quantile": quantile, "needed": needed}
            | _levels(n_tokens, quantile, alpha_0)
            | detected.row()
        )
    return pd.DataFrame(rows)


def _levels(n_tokens: int, quantile: float, alpha_0: float) -> dict[str, float]:
    """The test's level, exact and as the proposition bounds it."""
    try:
        bound = quantile_test.level_bound(n_tokens, quantile, alpha_0)
    except BoundError:  # outside the proposition's range it promises nothing
        bound = np.nan
    return {"exact": quantile_test.exact_level(n_tokens, quantile, alpha_0), "bound": bound}


def levels(
    gammas: pd.DataFrame,
    lengths: Sequence[int],
    quantile: float,
    alpha_0: float,
    *,
    n_simulated: int = 20_000,
    seed: int = 0,
) -> pd.DataFrame:
    """The level of the quantile test at K tokens: bounded, exact, simulated from N(0, 1), and
    measured on texts without a watermark.

    Args:
        gammas: of such texts: ``key_id, prompt, position, gamma``.

    Returns:
        ``n_tokens, exact, bound``, ``simulated`` and ``measured`` with ``…_low, …_high`` (exact 99%
        over simulations; 95% over texts and keys).
    """
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((n_simulated, max(lengths))) >= stats.threshold(alpha_0)
    rows = []
    for n in lengths:
        needed = quantile_test.hits_needed(n, quantile)
        simulated = stats.rate(drawn[:, :n].sum(1) >= needed, confidence=0.99)
        first = gammas[gammas["position"] < n]
        hits = (
            first.assign(hit=first["gamma"] >= stats.threshold(alpha_0))
            .groupby(["key_id", "prompt"], sort=False)["hit"]
            .sum()
            .reset_index()
        )
        measured = crossed.mean(hits.assign(hit=hits["hit"] >= needed), "hit")
        rows.append(
            {"n_tokens": n}
            | _levels(n, quantile, alpha_0)
            | simulated.row("simulated")
            | measured.row("measured")
        )
    return pd.DataFrame(rows)


def mean_gamma(
    means: pd.DataFrame, column: str = "gamma", size: str = "n_gammas"
) -> stats.Estimate:
    """The mean of texts' mean Γ_k (one row a ``key_id`` and ``prompt``, ``size`` the number of the
    text's Γ_k), with a 95% interval.

    Each Γ_k is N(0, 1) without a watermark, and varies by about as much with one. So the mean of N
    texts of m_i tokens has the standard error √(Σ 1/m_i)/N at least. Resamples of a handful of
    prompts and keys may show less than that; the wider of the two is taken, on each side.
    """
    found = crossed.mean(means, column)
    least = stats.threshold(0.025) * float((1 / means[size]).sum()) ** 0.5 / len(means)
    return replace(
        found,
        low=float(np.fmin(found.low, found.value - least)),
        high=float(np.fmax(found.high, found.value + least)),
    )


def behind(gammas: pd.DataFrame, position: int) -> stats.Estimate:
    """:func:`mean_gamma` of the tokens from a position on, of the Γ_k given."""
    return mean_gamma(_of_texts(gammas[gammas["position"] >= position], ["key_id", "prompt"]))


def _of_texts(gammas: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Mean and number (``gamma``, ``n_gammas``) of the Γ_k with the same values in these
    columns.
    """
    return (
        gammas.groupby(list(columns), sort=False)["gamma"]
        .agg(gamma="mean", n_gammas="size")
        .reset_index()
    )


def kept_tokens(
    gammas: pd.DataFrame, before: tuple[str, float], after: tuple[str, float]
) -> pd.DataFrame:
    """Mean Γ_k of the tokens that are the same at the same place in two versions of the texts.

    Returns:
        One row a version: ``version, share`` (of the tokens), ``value, low, high, n`` (95% over
            prompts and keys).
    """
    both, share = _in_both(gammas, before, after)
    return pd.DataFrame(
        {"version": version, "share": share} | mean_gamma(both, version).row()
        for version in ("before", "after")
    )


def kept_ratio(
    gammas: pd.DataFrame,
    before: tuple[str, float],
    after: tuple[str, float],
    *,
    n_resamples: int = 500,
) -> stats.Estimate:
    """The second of :func:`kept_tokens`' means over the first, paired over prompts and keys."""
    both, _ = _in_both(gammas, before, after)
    matrices = (stats.matrix(both, version) for version in ("after", "before"))
    return stats.crossed_interval(
        lambda ours, theirs: ours.mean() / theirs.mean(), *matrices, n_resamples=n_resamples
    )


def _in_both(
    gammas: pd.DataFrame, before: tuple[str, float], after: tuple[str, float]
) -> tuple[pd.DataFrame, float]:
    """Each text's mean Γ_k of those tokens, ``before`` and ``after``, and the share that they are
    of all its tokens.
    """
    own = gammas[gammas["kind"] == OWN].set_index(CELL)
    both = own.loc[before].merge(
        own.loc[after],
        on=["key_id", "prompt", "position", "token_id"],
        suffixes=("_before", "_after"),
    )
    texts = both.groupby(["key_id", "prompt"], sort=False)
    means = texts.agg(
        before=("gamma_before", "mean"),
        after=("gamma_after", "mean"),
        n_gammas=("gamma_after", "size"),
    )
    return means.reset_index(), len(both) / len(own.loc[before])


def by_position(gammas: pd.DataFrame, width: int) -> pd.DataFrame:
    """Mean Γ_k of watermarked texts along the text, in stretches of ``width`` tokens: ``CELL``,
    ``position`` (middle), ``value, low, high``.
    """
    own = gammas[gammas["kind"] == OWN]
    own = own.assign(stretch=own["position"] // width)
    means = _of_texts(own, [*CELL, "stretch", "key_id", "prompt"])
    means["position"] = (means.pop("stretch") + 0.5) * width
    cells = means.groupby([*CELL, "position"], sort=False)
    whole = cells.filter(
        lambda cell: np.isfinite(stats.matrix(cell, "gamma")).all()
    )  # not the end that only some texts have
    return crossed.by_cell(whole, [*CELL, "position"], lambda cell: mean_gamma(cell).row())
