"""One key and many texts: what it does to text of each kind, what the joint law (``joint``)
predicts of it, and what an asker gains.

All texts here are human, so ψ over real keys is N(0, K) by the law; the K used is always that of
the same stored directions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import binom, chi2, kurtosis, multivariate_normal, norm
from torch import Tensor

from gaussmark_lib import docs, models, perturb, score, stats, texts
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.joint import batch, law, stream

# Kinds of human text beside those of ``texts``: (packages, ending of the files).
FILES = {
    "readmes": (docs.PACKAGES, "METADATA"),  # what packages say of themselves, with lists and links
    "headers": (("torch",), ".h"),  # C++ declarations
    "tables": (("scikit-learn",), ".csv"),  # numbers
}
KINDS = (
    "docs",
    "training",
    "licences",
    "source",
    *FILES,
)  # "training": the part of docs that the embedded model was trained on
PER_FILE = 8  # pieces, so that one long file is not the kind


def human(lm: models.LM, kind: str, n: int, *, n_prompt: int = 32, n_tokens: int = 150) -> Pairs:
    """n human prompts and responses of one of ``KINDS``, or of a .jsonl file; fewer where there are
    no more, and CorpusError below four.
    """
    wanted = n_prompt + n_tokens
    if kind in FILES:
        rows = _pieces(lm, kind, wanted)
    else:
        known = {"kind": "docs", "split": "train"} if kind == "training" else {"kind": kind}
        of_kind = texts.load(**known, min_chars=6 * wanted if kind in KINDS else 1).to_pandas()
        if kind in ("licences", "source"):  # which come in pieces: first one of every file
            of_kind = of_kind.loc[
                of_kind.groupby("source").cumcount().sort_values(kind="stable").index
            ]
        rows = (ids[:wanted] for ids in map(lm.encode, of_kind["text"]) if len(ids) >= wanted)
    found = list(islice(rows, n))
    if len(found) < 4:
        raise CorpusError(
            f"{kind}: expected at least 4 texts of {wanted} tokens, found {len(found)}; ask for"
            " shorter ones"
        )
    return [ids[:n_prompt] for ids in found], [ids[n_prompt:] for ids in found]


def _pieces(lm: models.LM, kind: str, wanted: int):
    packages, suffix = FILES[kind]
    files = [file for package in packages for file in docs.files_of(package, suffix)]
    for _, path in sorted(files, key=lambda file: hashlib.sha256(file[0].encode()).digest()):
        ids = lm.encode(
            Path(path).read_text(encoding="utf-8", errors="ignore")[: 8 * wanted * PER_FILE]
        )
        starts = range(0, min(len(ids), PER_FILE * wanted) - wanted + 1, wanted)
        yield from (ids[start : start + wanted] for start in starts)


def directions(
    lm: models.LM, pairs: Pairs, wm: perturb.Watermark, *, dtype: str | None = None
) -> tuple[Float[Tensor, "n d"], np.ndarray]:
    """u_i = G_i/‖G_i‖ and ‖G_i‖ of each text, in order."""
    found = {
        one.text: (law.unit(one), one.norm)
        for one in score.gradients(lm.model, *pairs, wm, dtype=dtype)
    }
    units, norms = zip(*(found[text] for text in sorted(found)), strict=True)
    return torch.stack(units), np.array(norms)


def over_keys(
    lm: models.LM,
    units: Float[Tensor, "n d"],
    wm: perturb.Watermark,
    seeds: Sequence[int],
    at_a_time: int = 32,
) -> np.ndarray:
    """ψ, shape (keys, texts), under ``Key.from_seed`` of each seed."""
    wm, found = wm.on(lm.model), []
    at_a_time = min(at_a_time, score.fitting(wm))
    for start in range(0, len(seeds), at_a_time):
        keys = [perturb.Key.from_seed(seed) for seed in seeds[start : start + at_a_time]]
        xis = perturb.noises(lm.model, wm, keys).flatten(1).to(units)
        found.append((xis @ units.T).double().cpu().numpy() / wm.sigma)
    return np.concatenate(found)


def innovations(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]
) -> tuple[np.ndarray, np.ndarray]:
    """r, shape (keys, new texts), and the residual of every text; a text in which nothing is new
    has no r.
    """
    factor, r, residuals, kept = law.Factor(), [], [], []
    for i in range(len(K)):
        coordinates = factor.coordinates(K[i, kept])
        residual = float(np.sqrt(max(K[i, i] - coordinates @ coordinates, 0)))
        residuals.append(residual)
        if residual > law.NOTHING_NEW:
            r.append(
                (psi[:, i] - coordinates @ np.array(r).reshape(len(kept), -1)) / residual
                if kept
                else psi[:, i] / residual
            )
            factor.append(coordinates, residual)
            kept.append(i)
    return np.array(r).T, np.array(residuals)


def new_directions(
    units: Float[Tensor, "n d"], K: Float[np.ndarray, "n n"]
) -> Float[Tensor, "new d"]:
    """v_i, what direction i adds to those before it: orthonormal, a row for each text in which
    anything is new, with r_i = ⟨z, v_i⟩.
    """
    kept = np.flatnonzero(innovations(np.zeros((1, len(K))), K)[1] > law.NOTHING_NEW)
    factor = torch.from_numpy(np.linalg.cholesky(K[np.ix_(kept, kept)])).to(units.device)
    found = units[kept.tolist()]
    for part in torch.arange(units.shape[1]).split(1 << 13):
        found[:, part] = torch.linalg.solve_triangular(
            factor, found[:, part].double(), upper=False
        ).to(found)
    return found


def independent_pairs(
    lm: models.LM,
    units: Mapping[str, Float[Tensor, "n d"]],
    wm: perturb.Watermark,
    seeds: Sequence[int],
    at_a_time: int = 32,
) -> dict[str, dict[str, np.ndarray]]:
    """ψ and innovation of independent pairs, by kind: each key is drawn once and meets one text of
    the kind, the texts in turn.

    Under its key, the innovation of a text is given all texts of its kind before it. All kinds
    share the keys.
    """
    wm = wm.on(lm.model)
    at_a_time = min(at_a_time, score.fitting(wm))
    both = {
        kind: {"ψ": rows, "innovation": new_directions(rows, law.inner(rows, rows))}
        for kind, rows in units.items()
    }
    found: dict = {kind: {name: [] for name in pair} for kind, pair in both.items()}
    for start in range(0, len(seeds), at_a_time):
        keys = [perturb.Key.from_seed(seed) for seed in seeds[start : start + at_a_time]]
        xis = perturb.noises(lm.model, wm, keys).flatten(1)
        for kind, pair in both.items():
            for name, rows in pair.items():
                turn = torch.arange(start, start + len(keys)) % len(rows)
                found[kind][name].append(
                    (xis.to(rows)[:, None] @ rows[turn, :, None]).flatten().double().cpu().numpy()
                    / wm.sigma
                )
    return {
        kind: {name: np.concatenate(parts) for name, parts in pair.items()}
        for kind, pair in found.items()
    }


def realised(
    pairs: Mapping[str, Mapping[str, np.ndarray]],
    at: tuple[float, ...] = (0.05, 0.01, 0.001),
    error: float = 0.01,
) -> pd.DataFrame:
    """The level of independent pairs beside the nominal one: ``kind, statistic`` and the columns of
    ``stats.levels``.

    All intervals together miss with a probability of at most ``error`` (Bonferroni).
    """
    confidence = 1 - error / (len(at) * sum(map(len, pairs.values())))
    tables = [
        stats.levels(values, at, confidence).assign(kind=kind, statistic=name)
        for kind, pair in pairs.items()
        for name, values in pair.items()
    ]
    return pd.concat(tables, ignore_index=True)


def quantile(values: Float[np.ndarray, " n"], q: float, confidence: float = 0.95) -> stats.Estimate:
    """The q-quantile with the interval that order statistics give, whatever the distribution.

    B ~ Binomial(n, q) of n values lie below the quantile, so it is between the l-th and the (h +
    1)-th smallest where l ≤ B ≤ h. Where n is too small for that, the interval ends at the least
    and the greatest value.
    """
    ordered, n = np.sort(values), len(values)
    low, high = map(int, binom.interval(confidence, n, q))
    return stats.Estimate(
        float(np.quantile(values, q)),
        float(ordered[max(low - 1, 0)]),
        float(ordered[min(high, n - 1)]),
        n,
    )


def spread(rates: Float[np.ndarray, " keys"]) -> stats.Estimate:
    """The standard deviation over keys, with its 95% interval: the relative error of s is √((κ −
    1)/4n), κ being the kurtosis of the rates themselves (3 only where they are normal). No interval
    where all rates are equal.
    """
    sd, n = float(rates.std()), len(rates)
    half = (
        1.96 * np.sqrt((kurtosis(rates, fisher=False) - 1) / (4 * n))
        if np.ptp(rates) > 0
        else np.nan
    )
    return stats.Estimate(sd, float(np.maximum(sd * (1 - half), 0)), float(sd * (1 + half)), n)


def beyond_binomial(
    alarms: Float[np.ndarray, " keys"], n: int, level: float = 0.05, confidence: float = 0.95
) -> tuple[stats.Estimate, stats.Estimate]:
    """Of n innovations a key: the 95th percentile over keys of their number of false alarms less
    the binomial one, in texts, and the share of keys with more alarms than the binomial 99th
    percentile, which is at most 0.01 if they are binomial.
    """
    q95, usual = quantile((alarms * n).round(), 0.95, confidence), binom.ppf(0.95, n, level)
    many = stats.rate((alarms * n).round() > binom.ppf(0.99, n, level), confidence)
    return stats.Estimate(q95.value - usual, q95.low - usual, q95.high - usual, q95.n), many


def false_alarms(values: Float[np.ndarray, "keys n"], level: float = 0.05) -> np.ndarray:
    """Each key's share of texts that it calls marked."""
    return (values >= stats.threshold(level)).mean(1)


def worst_key(
    psis: Mapping[str, Float[np.ndarray, "keys n"]], level: float = 0.05
) -> tuple[str, stats.Estimate]:
    """The kind and the key with the most false alarms on the first half of the kind's texts, and
    that key's rate on the second half.

    The interval is over texts, given this key and kind; it takes texts of different files for
    independent. On the texts by which it was chosen, the greatest of many rates would be too high.
    """
    first = {kind: false_alarms(psi[:, : psi.shape[1] // 2], level) for kind, psi in psis.items()}
    kind = max(first, key=lambda one: first[one].max())
    psi = psis[kind][first[kind].argmax()]
    return kind, stats.rate(psi[len(psi) // 2 :] >= stats.threshold(level))


def predicted_spread(K: Float[np.ndarray, "n n"], level: float = 0.05) -> float:
    """The standard deviation over keys of one key's rate of false alarms, from K alone: √(Σ_ij
    [Φ₂(τ, τ; K_ij) − α²])/n.
    """
    tau, grid = stats.threshold(level), np.linspace(-0.999, 0.999, 81)
    both = [multivariate_normal(cov=[[1, rho], [rho, 1]]).cdf([-tau, -tau]) for rho in grid]
    pairs = np.interp(K, grid, both)
    np.fill_diagonal(pairs, level)
    return float(np.sqrt(max((pairs - level**2).sum(), 0))) / len(K)


def audited(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"], level: float = 0.05
) -> dict[str, float]:
    """What single keys do to texts of a kind: before (ψ) and after (r), with the law's prediction
    and the share of K's first direction.
    """
    r, residuals = innovations(psi, K)
    before, after, n = false_alarms(psi, level), false_alarms(r, level), len(K)
    return {
        "n": n,
        "keys": len(psi),
        "mean cosine": float((K.sum() - np.trace(K)) / (n * (n - 1))),
        "one factor": float(np.linalg.eigvalsh(K)[-1] / np.trace(K)),
        "residual": float(np.median(residuals)),
        "mean": float(before.mean()),
        "sd": float(before.std()),
        "sd predicted": predicted_spread(K, level),
        "q95 ψ": float(np.quantile(before, 0.95)),
        "max ψ": float(before.max()),
        "q95 r": float(np.quantile(after, 0.95)),
        "max r": float(after.max()),
        "sd r": float(after.std()),
        "sd binomial": float(np.sqrt(level * (1 - level) / r.shape[1])),
    }


def evidence(
    r: Float[np.ndarray, "keys n"], promised: Float[np.ndarray, " n"], share: float = 0.1
) -> np.ndarray:
    """The running log E of each key, shape (keys, texts)."""
    return stream.log_bets(r, promised, share).cumsum(1)


def peeked(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"] | None = None, level: float = 0.05
) -> stats.Estimate:
    """The share of keys for which Σ_{j ≤ i} ψ_j is significant by itself at level α after any text
    i, if somebody looks after each.

    The standard deviation of the sum of the first i is √(Σ_{j,l ≤ i} K_jl); without K, √i: that of
    independent ψ.
    """
    K = np.eye(psi.shape[1]) if K is None else K
    z = psi.cumsum(1) / np.sqrt(np.diag(K.cumsum(0).cumsum(1)))
    return stats.rate((z >= stats.threshold(level)).any(1))


def any_alarm(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    level: float = 0.05,
    *,
    n: int = 99_999,
    seed: int = 0,
) -> pd.DataFrame:
    """How often a batch of null texts raises any alarm, by four corrections: ``method, value, low,
    high, n`` (keys).

    All keys meet the same n simulations, whose threshold has a level of its own: level ± √(level(1
    − level)/n).
    """
    texts_ = psi.shape[1]
    least = norm.sf(psi.max(1))
    family = (1 + n - np.searchsorted(batch.greatest(K, n, seed), psi.max(1))) / (1 + n)
    fisher = -2 * norm.logsf(psi).sum(1)
    alarms = {
        "Bonferroni": least * texts_ <= level,
        "Šidák": 1 - (1 - least) ** texts_ <= level,
        "Fisher": chi2.sf(fisher, 2 * texts_) <= level,
        "joint law": family <= level,
    }
    return pd.DataFrame(
        [{"method": method} | stats.rate(hits).row() for method, hits in alarms.items()]
    )


def worst_kind(families: pd.DataFrame, method: str) -> stats.Estimate:
    """The greatest rate of a method over kinds (columns ``method, value, n``, a row a kind), with
    an interval of 1 − 0.05/kinds: since the kind was chosen by its rate, all kinds' intervals must
    hold together (Bonferroni).
    """
    rows = families[families["method"] == method]
    worst = rows.loc[rows["value"].idxmax()]
    return stats.rate(
        np.arange(worst["n"]) < round(worst["value"] * worst["n"]), 1 - 0.05 / len(rows)
    )
