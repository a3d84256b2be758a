"""01_motivation: the likelihood ratio and its gradient form, ψ under fresh keys, the strength and
the price of a watermark, and whether the size of the marked matrix matters.

    log p_{θ+ξ}(y) − log p_θ(y)  ≈  ⟨ξ, G⟩ − σ²‖G‖²/2,      E ψ ≈ σ‖G‖,      price ≈ ψ²/2 nats
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_experiments import intervals
from gaussmark_lib import (
    divergence,
    generate,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.engine import arithmetic
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.tokens import Reader, Texts
from gaussmark_lib.workbench import answers, runs
from gaussmark_lib.workbench.pairs import (
    OWN,
    PLAIN,
    WRONG,
    Pairs,
    Tables,
    numbering,
    over_pairs,
    ratio_over_pairs,
    scored,
)
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs.folder import Run

NOTEBOOK = "01_motivation"
STRENGTH = "mean ψ"
PRICE = "price, nats per text"
SAME = 1e-3  # two runs solve σ on the same texts; processors round differently
AT_ONCE = 8  # texts per forward pass, each under its noise: the logits of two models are held


def measured(
    lm: models.LM,
    pairs: Pairs,
    watermarks: Sequence[perturb.Watermark],
    n_tokens: int,
    *,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> tuple[pd.DataFrame, list[list[int]]]:
    """Continue each prompt under its key with every watermark (of one weight), and by the base
    model. Test the texts, and measure their log likelihood ratios.

    Returns:
        The table of ``pairs.scored`` for each ``sigma``, with ``first_order`` = ⟨ξ, G⟩ − σ²‖G‖²/2
        and ``log_ratio`` = log p_{θ+ξ}(y) − log p_θ(y) (not for wrong keys), nats per text, and for
        marked texts ``price`` = Σ_t KL(p_{θ+ξ} ‖ p_θ), nats per text; and the plain texts. The
        plain texts are tested only with the middle watermark.
    """
    # the base model continues the prompts last
    marks = [(wm, key) for wm in watermarks for key in pairs.keys]
    marks += [None] * pairs.n
    prompts = pairs.prompts * (len(watermarks) + 1)
    texts = generate.sample(
        lm.model,
        prompts,
        n_tokens,
        marks=marks,
        seed=seed,
        **sampling,
    )
    # a list of texts per watermark, then the plain texts
    *marked, plain = in_lists(texts, pairs.n)
    middle = watermarks[len(watermarks) // 2]
    tables = []  # one per watermark
    with arithmetic.computing_in(lm.model, arithmetic.arithmetic(lm.model, dtype)):
        for wm, of_wm in zip(watermarks, marked, strict=True):
            tested_plain = plain if wm is middle else []
            table = scored(lm, pairs, of_wm, tested_plain, wm, dtype=dtype)
            table = table.assign(sigma=wm.sigma)
            tested = {OWN: of_wm, PLAIN: tested_plain}
            tables.append(_with_ratio(lm, pairs, tested, wm, table))
    return pd.concat(tables, ignore_index=True), plain


def _with_ratio(
    lm: models.LM,
    pairs: Pairs,
    texts: dict[str, list[list[int]]],
    wm: perturb.Watermark,
    table: pd.DataFrame,
) -> pd.DataFrame:
    """Add the columns of :func:`measured`. Texts of one key are neighbours, so that its noise is
    drawn once.
    """
    rows = [(kind, i) for i in range(pairs.n) for kind in texts if texts[kind]]  # key by key
    prompts = [pairs.prompts[i] for _, i in rows]
    responses = [texts[kind][i] for kind, i in rows]
    # plain texts are measured under their pair's noise, too
    marks = [(wm, pairs.keys[i]) for _, i in rows]
    log_p, price = under_noise(lm, prompts, responses, marks)
    moved = pd.DataFrame(rows, columns=["kind", "prompt"])
    moved = moved.assign(log_p=log_p, price=price)
    moved.loc[moved["kind"] == PLAIN, "price"] = np.nan  # a plain text pays nothing
    table = table.merge(moved, how="left", on=["prompt", "kind"])
    length = wm.sigma * table["grad_norm"]  # σ‖G‖
    return table.assign(
        first_order=length * table["psi"] - length**2 / 2,
        log_ratio=table["log_p"] - table["log_lik"],
    )


@torch.no_grad()
def under_noise(
    lm: models.LM,
    prompts: Texts,
    texts: Texts,
    marks: Sequence[generate.Mark],
) -> tuple[Float[np.ndarray, " texts"], Float[np.ndarray, " texts"]]:
    """Return log p_{θ+ξ}(y) and Σ_t KL(p_{θ+ξ} ‖ p_θ) of each text under its own noise, nats per
    text.
    """
    pairs = list(Reader(lm.model).pairs(prompts, texts).values())
    log_p = []
    price = []
    for rows, marked in generate.in_batches(lm.model, len(pairs), AT_ONCE, marks):
        inputs, is_token = divergence.laid_out(lm.model, pairs[rows])
        n_tokens = is_token.shape[1]
        p = divergence.logits(lm.model, inputs, n_tokens)  # logits at θ
        with marked:
            q = divergence.logits(lm.model, inputs, n_tokens)  # logits at θ + ξ
        price += divergence.summed(q, p, is_token)
        ids = inputs["input_ids"][:, -n_tokens:, None]  # (texts, places, 1)
        of_tokens = arithmetic.wide(q).log_softmax(-1).gather(-1, ids)[..., 0]
        of_texts = (of_tokens.double() * is_token).sum(-1)
        log_p += of_texts.tolist()
    return np.array(log_p), np.array(price)


def agreement(table: pd.DataFrame) -> stats.Estimate:
    """Correlate ``log_ratio`` with ``first_order`` over the marked and plain texts of a table.
    Pairs are resampled.
    """
    table = table.dropna(subset="log_ratio")  # wrong keys have no ratio
    log_ratios = table[["log_ratio", "first_order"]].to_numpy()

    def correlation(rows: np.ndarray) -> float:
        return np.corrcoef(rows.T)[0, 1]

    *_, cluster = numbering(table, "prompt")
    estimate = stats.interval(log_ratios, correlation, cluster=table[cluster])
    return replace(estimate, n=table["prompt"].nunique())


def strength_and_price(table: pd.DataFrame, typical_norm: float) -> pd.DataFrame:
    """Return mean ψ and price of each ``sigma``, with intervals over pairs and the first-order
    prediction, for ``panels``. ``predicted`` is σ · ``typical_norm`` (‖G‖ of plain text).
    """
    rows = []
    for sigma, texts in table.groupby("sigma"):
        by_pair = texts.set_index(numbering(texts, "prompt"))
        by_kind = dict(list(by_pair.groupby("kind")))  # own key, wrong key, plain
        predicted = sigma * typical_norm
        estimates = {
            (STRENGTH, OWN): over_pairs(by_kind[OWN]["psi"]).row(),
            (STRENGTH, WRONG): over_pairs(by_kind[WRONG]["psi"]).row(),
            (STRENGTH, "predicted"): {"value": predicted},
            (PRICE, OWN): over_pairs(by_kind[OWN]["price"]).row(),
            (PRICE, "predicted"): {"value": predicted**2 / 2},
        }
        for (quantity, curve), estimate in estimates.items():
            rows.append(
                {
                    "sigma": sigma,
                    "predicted": predicted,
                    "quantity": quantity,
                    "curve": curve,
                    **estimate,
                }
            )
    return pd.DataFrame(rows)


def over_prediction(table: pd.DataFrame, sigma: float, quantity: str) -> stats.Estimate:
    """Divide a row of :func:`strength_and_price` by its prediction."""
    is_wanted = (table["sigma"] == sigma) & (table["quantity"] == quantity)
    rows = table[is_wanted].set_index("curve")
    marked = rows.loc[OWN]
    predicted = rows.loc["predicted", "value"]
    return intervals.divided(intervals.of_row(marked), predicted)


def efficiency(table: pd.DataFrame) -> stats.Estimate:
    """Divide mean ψ of marked texts by √(2 · mean price in nats per text). By the two laws the
    ratio is 1. Pairs are resampled.
    """
    own = table[table["kind"] == OWN]
    marked = own.set_index(numbering(own, "prompt"))[["psi", "price"]]

    def ratio(rows: np.ndarray) -> float:
        psi, price = rows.mean(axis=0)
        return _efficiency(psi, price)

    return over_pairs(marked, ratio)


def _efficiency(psi: np.ndarray, price: np.ndarray) -> np.ndarray:
    return psi / np.sqrt(2 * price)


def by_size(table: pd.DataFrame, d: int, records: Sequence[str]) -> dict[int, pd.DataFrame]:
    """Return the table of :func:`measured` by the number of entries d of the marked matrix: of this
    run, and of reference records of this notebook on other models.

    Raises:
        GaussMarkError: if there is no such record.
    """
    tables = {d: table}  # d → table
    for name in records:
        run = runs.reference(name)
        if not run:
            raise GaussMarkError(
                f"others: expected reference records of this notebook, got {name!r}; run"
                f" `gaussmark run 01 -f {name}` and keep its record, or leave it out"
            )
        tables[run.results["d"]] = run.table("language_model")
    return tables


def exchange(tables: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """Return :func:`efficiency` of each size at each strength: ``d, sigma``, ``price`` (nats per
    token, mean), ``value, low, high, n``.
    """
    rows = []
    for d, table in tables.items():
        for sigma, of_strength in table.groupby("sigma"):
            per_token = of_strength["price"] / of_strength["n_tokens"]  # nats
            rows.append(
                {
                    "d": d,
                    "sigma": sigma,
                    "price": per_token.mean(),
                    **efficiency(of_strength).row(),
                }
            )
    return pd.DataFrame(rows)


def compared(table: pd.DataFrame, d: int, others: Sequence[str] = ()) -> pd.DataFrame:
    """Return :func:`exchange` as text: of the records of this notebook, of ``others`` and of this
    run. Two more columns compare ‖G‖ of marked with plain texts, and say how much ‖G‖ varies among
    plain texts. A row per run and σ. A record may lack d.
    """
    records = runs.references(NOTEBOOK)
    folders = [run.dir for run in records]
    records += [run for run in map(runs.reference, others) if run and run.dir not in folders]
    of_runs = [
        (answers.title(run), run.results.get("d", 0), run.table("language_model"))
        for run in records
    ]
    rows = []
    for name, entries, of_run in [*of_runs, (answers.THIS_RUN, d, table)]:
        norms = of_run.groupby(["kind", "sigma"])["grad_norm"].mean()
        plain = of_run.loc[of_run["kind"] == PLAIN, "grad_norm"]
        for rate in exchange({entries: of_run}).itertuples():
            ratio = f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"
            rows.append(
                {
                    "run": name,
                    "entries d": f"{entries:,}" if entries else "",
                    "σ": f"{rate.sigma:.3g}",
                    "price, nats per token": f"{rate.price:.3f}",
                    "ψ ÷ √(2 · price per text)": ratio,
                    "n pairs": rate.n,
                    "mean ‖G‖: watermarked ÷ plain": f"{norms[OWN, rate.sigma] / plain.mean():.2f}",
                    "plain ‖G‖: SD ÷ mean": f"{plain.std() / plain.mean():.2f}",
                }
            )
    return pd.DataFrame(rows).set_index("run")


def slope(tables: dict[int, pd.DataFrame]) -> stats.Estimate:
    """Return by how much :func:`efficiency` grows if the marked matrix has ten times as many
    entries: the slope of a line through the sizes, each with its mean over the strengths. Pairs are
    resampled.
    """
    # a row per pair, of all sizes
    of_sizes = [_in_columns(table, np.log10(d)) for d, table in tables.items()]
    rows = pd.concat(of_sizes)
    return stats.bootstrap(rows.to_numpy(), _slope)


def _in_columns(table: pd.DataFrame, size: float) -> pd.DataFrame:
    """One row per pair: the size, ψ at each strength, and the price at each strength."""
    marked = table[table["kind"] == OWN]
    strength = marked["sigma"].rank(method="dense")  # 1, 2…: the sizes have σ of their own
    marked = marked.assign(strength=strength)
    columns = marked.pivot(
        index="prompt",
        columns="strength",
        values=["psi", "price"],
    )
    columns.insert(0, ("size", 0.0), size)
    return columns


def _slope(rows: Float[np.ndarray, "pairs columns"]) -> float:
    n_strengths = rows.shape[1] // 2
    sizes = np.unique(rows[:, 0])
    # (sizes, strengths) of ψ, then of the price
    means = np.array([rows[rows[:, 0] == size, 1:].mean(axis=0) for size in sizes])
    psi = means[:, :n_strengths]
    price = means[:, n_strengths:]
    by_size = _efficiency(psi, price).mean(axis=1)
    return np.polyfit(sizes, by_size, 1)[0]


def under_fresh_keys(
    lm: models.LM,
    texts: dict[str, tuple[list[int], list[int]]],
    wm: perturb.Watermark,
    n_keys: int,
    *,
    first_seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Test each named (prompt, text) under the same n keys, which did not write any of them: the
    table of ``score.score`` with ``inner`` = ⟨ξ, G⟩, nats.
    """
    keys = [perturb.Key.from_seed(first_seed + i) for i in range(n_keys)]
    prompts, responses = map(list, zip(*texts.values(), strict=True))  # in the order of the names
    table = score.score(lm.model, prompts, responses, wm, keys, dtype=dtype)
    names = np.array(list(texts))  # of each row's text
    inner = wm.sigma * table["grad_norm"] * table["psi"]
    return table.assign(text=names[table["text"]], inner=inner)


def widths(table: pd.DataFrame, sigma: float, seed: int = 0) -> pd.DataFrame:
    """Measure the standard deviations of ⟨ξ, G⟩ and of ψ over the keys of :func:`under_fresh_keys`,
    one row per text.

    Returns:
        ``text, inner`` and ``inner_theory`` (σ‖G‖), nats; and of ψ ``value, low, high, n``, for
        which theory says 1. Keys are resampled.
    """
    rows = []
    for text, of_text in table.groupby("text", sort=False):
        width = stats.interval(of_text["psi"].to_numpy(), np.std, seed=seed)
        row = {
            "text": text,
            "inner": of_text["inner"].std(),
            "inner_theory": sigma * of_text["grad_norm"].iloc[0],
        }
        rows.append(row | width.row())
    return pd.DataFrame(rows)


def widths_in_words(table: pd.DataFrame) -> str:
    """Say what :func:`widths` measured, and what theory says."""
    n_keys = table["n"].iloc[0]
    of_psi = [
        f"{row.text} {row.value:.2f} ({row.low:.2f} to {row.high:.2f})"
        for row in table.itertuples()
    ]
    of_inner = [
        f"{row.text} {row.inner:.2f} nats (theory: σ‖G‖ = {row.inner_theory:.2f})"
        for row in table.itertuples()
    ]
    contains_1 = (table["low"] <= 1) & (table["high"] >= 1)
    n_contain = contains_1.sum()
    verb = "contains" if n_contain == 1 else "contain"
    return (
        f"Standard deviation of ψ over n = {n_keys} fresh keys (95% interval): {'; '.join(of_psi)}."
        f" Theory says 1 for every text, and {n_contain} of the {len(table)} intervals {verb} 1."
        f" Standard deviation of ⟨ξ, G⟩: {'; '.join(of_inner)}."
    )


def growth(table: pd.DataFrame, column: str) -> stats.Estimate:
    """Return the factor by which the mean of ``psi`` or ``price`` of marked texts grows if σ
    doubles, up to the largest σ.

    The other σ is the measured one nearest to half of the largest, σ/c. If c is not 2, the factor
    r between the two becomes r^(log 2 / log c), as for a power of σ. Pairs are resampled. Without a
    smaller σ, the estimate is NaN.
    """
    marked = table[table["kind"] == OWN].set_index(numbering(table, "prompt"))
    sigmas = marked["sigma"].unique()
    largest = sigmas.max()
    rows = marked.loc[marked["sigma"] == largest, column]
    smaller_sigmas = sigmas[sigmas < largest]
    if not len(smaller_sigmas):
        return stats.Estimate(np.nan, np.nan, np.nan, len(rows))
    doublings = np.log2(largest / smaller_sigmas)
    nearest = abs(doublings - 1).argmin()
    smaller_rows = marked.loc[marked["sigma"] == smaller_sigmas[nearest], column]
    ratio = ratio_over_pairs(rows, smaller_rows.loc[rows.index])
    exponent = 1 / doublings[nearest]
    return stats.Estimate(ratio.value**exponent, ratio.low**exponent, ratio.high**exponent, ratio.n)


def recorded_growth(run: Run) -> stats.Estimate:
    """Return how the price in a record of this notebook grows if σ doubles."""
    return growth(run.table("language_model"), "price")


def at_middle(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the middle σ of the table of :func:`measured`."""
    sigmas = sorted(table["sigma"].unique())
    return table[table["sigma"] == sigmas[len(sigmas) // 2]]


def recorded_efficiency(run: Run) -> stats.Estimate:
    """Return :func:`efficiency` of a record of this notebook, at its middle σ."""
    return efficiency(at_middle(run.table("language_model")))


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings and the headline that the rows of ``language_model`` decide, by their
    sentences.
    """
    table = tables["language_model"]
    middle = at_middle(table)
    sigma = middle["sigma"].iloc[0]
    law = strength_and_price(table, _typical_norm(table))
    strength = over_prediction(law, sigma, STRENGTH)
    price = over_prediction(law, sigma, PRICE)
    multiples = params["strengths"]  # of σ
    at_sigma = f"at {multiples[len(multiples) // 2]:.3g} σ"
    found = {
        "correlation of the log likelihood ratio with its gradient form": agreement(middle),
        f"mean ψ divided by its prediction {at_sigma}": strength,
        f"price divided by its prediction {at_sigma}": price,
        # the headline
        "mean ψ of a language model's texts divided by its prediction from plain text": strength,
    }
    by_strength = table.groupby("sigma")  # from the smallest
    for multiple, (_, rows) in zip(sorted(multiples), by_strength, strict=True):
        found[f"mean ψ divided by √(2 · price) at {multiple:.3g} σ"] = efficiency(rows)
    return found


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded tables of a pooled record: all parts have the same σ for a strength, and
    what a price buys is computed from their rows.
    """
    table = with_common_sigma(tables["language_model"])
    d = int(tables["exchange"]["d"].iloc[0])  # entries of the marked matrix
    return {"language_model": table, "exchange": exchange({d: table})}


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the other recorded results that the tables decide."""
    table = tables["language_model"]
    law = strength_and_price(table, _typical_norm(table))
    return {"law": law.drop(columns=["n"]).fillna(0).to_dict("list")}


def with_common_sigma(table: pd.DataFrame) -> pd.DataFrame:
    """Give each strength the mean σ of the parts of a pooled record (column ``part``).

    Raises:
        GaussMarkError: two parts differ by more than rounding.
    """
    strength = table.groupby("part")["sigma"].rank(method="dense")  # 1, 2, …
    by_strength = table["sigma"].groupby(strength)
    if (by_strength.max() > (1 + SAME) * by_strength.min()).any():
        found = sorted(table["sigma"].unique())
        raise GaussMarkError(f"expected parts with the same σ, got {found}")
    return table.assign(sigma=by_strength.transform("mean"))


def _typical_norm(table: pd.DataFrame) -> float:
    """The median ‖G‖ of plain texts."""
    middle = at_middle(table)
    return middle.loc[middle["kind"] == PLAIN, "grad_norm"].median()


def laws(law: pd.DataFrame) -> pd.DataFrame:
    """Return the table of :func:`strength_and_price` of this run, below those of the records, with
    their ``run``. The predictions are one line for all runs, and wrong keys are left out.
    """
    tables = [
        pd.DataFrame(run.results["law"]).assign(run=answers.title(run))
        for run in runs.references(NOTEBOOK)
    ]
    of_runs = pd.concat([*tables, law.assign(run=answers.THIS_RUN)], ignore_index=True)
    measured = of_runs[of_runs["curve"] == OWN]
    predicted = of_runs[of_runs["curve"] == "predicted"].assign(run="predicted")
    predicted[["low", "high"]] = np.nan  # a record has 0 where there is no interval
    return pd.concat([measured, predicted], ignore_index=True)


def draw_laws(law: pd.DataFrame, caption: str) -> Figure:
    """Draw the table of :func:`strength_and_price` of this run and of the records, as points, with
    the predictions as lines.
    """
    table = laws(law)
    looks = {run: style.look(run) | {"linestyle": "none"} for run in table["run"].unique()}
    looks["predicted"] = style.DASHED | {"marker": ""}
    return panels(
        table,
        "predicted",
        by="run",
        panel="quantity",
        looks=looks,
        title="Do strength and price follow the prediction?",
        caption=caption,
        xlabel="predicted ψ = σ · median‖G‖",
        ylabel="",
        sharey=False,
    )


def draw_log_ratio(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the log likelihood ratio of each text against its gradient form, a panel per ``run``.
    The title of a panel counts the texts that lie too far outside to be shown.
    """
    names = table["run"].unique()
    size = (2.4 + 3.6 * len(names), 4.2)
    figure, grid = plt.subplots(1, len(names), figsize=size, squeeze=False)
    for axes, name in zip(grid[0], names, strict=True):
        of_run = table[table["run"] == name].dropna(subset="log_ratio")
        is_near = _is_near(of_run["first_order"]) & _is_near(of_run["log_ratio"])
        for kind, rows in of_run[is_near].groupby("kind"):
            axes.scatter(
                rows["first_order"],
                rows["log_ratio"],
                s=14,
                alpha=0.6,
                label="watermarked" if kind == OWN else kind,
                **style.look(kind),
            )
        axes.axline((0, 0), slope=1, **style.THIN, label="both equal")
        n_far = (~is_near).sum()
        title = f"{name} ({n_far} of {len(is_near)} texts outside)" if n_far else name
        axes.set(xlabel="gradient form, nats", title=title)
        axes.set_aspect("equal", adjustable="datalim")  # panels of one size, whatever the texts
    grid[0, 0].set_ylabel("log likelihood ratio, nats")
    style.legend_beside(grid[0, -1])
    return style.caption(
        figure,
        caption,
        "Does the gradient form follow the log likelihood ratio?",
    )


def _is_near(values: pd.Series) -> pd.Series:
    """Whether a value lies in the range of the middle 99%, or at most half its width outside."""
    low, high = values.quantile([0.005, 0.995])
    margin = (high - low) / 2
    return values.between(low - margin, high + margin)


def draw_fresh_keys(table: pd.DataFrame, sigma: float, caption: str) -> Figure:
    """Draw ⟨ξ, G⟩ and ψ over keys, one row of panels per text, and the normal densities that they
    must follow.
    """
    texts = table["text"].unique()  # a row of panels each
    figure, grid = plt.subplots(len(texts), 2, figsize=(8.6, 5.2), sharex="col")
    for (of_inner, of_psi), text, colour in zip(grid, texts, style.COLOURS, strict=False):
        rows = table[table["text"] == text]
        # the standard deviations that theory gives
        widths = {
            "inner": sigma * rows["grad_norm"].iloc[0],
            "psi": 1.0,
        }
        for axes, (column, width) in zip((of_inner, of_psi), widths.items(), strict=True):
            axes.hist(
                rows[column],
                bins=20,
                density=True,
                color=colour,
                alpha=0.5,
            )
            x = np.linspace(-4, 4, 200) * width
            axes.plot(x, norm.pdf(x, scale=width), **style.THIN)
            axes.set(yticks=[])
        of_inner.set_ylabel(text, rotation=0, ha="right", va="center")
    grid[-1, 0].set(xlabel="⟨ξ, G⟩, nats")
    grid[-1, 1].set(xlabel="ψ = ⟨ξ, G⟩/(σ‖G‖)")
    return style.caption(
        figure,
        caption,
        "How are ⟨ξ, G⟩ and ψ distributed over keys that did not write the text?",
    )
