"""How much text detection needs: one generation, tested at every length (paper, Sec. "Can GaussMark be detected?", Figs. 1 and 2).

Each prompt is continued by the base model and under each key, and every text is tested against every key.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import generate_many, gradients, likelihood, models, perturb, score, stats
from gaussmark_lib.experiments import crossed, written_and_scored
from gaussmark_lib.experiments.crossed import LEVELS
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN, WRONG
from gaussmark_lib.tokens import Texts

__all__ = ["OWN", "PLAIN", "WRONG"]


def measure(
    lm: models.LM, prompts: Texts, wm: perturb.Watermark, keys: Sequence[perturb.Key], lengths: Sequence[int], *, seed: int = 0, **options
) -> tuple[pd.DataFrame, list[list[list[int]]]]:
    """Continues every prompt to the greatest length, plain and under each key, and tests all texts against all keys at every length.

    Returns ``written_and_scored.scored``'s table, and the responses: first plain text, then a list a key. Options are ``of_cells``'s.
    """
    cells = [None, *((wm, key) for key in keys)]
    seeds = range(seed, seed + len(cells))
    return written_and_scored.of_cells(lm, prompts, cells, keys, max(lengths), seeds=seeds, lengths=lengths, **options)


def matrix(table: pd.DataFrame, kind: str, n_tokens: int, column: str = "psi") -> np.ndarray:
    """A column at one length as (prompts, keys), for ``OWN`` or ``PLAIN``: of the other kind there are several texts a prompt and key."""
    rows = table[(table["kind"] == kind) & (table["n_tokens"] == n_tokens)]
    return stats.matrix(rows.sort_values("key_id", kind="stable"), column)


def by_length(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """Each figure of ``crossed.detection`` at each length, with its 95% interval: ``n_tokens, figure, value, low, high, n``."""
    rows = []
    for n_tokens in sorted(table["n_tokens"].unique()):
        own, plain = (matrix(table, kind, n_tokens, "log10_p") for kind in (OWN, PLAIN))
        figures = crossed.detection(own, plain, lambda log10_p: np.median(10**log10_p), n_resamples=n_resamples, seed=seed)
        rows += [{"n_tokens": n_tokens} | figure for figure in figures]
    return pd.DataFrame(rows)


def predicted(table: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """What the gradient norms of *plain* text predict at each length: ``n_tokens, psi`` (σ · mean ‖G‖), ``n`` (texts), ``TPR at α`` (mean of
    Φ(σ‖G‖ − τ_α)).
    """
    plain = table[table["kind"] == PLAIN].drop_duplicates(["text", "n_tokens"])
    return pd.DataFrame(
        {"n_tokens": n_tokens, "psi": stats.predicted_psi(norms, sigma).mean(), "n": len(norms)}
        | {f"TPR at {alpha}": stats.predicted_power(norms, sigma, alpha) for alpha in LEVELS}
        for n_tokens, norms in plain.groupby("n_tokens")["grad_norm"]
    )


def against_prediction(figures: pd.DataFrame, prediction: pd.DataFrame) -> pd.DataFrame:
    """Measured beside predicted power: ``n_tokens, figure, value, low, high, predicted, error`` (predicted − measured)."""
    wanted = [f"TPR at {alpha}" for alpha in LEVELS]
    long = prediction.melt("n_tokens", wanted, var_name="figure", value_name="predicted")
    both = figures[figures["figure"].isin(wanted)].merge(long, on=["n_tokens", "figure"])
    return both.assign(error=both["predicted"] - both["value"])


def by_temperature(
    lm: models.LM, prompts: Texts, wm: perturb.Watermark, key: perturb.Key, temperatures: Sequence[float], n_tokens: int, *, seed: int = 0
) -> pd.DataFrame:
    """Watermarked texts sampled more and less freely: one row a text, ``temperature, prompt, psi, grad_norm``, ``entropy`` (mean over tokens, nats).

    The entropy is the base model's at temperature 1 along the text: how much freedom it sees there.
    """
    tables = []
    for temperature in temperatures:
        [texts] = generate_many.sample(lm.model, prompts, [(wm, key)], n_tokens, seed=seed, temperature=temperature)
        scored = score.score(lm.model, prompts, texts, wm, [key])[["psi", "grad_norm"]]
        entropy = [values.mean() for values in likelihood.entropies(lm.model, prompts, texts)]
        tables.append(scored.assign(temperature=temperature, prompt=range(len(prompts)), entropy=entropy))
    return pd.concat(tables, ignore_index=True)


def token_gradients(lm: models.LM, prompts: Texts, responses: Texts, weight: str, every: int) -> pd.DataFrame:
    """‖∇ log p(v_t | x, v_<t)‖ of every ``every``-th token alone: columns ``text, position, grad_norm``, ``entropy`` (nats, before it)."""
    entropies = likelihood.entropies(lm.model, prompts, responses)
    rows = [(i, t) for i, y in enumerate(responses) for t in range(0, len(y), every)]
    before = [[*prompts[i], *responses[i][:t]] for i, t in rows]
    norms = gradients.norms(lm.model, before, [[responses[i][t]] for i, t in rows], [weight])
    table = pd.DataFrame(rows, columns=["text", "position"])
    return table.assign(grad_norm=norms["grad_norm"], entropy=[entropies[i][t] for i, t in rows])
