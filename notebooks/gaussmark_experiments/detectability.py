"""03: how much text detection needs. One generation, tested at every length (paper, Sec. "Can
GaussMark be detected?", Figs. 1 and 2).

A row is one text of a pair of a fresh prompt and a fresh key (``pairs.scored``), so that rows of
one kind and length are independent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_curve

from gaussmark_lib import gradients, likelihood, models, score, stats
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import (
    OWN,
    PLAIN,
    Pairs,
    Tables,
    numbering,
    over_pairs,
    ratio_over_pairs,
    under_own_keys,
)
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs import Run

LEVELS = (0.05, 0.01)
BINS = 6  # of tokens, by entropy
# Names of ratios, as recorded tables have them.
FULFILLED = "ψ ÷ σ‖G‖"
KEPT = "ψ, prompt unknown ÷ known"
ENTROPY = "entropy of the base model at temperature 1, nats"


def detection_rates(table: pd.DataFrame, sigma: float | pd.Series) -> pd.DataFrame:
    """Return the share of each kind of text that is called watermarked, and of marked text the
    share that plain text predicts, the mean of Φ(σ‖G‖ − τ): ``n_tokens, level, kind, value, low,
    high, n``. σ is that of all rows, or of each row.
    """
    rows = []
    table = table.assign(predicted=sigma * table["grad_norm"])
    pair = numbering(table, "prompt")
    for (n_tokens, kind), texts in table.groupby(["n_tokens", "kind"], sort=False):
        by_pair = texts.set_index(pair)
        for level in LEVELS:
            tau = stats.threshold(level)  # of N(0, 1), which holds without a watermark
            where = {"n_tokens": n_tokens, "level": f"level {level}"}
            detected = over_pairs(by_pair["psi"] >= tau)
            rows.append({**where, "kind": kind, **detected.row()})
            if kind == PLAIN:
                # plain text predicts the power on marked text after the same prompt
                power = norm.cdf(by_pair["predicted"] - tau)
                predicted = over_pairs(pd.Series(power, by_pair.index))
                rows.append({**where, "kind": "predicted", **predicted.row()})
    return pd.DataFrame(rows)


def power_gap(table: pd.DataFrame, sigma: float | pd.Series) -> stats.Estimate:
    """Subtract predicted from measured power at level 0.05: from a pair's hit (1 or 0) Φ(σ‖G‖ − τ)
    of its plain text, mean over the lengths.
    """
    pairs = _side_by_side(table, sigma)
    tau = stats.threshold(0.05)
    hits = pairs["psi", OWN] >= tau
    predicted = norm.cdf(pairs["predicted", PLAIN] - tau)
    gaps = hits - predicted  # a row per pair and length
    return over_pairs(gaps.groupby(numbering(table, "prompt")).mean())


def _side_by_side(table: pd.DataFrame, sigma: float | pd.Series) -> pd.DataFrame:
    """ψ and σ‖G‖ of each kind, one row per pair and length that has all kinds."""
    table = table.assign(predicted=sigma * table["grad_norm"])
    row = [*numbering(table, "prompt"), "n_tokens"]
    values = ["psi", "predicted"]  # columns are (value, kind)
    wide = table.pivot(index=row, columns="kind", values=values)
    return wide.dropna()  # a text that has ended has no row


def over_prediction(table: pd.DataFrame, sigma: float | pd.Series) -> stats.Estimate:
    """Divide mean ψ of marked texts by the mean σ‖G‖ of the plain texts after the same prompts.
    Each pair counts with its mean over the lengths; pairs are resampled.
    """
    pairs = _side_by_side(table, sigma)
    means = pairs.groupby(numbering(table, "prompt")).mean()  # over the lengths
    return ratio_over_pairs(means["psi", OWN], means["predicted", PLAIN])


def power_at(table: pd.DataFrame, sigma: float, predicted_psi: float) -> stats.Estimate:
    """Return the share of marked texts detected at level 0.05, at the length where the mean σ‖G‖ of
    plain texts is nearest to ``predicted_psi``.
    """
    mean_norms = table[table["kind"] == PLAIN].groupby("n_tokens")["grad_norm"].mean()
    length = (sigma * mean_norms - predicted_psi).abs().idxmin()
    return detected(table, length, 0.05)


def detected(table: pd.DataFrame, n_tokens: int, level: float) -> stats.Estimate:
    """Return the share of marked texts of one length that is detected with their own key."""
    is_tested = (table["kind"] == OWN) & (table["n_tokens"] == n_tokens)
    psi = table[is_tested].set_index(numbering(table, "prompt"))["psi"]
    return over_pairs(psi >= stats.threshold(level))


def growth_of_norms(table: pd.DataFrame) -> stats.Estimate:
    """Return the exponent of the tokens in ‖G‖ of plain texts (``stats.exponent``)."""
    plain = table[table["kind"] == PLAIN]
    pair = numbering(plain, "prompt")
    # a text that ended early has one length, and no slope
    texts = plain.groupby(pair).filter(lambda rows: len(rows) > 1)
    slopes = texts.groupby(pair)[[*texts.columns]].apply(lambda rows: stats.exponent(rows).value)
    return over_pairs(slopes)


def recorded_power(run: Run, predicted_psi: float = 2.0) -> stats.Estimate:
    """Return :func:`power_at` of a record."""
    return power_at(run.table("texts"), run.results["σ"], predicted_psi)


def psi_of_shortest(
    table: pd.DataFrame,
) -> tuple[Float[np.ndarray, " own"], Float[np.ndarray, " plain"]]:
    """Return ψ of the marked texts under their own keys, and of the plain texts, at the least
    length.
    """
    shortest = table[table["n_tokens"] == table["n_tokens"].min()].set_index("kind")["psi"]
    return shortest.loc[OWN].to_numpy(), shortest.loc[PLAIN].to_numpy()


def rises(table: pd.DataFrame) -> float:
    """Return how often p of a marked text rises from one length to the next, over all texts and
    steps.
    """
    own = table[table["kind"] == OWN]
    p = own.pivot(index="text", columns="n_tokens", values="p_value")
    steps = p.diff(axis=1).to_numpy()  # (texts, lengths), NaN where a text has ended
    return (steps > 0).sum() / np.isfinite(steps).sum()


def fall_in_words(table: pd.DataFrame) -> str:
    """Say how p of marked texts falls from the least length to the greatest, and how often that of
    a single text rises.
    """
    median = table[table["kind"] == OWN].groupby("n_tokens")["p_value"].median()
    first, last = median.index[[0, -1]]
    return (
        f"the median p-value of the watermarked texts is {median[first]:.2g} at {first} tokens and"
        f" {median[last]:.1g} at {last} tokens. From one length to the next, p of a single text"
        f" rises in {rises(table):.0%} of all cases."
    )


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
            FULFILLED: over_prediction(of_known, sigma),
            KEPT: share_kept(of_unknown, of_known),
        }
        for name, ratio in ratios.items():
            rows.append({"n_tokens": n_tokens, "ratio": name, **ratio.row()})
    return pd.DataFrame(rows)


def long_less_short(ratios: pd.DataFrame) -> stats.Estimate:
    """From the table of :func:`by_length`, take the share of ψ that the longest texts keep without
    their prompts, less the share that the shortest keep. The interval is made of the ends of both
    intervals, so it is too wide rather than too narrow.
    """
    kept = ratios[ratios["ratio"] == KEPT].sort_values("n_tokens")
    short = kept.iloc[0]
    long = kept.iloc[-1]
    return stats.Estimate(
        long["value"] - short["value"],
        long["low"] - short["high"],
        long["high"] - short["low"],
        int(long["n"]),
    )


def spread_of_norms(norms: pd.DataFrame) -> stats.Estimate:
    """Divide the largest ‖G‖ among the answers to a prompt by the smallest, mean over prompts."""
    of_prompts = norms.groupby("prompt")["grad_norm"]  # each prompt has several answers
    return stats.mean(of_prompts.max() / of_prompts.min())


def auc(psi: pd.DataFrame) -> float:
    """Return the probability that ψ of a marked text exceeds ψ of a plain text, over all pairs of
    texts.

    It is Mann and Whitney's U, the sum of the marked texts' ranks above its smallest value, divided
    by the number of pairs of texts.
    """
    n = len(psi)
    ranks = rankdata([*psi[OWN], *psi[PLAIN]])
    u = ranks[:n].sum() - n * (n + 1) / 2
    return u / n**2


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


def constants(results: Mapping[str, Any]) -> dict[str, float]:
    """Return what each row of a part's ``texts`` has in a pooled record: σ."""
    return {"sigma": results["σ"]}


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings and the headline that the rows of the table ``texts`` decide, by their
    sentences. The table has ``sigma``, the σ of each row (``pooled``).
    """
    table = tables["texts"]
    sigma = table["sigma"]
    longest = table["n_tokens"].max()
    gap = power_gap(table, sigma)
    ratio = over_prediction(table, sigma)
    power = detected(table, longest, 0.05)
    return {
        "measured less predicted TPR at 0.05, mean over the lengths": gap,
        "mean ψ divided by the mean σ‖G‖ of plain texts, over the lengths": ratio,
        "exponent of the tokens in ‖G‖ of plain text": growth_of_norms(table),
        # the headline
        f"texts detected at level 0.05 after {longest} tokens": power,
    }


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded tables that the rows of ``texts`` decide. What is kept of ψ without the
    prompt has no rows.
    """
    table = tables["texts"]
    ratios = tables["ratios"]
    rows = []
    for n_tokens, of_length in table.groupby("n_tokens"):
        ratio = over_prediction(of_length, of_length["sigma"])
        rows.append({"n_tokens": n_tokens, "ratio": FULFILLED, **ratio.row()})
    kept = ratios[ratios["ratio"] == KEPT]
    both_ratios = pd.concat([pd.DataFrame(rows), kept])
    return {
        "by_length": detection_rates(table, table["sigma"]),
        "ratios": both_ratios.sort_values("n_tokens", kind="stable", ignore_index=True),
    }


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the other recorded results that the tables decide."""
    return {"power": tables["by_length"].to_dict("records")}


def _panel_per_run(
    table: pd.DataFrame, *, sharey: bool = True
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A figure with a panel for each value of the column ``run``, and each panel's rows."""
    names = table["run"].unique()
    size = (1.4 + 4.2 * len(names), 4.0)
    figure, [row] = plt.subplots(1, len(names), figsize=size, sharey=sharey, squeeze=False)
    panels_with_rows = []
    for axes, name in zip(row, names, strict=True):
        of_run = table[table["run"] == name]
        axes.set_title(f"{name}, n = {of_run['prompt'].nunique()} pairs")
        panels_with_rows.append((axes, of_run))
    return figure, panels_with_rows


def draw_p(table: pd.DataFrame, caption: str) -> Figure:
    """Draw p against the length, a panel per run: a thin line per text, and the medians of marked
    and plain text.
    """
    figure, of_runs = _panel_per_run(table)
    for axes, of_run in of_runs:
        for kind, label in (
            (PLAIN, "plain"),
            (OWN, "watermarked, own key"),
        ):
            of_kind = of_run[of_run["kind"] == kind]
            p = of_kind.pivot(
                index="n_tokens", columns="text", values="p_value"
            )  # (lengths, texts)
            colour = style.look(kind)["color"]
            # few enough to tell apart
            axes.plot(p.iloc[:, :5], color=colour, alpha=0.25, linewidth=0.7)
            axes.plot(
                p.median(axis=1),
                "o-",
                color=colour,
                linewidth=2.5,
                label=f"median, {label}",
            )
        axes.axhline(0.05, **style.DASHED, label="level 0.05")
        axes.set(yscale="log", xlabel=style.TOKENS, ylim=(1e-7, 1.3))
        style.log_ticks(axes, of_run["n_tokens"])
    figure.axes[0].set_ylabel("p-value")
    style.legend_beside(figure.axes[-1])
    return style.caption(
        figure,
        caption,
        "How does the p-value of a text change with its length?",
    )


def draw_power(detection: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`detection_rates` at level 0.05 against the length, a panel per run."""
    kinds = [OWN, "predicted", PLAIN]  # a text under a wrong key is like plain text
    shown = detection[(detection["level"] == "level 0.05") & detection["kind"].isin(kinds)].copy()
    shown.loc[shown["kind"] == "predicted", ["low", "high"]] = np.nan  # the line alone
    looks = {kind: style.look(kind) for kind in kinds}
    looks["predicted"] = looks["predicted"] | {"linestyle": "-"}  # the level is dashed
    return panels(
        shown,
        "n_tokens",
        by="kind",
        panel="run",
        looks=looks,
        at={"level 0.05": 0.05},
        title="What share of the texts is detected, and what share is predicted?",
        caption=f"{caption}. Bars: exact 95% intervals.",
        xlabel=style.TOKENS,
        ylabel="share called watermarked",
        xscale="log",
        ylim=(-0.02, 1.02),
    )


def draw_roc(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the ROC at each length, with its area, a panel per run."""
    figure, of_runs = _panel_per_run(table)
    for axes, of_run in of_runs:
        lengths = sorted(of_run["n_tokens"].unique())
        colours = sns.color_palette("viridis", len(lengths))  # dark to light: short to long
        for colour, length in zip(colours, lengths, strict=True):
            of_length = of_run[of_run["n_tokens"] == length]
            psi = of_length.set_index("kind")["psi"].loc[[PLAIN, OWN]]
            fpr, tpr, _ = roc_curve(psi.index == OWN, psi)
            pairs = of_length.pivot(index="prompt", columns="kind", values="psi").dropna()
            area = stats.interval(pairs[[OWN, PLAIN]], auc, share=True)
            label = f"{length} tokens: AUC {area.value:.2f} ({area.low:.2f} to {area.high:.2f})"
            axes.step(fpr, tpr, where="post", color=colour, label=label)
        axes.plot([0, 1], [0, 1], **style.DOTTED)
        axes.set(xlabel="false positive rate (plain texts)")
        axes.legend(loc="lower right")
    figure.axes[0].set_ylabel("true positive rate (watermarked texts)")
    return style.caption(figure, caption, "Which two rates does each threshold give?")


def draw_norms(table: pd.DataFrame, caption: str) -> Figure:
    """Draw ‖G‖² of each plain text against its length, with the line through zero, a panel per
    run.
    """
    # models differ in ‖G‖
    figure, of_runs = _panel_per_run(table[table["kind"] == PLAIN], sharey=False)
    for axes, plain in of_runs:
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
        slope = norm_per_token(plain)
        axes.plot(grid, slope * grid, **style.DASHED, label="in proportion")
        axes.set(xlabel=style.TOKENS, xlim=(0, None), ylim=(0, 1.05 * squares.max()))
        axes.set_title(f"{axes.get_title('left')}; {slope:.3g} per token")
    figure.axes[0].set_ylabel("‖G‖²")
    style.legend_beside(figure.axes[-1])
    return style.caption(figure, caption, "Does ‖G‖² grow in proportion to the length?")


def draw_spread(norms: pd.DataFrame, caption: str) -> Figure:
    """Draw ‖G‖ of the answers to each prompt, with the largest divided by the smallest."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    sns.stripplot(
        norms,
        x="grad_norm",
        y="prompt",
        ax=axes,
        size=4,
        alpha=0.6,
        jitter=0.2,
        color=style.PLAIN,
        orient="y",
    )
    for place, (_, of_prompt) in enumerate(norms.groupby("prompt")["grad_norm"]):
        ratio = of_prompt.max() / of_prompt.min()
        axes.text(of_prompt.max(), place, f"  × {ratio:.2f}", va="center")
    axes.set(xlabel="‖G‖", ylabel="prompt", xlim=(0, 1.15 * norms["grad_norm"].max()))
    title = "How much does ‖G‖ differ between answers to one prompt?"
    return style.caption(figure, f"{caption}; ×: largest ‖G‖ divided by smallest.", title)


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
