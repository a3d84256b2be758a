"""One key and many texts: what it does to text of each kind, what the joint law predicts of it
(``joint.law``), and what innovations cost where texts are marked.

Human texts do not depend on a key, so over keys their ψ are N(0, K), whatever the kind.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
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

from gaussmark_experiments import level_check
from gaussmark_experiments.whose_text import gradients
from gaussmark_lib import generate, models, perturb, score, stats, texts
from gaussmark_lib.beyond import joint
from gaussmark_lib.engine import corpus, human_texts
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.workbench.pairs import means
from gaussmark_lib.workbench.plots import style

# Kinds of human text beside those of ``texts``: (packages, ending of the files).
FILES = {
    "readmes": (
        corpus.PACKAGES,
        "METADATA",
    ),  # what packages say about themselves
    "headers": (("torch",), ".h"),  # C++ declarations
    "tables": (("scikit-learn",), ".csv"),  # numbers
}
KINDS = (
    "docs",
    "training",
    "licences",
    "source",
    *FILES,
)  # training: what doclm was trained on
PER_FILE = 8  # texts' length that is read of one file
TAU = stats.threshold(0.05)


class Human(NamedTuple):
    """Human texts, and the file that each was taken from."""

    prompts: list[list[int]]
    responses: list[list[int]]
    files: list[str]


def human(
    lm: models.LM,
    kind: str,
    n: int,
    *,
    prompt_tokens: int = 32,
    n_tokens: int = 150,
    seed: int = 0,
) -> Human:
    """n texts of one of ``KINDS``, or of a file of texts, from as many files as there are; fewer
    where there are no more, and InvalidTextError below four. The seed orders the files.
    """
    wanted = prompt_tokens + n_tokens
    several = list(islice(_pieces(lm, kind, wanted, seed), n))
    if len(several) < 4:
        raise InvalidTextError(
            f"{kind}: expected at least 4 texts of {wanted} tokens, found {len(several)}; ask for"
            " shorter ones"
        )
    files, ids = zip(*several, strict=True)
    prompts = [row[:prompt_tokens] for row in ids]
    responses = [row[prompt_tokens:] for row in ids]
    return Human(prompts, responses, list(files))


def written(
    writer: models.LM,
    lm: models.LM,
    text: str,
    n: int,
    *,
    prompt_tokens: int,
    n_tokens: int,
    **options,
) -> Human:
    """n texts by another model after prompts of a kind; each is a file of its own. Options are
    ``seed, batch_size`` of ``level_check.written_by``.
    """
    size = {"prompt_tokens": prompt_tokens, "n_tokens": n_tokens}
    prompts, responses = level_check.written_by(writer, lm, text, n, **size, **options)
    return Human(
        prompts,
        responses,
        [f"{writer.name}:{number}" for number in range(n)],
    )


def _pieces(lm: models.LM, kind: str, wanted: int, seed: int) -> Iterator[tuple[str, list[int]]]:
    """First one piece of every file, then a second one of every file, and so on. The order of the
    files depends on their names and the seed, not on their size.
    """
    if kind not in FILES:
        known = {"kind": "docs", "split": "train"} if kind == "training" else {"kind": kind}
        min_chars = 6 * wanted if kind in (*KINDS, *texts.KINDS) else 1
        for row in texts.load(**known, min_chars=min_chars, seed=seed):
            if len(ids := lm.encode(row["text"])) >= wanted:
                yield row["source"], ids[:wanted]
        return
    packages, ending = FILES[kind]
    files = {name: path for package in packages for name, path in corpus.files_of(package, ending)}
    names = human_texts.in_order(files, seed)
    for start in range(wanted, PER_FILE * wanted, wanted):  # files begin with much the same lines
        for name in names:
            text = files[name].read_text(encoding="utf-8", errors="ignore")
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
    psi, u = with_directions(lm, human, wm, keys, dtype)
    return psi, joint.directions.inner(u, u)


def with_directions(
    lm: models.LM,
    human: Human,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    dtype: str | None = None,
) -> tuple[Float[np.ndarray, "keys n"], Float[Tensor, "n d"]]:
    """ψ of human texts under each key, and their directions, which need no key."""
    of_texts = gradients(lm, human.prompts, human.responses, wm, dtype)
    return score.psi(of_texts, wm.on(lm.model), keys).T, units(of_texts)


def cosines(
    directions: Sequence[Float[Tensor, "_ d"]],
) -> Float[np.ndarray, "n n"]:
    """K of the texts of several kinds, in their order."""
    inner = joint.directions.inner
    return np.block([[inner(rows, columns) for columns in directions] for rows in directions])


def false_alarms(
    values: Float[np.ndarray, "keys n"],
) -> Float[np.ndarray, " keys"]:
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
    return np.sqrt(max((chances - 0.05**2).sum(), 0)) / len(K)


def spread_ratio(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    seed: int = 0,
) -> stats.Estimate:
    """The spread of the keys' rates of false alarms divided by what K says; keys are resampled."""
    return stats.bootstrap(false_alarms(psi) / predicted_spread(K), np.std, seed=seed)


def audited(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> dict[str, float]:
    """What single keys do to texts of a kind: rates of false alarms over keys, by ψ and by
    innovations r, with the law's prediction.
    """
    r, residuals = joint.law.innovations(psi, K)
    by_psi = false_alarms(psi)
    by_r = false_alarms(r)
    n = len(K)
    return {
        "n": n,
        "keys": len(psi),
        "mean cosine": float((K.sum() - np.trace(K)) / (n * (n - 1))),
        "residual": np.median(residuals),
        "sd": float(by_psi.std()),
        "sd predicted": predicted_spread(K),
        "max ψ": float(by_psi.max()),
        "max r": float(by_r.max()),
        "sd r": float(by_r.std()),
        "sd binomial": np.sqrt(0.05 * 0.95 / (residuals > 0).sum()),
    }


def squares_p(r: Float[np.ndarray, "keys n"]) -> float:
    """Two-sided p of Σ r², which is χ² where all innovations are independent N(0, 1)."""
    r = r[~np.isnan(r)]
    tail = chi2.sf((r**2).sum(), len(r))
    return 2 * min(tail, 1 - tail)


def split(several: Human, n: int) -> tuple[Human, Human]:
    """The first n texts of a kind as references, and the others; at least a third are others."""
    n = min(n, len(several.prompts) - max(2, len(several.prompts) // 3))
    return Human(*(column[:n] for column in several)), Human(*(column[n:] for column in several))


def after_references(
    lm: models.LM,
    references: Human,
    others: Human,
    keys: Sequence[perturb.Key],
    wm: perturb.Watermark,
    n_tokens: int,
    *,
    dtype: str | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> pd.DataFrame:
    """Texts of a kind marked under a key each, after the prompts of ``others``, as many as there
    are keys or prompts. Each is tested by ψ and by its innovation given human reference texts:
    one row per text, ``file, psi, innovation, residual, usual``.

    ``usual`` is the residual of what a human wrote after the same prompt: if the marked text were
    as new as that, the innovation would be N(usual·m, 1) where ψ is N(m, 1).
    """
    n = min(len(keys), len(others.prompts))
    keys = keys[:n]
    human = [column[:n] for column in others]
    prompts = [lm.continuation(lm.decode(ids)) for ids in human[0]]
    marks = [(wm, key) for key in keys]
    options = {"seed": seed, "batch_size": batch_size}
    responses = generate.sample(lm.model, prompts, n_tokens, marks=marks, **options)
    wm = wm.on(lm.model)
    known = gradients(lm, references.prompts, references.responses, wm, dtype)
    marked = gradients(lm, prompts, responses, wm, dtype)
    psi = score.psi(marked, wm, keys, paired=True)
    u = units(known)
    inverse = np.linalg.pinv(joint.directions.inner(u, u), rcond=1e-6, hermitian=True)

    def given(
        each: Sequence[TextGradient],
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the references say of each text: weights of their ψ, and the residual."""
        k = joint.directions.inner(units(each), u)  # (texts, references)
        weights = k @ inverse
        return weights, np.sqrt(np.maximum(1 - (weights * k).sum(1), 1e-6))

    weights, residual = given(marked)
    _, usual = given(gradients(lm, *human[:2], wm, dtype))
    expected = (weights * score.psi(known, wm, keys).T).sum(1)
    columns = {
        "psi": psi,
        "innovation": (psi - expected) / residual,
        "residual": residual,
    }
    return pd.DataFrame({"file": human[2]} | columns | {"usual": usual})


def power_by_kind(marked: pd.DataFrame) -> pd.DataFrame:
    """Share of marked texts detected at level 0.05, with intervals over files: ``kind, test, value,
    low, high, n``.

    Given ψ, the innovation of a text with residual s is N(s·ψ, 1 − s²).
    """
    s = marked["usual"].clip(upper=1 - 1e-9)
    tests = {
        "ψ": marked["psi"] >= TAU,
        "innovation": marked["innovation"] >= TAU,
        "innovation, if as new as human text": norm.cdf(
            (s * marked["psi"] - TAU) / np.sqrt(1 - s**2)
        ),
    }
    hits = marked[["kind", "file"]].assign(**tests).melt(["kind", "file"], var_name="test")
    return means(
        hits.astype({"value": float}),
        ["kind", "test"],
        "value",
        "file",
        share=True,
    )


def share_kept(marked: pd.DataFrame) -> stats.Estimate:
    """Mean innovation divided by mean ψ, less the mean residual of human texts after the same
    prompts; the interval is over files.
    """

    def kept(rows: pd.DataFrame) -> float:
        return rows["innovation"].mean() / rows["psi"].mean() - rows["usual"].mean()

    return stats.interval(marked, kept, cluster=marked["file"])


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


def nearest_pair(K: Float[np.ndarray, "n n"], cosine: float) -> tuple[int, int]:
    """The two texts whose cosine is nearest to this one."""
    distance = np.abs(K - cosine) + np.eye(len(K))
    first, second = np.unravel_index(distance.argmin(), distance.shape)
    return int(first), int(second)


def kind_of_pairs(K: Mapping[str, Float[np.ndarray, "n n"]]) -> str:
    """Return the kind of text that pairs of texts are shown of.

    This is ``"source"`` where it is among the kinds. Otherwise it is the kind with the largest
    cosine between two of its texts.
    """
    if "source" in K:
        return "source"
    largest_cosines = {kind: (cosines - np.eye(len(cosines))).max() for kind, cosines in K.items()}
    return max(largest_cosines, key=largest_cosines.get)


def after_a_high_one(two: Float[np.ndarray, "keys 2"], cosine: float) -> str:
    """The sentence of what ψ₂ is where ψ₁ is above 1, and of what the line says."""
    high = two[two[:, 0] > 1]
    return (
        f"Of the {len(two)} keys, {len(high)} have ψ₁ above 1, on average {high[:, 0].mean():.2f};"
        f" there ψ₂ is on average {high[:, 1].mean():.2f}, and the line says"
        f" {cosine * high[:, 0].mean():.2f}. At ψ₁ = 3 it says {3 * cosine:.1f}."
    )


def two_texts(psi: Float[np.ndarray, "keys 2"], cosine: float, caption: str) -> Figure:
    """ψ of a second text against ψ of a first one, a dot per key."""
    figure, axes = plt.subplots(figsize=(6.0, 4.4))
    axes.plot(*psi.T, ".", color=style.PLAIN, alpha=0.5, label="a key")
    ends = np.array([-3.5, 3.5])
    axes.plot(ends, cosine * ends, **style.THIN, label=f"ψ₂ = {cosine:.2f} ψ₁")
    axes.plot(
        3,
        cosine * 3,
        "o",
        color=style.WATERMARKED,
        markersize=9,
        label="ψ₁ = 3",
    )
    axes.set(xlabel="ψ₁, first text", ylabel="ψ₂, second text", aspect="equal")
    return style.caption(figure, caption, "Two human texts: what does ψ₁ say about ψ₂?")


def per_key(rates: pd.DataFrame, caption: str) -> Figure:
    """Each key's rate of false alarms by kind (columns ``kind, statistic, rate``)."""
    figure, axes = plt.subplots(figsize=(7.4, 4.4))
    look = {
        "dodge": True,
        "alpha": 0.7,
        "size": 4,
        "jitter": 0.3,
        "legend": False,
    }
    palette = {"ψ": style.WRONG_KEY, "innovation": style.PLAIN}
    axes.axvline(0.05, **style.THIN, label="level 0.05")
    sns.stripplot(
        rates,
        x="rate",
        y="kind",
        hue="statistic",
        palette=palette,
        ax=axes,
        **look,
    )
    for name in rates["statistic"].unique():
        axes.plot([], [], "o", color=palette[name], label=f"a key, by {name}")
    axes.set(
        xlabel="share of the kind's human texts that one key calls marked",
        ylabel="",
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, "How far do single keys lie from the level?")
