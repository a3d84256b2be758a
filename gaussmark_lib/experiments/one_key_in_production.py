"""One key and many texts: what it does to text of each kind, what the joint law (``joint``) predicts of it, and what an asker gains.

All texts here are human, so ψ over real keys is N(0, K) by the law; the K used is always that of the same stored directions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import binom, chi2, multivariate_normal, norm
from torch import Tensor

from gaussmark_lib import docs, models, perturb, score, stats, texts
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.joint import law, stream

# Kinds of human text beside those of ``texts``: (packages, ending of the files).
FILES = {
    "readmes": (docs.PACKAGES, "METADATA"),  # what packages say of themselves, with lists and links
    "headers": (("torch",), ".h"),  # C++ declarations
    "tables": (("scikit-learn",), ".csv"),  # numbers
}
KINDS = ("docs", "training", "licences", "source", *FILES)  # "training": the part of docs that the embedded model was trained on
PER_FILE = 8  # pieces, so that one long file is not the kind


def human(lm: models.LM, kind: str, n: int, *, n_prompt: int = 32, n_tokens: int = 150) -> Pairs:
    """n human prompts and responses of one of ``KINDS``, or of a .jsonl file; fewer where there are no more, and CorpusError below four."""
    wanted = n_prompt + n_tokens
    if kind in FILES:
        rows = _pieces(lm, kind, wanted)
    else:
        known = {"kind": "docs", "split": "train"} if kind == "training" else {"kind": kind}
        of_kind = texts.load(**known, min_chars=6 * wanted if kind in KINDS else 1)["text"]
        rows = (ids[:wanted] for ids in map(lm.encode, of_kind) if len(ids) >= wanted)
    found = list(islice(rows, n))
    if len(found) < 4:
        raise CorpusError(f"{kind}: expected at least 4 texts of {wanted} tokens, found {len(found)}; ask for shorter ones")
    return [ids[:n_prompt] for ids in found], [ids[n_prompt:] for ids in found]


def _pieces(lm: models.LM, kind: str, wanted: int):
    packages, suffix = FILES[kind]
    files = [file for package in packages for file in docs.files_of(package, suffix)]
    for _, path in sorted(files, key=lambda file: hashlib.sha256(file[0].encode()).digest()):
        ids = lm.encode(Path(path).read_text(encoding="utf-8", errors="ignore")[: 8 * wanted * PER_FILE])
        starts = range(0, min(len(ids), PER_FILE * wanted) - wanted + 1, wanted)
        yield from (ids[start : start + wanted] for start in starts)


def directions(lm: models.LM, pairs: Pairs, wm: perturb.Watermark, *, dtype: str | None = None) -> tuple[Float[Tensor, "n d"], np.ndarray]:
    """u_i = G_i/‖G_i‖ and ‖G_i‖ of each text, in order."""
    found = {one.text: (law.unit(one), one.norm) for one in score.gradients(lm.model, *pairs, wm, dtype=dtype)}
    units, norms = zip(*(found[text] for text in sorted(found)), strict=True)
    return torch.stack(units), np.array(norms)


def over_keys(lm: models.LM, units: Float[Tensor, "n d"], wm: perturb.Watermark, seeds: Sequence[int], at_a_time: int = 32) -> np.ndarray:
    """ψ, shape (keys, texts), under ``Key.from_seed`` of each seed."""
    wm, found = wm.on(lm.model), []
    for start in range(0, len(seeds), at_a_time):
        keys = [perturb.Key.from_seed(seed) for seed in seeds[start : start + at_a_time]]
        xis = perturb.noises(lm.model, wm, keys).flatten(1).to(units)
        found.append((xis @ units.T).double().cpu().numpy() / wm.sigma)
    return np.concatenate(found)


def innovations(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> tuple[np.ndarray, np.ndarray]:
    """r, shape (keys, new texts), and the residual of every text; a text in which nothing is new has no r."""
    factor, r, residuals, kept = law.Factor(), [], [], []
    for i in range(len(K)):
        coordinates = factor.coordinates(K[i, kept])
        residual = float(np.sqrt(max(K[i, i] - coordinates @ coordinates, 0)))
        residuals.append(residual)
        if residual > law.NOTHING_NEW:
            r.append((psi[:, i] - coordinates @ np.array(r).reshape(len(kept), -1)) / residual if kept else psi[:, i] / residual)
            factor.append(coordinates, residual)
            kept.append(i)
    return np.array(r).T, np.array(residuals)


def new_directions(units: Float[Tensor, "n d"], K: Float[np.ndarray, "n n"]) -> Float[Tensor, "new d"]:
    """v_i, what direction i adds to those before it: orthonormal, a row for each text in which anything is new, with r_i = ⟨z, v_i⟩."""
    kept = np.flatnonzero(innovations(np.zeros((1, len(K))), K)[1] > law.NOTHING_NEW)
    factor = torch.from_numpy(np.linalg.cholesky(K[np.ix_(kept, kept)])).to(units.device)
    found = units[kept.tolist()]
    for part in torch.arange(units.shape[1]).split(1 << 13):
        found[:, part] = torch.linalg.solve_triangular(factor, found[:, part].double(), upper=False).to(found)
    return found


def independent_pairs(
    lm: models.LM, units: Mapping[str, Float[Tensor, "n d"]], wm: perturb.Watermark, seeds: Sequence[int], at_a_time: int = 32
) -> dict[str, dict[str, np.ndarray]]:
    """ψ and innovation of independent pairs, by kind: each key is drawn once and meets one text of the kind, the texts in turn.

    Under its key, the innovation of a text is given all texts of its kind before it. All kinds share the keys.
    """
    wm = wm.on(lm.model)
    both = {kind: {"ψ": rows, "innovation": new_directions(rows, law.inner(rows, rows))} for kind, rows in units.items()}
    found: dict = {kind: {name: [] for name in pair} for kind, pair in both.items()}
    for start in range(0, len(seeds), at_a_time):
        keys = [perturb.Key.from_seed(seed) for seed in seeds[start : start + at_a_time]]
        xis = perturb.noises(lm.model, wm, keys).flatten(1)
        for kind, pair in both.items():
            for name, rows in pair.items():
                turn = torch.arange(start, start + len(keys)) % len(rows)
                found[kind][name].append((xis.to(rows)[:, None] @ rows[turn, :, None]).flatten().double().cpu().numpy() / wm.sigma)
    return {kind: {name: np.concatenate(parts) for name, parts in pair.items()} for kind, pair in found.items()}


def realised(pairs: Mapping[str, Mapping[str, np.ndarray]], at: tuple[float, ...] = (0.05, 0.01, 0.001), error: float = 0.01) -> pd.DataFrame:
    """The level of independent pairs beside the nominal one: ``kind, statistic`` and the columns of ``stats.levels``.

    All intervals together miss with a probability of at most ``error`` (Bonferroni).
    """
    confidence = 1 - error / (len(at) * sum(map(len, pairs.values())))
    tables = [stats.levels(values, at, confidence).assign(kind=kind, statistic=name) for kind, pair in pairs.items() for name, values in pair.items()]
    return pd.concat(tables, ignore_index=True)


def quantile(values: Float[np.ndarray, " n"], q: float) -> stats.Estimate:
    """The q-quantile with the interval that order statistics give, 95%, whatever the distribution."""
    ordered = np.sort(values)
    low, high = binom.interval(0.95, len(values), q)
    return stats.Estimate(float(np.quantile(values, q)), float(ordered[int(low)]), float(ordered[min(int(high), len(values) - 1)]), len(values))


def beyond_binomial(alarms: Float[np.ndarray, " keys"], n: int, level: float = 0.05) -> tuple[stats.Estimate, float]:
    """Of n innovations a key: the 95th percentile over keys of their rate of false alarms less the binomial one, and the greatest rate less the one
    that a key exceeds with probability 1e-5.
    """
    q95, usual = quantile(alarms, 0.95), binom.ppf(0.95, n, level) / n
    return stats.Estimate(q95.value - usual, q95.low - usual, q95.high - usual, q95.n), float(alarms.max() - binom.isf(1e-5, n, level) / n)


def false_alarms(values: Float[np.ndarray, "keys n"], level: float = 0.05) -> np.ndarray:
    """Each key's share of texts that it calls marked."""
    return (values >= stats.threshold(level)).mean(1)


def predicted_spread(K: Float[np.ndarray, "n n"], level: float = 0.05) -> float:
    """The standard deviation over keys of one key's rate of false alarms, from K alone: √(Σ_ij [Φ₂(τ, τ; K_ij) − α²])/n."""
    tau, grid = stats.threshold(level), np.linspace(-0.999, 0.999, 81)
    both = [multivariate_normal(cov=[[1, rho], [rho, 1]]).cdf([-tau, -tau]) for rho in grid]
    pairs = np.interp(K, grid, both)
    np.fill_diagonal(pairs, level)
    return float(np.sqrt(max((pairs - level**2).sum(), 0))) / len(K)


def audited(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"], level: float = 0.05) -> dict[str, float]:
    """What one key does to texts of a kind: before (ψ) and after (r), with the law's prediction and the share of K's first direction."""
    r, residuals = innovations(psi, K)
    before, after, n = false_alarms(psi, level), false_alarms(r, level), len(K)
    return {
        "n": n,
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


def evidence(r: Float[np.ndarray, "keys n"], promised: Float[np.ndarray, " n"], share: float = 0.1) -> np.ndarray:
    """The running log E of each key, shape (keys, texts)."""
    return stream.log_bets(r, promised, share).cumsum(1)


def any_alarm(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"], level: float = 0.05, *, n: int = 1999, seed: int = 0) -> pd.DataFrame:
    """How often a batch of null texts raises any alarm, by four corrections: ``method, value, low, high, n`` (keys)."""
    texts_ = psi.shape[1]
    least = norm.sf(psi.max(1))
    simulated = np.random.default_rng(seed).multivariate_normal(np.zeros(texts_), K, size=n, method="eigh").max(1)
    family = (1 + (simulated[None] >= psi.max(1)[:, None]).sum(1)) / (1 + n)
    fisher = -2 * norm.logsf(psi).sum(1)
    alarms = {
        "Bonferroni": least * texts_ <= level,
        "Šidák": 1 - (1 - least) ** texts_ <= level,
        "Fisher": chi2.sf(fisher, 2 * texts_) <= level,
        "joint law": family <= level,
    }
    return pd.DataFrame([{"method": method} | stats.rate(hits).row() for method, hits in alarms.items()])


def card(wm: perturb.Watermark, key_id: str, audit: pd.DataFrame, norms: dict[int, np.ndarray], level: float = 0.05) -> dict:
    """The calibration card of a key as data: what it marks, its predicted power by length, its false alarms by kind before and after."""
    power = {str(n): stats.predicted_power(values, wm.sigma, level) for n, values in norms.items()}
    return {"key_id": key_id, "weight": wm.weight, "sigma": wm.sigma, "level": level, "power by tokens": power, "kinds": audit.to_dict("index")}


def card_html(found: dict) -> str:
    """The card as a page of HTML that needs nothing else."""
    kinds = pd.DataFrame(found["kinds"]).T.to_html(float_format="{:.3f}".format)
    power = pd.Series(found["power by tokens"], name="predicted power").to_frame().rename_axis("tokens").to_html(float_format="{:.2f}".format)
    head = f"<h1>Key {found['key_id']}</h1><p>{found['weight']}, σ = {found['sigma']:.3g}, level {found['level']}</p>"
    return f"<!doctype html><html><head><meta charset='utf-8'><title>Key {found['key_id']}</title></head><body>{head}{power}{kinds}</body></html>"
