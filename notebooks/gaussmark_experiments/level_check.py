"""02_level_check: how p-values are distributed if text and key are independent (paper, Prop. on
level), and what happens if the gradient is taken at the wrong weights.

For any text, ψ of a fresh key is N(0, 1). This holds over the draw of the *key*: a fixed key can
have many false alarms or none on texts of one kind, because their gradients share directions. If
any two of n texts have gradients of cosine c, their ψ under one key are jointly normal with
correlation c. Over keys, the share of these ψ above τ_α has the mean α and the variance

    (α − α²)/n + (1 − 1/n)(P(ψ_1 ≥ τ_α, ψ_2 ≥ τ_α) − α²)
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import binom, multivariate_normal, norm

from gaussmark_lib import generate, models, perturb, score, stats, texts
from gaussmark_lib.engine import packages
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.gradients import of_pairs
from gaussmark_lib.workbench.pairs import passages
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels

# Names of kinds of text, and of the weights at which a gradient is taken.
OWN = "model samples"
RANDOM = "random tokens"
AT_THETA = "θ"
AT_MOVED = "θ + ξ"
Cut = tuple[list[list[int]], list[list[int]]]  # prompts and responses


def kinds(
    human: Sequence[str] = ("docs", "licences", "source"),
    writer: models.LM | None = None,
) -> dict[str, str]:
    """Return the kinds of text by the names that a table shows: human text of several kinds, text
    by another model, the model's own, and random ids.

    >>> list(kinds(["folder/plays.jsonl", "source"]))
    ['plays.jsonl', 'source', 'model samples', 'random tokens']
    """
    written = [writer.name] if writer else []  # without a writer there is one kind less
    return {Path(kind).name: kind for kind in (*human, *written, OWN, RANDOM)}


def load_writer(name: str | None, **loading) -> models.LM | None:
    """Return the model that writes a further kind of text. Return None if no model is named, or if
    its package is not installed. ``loading`` is ``device`` of ``models.load``.
    """
    if name is None:
        return None
    entry = packages.MODELS.get(name)
    is_missing = entry is not None and not packages.is_installed(entry)
    return None if is_missing else models.load(name, **loading)


def null_texts(
    lm: models.LM,
    kind: str,
    n: int,
    *,
    text: str = "docs",
    writer: models.LM | None = None,
    prompt_tokens: int = 32,
    n_tokens: int = 200,
    seed: int = 0,
    **sampling,
) -> Cut:
    """Return n prompts and responses without a watermark: human text of a kind (of ``texts``) cut
    in two, or what the ``writer``, the model itself or a random generator writes after ``text``.
    """
    if writer and kind == writer.name:
        return written_by(
            writer,
            lm,
            text,
            n,
            prompt_tokens=prompt_tokens,
            n_tokens=n_tokens,
            seed=seed,
            **sampling,
        )
    if kind not in (OWN, RANDOM):
        return passages(lm, kind, n, prompt_tokens, n_tokens, seed=seed)
    prompts = texts.human(lm, text, n, prompt_tokens, seed=seed)
    if kind == OWN:
        return prompts, generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    vocabulary = lm.model.get_input_embeddings().num_embeddings
    random_ids = np.random.default_rng(seed).integers(vocabulary, size=(n, n_tokens))
    return prompts, random_ids.tolist()


def written_by(
    writer: models.LM,
    lm: models.LM,
    text: str,
    n: int,
    *,
    prompt_tokens: int,
    n_tokens: int,
    seed: int = 0,
    **sampling,
) -> Cut:
    """Write n texts by another model after prompts of a kind, and return them as ``lm`` reads their
    characters. They are cut to ``n_tokens`` of its tokens; a text may have fewer.
    """
    beginnings = texts.human(writer, text, n, prompt_tokens, seed=seed)
    # what the writer continues
    opened = [writer.continuation(writer.decode(ids)) for ids in beginnings]
    responses = generate.sample(writer.model, opened, n_tokens, seed=seed, **sampling)
    # the two models may have different tokenizers: characters pass between them
    prompts = [lm.encode(writer.decode(ids)) for ids in beginnings]
    return prompts, [lm.encode(writer.decode(ids))[:n_tokens] for ids in responses]


def fresh_keys(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys_per_text: int,
    first_seed: int = 0,
    **settings,
) -> pd.DataFrame:
    """Test each text under keys that no other text shares, so that all rows are independent:
    ``Key.from_seed(first_seed)`` and its successors. The columns are ``text, psi, p_value,
    grad_norm``.

    The noises are drawn on the processor: many short noises take longer on a GPU.
    """
    d = wm.on(lm.model).d
    tables = []
    for gradient in score.gradients(lm.model, *cut, wm, **settings):
        first = first_seed + gradient.text * keys_per_text  # no two texts share a key
        keys = [perturb.Key.from_seed(first + i) for i in range(keys_per_text)]
        z = streams(keys, d, 1.0)  # (keys, d)
        psi = (z @ gradient.unit().cpu().to(z)).double().numpy()
        columns = {
            "text": gradient.text,
            "grad_norm": gradient.norm,
            "psi": psi,
            "p_value": norm.sf(psi),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables).sort_values("text", kind="stable", ignore_index=True)


def levels(
    table: pd.DataFrame,
    nominal: Sequence[float],
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return the share of false alarms at each nominal level, by kind and for ``all``, with the
    exact binomial interval: ``kind, level`` (in words), ``value, low, high, n``, and whether the
    interval contains the level (``holds``).
    """
    by_kind = [*table.groupby("kind", sort=False), ("all", table)]
    rows = []
    for kind, of_kind in by_kind:
        for level in nominal:
            share = stats.share(of_kind["p_value"] <= level, confidence=confidence)
            rows.append(
                {
                    "kind": kind,
                    "level": f"at level {100 * level:g}%",
                    **share.row(),
                    "holds": share.low <= level <= share.high,
                }
            )
    return pd.DataFrame(rows)


def fixed_keys(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    **settings,
) -> tuple[Float[np.ndarray, "texts keys"], float]:
    """Return ψ of each text under each key, and the mean cosine between the gradients of two texts,
    from |Σ u|² = n + Σ_{i≠j} cos_ij.
    """
    order = []  # texts come in batches of their own order
    total = 0.0  # Σ u

    def seen() -> Iterator[score.TextGradient]:
        nonlocal total
        for gradient in score.gradients(lm.model, *cut, wm, **settings):
            order.append(gradient.text)
            total = total + gradient.unit()
            yield gradient

    # one pass over the texts: ``seen`` keeps what else is needed
    psi = score.psi(seen(), wm.on(lm.model), keys)
    n = len(order)
    cosine = (float(total.square().sum()) - n) / (n * (n - 1))
    return psi[np.argsort(order)], cosine  # in the order of the texts


def predicted_spread(cosine: float, n: int, level: float) -> float:
    """Return the standard deviation over keys of a key's rate over n texts, any two of which have
    gradients of this cosine (formula above).

    >>> round(predicted_spread(0.0, 100, 0.05), 4)  # binomial
    0.0218
    >>> round(predicted_spread(1.0, 100, 0.05), 4)  # all texts at once, or none
    0.2179
    """
    c = min(max(cosine, 0.0), 1.0)  # estimated cosines may lie outside
    below = [-stats.threshold(level)] * 2  # P(both ≥ τ) = P(both ≤ −τ)
    covariance = [[1, c], [c, 1]]
    p_both = float(multivariate_normal.cdf(below, cov=covariance, allow_singular=True))
    binomial = (level - level**2) / n
    shared = (1 - 1 / n) * max(0.0, p_both - level**2)
    return float(np.sqrt(binomial + shared))


def spreads(
    rates: pd.DataFrame,
    cosines: Mapping[str, float],
    n: int,
    level: float,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure how far the keys' rates spread over n texts, and predict it.

    Returns:
        By kind ``mean, spread, largest, cosine`` and :func:`predicted_spread` as ``predicted``, and
        for a cosine of 0 as ``binomial``; and the same to be drawn: ``kind, spread, value, low,
        high, n``.
    """
    by_kind = rates.groupby("kind", sort=False)["value"]  # a rate for each key
    table = by_kind.agg(mean="mean", spread="std", largest="max").assign(cosine=pd.Series(cosines))
    table["predicted"] = [predicted_spread(cosine, n, level) for cosine in table["cosine"]]
    table["binomial"] = predicted_spread(0.0, n, level)
    rows = []
    for kind, values in by_kind:
        spread = stats.interval(values.to_numpy(), np.std, seed=seed)
        rows.append({"kind": kind, "spread": "measured", **spread.row()})
    labels = {"predicted": "predicted", "binomial": "if independent"}
    for column, label in labels.items():
        for kind, value in table[column].items():
            rows.append({"kind": kind, "spread": label, "value": value})
    return table, pd.DataFrame(rows)


def trap(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    dtype: str | None = None,
) -> pd.DataFrame:
    """Make the mistake on purpose: return ψ of text i under key i with the gradient at θ + ξ, and
    for comparison with the right gradient, at θ. Columns ``text, at, psi, grad_norm``.

    Near θ the gradient at θ + ξ is G − Hξ, with H the Hessian of −log p(y | x), whose mean is that
    of GGᵀ. So for text of p_θ E ψ ≈ −σ E‖G‖²/‖G‖ ≈ −σ‖G‖: it falls as far below 0 as watermarked
    text rises above it.
    """
    right = score.score(lm.model, *cut, wm, keys, paired=True, dtype=dtype).assign(at=AT_THETA)
    placed = wm.on(lm.model)
    pairs = placed.reader.pairs(*cut)
    rows = []
    for text, key in enumerate(keys):
        # ``score`` always takes the gradient at θ: here the model carries the key's noise
        with perturb.watermarked(lm.model, wm, key):
            [gradient] = of_pairs(placed, {0: pairs[text]}, dtype=dtype, perturbed=True)
        [[psi]] = score.psi([gradient], placed, [key])
        rows.append((text, AT_MOVED, psi, gradient.norm))
    columns = ["text", "at", "psi", "grad_norm"]
    wrong = pd.DataFrame(rows, columns=columns)
    return pd.concat([right, wrong], ignore_index=True)[columns]


def published(
    lm: models.LM,
    human: Cut,
    marked: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    **settings,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test the same texts in four ways: human text i and marked text i under key i.

    Returns:
        For ``panels``: ``way, measure, value, low, high``; and the ψ: ``way, kind, psi``.
    """
    half = len(keys) // 2  # chooses the empirical threshold
    attained = max(0.001, 1 / (half + 1))  # no threshold from n texts keeps less than 1 in n + 1
    empirical = f"θ + ξ, threshold from {half} human texts (its .1% is {attained:.1%})"
    psi_of_human = _by_way(lm, human, wm, keys, empirical, **settings)
    psi_of_marked = _by_way(lm, marked, wm, keys, empirical, **settings)
    rows = []
    tables = []
    for way, null in psi_of_human.items():
        marked_psi = psi_of_marked[way]
        taus = [stats.threshold(level) for level in (0.05, 0.001)]  # of N(0, 1)
        if way == empirical:
            # one half of the human texts gives the thresholds, the other half tests them
            taus = np.quantile(null[:half], [0.95, 0.999], method="higher")
            null = null[half:]
        hits_of_measures = {
            "human text: alarms at 5%": null >= taus[0],
            "marked text: detected at .1%": marked_psi >= taus[1],
        }
        for measure, hits in hits_of_measures.items():
            rows.append(
                {
                    "way": way,
                    "measure": measure,
                    **stats.interval(hits).row(),
                }
            )
        tables.append(pd.DataFrame({"way": way, "kind": "human", "psi": null}))
        tables.append(pd.DataFrame({"way": way, "kind": "marked", "psi": marked_psi}))
    return pd.DataFrame(rows), pd.concat(tables, ignore_index=True)


def _by_way(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    empirical: str,
    **settings,
) -> dict[str, Float[np.ndarray, " texts"]]:
    """ψ of text i under key i by each way of testing."""
    at = trap(lm, cut, wm, keys, **settings).pivot(index="text", columns="at", values="psi")
    _, responses = cut
    no_prompts = [[] for _ in keys]
    without = score.score(
        lm.model,
        no_prompts,
        responses,
        wm,
        keys,
        paired=True,
        **settings,
    )
    at_moved = at[AT_MOVED].to_numpy()
    return {
        "θ, N(0, 1)": at[AT_THETA].to_numpy(),
        "θ, no prompt, N(0, 1)": without["psi"].to_numpy(),
        "θ + ξ, N(0, 1)": at_moved,
        empirical: at_moved,
    }


def draw_published(ways: pd.DataFrame, caption: str) -> Figure:
    """Draw the shares of :func:`published`: a panel per measure, a row per way to test."""
    exact = {  # the record's names are short
        "θ, N(0, 1)": "gradient at θ, threshold of N(0, 1)",
        "θ, no prompt, N(0, 1)": "the same, without the prompt",
        "θ + ξ, N(0, 1)": "gradient at θ + ξ, threshold of N(0, 1)",
    }
    names = {way: exact.get(way, "the same, threshold from human texts") for way in ways["way"]}
    measures = {
        "human text: alarms at 5%": "human text: false alarms at level 5%",
        "marked text: detected at .1%": "watermarked text: detected at level .1%",
    }
    figure = panels(
        ways.replace({"way": names, "measure": measures}),
        "way",
        panel="measure",
        title="What does each way to test detect, and how often is it wrong?",
        caption=caption,
        ylabel="share of texts",
        ylim=(-0.05, 1.05),
    )
    figure.axes[0].axvline(0.05, **style.DASHED)  # the level of the first panel
    return figure


def draw_rates(rates: pd.DataFrame, level: float, n: int, caption: str) -> Figure:
    """Draw each fixed key's share of false alarms, one point per key, one row per kind (columns
    ``kind, value``), over the range for independent texts.
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    low, high = binom(n, level).ppf([0.025, 0.975]) / n  # of the rate, not of the count
    axes.axvspan(
        low,
        high,
        color="0.88",
        label=f"95% of the keys,\nif the {n} texts\nwere independent",
    )
    axes.axvline(level, **style.THIN, label=f"level {level:g}")
    sns.stripplot(
        rates,
        x="value",
        y="kind",
        hue="kind",
        ax=axes,
        jitter=0.3,
        size=5,
        linewidth=0.4,
        edgecolor="white",
        legend=False,  # the rows are labelled already
    )
    axes.set(
        xlabel="share of the texts of a kind that the key calls watermarked",
        ylabel="",
    )
    style.legend_beside(axes)
    title = "How far is the false-alarm rate of a fixed key from the level?"
    return style.caption(figure, caption, title)


def draw_trap(table: pd.DataFrame, expected: float, caption: str) -> Figure:
    """Draw ψ of plain text with the gradient at θ and at θ + ξ (columns ``psi, at``), in the same
    bins.
    """
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    bins = np.linspace(min(-4.0, table["psi"].min()), max(4.0, table["psi"].max()), 28)
    colours = {AT_THETA: style.PLAIN, AT_MOVED: style.WRONG_KEY}
    for at, colour in colours.items():
        axes.hist(
            table.loc[table["at"] == at, "psi"],
            bins=bins,
            density=True,
            alpha=0.55,
            color=colour,
            label=f"gradient at {at}",
        )
    style.normal_density(axes, bins[0], bins[-1])
    axes.axvline(
        expected,
        **style.DASHED,
        label=f"−σ · mean ‖G‖ = {expected:.2f}",
    )
    axes.set(xlabel="ψ of plain text", ylabel="density")
    style.legend_beside(axes)
    title = "How does the gradient at θ + ξ change ψ of plain text?"
    return style.caption(figure, caption, title)
