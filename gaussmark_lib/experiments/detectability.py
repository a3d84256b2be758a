"""How much text detection needs: one generation, tested at every length (paper, Sec. "Can GaussMark
be detected?", Figs. 1 and 2).

Each prompt is continued by the base model and under each key, and every text is tested against
every key.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats as distributions

from gaussmark_lib import generate_many, gradients, likelihood, models, perturb, score, stats
from gaussmark_lib.errors import StatisticsError
from gaussmark_lib.experiments import claims, crossed, written_and_scored
from gaussmark_lib.experiments.crossed import LEVELS
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN, WRONG
from gaussmark_lib.tokens import Texts

__all__ = ["OWN", "PLAIN", "WRONG"]

LEAST_SPREAD = 0.05  # nats


def measure(
    lm: models.LM,
    prompts: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    lengths: Sequence[int],
    *,
    seed: int = 0,
    **options,
) -> tuple[pd.DataFrame, list[list[list[int]]]]:
    """Continues every prompt to the greatest length, plain and under each key, and tests all texts
    against all keys at every length.

    Returns ``written_and_scored.scored``'s table without lengths that a prompt's texts do not all
    have, as where texts end by themselves; and the responses: first plain text, then a list a key.
    Options are ``of_cells``'s.
    """
    cells = [None, *((wm, key) for key in keys)]
    seeds = range(seed, seed + len(cells))
    table, responses = written_and_scored.of_cells(
        lm, prompts, cells, keys, max(lengths), seeds=seeds, lengths=lengths, **options
    )
    return complete(table, len(cells)), responses


def complete(table: pd.DataFrame, n_texts: int) -> pd.DataFrame:
    """The rows of the lengths that all ``n_texts`` texts of a prompt have, without lengths that
    fewer than two prompts have.
    """
    kept = table[table.groupby(["n_tokens", "prompt"])["text"].transform("nunique") == n_texts]
    kept = kept[kept.groupby("n_tokens")["prompt"].transform("nunique") >= 2]
    if kept.empty:
        shortest = table["n_tokens"].min()
        raise StatisticsError(
            f"expected two or more prompts whose texts all have {shortest} tokens, got fewer; ask"
            " for shorter lengths or more prompts"
        )
    return kept.reset_index(drop=True)


def matrix(table: pd.DataFrame, kind: str, n_tokens: int, column: str = "psi") -> np.ndarray:
    """A column at one length as (prompts, keys), for ``OWN`` or ``PLAIN``: of the other kind there
    are several texts a prompt and key.
    """
    rows = table[(table["kind"] == kind) & (table["n_tokens"] == n_tokens)]
    return stats.matrix(rows.sort_values("key_id", kind="stable"), column)


def by_length(
    table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """Each figure of ``crossed.detection`` at each length, with its 95% interval: ``n_tokens,
    figure, value, low, high, n``.
    """
    rows = []
    for n_tokens in sorted(table["n_tokens"].unique()):
        own, plain = (matrix(table, kind, n_tokens, "log10_p") for kind in (OWN, PLAIN))
        figures = crossed.detection(
            own, plain, lambda log10_p: np.median(10**log10_p), n_resamples=n_resamples, seed=seed
        )
        rows += [{"n_tokens": n_tokens} | figure for figure in figures]
    return pd.DataFrame(rows)


def rise(table: pd.DataFrame, level: float = 0.05, **options) -> stats.Estimate:
    """TPR of the longest texts less that of their own shortest prefixes, over prompts and keys.
    Options are ``stats.crossed_interval``'s.
    """
    own = table[table["kind"] == OWN]
    hits = own.assign(hit=own["psi"] >= stats.threshold(level)).pivot(
        index=["prompt", "key_id"], columns="n_tokens", values="hit"
    )
    both = hits[[hits.columns.min(), hits.columns.max()]].dropna().astype(float)
    return crossed.mean(
        (both.iloc[:, 1] - both.iloc[:, 0]).rename("rise").reset_index(), "rise", **options
    )


def alarms(
    table: pd.DataFrame, kind: str, n_tokens: int, level: float = 0.05, **options
) -> stats.Estimate:
    """Share of the texts of a kind that are called watermarked at one length, over prompts and
    keys; texts of one prompt and key are averaged.
    """
    rows = table[(table["kind"] == kind) & (table["n_tokens"] == n_tokens)]
    hits = (
        rows.assign(hit=rows["psi"] >= stats.threshold(level))
        .groupby(["prompt", "key_id"], sort=False)["hit"]
        .mean()
    )
    return crossed.mean(hits.reset_index(), "hit", share=True, **options)


def predicted(table: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """What the gradient norms of *plain* text predict at each length: ``n_tokens, psi`` (σ · mean
    ‖G‖), ``n`` (texts), ``TPR at α`` (mean of Φ(σ‖G‖ − τ_α)).
    """
    plain = table[table["kind"] == PLAIN].drop_duplicates(["text", "n_tokens"])
    return pd.DataFrame(
        {"n_tokens": n_tokens, "psi": stats.predicted_psi(norms, sigma).mean(), "n": len(norms)}
        | {f"TPR at {alpha}": stats.predicted_power(norms, sigma, alpha) for alpha in LEVELS}
        for n_tokens, norms in plain.groupby("n_tokens")["grad_norm"]
    )


def against_prediction(figures: pd.DataFrame, prediction: pd.DataFrame) -> pd.DataFrame:
    """Measured beside predicted power: ``n_tokens, figure, value, low, high, predicted, error``
    (predicted − measured).
    """
    wanted = [f"TPR at {alpha}" for alpha in LEVELS]
    long = prediction.melt("n_tokens", wanted, var_name="figure", value_name="predicted")
    both = figures[figures["figure"].isin(wanted)].merge(long, on=["n_tokens", "figure"])
    return both.assign(error=both["predicted"] - both["value"])


def power_gap(table: pd.DataFrame, sigma: float, level: float = 0.05, **options) -> stats.Estimate:
    """Measured less predicted TPR, mean over the lengths: each text's hit or miss less Φ(σ‖G‖ −
    τ_α) of its prompt's plain text.
    """
    norms = table[table["kind"] == PLAIN].groupby(["prompt", "n_tokens"])["grad_norm"].first()
    own = table[table["kind"] == OWN]
    promised = distributions.norm.cdf(
        sigma * norms.loc[list(zip(own["prompt"], own["n_tokens"], strict=True))]
        - stats.threshold(level)
    )
    gaps = (
        own.assign(gap=(own["psi"] >= stats.threshold(level)) - promised)
        .groupby(["prompt", "key_id"], sort=False)["gap"]
        .mean()
    )
    return crossed.mean(gaps.reset_index(), "gap", **options)


def exponent(table: pd.DataFrame) -> stats.Estimate:
    """The power of the length with which ‖G‖ of a plain text grows: the mean over texts of each
    one's slope of log ‖G‖ against log tokens.
    """
    plain = table[table["kind"] == PLAIN].drop_duplicates(["text", "n_tokens"])
    several = [rows for _, rows in plain.groupby("text") if len(rows) > 1]
    return stats.mean(
        [np.polyfit(np.log(rows["n_tokens"]), np.log(rows["grad_norm"]), 1)[0] for rows in several]
    )


def between_keys(
    psi: Float[np.ndarray, "prompts keys"], confidence: float = 0.95
) -> stats.Estimate:
    """The standard deviation of a key's mean ψ over that of a single ψ around the means of its
    prompt and its key; n counts keys.

    In a two-way layout with random effects, MS_keys/MS_rest is (1 + n·ratio²) times an F of K − 1
    and (n − 1)(K − 1) degrees, n being the prompts.
    """
    (n, k), rest = psi.shape, psi - psi.mean(0) - psi.mean(1, keepdims=True) + psi.mean()
    freedom = k - 1, (n - 1) * (k - 1)
    F = n * psi.mean(0).var(ddof=1) / ((rest**2).sum() / freedom[1])
    tail = (1 - confidence) / 2
    value, low, high = (
        np.sqrt(max(0.0, F / quantile - 1) / n)
        for quantile in (1.0, *distributions.f(*freedom).isf([tail, 1 - tail]))
    )
    return stats.Estimate(float(value), float(low), float(high), k)


def of_keys(verdict: claims.Verdict) -> claims.Verdict:
    """A verdict whose n counts keys, without the n that would decide it where it has fewer than
    ``claims.FEWEST_KEYS``: the interval of a variance of so few degrees of freedom does not shrink
    like 1/√n.
    """
    return replace(verdict, needed=None) if verdict.estimate.n < claims.FEWEST_KEYS else verdict


def keys_said(verdict: claims.Verdict) -> str:
    """A verdict of :func:`of_keys` as a sentence."""
    if verdict.outcome != claims.OPEN or verdict.estimate.n >= claims.FEWEST_KEYS:
        return str(verdict)
    found = f"{verdict.claim} is {verdict.estimate}; expected {verdict.expected}"
    return (
        f"{verdict.outcome.capitalize()}: {found}. So few keys do not tell how many would decide."
    )


def varies(entropies: pd.Series) -> bool:
    """Whether entropies have a standard deviation of ``LEAST_SPREAD`` nats or more: with less,
    their ranks are chance.
    """
    return bool(entropies.std() >= LEAST_SPREAD)


def by_temperature(
    lm: models.LM,
    prompts: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    temperatures: Sequence[float],
    n_tokens: int,
    *,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> pd.DataFrame:
    """Watermarked texts sampled more and less freely: one row a text, ``temperature, prompt,
    key_id, psi, grad_norm``, ``entropy`` (mean, nats).

    The entropy is the base model's at temperature 1 along the text: how much freedom it sees there.
    Texts of one prompt and key have the same random numbers at each temperature. Sampling is
    ``top_p, until_end`` of ``generate.sample``.
    """
    tables, cells = [], [(wm, key) for key in keys]
    for temperature in temperatures:
        written = generate_many.sample(
            lm.model,
            prompts,
            cells,
            n_tokens,
            seed=range(seed, seed + len(keys)),
            temperature=temperature,
            **sampling,
        )
        for key, texts in zip(keys, written, strict=True):
            scored = score.score(lm.model, prompts, texts, wm, [key], dtype=dtype)[
                ["key_id", "psi", "grad_norm"]
            ]
            entropy = [values.mean() for values in likelihood.entropies(lm.model, prompts, texts)]
            tables.append(
                scored.assign(temperature=temperature, prompt=range(len(prompts)), entropy=entropy)
            )
    return pd.concat(tables, ignore_index=True)


def gain(table: pd.DataFrame, **options) -> stats.Estimate:
    """ψ at the highest temperature less ψ at the lowest (:func:`by_temperature`), paired over
    prompts and keys.
    """
    psi = table.pivot(index=["prompt", "key_id"], columns="temperature", values="psi")
    return crossed.mean(
        (psi[psi.columns.max()] - psi[psi.columns.min()]).rename("gain").reset_index(),
        "gain",
        **options,
    )


def token_gradients(
    lm: models.LM,
    prompts: Texts,
    responses: Texts,
    weight: str,
    every: int,
    *,
    dtype: str | None = None,
) -> pd.DataFrame:
    """‖∇ log p(v_t | x, v_<t)‖ of every ``every``-th token alone: columns ``text, position,
    grad_norm``, ``entropy`` (nats, before it).
    """
    entropies = likelihood.entropies(lm.model, prompts, responses)
    rows = [(i, t) for i, y in enumerate(responses) for t in range(0, len(y), every)]
    before = [[*prompts[i], *responses[i][:t]] for i, t in rows]
    norms = gradients.norms(
        lm.model, before, [[responses[i][t]] for i, t in rows], [weight], dtype=dtype
    )
    table = pd.DataFrame(rows, columns=["text", "position"])
    return table.assign(grad_norm=norms["grad_norm"], entropy=[entropies[i][t] for i, t in rows])


def rank_correlation(
    table: pd.DataFrame,
    by: str,
    of: str,
    within: str,
    *,
    n_resamples: int = stats.N_RESAMPLES,
    seed: int = 0,
) -> stats.Estimate:
    """Spearman's rank correlation of two columns, with the percentile bootstrap over the groups of
    column ``within``, whose rows are not independent.

    n counts groups.
    """
    groups, rng = (
        [rows[[by, of]].to_numpy() for _, rows in table.groupby(within)],
        np.random.default_rng(seed),
    )
    draws = [
        _spearman(np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))]))
        for _ in range(n_resamples)
    ]
    low, high = (
        np.nanquantile(draws, [0.025, 0.975]) if np.isfinite(draws).any() else (np.nan, np.nan)
    )
    return stats.Estimate(
        _spearman(table[[by, of]].to_numpy()), float(low), float(high), len(groups)
    )


def _spearman(rows: np.ndarray) -> float:
    ranks = distributions.rankdata(rows, axis=0)
    return float(np.corrcoef(ranks.T)[0, 1]) if (np.ptp(ranks, axis=0) > 0).all() else np.nan
