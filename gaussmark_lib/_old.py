# ruff: noqa: E402
"""Names of an earlier version, until their last users have changed."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm as normal
from torch import Tensor

from gaussmark_lib import perturb
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.engine.terms import norm as frobenius
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.keys import Key
from gaussmark_lib.score import COLUMNS
from gaussmark_lib.weights import PlacedWatermark, checked

HELD = 1 << 30
FEW_KEYS, FEW_TEXTS = 4, 8
norm = frobenius
PlacedWatermark = PlacedWatermark
__all__ = ["Factors", "PlacedWatermark", "norm"]


def placed(model, wm):
    return checked(wm).on(model)


def isotropic(key, sigma, shape, into=None):
    z = key.normals(math.prod(shape), sigma, np.float32)
    z = torch.from_numpy(z).view(shape)
    return z if into is None else into.copy_(z)


def in_parts(wm, keys, at_a_time):
    for start in range(0, len(keys), at_a_time):
        part = list(keys[start : start + at_a_time])
        for key in part:
            key.check(wm)
        yield perturb.noises(wm.model, wm, part)


def fitting(wm, least=FEW_KEYS):
    return max(least, HELD // (4 * math.prod(wm.linear.shape)))


class Noises:
    """The noises of K keys on the model's device: held where they are few, or else drawn anew, in
    parts, by each pass over them.

    Args:
        n_texts: how many texts' gradients to hold for a pass: with few noises, no more memory than
            they take.
    """

    def __init__(self, wm: PlacedWatermark, keys: Sequence[Key], xis: Tensor | None = None):
        self.wm, self.keys = wm, keys
        self.n_keys = fitting(wm)
        self.held = (
            (
                next(in_parts(wm, keys, len(keys))).to(wm.linear.parameter.device)
                if xis is None
                else xis
            )
            if xis is not None or len(keys) <= self.n_keys
            else None
        )
        self.n_texts = min(len(keys), 32) if self.held is not None else fitting(wm, FEW_TEXTS)
        if self.held is None:
            for key in keys:  # before the work on the texts, and with its noise when that is drawn
                key.check(wm)

    def parts(self) -> Iterator[Tensor]:
        """All noises in the order of the keys. A part is gone when the next one comes."""
        if self.held is not None:
            return iter([self.held])
        return (
            part.to(self.wm.linear.parameter.device)
            for part in in_parts(self.wm, self.keys, self.n_keys)
        )


def statistic(found, xis, sigma):
    return finite(
        (found.unit()[None] @ xis.flatten(1).to(found.G).T).double().cpu().numpy() / sigma
    )[0]


def finite(psi):
    return psi


def in_blocks(each, most, failed, put):
    facts = []
    for seen, found in enumerate(each, 1):
        try:
            put(len(facts), found)
            facts.append(_facts(found))
        except DegenerateScoreError as error:
            if failed is None:
                raise
            failed[found.text] = error
        if facts and seen % most == 0:
            yield facts
            facts = []
    if facts:
        yield facts


def _facts(found):
    return {
        "text": found.text,
        "grad_norm": found.norm,
        "log_lik": found.log_lik,
        "n_tokens": found.n_tokens,
    }


def rows(facts, psi, key_ids):
    n, k = psi.shape
    flat = psi.ravel()
    kinds = {"text": int, "grad_norm": float, "log_lik": float, "n_tokens": int}
    by_text = (
        pd.DataFrame(facts, columns=list(kinds))
        .astype(kinds)
        .loc[np.repeat(np.arange(n), k)]
        .reset_index(drop=True)
    )
    return by_text.assign(
        key_id=list(key_ids) * n,
        psi=flat,
        p_value=normal.sf(flat),
        log10_p=normal.logsf(flat) / np.log(10),
    )[COLUMNS]


def failure(text, response, keys):
    n = len(response) if hasattr(response, "__len__") and not isinstance(response, str) else 0
    rows = pd.DataFrame(
        {"text": text, "key_id": [key.key_id for key in keys], "n_tokens": n}, columns=COLUMNS
    )
    return rows.astype(dict.fromkeys(("psi", "p_value", "log10_p", "grad_norm", "log_lik"), float))


class Slope(NamedTuple):
    g: Tensor
    felt: Tensor


def backward(log_p, calls, *, retain_graph=False):
    ys = [call.y for call in calls]
    gs = torch.autograd.grad(
        log_p, ys, torch.ones_like(log_p), retain_graph=retain_graph, materialize_grads=True
    )
    return [Slope(g, torch.ones(2, *g.shape[:2])) for g in gs]


def is_rounding(felt):
    return torch.zeros(felt.shape[1:], dtype=torch.bool)


# ---- of stats
from collections.abc import Callable
from dataclasses import replace

from numpy.typing import ArrayLike
from scipy import stats
from sklearn import metrics

from gaussmark_lib.errors import GaussMarkError as StatisticsError
from gaussmark_lib.stats import Estimate, interval

N_RESAMPLES = 1000


def rate(hits: ArrayLike, confidence: float = 0.95) -> Estimate:
    return interval(np.ravel(hits).astype(bool), confidence=confidence)


def auc(null: ArrayLike, watermarked: ArrayLike) -> float:
    values = np.append(null, watermarked)
    return float(
        metrics.roc_auc_score(np.repeat([0, 1], [np.size(null), np.size(watermarked)]), values)
    )


def uniformity(p: ArrayLike) -> dict[str, float]:
    """Kolmogorov–Smirnov test of independent p-values against the uniform distribution:
    ``distance``, ``p_value``, ``n``.
    """
    p = _p_values(p)
    distance, p_value = stats.kstest(p, "uniform")
    return {"distance": float(distance), "p_value": float(p_value), "n": p.size}


def _p_values(p: ArrayLike) -> np.ndarray:
    p = np.ravel(p)
    if ((p < 0) | (p > 1)).any():
        raise StatisticsError(f"p: expected p-values from 0 to 1, got {p.min():g} to {p.max():g}")
    return p


def mean(x: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean with Student's interval, NaN where all values are equal: its width would be 0."""
    x, confidence = (
        np.ravel(x),
        confidence,
    )
    if x.size < 2:
        raise StatisticsError(f"an interval for a mean needs at least two values, got {x.size}")
    half = (
        stats.sem(x) * stats.t.isf((1 - confidence) / 2, x.size - 1)
        if np.ptp(x) > 1e-12 * np.abs(x).max()
        else np.nan
    )
    return Estimate(float(x.mean()), float(x.mean() - half), float(x.mean() + half), x.size)


def matrix(
    table: pd.DataFrame, column: str, index: str = "prompt", columns: str = "key_id"
) -> np.ndarray:
    """A column of a table as prompts (sorted) × keys (in the order of their first appearance) for
    :func:`crossed_interval`.
    """
    if missing := {column, index, columns} - set(table.columns):
        raise StatisticsError(
            f"expected a table with the columns {column}, {index} and {columns}, got one without"
            f" {', '.join(map(str, missing))}"
        )
    if n := table.duplicated([index, columns]).sum():
        raise StatisticsError(
            f"expected one text of each {index} and {columns}, got {n} more; group the table by"
            " what else varies"
        )
    return table.pivot(index=index, columns=columns, values=column)[
        table[columns].unique()
    ].to_numpy(float)


def crossed_interval(
    statistic: Callable,
    *matrices: ArrayLike,
    share: bool = False,
    confidence: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of texts that are prompts × keys, with an interval over both; n counts texts.

    Texts of one prompt are alike, and so are those of one key. So both are resampled, independently
    and alike in all matrices (Owen, "The pigeonhole bootstrap", Ann. Appl. Stat. 2007). Of few keys
    it is a rough guide: of ψ's mean over 100 prompts with a spread of 1 and gradients of cosine .1,
    95% intervals covered .79, .87, .92 and .95 of the time with 2, 3, 5 and 10 keys (2,000
    simulations), far less with one. NaN where all resamples agree, or one has no value. With
    ``share``, the statistic is one of hits (a rate, an AUC); at 0 or 1 it has the prompts' exact
    binomial interval.
    """
    matrices = [np.asarray(values, float) for values in matrices]
    shapes = [values.shape for values in matrices]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][0] < 2:
        raise StatisticsError(
            f"expected matrices of one shape, two or more prompts × keys, got {shapes}"
        )
    (n_prompts, n_keys), rng, draws, value = (
        shapes[0],
        np.random.default_rng(seed),
        [],
        float(statistic(*matrices)),
    )
    if share and value in (0.0, 1.0):
        return replace(rate(np.full(n_prompts, value), confidence), n=n_prompts * n_keys)
    for _ in range(n_resamples):
        chosen = np.ix_(rng.integers(n_prompts, size=n_prompts), rng.integers(n_keys, size=n_keys))
        draws.append(statistic(*(values[chosen] for values in matrices)))
    low, high = (
        np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
        if np.ptp(draws) > 1e-12 * abs(value)
        else (np.nan, np.nan)
    )
    return Estimate(value, float(low), float(high), n_prompts * n_keys)
