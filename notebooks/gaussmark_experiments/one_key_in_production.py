"""One key and many texts: what it does to text of each kind, what the joint law predicts
(``joint.law``), and what innovations cost if texts are marked.

Human texts do not depend on a key, so over keys their ψ are N(0, K), whatever the kind.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import chi2, multivariate_normal, norm
from torch import Tensor

from gaussmark_experiments import level_check
from gaussmark_experiments.whose_text import gradients
from gaussmark_lib import (
    generate,
    models,
    perturb,
    score,
    stats,
    texts,
)
from gaussmark_lib.beyond import joint
from gaussmark_lib.engine import corpus, human_texts
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.workbench import answers, runs
from gaussmark_lib.workbench.pairs import means
from gaussmark_lib.workbench.plots import style

# Kinds of human text in addition to those of ``texts``: (packages, ending of the files).
FILES = {
    "readmes": (corpus.PACKAGES, "METADATA"),  # what packages say about themselves
    "headers": (("torch",), ".h"),  # C++ declarations
    "tables": (("scikit-learn",), ".csv"),  # numbers
}
# "training" is what doclm was trained on.
KINDS = ("docs", "training", "licences", "source", *FILES)
PER_FILE = 8  # lengths of a text that are read of a file; the first of them is left out
NOTEBOOK = "12_one_key_in_production"
KEPT = "kept by innovations of watermarked text"
EXPECTED = "expected from human text: its residual"
LEVEL = 0.05
TAU = stats.threshold(LEVEL)


class Human(NamedTuple):
    """Human texts, and the file that each text comes from."""

    prompts: list[list[int]]
    responses: list[list[int]]
    files: list[str]


def human(
    lm: models.LM,
    kind: str,
    n: int,
    *,
    least: int | None = None,
    prompt_tokens: int = 32,
    n_tokens: int = 150,
    seed: int = 0,
) -> Human:
    """Return n texts of one of ``KINDS``, or of a file of texts, from as many files as possible.
    The seed orders the files.

    Args:
        least: how many texts are enough; None: n.

    Raises:
        InvalidTextError: if there are fewer texts.
    """
    least = n if least is None else least
    wanted = prompt_tokens + n_tokens
    pieces = list(islice(_pieces(lm, kind, wanted, seed), n))
    if len(pieces) < least:
        raise InvalidTextError(
            f"{kind}: expected at least {least} texts of {wanted} tokens, got {len(pieces)}; ask"
            " for fewer or shorter texts"
        )
    files, ids = zip(*pieces, strict=True)
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
    """Write n texts by another model after prompts of a kind. Each text is a file of its own.
    Options are ``seed, batch_size`` of ``level_check.written_by``.
    """
    prompts, responses = level_check.written_by(
        writer,
        lm,
        text,
        n,
        prompt_tokens=prompt_tokens,
        n_tokens=n_tokens,
        **options,
    )
    files = [f"{writer.name}:{number}" for number in range(n)]
    return Human(prompts, responses, files)


def _pieces(lm: models.LM, kind: str, wanted: int, seed: int) -> Iterator[tuple[str, list[int]]]:
    """First a piece of every file, then a second piece of every file, and so on. The order of the
    files depends on their names and the seed, not on their size.
    """
    if kind in FILES:
        yield from _pieces_of_files(lm, kind, wanted, seed)
        return
    name, split = ("docs", "train") if kind == "training" else (kind, "heldout")
    min_chars = 6 * wanted if kind in (*KINDS, *texts.KINDS) else 1
    for row in texts.load(name, split=split, min_chars=min_chars, seed=seed):
        ids = lm.encode(row["text"])
        if len(ids) >= wanted:
            yield row["source"], ids[:wanted]


def _pieces_of_files(
    lm: models.LM, kind: str, wanted: int, seed: int
) -> Iterator[tuple[str, list[int]]]:
    packages, ending = FILES[kind]
    files = {}
    for package in packages:
        files |= dict(corpus.files_of(package, ending))
    names = human_texts.in_order(files, seed)
    n_chars = 8 * wanted * PER_FILE  # more than so many tokens have
    # no piece is a file's first: files begin with much the same lines
    for start in range(wanted, PER_FILE * wanted, wanted):
        for name in names:
            text = files[name].read_text(encoding="utf-8", errors="ignore")
            ids = lm.encode(text[:n_chars])[start : start + wanted]
            if len(ids) == wanted:
                yield name, ids


def units(gradients: Sequence[TextGradient]) -> Float[Tensor, "n d"]:
    """Return u_i = G_i/‖G_i‖, a row per text."""
    return torch.stack([joint.directions.kept(gradient) for gradient in gradients])


def against_keys(
    lm: models.LM,
    human: Human,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    dtype: str | None = None,
) -> tuple[Float[np.ndarray, "keys n"], Float[np.ndarray, "n n"]]:
    """Return ψ of human texts under each key, and their K, which needs no key."""
    of_texts = gradients(lm, human.prompts, human.responses, wm, dtype)
    psi = score.psi(of_texts, wm.on(lm.model), keys)  # (texts, keys)
    return psi.T, cosines([units(of_texts)])


def cosines(
    directions: Sequence[Float[Tensor, "_ d"]],
) -> Float[np.ndarray, "n n"]:
    """Return K of the texts of several kinds, in their order."""
    inner = joint.directions.inner
    # kind by kind: the directions of all texts together may be too large to stack
    return np.block([[inner(rows, columns) for columns in directions] for rows in directions])


def false_alarms(
    values: Float[np.ndarray, "keys n"],
) -> Float[np.ndarray, " keys"]:
    """Return each key's share of texts that it flags at level 0.05. NaN is left out."""
    n_alarms = (values >= TAU).sum(1)  # NaN compares as False
    n_texts = (~np.isnan(values)).sum(1)
    return n_alarms / n_texts


def predicted_spread(K: Float[np.ndarray, "n n"]) -> float:
    """Return the standard deviation over keys of a key's false-alarm rate, from K alone:
    √(Σ_ij [Φ₂(τ, τ; K_ij) − α²])/n.
    """
    grid = np.linspace(-0.999, 0.999, 81)
    both_alarm = [multivariate_normal(cov=[[1, rho], [rho, 1]]).cdf([-TAU, -TAU]) for rho in grid]
    chances = np.interp(K, grid, both_alarm)
    np.fill_diagonal(chances, LEVEL)  # a text and itself
    variance = max((chances - LEVEL**2).sum(), 0)
    return np.sqrt(variance) / len(K)


def spread_ratio(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    seed: int = 0,
) -> stats.Estimate:
    """Divide the spread of the keys' false-alarm rates by its prediction from K. Keys are
    resampled.
    """
    return stats.bootstrap(false_alarms(psi) / predicted_spread(K), np.std, seed=seed)


def audited(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> dict[str, float]:
    """Summarise what single keys do to texts of a kind: false-alarm rates over keys, by ψ and by
    innovations r, with the law's prediction.
    """
    r, residuals = joint.law.innovations(psi, K)  # (keys, n) and (n,)
    by_psi = false_alarms(psi)
    by_r = false_alarms(r)
    n = len(K)
    n_new = (residuals > 0).sum()  # texts that say anything new
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
        "sd binomial": np.sqrt(LEVEL * (1 - LEVEL) / n_new),
    }


def one_key_on(kind: str) -> pd.DataFrame:
    """Return what single keys do to human texts of a kind in the records of notebook 12, and in
    those records of notebook 02 that tried other fixed keys: a row per record.
    """
    rows = []
    for run in runs.references(NOTEBOOK):
        audit = run.table("audit").set_index("kind")
        if kind in audit.index:
            row = audit.loc[kind]
            rows.append((run, row["n"], row["keys"], row["mean cosine"], row["sd"], row["max ψ"]))
    for run in runs.references(level_check.NOTEBOOK):
        row = run.results.get("spread", {}).get(kind)
        if row:
            sizes = run.params["n_fixed_texts"], run.params["n_fixed_keys"]
            rows.append((run, *sizes, row["cosine"], row["spread"], row["largest"]))
    table = pd.DataFrame(rows, columns=["record", "texts", "keys", "cosine", "sd", "worst"])
    independent = np.sqrt(LEVEL * (1 - LEVEL) / table["texts"])
    columns = {
        "model": [answers.title(run) for run in table["record"]],
        "measured by notebook": ["02" if "level" in run.id else "12" for run in table["record"]],
        f"texts ({kind})": table["texts"].astype(int),
        "keys": table["keys"].astype(int),
        "mean cosine": table["cosine"].round(3),
        "spread of the keys' rates ÷ that of independent texts": (table["sd"] / independent),
        "share flagged by the worst key": table["worst"].map("{:.0%}".format),
    }
    shown = pd.DataFrame(columns).round(2).sort_values("model", key=lambda it: it == "doclm")
    return shown.set_index("model")


def squares_p(r: Float[np.ndarray, "keys n"]) -> float:
    """Return the two-sided p of Σ r², which is χ² if all innovations are independent N(0, 1)."""
    r = r[~np.isnan(r)]
    tail = chi2.sf((r**2).sum(), len(r))
    return 2 * min(tail, 1 - tail)


def split(several: Human, n: int) -> tuple[Human, Human]:
    """Split the texts of a kind into the first n as references, and the others. At least a third
    are others.
    """
    n_texts = len(several.prompts)
    n = min(n, n_texts - max(2, n_texts // 3))
    references = Human(*(column[:n] for column in several))
    further = Human(*(column[n:] for column in several))
    return references, further


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
    """Write marked texts of a kind, and test each by ψ and by its innovation given human reference
    texts.

    The texts follow the prompts of ``others`` under a key each, as many as there are keys or
    prompts.

    Returns:
        One row per text, ``file, psi, innovation, residual, usual``. ``usual`` is the residual of
        what a human wrote after the same prompt. If the marked text were as new as that, the
        innovation would be N(usual·m, 1) where ψ is N(m, 1).
    """
    n = min(len(keys), len(others.prompts))
    keys = keys[:n]
    human = Human(*(column[:n] for column in others))
    prompts = [lm.continuation(lm.decode(ids)) for ids in human.prompts]
    marks = [(wm, key) for key in keys]
    responses = generate.sample(
        lm.model,
        prompts,
        n_tokens,
        marks=marks,
        seed=seed,
        batch_size=batch_size,
    )
    wm = wm.on(lm.model)
    of_references = gradients(lm, references.prompts, references.responses, wm, dtype)
    of_marked = gradients(lm, prompts, responses, wm, dtype)
    of_human = gradients(lm, human.prompts, human.responses, wm, dtype)
    u = units(of_references)
    inverse = np.linalg.pinv(joint.directions.inner(u, u), rcond=1e-6, hermitian=True)
    weights, residual = _given_references(of_marked, u, inverse)
    _, usual = _given_references(of_human, u, inverse)
    psi = score.psi(of_marked, wm, keys, paired=True)
    psi_of_references = score.psi(of_references, wm, keys).T  # (keys, references)
    expected = (weights * psi_of_references).sum(1)
    columns = {
        "file": human.files,
        "psi": psi,
        "innovation": (psi - expected) / residual,
        "residual": residual,
        "usual": usual,
    }
    return pd.DataFrame(columns)


def _given_references(
    of_texts: Sequence[TextGradient],
    u: Float[Tensor, "references d"],
    inverse: Float[np.ndarray, "references references"],
) -> tuple[Float[np.ndarray, "texts references"], Float[np.ndarray, " texts"]]:
    """What the references say of each text: the weights of their ψ, and the residual."""
    k = joint.directions.inner(units(of_texts), u)  # (texts, references)
    weights = k @ inverse
    explained = (weights * k).sum(1)
    return weights, np.sqrt(np.maximum(1 - explained, 1e-6))


def share_kept(marked: pd.DataFrame) -> stats.Estimate:
    """Return the mean innovation divided by the mean ψ, less the mean residual of human texts after
    the same prompts. The interval is over files.
    """

    def kept(rows: pd.DataFrame) -> float:
        return rows["innovation"].mean() / rows["psi"].mean() - rows["usual"].mean()

    return stats.interval(marked, kept, cluster=marked["file"])


def any_alarm(psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]) -> pd.DataFrame:
    """Return how often a batch of human texts raises any alarm at level 0.05, by three corrections:
    ``method, value, low, high, n`` (keys).
    """
    n = psi.shape[1]  # texts of the batch
    highest = psi.max(1)  # of each key
    fisher = -2 * norm.logsf(psi).sum(1)  # χ² with 2n degrees of freedom if the ψ are independent
    alarms = {
        "Bonferroni": norm.sf(highest) * n <= LEVEL,
        "Fisher's sum": chi2.sf(fisher, 2 * n) <= LEVEL,
        "joint law": joint.family(highest, K) <= LEVEL,
    }
    return means(
        pd.DataFrame(alarms).melt(var_name="method"),
        ["method"],
        "value",
    )


def nearest_pair(K: Float[np.ndarray, "n n"], cosine: float) -> tuple[int, int]:
    """Return the two texts whose cosine is nearest to ``cosine``."""
    distance = np.abs(K - cosine) + np.eye(len(K))  # a text and itself are no pair
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
    """Word the mean ψ₂ of the keys with ψ₁ above 1, and what the line predicts."""
    high = two[two[:, 0] > 1]
    psi_1, psi_2 = high.mean(0)
    return (
        f"{len(high)} of the {len(two)} keys have ψ₁ above 1, on average {psi_1:.2f}. For these"
        f" keys, ψ₂ is on average {psi_2:.2f}; the line predicts {cosine * psi_1:.2f}. At ψ₁ = 3,"
        f" the line predicts {3 * cosine:.1f}."
    )


def two_texts(psi: Float[np.ndarray, "keys 2"], cosine: float, caption: str) -> Figure:
    """Draw ψ of a second text against ψ of a first text, a dot per key."""
    figure, axes = plt.subplots(figsize=(6.0, 4.4))
    axes.plot(*psi.T, ".", color=style.PLAIN, alpha=0.5, label="one key")
    ends = np.array([-3.5, 3.5])
    axes.plot(
        ends,
        cosine * ends,
        **style.THIN,
        label=f"ψ₂ = {cosine:.2f} ψ₁",
    )
    axes.plot(
        3,
        cosine * 3,
        "D",
        color=style.THEORY,
        markersize=7,
        label="prediction at ψ₁ = 3",
    )
    axes.set(
        xlabel="ψ₁, first text",
        ylabel="ψ₂, second text",
        aspect="equal",
    )
    return style.caption(figure, caption, "Two human texts: what does ψ₁ say about ψ₂?")


def in_words(audit: pd.DataFrame) -> str:
    """Say on which kind of text keys differ most, of a table of :func:`audited` by ``kind``."""
    ratios = audit["sd"] / _independent(audit)
    row = audit.loc[ratios.idxmax()]
    return (
        f"keys differ most on {row['kind']}: their rates spread {ratios.max():.1f} times as widely"
        f" as for independent texts (mean cosine {row['mean cosine']:.2f}), and the worst of"
        f" {row['keys']:,.0f} keys flags {row['max ψ']:.0%} of the {row['n']:.0f} texts"
    )


def _independent(audit: pd.DataFrame) -> pd.Series:
    """The spread of the keys' rates if the texts of a kind were independent."""
    return np.sqrt(LEVEL * (1 - LEVEL) / audit["n"])


def fisher_in_words(batch: pd.DataFrame) -> str:
    """Say for which kind of text Fisher's sum raises the most false alarms, and how many the two
    other corrections raise at most (columns of :func:`any_alarm`, and ``kind``).
    """
    fisher = batch[batch["method"] == "Fisher's sum"]
    worst = fisher.sort_values("value").iloc[-1]
    others = batch[batch["method"] != "Fisher's sum"].groupby("method")["value"].max()
    at_most = ", ".join(f"{method} {value:.0%}" for method, value in others.items())
    return (
        f"Fisher's sum raises a false alarm under {worst['value']:.0%} of {worst['n']:,} keys on"
        f" {worst['kind']}; the other two tests, each on its worst kind: {at_most}"
    )


def kept(marked: pd.DataFrame, kind: str) -> stats.Estimate | None:
    """Return the mean innovation divided by the mean ψ of the marked texts of a kind, with the
    interval over files; None if the kind has no texts.
    """
    rows = marked[marked["kind"] == kind]
    if rows.empty:
        return None
    return stats.ratio(rows["innovation"], rows["psi"], cluster=rows["file"])


def kept_by_kind(marked: pd.DataFrame) -> pd.DataFrame:
    """Return what share of ψ innovations keep, by kind and run, and the residual of human text
    after the same prompts, which we expected it to be (for ``panels``).
    """
    tables = []
    for (run, kind), rows in marked.groupby(["run", "kind"], sort=False):
        human = stats.interval(rows["usual"], cluster=rows["file"])
        shares = {KEPT: kept(rows, kind), EXPECTED: human}
        tables += [
            {"run": run, "kind": kind, "share": name, **share.row()}
            for name, share in shares.items()
        ]
    return pd.DataFrame(tables)


def draw_law(audits: pd.DataFrame, caption: str) -> Figure:
    """Draw the measured spread of the keys' rates against the spread that K predicts, both in units
    of the spread for independent texts, a point per kind and ``run``.
    """
    figure, axes = plt.subplots(figsize=(7.4, 4.8))
    for run, audit in audits.groupby("run", sort=False):
        independent = _independent(audit)
        look = style.look(run)
        axes.plot(
            audit["sd predicted"] / independent,
            audit["sd"] / independent,
            linestyle="none",
            marker=look["marker"],
            color=look["color"],
            label=run,
            zorder=3,
        )
    axes.axline((1, 1), slope=1, **style.THIN, label="as K predicts")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="predicted from K ÷ independent texts",
        ylabel="measured over keys ÷ independent texts",
    )
    for axis in (axes.xaxis, axes.yaxis):
        style.few_log_ticks(axis)
    is_source = audits["kind"] == "source"
    for _, row in audits[is_source].iterrows():
        independent = np.sqrt(LEVEL * (1 - LEVEL) / row["n"])
        place = (row["sd predicted"] / independent, row["sd"] / independent)
        axes.annotate(
            "source",
            place,
            (-10, 4),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )
    style.legend_beside(axes)
    title = "Does K predict how much the false-alarm rate differs from key to key?"
    return style.caption(figure, caption, title)


def spreads_by_test(audits: pd.DataFrame) -> pd.DataFrame:
    """Return how widely the keys' rates spread, divided by the spread of independent texts, for ψ
    and for innovations (for ``panels``: ``run, kind, test, value``).
    """
    by_psi = audits.assign(test="tested by ψ", value=audits["sd"] / _independent(audits))
    by_r = audits.assign(test="tested by innovations", value=audits["sd r"] / audits["sd binomial"])
    return pd.concat([by_psi, by_r], ignore_index=True)[["run", "kind", "test", "value"]]


def copies_in_words(audit: pd.DataFrame) -> str:
    """Say which kinds have texts without anything new, and how many. Such texts lack an innovation.
    ``audit`` is a table of :func:`audited` by ``kind``.
    """
    n_new = LEVEL * (1 - LEVEL) / audit["sd binomial"] ** 2
    n_copies = (audit["n"] - n_new).round().astype(int)
    copies = [
        f"{n} of the {n_texts:.0f} texts of {kind}"
        for n, n_texts, kind in zip(n_copies, audit["n"], audit["kind"], strict=True)
        if n
    ]
    return ", ".join(copies) or "none"


def per_key(rates: pd.DataFrame, caption: str) -> Figure:
    """Draw how the keys' false-alarm rates are distributed, a row of bars per kind (columns ``kind,
    rate``).
    """
    figure, axes = plt.subplots(figsize=(7.4, 4.6))
    kinds = list(rates["kind"].unique())
    counted = {kind: _counted(rates.loc[rates["kind"] == kind, "rate"]) for kind in kinds}
    tallest = max(shares.max() for _, shares in counted.values())
    for row, (centres, shares) in enumerate(counted.values()):
        axes.bar(
            centres,
            -0.75 * shares / tallest,  # upwards: the first row is on top
            width=0.8 * (centres[1] - centres[0]),
            bottom=row + 0.4,
            color=style.WRONG_KEY,
            linewidth=0,
            label="share of the keys" if row == 0 else None,
        )
        worst = rates.loc[rates["kind"] == kinds[row], "rate"].max()
        axes.plot(worst, row + 0.3, "k.", label="the worst key" if row == 0 else None)
    axes.axvline(LEVEL, **style.DASHED, zorder=3, label=f"level {LEVEL:g}")
    style.categories(axes, kinds)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="share of the kind's human texts that one key flags", ylabel="")
    style.legend_beside(axes)
    title = "How far are the false-alarm rates of single keys from the level?"
    return style.caption(figure, caption, title)


def _counted(
    rates: pd.Series,
) -> tuple[Float[np.ndarray, " bars"], Float[np.ndarray, " bars"]]:
    """Return the centres of bars from 0 to the largest rate, and the share of rates in each bar.
    A bar covers a single possible rate, or is 0.01 wide.
    """
    gaps = np.diff(np.unique([0.0, *rates]))  # the least is 1 / texts
    width = max(gaps[gaps > 1e-9].min(initial=LEVEL), 0.01)
    n_bars = max(round(rates.max() / width) + 1, 2)
    centres = width * np.arange(n_bars)
    edges = width * (np.arange(n_bars + 1) - 0.5)
    edges[-1] = np.inf
    return centres, np.histogram(rates, edges)[0] / len(rates)
