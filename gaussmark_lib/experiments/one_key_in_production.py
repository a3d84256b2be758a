"""One key and many texts: what it does to text of each kind, what the joint law predicts of it
(``joint.law``), and what innovations cost where texts are marked.

Human texts do not depend on a key, so over keys their ψ are N(0, K), whatever the kind.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import chi2, multivariate_normal, norm
from torch import Tensor

from gaussmark_lib import generate, joint, models, perturb, score, stats, texts
from gaussmark_lib.engine import corpus
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.experiments.pairs import means
from gaussmark_lib.experiments.whose_text import gradients
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.plots import style

# Kinds of human text beside those of ``texts``: (packages, ending of the files).
FILES = {
    "readmes": (corpus.PACKAGES, "METADATA"),  # what packages say about themselves
    "headers": (("torch",), ".h"),  # C++ declarations
    "tables": (("scikit-learn",), ".csv"),  # numbers
}
KINDS = ("docs", "training", "licences", "source", *FILES)  # training: what doclm was trained on
PER_FILE = 8  # texts' length that is read of one file
TAU = stats.threshold(0.05)


class Human(NamedTuple):
    """Human texts, and the file that each was taken from."""

    prompts: list[list[int]]
    responses: list[list[int]]
    files: list[str]


def human(lm: models.LM, kind: str, n: int, *, n_prompt: int = 32, n_tokens: int = 150) -> Human:
    """n texts of one of ``KINDS``, or of a .jsonl file, from as many files as there are; fewer
    where there are no more, and CorpusError below four.
    """
    wanted = n_prompt + n_tokens
    several = list(islice(_pieces(lm, kind, wanted), n))
    if len(several) < 4:
        raise CorpusError(
            f"{kind}: expected at least 4 texts of {wanted} tokens, found {len(several)}; ask for"
            " shorter ones"
        )
    files, ids = zip(*several, strict=True)
    prompts, responses = [row[:n_prompt] for row in ids], [row[n_prompt:] for row in ids]
    return Human(prompts, responses, list(files))


def _pieces(lm: models.LM, kind: str, wanted: int) -> Iterator[tuple[str, list[int]]]:
    """First one piece of every file, then a second one of every file, and so on."""
    if kind not in FILES:
        known = {"kind": "docs", "split": "train"} if kind == "training" else {"kind": kind}
        rows = texts.load(**known, min_chars=6 * wanted if kind in KINDS else 1).to_pandas()
        order = rows.groupby("source").cumcount().sort_values(kind="stable").index
        for file, text in rows.loc[order, ["source", "text"]].itertuples(index=False):
            if len(ids := lm.encode(text)) >= wanted:
                yield file, ids[:wanted]
        return
    packages, ending = FILES[kind]
    files = [file for package in packages for file in corpus.files_of(package, ending)]
    files.sort(key=lambda file: hashlib.sha256(file[0].encode()).digest())
    for start in range(wanted, PER_FILE * wanted, wanted):  # files begin with much the same lines
        for name, path in files:
            text = Path(path).read_text(encoding="utf-8", errors="ignore")
            ids = lm.encode(text[: 8 * wanted * PER_FILE])[start : start + wanted]
            if len(ids) == wanted:
                yield name, ids


def units(gradients: Sequence[TextGradient]) -> Float[Tensor, "n d"]:
    """u_i = G_i/‖G_i‖, a row per text."""
    return torch.stack([joint.directions.kept(gradient) for gradient in gradients])


def against_keys(
    lm: models.LM,
    human: Human,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    dtype: str | None = None,
) -> tuple[Float[np.ndarray, "keys n"], Float[np.ndarray, "n n"]]:
    """ψ of human texts under each key, and their K, which needs no key."""
    each = gradients(lm, human.prompts, human.responses, wm, dtype)
    u = units(each)
    return score.psi(each, wm.on(lm.model), keys).T, joint.directions.inner(u, u)


def false_alarms(values: Float[np.ndarray, "keys n"]) -> Float[np.ndarray, " keys"]:
    """Each key's share of texts that it calls marked at level 0.05; NaN is left out."""
    return (values >= TAU).sum(1) / (~np.isnan(values)).sum(1)


def predicted_spread(K: Float[np.ndarray, "n n"]) -> float:
    """The standard deviation over keys of one key's rate of false alarms, from K alone:
    √(Σ_ij [Φ₂(τ, τ; K_ij) − α²])/n.
    """
    grid = np.linspace(-0.999, 0.999, 81)
    both = [multivariate_normal(cov=[[1, rho], [rho, 1]]).cdf([-TAU, -TAU]) for rho in grid]
    chances = np.interp(K, grid, both)
    np.fill_diagonal(chances, 0.05)
    return float(np.sqrt(max((chances - 0.05**2).sum(), 0))) / len(K)


def audited(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> dict[str, float]:
    """What single keys do to texts of a kind: rates of false alarms over keys, by ψ and by
    innovations r, with the law's prediction.
    """
    r, residuals = joint.law.innovations(psi, K)
    by_psi, by_r, n = false_alarms(psi), false_alarms(r), len(K)
    return {
        "n": n,
        "keys": len(psi),
        "mean cosine": float((K.sum() - np.trace(K)) / (n * (n - 1))),
        "residual": float(np.median(residuals)),
        "sd": float(by_psi.std()),
        "sd predicted": predicted_spread(K),
        "q95 ψ": float(np.quantile(by_psi, 0.95)),
        "max ψ": float(by_psi.max()),
        "q95 r": float(np.quantile(by_r, 0.95)),
        "max r": float(by_r.max()),
        "sd r": float(by_r.std()),
        "sd binomial": float(np.sqrt(0.05 * 0.95 / (residuals > 0).sum())),
    }


def squares_p(r: Float[np.ndarray, "keys n"]) -> float:
    """Two-sided p of Σ r², which is χ² where all innovations are independent N(0, 1)."""
    r = r[~np.isnan(r)]
    tail = chi2.sf((r**2).sum(), len(r))
    return float(2 * min(tail, 1 - tail))


def after_references(
    lm: models.LM,
    references: Human,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[perturb.Key],
    wm: perturb.Watermark,
    n_tokens: int,
    *,
    dtype: str | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Marked texts, each under a key of its own, tested by ψ and by the innovation given human
    reference texts of their kind: one row per text, ``psi, innovation, residual, usual``.

    ``usual`` is the residual of a reference given all others: if marked texts were as new as human
    ones of their kind, the mean innovation would be usual · ψ.
    """
    marks = [(wm, key) for key in keys]
    responses = generate.sample(lm.model, prompts, n_tokens, marks=marks, seed=seed)
    wm = wm.on(lm.model)
    marked = gradients(lm, prompts, responses, wm, dtype)
    known = gradients(lm, references.prompts, references.responses, wm, dtype)
    u, v = units(known), units(marked)
    inverse = np.linalg.pinv(joint.directions.inner(u, u), rcond=1e-6, hermitian=True)
    k = joint.directions.inner(v, u)  # (texts, references)
    psi = score.psi(marked, wm, keys, paired=True)
    weights = k @ inverse
    expected = (weights * score.psi(known, wm, keys).T).sum(1)
    residual = np.sqrt(np.maximum(1 - (weights * k).sum(1), 1e-6))
    usual = np.resize(np.diag(inverse) ** -0.5, len(psi))  # s_i² = 1/(K⁻¹)_ii
    columns = {"psi": psi, "innovation": (psi - expected) / residual, "residual": residual}
    return pd.DataFrame(columns | {"usual": usual})


def power_by_kind(marked: pd.DataFrame) -> pd.DataFrame:
    """Share of marked texts detected at level 0.05: ``kind, test, value, low, high, n``."""
    tests = {
        "ψ": marked["psi"],
        "innovation": marked["innovation"],
        "innovation, if marked texts were like human ones": marked["usual"] * marked["psi"],
    }
    hits = pd.DataFrame(tests).ge(TAU).assign(kind=marked["kind"]).melt("kind", var_name="test")
    return means(hits, ["kind", "test"], "value")


def any_alarm(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> pd.DataFrame:
    """How often a batch of human texts raises any alarm at level 0.05, by three corrections:
    ``method, value, low, high, n`` (keys).
    """
    n = psi.shape[1]
    alarms = {
        "Bonferroni": norm.sf(psi.max(1)) * n <= 0.05,
        "Fisher's sum": chi2.sf(-2 * norm.logsf(psi).sum(1), 2 * n) <= 0.05,
        "joint law": joint.family(psi.max(1), K) <= 0.05,
    }
    return means(pd.DataFrame(alarms).melt(var_name="method"), ["method"], "value")


def two_texts(psi: Float[np.ndarray, "keys 2"], cosine: float, caption: str) -> Figure:
    """ψ of a second text against ψ of a first one, a dot per key."""
    figure, axes = plt.subplots(figsize=(6.0, 4.4))
    axes.plot(*psi.T, ".", color=style.PLAIN, alpha=0.5, label="a key")
    ends = np.array([-3.5, 3.5])
    axes.plot(ends, cosine * ends, **style.THIN, label=f"ψ₂ = {cosine:.2f} ψ₁")
    axes.plot(3, cosine * 3, "o", color=style.WATERMARKED, markersize=9, label="ψ₁ = 3")
    axes.set(xlabel="ψ₁, first text", ylabel="ψ₂, second text", aspect="equal")
    return style.caption(figure, caption, "Two human texts: what does ψ₁ say about ψ₂?")


def per_key(rates: pd.DataFrame, caption: str) -> Figure:
    """Each key's rate of false alarms by kind (columns ``kind, statistic, rate``)."""
    figure, axes = plt.subplots(figsize=(7.4, 4.4))
    look = {"dodge": True, "alpha": 0.35, "size": 3, "jitter": 0.3, "legend": False}
    palette = {"ψ": style.WRONG_KEY, "innovation": style.PLAIN}
    axes.axvline(0.05, **style.THIN, label="level 0.05")
    sns.stripplot(rates, x="rate", y="kind", hue="statistic", palette=palette, ax=axes, **look)
    for name in rates["statistic"].unique():
        axes.plot([], [], "o", color=palette[name], label=f"a key, by {name}")
    axes.set(xlabel="share of the kind's human texts that one key calls marked", ylabel="")
    style.legend_beside(axes)
    return style.caption(figure, caption, "How far do single keys lie from the level?")
