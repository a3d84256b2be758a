"""03: how much text detection needs. One generation, tested at every length (paper, Sec. "Can
GaussMark be detected?", Figs. 1 and 2).

A row is one text of a pair of a fresh prompt and a fresh key (``pairs.scored``), so that rows of
one kind and length are independent.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.metrics import roc_curve

from gaussmark_lib import gradients, likelihood, models, score, stats
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import (
    OWN,
    PLAIN,
    Pairs,
    under_own_keys,
)
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels

LEVELS = (0.05, 0.01)
BINS = 6  # of tokens, by entropy
ENTROPY = "entropy of the base model at temperature 1, nats"


def detection_rates(table: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """Return the share of each kind of text that is called watermarked, and of marked text the
    share that plain text predicts, the mean of Φ(σ‖G‖ − τ): ``n_tokens, level, kind, value, low,
    high, n``.
    """
    rows = []
    for (n_tokens, kind), texts in table.groupby(["n_tokens", "kind"], sort=False):
        for level in LEVELS:
            tau = stats.threshold(level)  # of N(0, 1), which holds without a watermark
            where = {"n_tokens": n_tokens, "level": f"level {level}"}
            detected = stats.interval(texts["psi"] >= tau)
            rows.append({**where, "kind": kind, **detected.row()})
            if kind == PLAIN:
                # plain text predicts the power on marked text after the same prompt
                predicted = stats.interval(norm.cdf(sigma * texts["grad_norm"] - tau))
                rows.append({**where, "kind": "predicted", **predicted.row()})
    return pd.DataFrame(rows)


def power_gap(table: pd.DataFrame, sigma: float) -> stats.Estimate:
    """Subtract predicted from measured power at level 0.05: from a pair's hit (1 or 0) Φ(σ‖G‖ − τ)
    of its plain text, mean over the lengths.
    """
    pairs = _side_by_side(table)
    tau = stats.threshold(0.05)
    hits = pairs["psi", OWN] >= tau
    predicted = norm.cdf(sigma * pairs["grad_norm", PLAIN] - tau)
    gaps = hits - predicted  # a row per pair and length
    return stats.interval(gaps.groupby("prompt").mean())


def _side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """ψ and ‖G‖ of each kind, one row per pair and length that has all kinds."""
    values = ["psi", "grad_norm"]  # columns are (value, kind)
    return table.pivot(index=["prompt", "n_tokens"], columns="kind", values=values).dropna()


def over_prediction(table: pd.DataFrame, sigma: float) -> stats.Estimate:
    """Divide mean ψ of marked texts by the mean σ‖G‖ of the plain texts after the same prompts.
    Each pair counts with its mean over the lengths; pairs are resampled.
    """
    pairs = _side_by_side(table).groupby("prompt").mean()  # mean over the lengths
    return stats.ratio(pairs["psi", OWN], sigma * pairs["grad_norm", PLAIN])


def without_prompts(
    lm: models.LM,
    pairs: Pairs,
    marked: Texts,
    plain: Texts,
    wm: Watermark,
    **options,
) -> pd.DataFrame:
    """Test marked and plain texts under the keys of their pairs, as a detector does that does not
    know the prompts: the table of ``score.score`` with ``prompt`` and ``kind``. Options are
    ``lengths, dtype``.
    """
    responses = [*marked, *plain]
    unknown = [lm.unknown_prompt() for _ in responses]  # what the model reads in place of a prompt
    table = score.score(
        lm.model,
        unknown,
        responses,
        wm,
        pairs.keys * 2,
        paired=True,
        **options,
    )
    kind, pair = np.divmod(table["text"], pairs.n)  # the marked texts come first
    return table.assign(prompt=pair, kind=np.array([OWN, PLAIN])[kind])


def share_kept(unknown: pd.DataFrame, known: pd.DataFrame) -> stats.Estimate:
    """Divide mean ψ of marked texts whose prompt is unknown by their mean ψ with a known prompt.
    Each pair counts with its mean over the lengths; pairs are resampled.
    """
    return stats.ratio(_psi_of_prompts(unknown), _psi_of_prompts(known))


def _psi_of_prompts(table: pd.DataFrame) -> pd.Series:
    """Mean ψ of each prompt's marked text over the lengths."""
    marked = table[table["kind"] == OWN]
    return marked.groupby("prompt")["psi"].mean()


def by_length(known: pd.DataFrame, unknown: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """Return :func:`over_prediction` and :func:`share_kept` at each length, for ``panels``."""
    rows = []
    for n_tokens in sorted(known["n_tokens"].unique()):
        of_known = known[known["n_tokens"] == n_tokens]
        of_unknown = unknown[unknown["n_tokens"] == n_tokens]
        ratios = {
            "ψ ÷ σ‖G‖": over_prediction(of_known, sigma),
            "ψ, prompt unknown ÷ known": share_kept(of_unknown, of_known),
        }
        for name, ratio in ratios.items():
            rows.append({"n_tokens": n_tokens, "ratio": name, **ratio.row()})
    return pd.DataFrame(rows)


def spread_of_norms(norms: pd.DataFrame) -> stats.Estimate:
    """Divide the largest ‖G‖ among the answers to a prompt by the smallest, mean over prompts."""
    of_prompts = norms.groupby("prompt")["grad_norm"]  # each prompt has several answers
    return stats.mean(of_prompts.max() / of_prompts.min())


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the area under the ROC at each length: ``n_tokens, value, low, high, n``."""
    rows = []
    for n_tokens, texts in table.groupby("n_tokens"):
        psi = texts.pivot(index="prompt", columns="kind", values="psi")
        pairs = psi[[OWN, PLAIN]].dropna()
        area = stats.interval(pairs, auc, share=True)
        rows.append({"n_tokens": n_tokens, **area.row()})
    return pd.DataFrame(rows)


def auc(psi: pd.DataFrame) -> float:
    """Return the probability that ψ of a marked text exceeds ψ of a plain text, over all pairs of
    texts.
    """
    marked = psi[OWN].to_numpy()
    plain = psi[PLAIN].to_numpy()
    return np.greater.outer(marked, plain).mean()


def norm_per_token(plain: pd.DataFrame) -> float:
    """Return the slope of ‖G‖² against the length, by least squares through zero."""
    lengths = plain["n_tokens"]
    squares = plain["grad_norm"] ** 2
    return (squares * lengths).sum() / (lengths**2).sum()


def token_gradients(
    lm: models.LM,
    prompts: Texts,
    responses: Texts,
    weight: str,
    every: int,
    **options,
) -> pd.DataFrame:
    """Return ‖∇ log p(v_t | x, v_<t)‖ of every ``every``-th token alone: ``text, position,
    grad_norm, entropy`` (nats, before the token). Options are ``dtype`` of ``gradients.norms``.
    """
    # nats, before each token of each text
    entropies = likelihood.entropies(lm.model, prompts, responses)
    rows = []
    prefixes = []
    single = []
    for i, response in enumerate(responses):
        for t in range(0, len(response), every):
            rows.append((i, t, entropies[i][t]))
            prefixes.append([*prompts[i], *response[:t]])  # the token's prompt
            single.append([response[t]])
    norms = gradients.norms(lm.model, prefixes, single, [weight], **options)
    table = pd.DataFrame(rows, columns=["text", "position", "entropy"])
    table.insert(2, "grad_norm", norms["grad_norm"])
    return table


def by_temperature(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    temperatures: Sequence[float],
    n_tokens: int,
    **options,
) -> pd.DataFrame:
    """Sample marked texts at several temperatures, with the same random numbers, and test them.

    Returns:
        The table of ``pairs.under_own_keys`` with ``temperature`` and ``entropy``, the mean over
        the text (nats; of the base model at temperature 1: how much freedom it sees there). Options
        are those of ``pairs.under_own_keys``.
    """
    tables = []
    for temperature in temperatures:
        texts, scores = under_own_keys(
            lm, pairs, [wm], n_tokens, temperature=temperature, **options
        )
        # of each text
        entropy = [nats.mean() for nats in likelihood.entropies(lm.model, pairs.prompts, texts)]
        tables.append(scores.assign(temperature=temperature, entropy=entropy))
    return pd.concat(tables, ignore_index=True)


def gain(table: pd.DataFrame) -> stats.Estimate:
    """Subtract ψ at the lowest temperature from ψ at the highest, of the same pair."""
    psi = table.pivot(index="text", columns="temperature", values="psi")  # (pairs, temperatures)
    return stats.interval(psi[psi.columns.max()] - psi[psi.columns.min()])


def rank_correlation(table: pd.DataFrame) -> float:
    """Correlate a table's two columns (Spearman). The value is NaN if a column is constant."""
    return table.corr("spearman").iloc[0, 1]


def draw_p(table: pd.DataFrame, caption: str) -> Figure:
    """Draw p against the length: a thin line per text, and the medians of marked and plain text."""
    figure, axes = plt.subplots()
    for kind, label in (
        (PLAIN, "plain"),
        (OWN, "watermarked, own key"),
    ):
        of_kind = table[table["kind"] == kind]
        p = of_kind.pivot(index="n_tokens", columns="text", values="p_value")  # (lengths, texts)
        colour = style.look(kind)["color"]
        axes.plot(
            p.iloc[:, :25], color=colour, alpha=0.25, linewidth=0.7
        )  # few enough to tell apart
        axes.plot(
            p.median(axis=1),
            "o-",
            color=colour,
            linewidth=2.5,
            label=f"median, {label}",
        )
    axes.axhline(0.05, **style.DASHED, label="level 0.05")
    axes.set(
        yscale="log",
        xlabel=style.TOKENS,
        ylabel="p-value",
        ylim=(1e-7, 1.3),
    )
    style.log_ticks(axes, table["n_tokens"])
    return style.caption(
        figure,
        caption,
        "How does the p-value of a text change with its length?",
    )


def draw_power(detection: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`detection_rates` against the length, a panel per level."""
    return panels(
        detection,
        "n_tokens",
        by="kind",
        panel="level",
        title="What share of the texts is detected, and what share is predicted?",
        caption=f"{caption}. Bars: 95% intervals, exact for shares.",
        xlabel=style.TOKENS,
        ylabel="share called watermarked",
        xscale="log",
        ylim=(-0.02, 1.02),
    )


def draw_roc(table: pd.DataFrame, aucs: pd.DataFrame, caption: str) -> Figure:
    """Draw the ROC at each length, with its area."""
    figure, axes = plt.subplots(figsize=(6.5, 4.5))
    colours = sns.color_palette("viridis", len(aucs))  # dark to light: short to long
    for colour, row in zip(colours, aucs.itertuples(), strict=True):
        of_length = table[table["n_tokens"] == row.n_tokens]
        psi = of_length.set_index("kind")["psi"].loc[[PLAIN, OWN]]
        fpr, tpr, _ = roc_curve(psi.index == OWN, psi)
        label = f"{row.n_tokens} tokens: AUC {row.value:.2f} ({row.low:.2f} to {row.high:.2f})"
        axes.step(fpr, tpr, where="post", color=colour, label=label)
    axes.plot([0, 1], [0, 1], **style.DOTTED)
    axes.set(
        xlabel="false positive rate (plain texts called watermarked)",
        ylabel="true positive rate (watermarked texts detected)",
    )
    return style.caption(figure, caption, "Which two rates does each threshold give?")


def draw_norms(plain: pd.DataFrame, slope: float, caption: str) -> Figure:
    """Draw ‖G‖² of each plain text against its length, with the line through zero."""
    figure, axes = plt.subplots()
    squares = plain["grad_norm"] ** 2  # grow like the length if tokens are independent
    axes.scatter(
        plain["n_tokens"],
        squares,
        s=9,
        alpha=0.3,
        color=style.PLAIN,
        label="one text",
    )
    axes.plot(
        squares.groupby(plain["n_tokens"]).mean(),
        "o-",
        color=style.PLAIN,
        label="mean",
    )
    grid = np.array([0, plain["n_tokens"].max()])
    axes.plot(
        grid,
        slope * grid,
        **style.DASHED,
        label=f"proportional to the length: {slope:.3g} per token",
    )
    axes.set(
        xlabel=style.TOKENS,
        ylabel="‖G‖²",
        xlim=(0, None),
        ylim=(0, None),
    )
    return style.caption(figure, caption, "Does ‖G‖² grow in proportion to the length?")


def draw_tokens(tokens: pd.DataFrame, caption: str) -> Figure:
    """Draw ‖∇ log p‖ of single tokens by the entropy before them."""
    figure, axes = plt.subplots()
    axes.scatter(
        tokens["entropy"],
        tokens["grad_norm"],
        s=8,
        alpha=0.25,
        color=style.PLAIN,
    )
    quantiles = pd.qcut(tokens["entropy"], BINS, duplicates="drop")
    means = tokens.groupby(quantiles, observed=True)[["entropy", "grad_norm"]].mean()
    axes.plot(
        *means.to_numpy().T,
        "o-",
        color=style.THEORY,
        label="means of the tokens in six groups",
    )
    axes.set(xlabel=ENTROPY, ylabel="‖∇ log p‖ of one token")
    return style.caption(
        figure,
        caption,
        "Is the gradient longer if the model is less sure?",
    )


def draw_texts(texts: pd.DataFrame, caption: str) -> Figure:
    """Draw ψ of texts by their mean entropy, a colour per temperature."""
    figure, axes = plt.subplots()
    sns.scatterplot(
        texts,
        x="entropy",
        y="psi",
        hue="temperature",
        palette="flare",
        ax=axes,
    )
    # of the texts of each temperature
    centres = texts.groupby("temperature")[["entropy", "psi"]].mean()
    axes.plot(*centres.to_numpy().T, "D-", color=style.THEORY, label="mean")
    axes.set(xlabel=ENTROPY, ylabel="ψ of a watermarked text, own key")
    axes.legend(title="temperature")
    return style.caption(
        figure,
        caption,
        "Does a higher temperature give a larger ψ?",
    )
