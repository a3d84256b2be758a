"""07: noise that avoids the weight's top singular directions (``rank_reduce``), compared with the
vanilla scheme, over n pairs of a fresh prompt and a fresh key (paper, Sec. "rank-reduction").

With P the projection, the linear law of notebook 01 reads

    mean ψ ≈ σ‖PG‖,        price ≈ ½σ² E‖PG‖² nats per text of the model's own

At one σ each dropped direction lowers both. At the σ_k of the same predicted ψ
(:func:`at_equal_psi`) the law gives all projections the same price; any difference that is measured
there is one that the law does not describe.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm
from transformers import PreTrainedModel

from gaussmark_experiments import quality
from gaussmark_experiments.intervals import divided, of_row
from gaussmark_experiments.robustness import UNEDITED
from gaussmark_lib import generate, models, rank_reduce, score, stats
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.workbench.answers import THIS_RUN, beside, has_table
from gaussmark_lib.workbench.pairs import Pairs
from gaussmark_lib.workbench.plots import intervals, style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs.folder import Run

# Names of schemes, statistics and quantities, as tables and figures show them.
VANILLA = "GaussMark"
RIGHT = "P on both"
DIVIDED = "divided by σ‖G‖"
FORGOTTEN = "P forgotten in the test"
OWN = "price on its own text"
HUMAN = "price on human text"
PSI = "mean ψ"
# What the numbers of an answer are.
FAVOURED = "Share of ‖G‖² in the top eighth of left directions, divided by an even spread"
PSI_LEFT = "Share of ψ that remains, divided by the share of left directions that remain"
PRICE_RATIO = "Price on human text with the most directions dropped, divided by the vanilla price"
Norms = Mapping[str, Float[np.ndarray, "texts k"]]  # side → ‖PG‖ with 0, 1, 2… directions dropped


def gradient_norms(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    weight: str,
    *,
    dtype: str | None = None,
) -> Norms:
    """Return ‖PG‖ of each text for each side and every k = 0 … min(d_out, d_in), from one backward
    pass per text.
    """
    wm = Watermark(weight, 1.0).on(model)
    theta = wm.linear.value()
    # all singular directions, the strongest first: u is (d_out, k), v is (d_in, k)
    u, v = (
        rank_reduce.singular_vectors(theta, min(theta.shape), side) for side in ("left", "right")
    )
    squares = {side: [[]] * len(responses) for side in rank_reduce.SIDES}
    for gradient in score.gradients(model, prompts, responses, wm, dtype=dtype):
        G = gradient.G.to(u)
        gone = {  # ‖·‖² in the top 1, 2, … directions of a side
            "left": (u.T @ G).square().sum(1).double().cumsum(0),
            "right": (G @ v).square().sum(0).double().cumsum(0),
        }
        # what the directions of both sides take away together was subtracted twice
        in_both = (u.T @ G @ v).square().double().cumsum(0).cumsum(1).diagonal()
        gone["both"] = gone["left"] + gone["right"] - in_both
        whole = gradient.norm**2
        for side, of_side in gone.items():
            squares_left = whole - of_side.clamp(0, whole).cpu().numpy()
            squares[side][gradient.text] = np.append(whole, squares_left)  # k = 0 first
    return {side: np.sqrt(rows) for side, rows in squares.items()}


def shares(
    norms: Float[np.ndarray, "texts k"],
) -> Float[np.ndarray, "texts k"]:
    """Return the share of each text's ‖G‖² in the top k directions."""
    return 1 - (norms / norms[:, :1]) ** 2  # the first column drops nothing


def favoured(norms: Float[np.ndarray, "texts k"], n_directions: int) -> stats.Estimate:
    """Return the share of ‖G‖² in the top eighth of a side's directions (at most as many as the
    weight has), divided by the share of an even spread.
    """
    k = max(1, min(n_directions // 8, norms.shape[1] - 1))  # an eighth, or what the weight has
    return stats.interval(shares(norms)[:, k] * n_directions / k)


def at_equal_psi(wm: Watermark, norms: Norms, rank: int) -> Watermark:
    """Return the projected watermark with the predicted mean ψ of the vanilla ``wm``:
    σ_k = σ · mean‖G‖ / mean‖PG‖, over plain texts.
    """
    mean = norms[wm.side].mean(0)  # over texts, for each k
    return Watermark(
        wm.weight,
        float(wm.sigma * mean[0] / mean[rank]),
        rank,
        wm.side,
    )


def named(wms: Sequence[Watermark], key: Key, dtype: str | None = None) -> dict[str, GaussMark]:
    """Return these watermarks as schemes by name: ``GaussMark`` for the vanilla scheme, and ``k =
    64`` or ``k = 64, right`` for the others.
    """
    schemes = {}
    for wm in wms:
        name = _name(wm)
        schemes[name] = GaussMark(wm, key, name, dtype=dtype)
    return schemes


def _name(wm: Watermark) -> str:
    if not wm.rank_dropped:
        return VANILLA
    name = f"k = {wm.rank_dropped}"
    return name if wm.side == "left" else f"{name}, {wm.side}"


def texts_by_scheme(
    lm: models.LM,
    schemes: Mapping[str, GaussMark],
    pairs: Pairs,
    n_tokens: int,
    **sampling,
) -> dict[str, list[list[int]]]:
    """Write a text of each pair by each scheme, in one batch. Pair i has the same random numbers in
    all schemes. Sampling is ``seed, top_p, temperature, until_end`` of ``generate.sample``.
    """
    n = pairs.n
    n_schemes = len(schemes)
    options = {"batch_size": 128, **sampling}
    texts = generate.sample(
        lm.model,
        pairs.prompts * n_schemes,
        n_tokens,
        marks=[(scheme.wm, key) for scheme in schemes.values() for key in pairs.keys],
        rows=[*range(n)] * n_schemes,  # which random numbers: those of the pair
        **options,
    )
    return {name: texts[i * n : (i + 1) * n] for i, name in enumerate(schemes)}


def predicted(norms: Norms, wm: Watermark) -> Float[np.ndarray, " texts"]:
    """Return σ‖PG‖ of each plain text: the mean ψ that it predicts."""
    return wm.sigma * norms[wm.side][:, wm.rank_dropped]  # (texts,)


def prices(
    lm: models.LM,
    schemes: Mapping[str, GaussMark],
    pairs: Pairs,
    texts: Mapping[str, Texts],
    human: Sequence[Pair],
) -> pd.DataFrame:
    """Measure the nats per token that each pair's key costs: ``scheme, pair, quantity, value``.

    ``OWN`` is KL(p_{θ+ξ} ‖ p_θ) along the scheme's own text (``divergence``). ``HUMAN`` is the
    change of the cross-entropy of a human passage, mean over ξ and −ξ, from (its beginning, its
    end).
    """
    beginnings = Pairs([list(beginning) for beginning, _ in human], pairs.keys)
    ends = [end for _, end in human]
    tables = []
    for name, scheme in schemes.items():
        nats = scheme.divergences(lm.model, pairs.prompts, texts[name], pairs.keys)  # per text
        change = quality.even_changes(lm, beginnings, {HUMAN: ends}, scheme.wm)
        values = {
            OWN: nats / [len(text) for text in texts[name]],
            HUMAN: change[HUMAN],
        }
        for quantity, value in values.items():
            columns = {
                "scheme": name,
                "pair": range(pairs.n),
                "quantity": quantity,
                "value": value,
            }
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def over_vanilla(table: pd.DataFrame) -> pd.DataFrame:
    """Divide each projection's mean by the vanilla scheme's, over the same pairs, in a table like
    that of :func:`prices`: ``scheme, quantity, value, low, high, n``.
    """
    rows = []
    for quantity, cells in table.groupby("quantity", sort=False):
        values = cells.pivot(index="pair", columns="scheme", values="value")  # (pairs, schemes)
        schemes = [scheme for scheme in cells["scheme"].unique() if scheme != VANILLA]
        for scheme in schemes:
            estimate = stats.ratio(values[scheme], values[VANILLA])
            rows.append(
                {
                    "scheme": scheme,
                    "quantity": quantity,
                    **estimate.row(),
                }
            )
    return pd.DataFrame(rows)


def share_of_psi(tested: pd.DataFrame) -> pd.DataFrame:
    """Divide each projection's mean ψ by the vanilla scheme's: a table like that of
    :func:`over_vanilla`, from ``scheme, pair, psi`` of unedited texts.
    """
    return over_vanilla(tested.rename(columns={"psi": "value"}).assign(quantity=PSI))


def more_than_directions(tested: pd.DataFrame, dropped: Sequence[float]) -> stats.Estimate:
    """Return the share of ψ that is left at one σ where the most left directions are dropped,
    divided by the share of directions that are left.

    Args:
        tested: ``scheme, pair, psi`` of unedited texts.
        dropped: shares of directions; the largest belongs to the strongest projection.
    """
    psi_left = of_strongest(share_of_psi(tested), PSI)
    directions_left = 1 - max(dropped)
    return divided(psi_left, directions_left)


def recorded_left(run: Run) -> stats.Estimate | None:
    """Return :func:`more_than_directions` of a record, for ``answers.answer``; None if the record
    did not measure it.
    """
    if not has_table(run, "one_sigma"):
        return None
    return more_than_directions(run.table("one_sigma"), run.params["dropped"])


def by_share(table: pd.DataFrame, dropped: Sequence[float]) -> pd.DataFrame:
    """Name each scheme of a table by the share of directions that it drops ("50% dropped"), so that
    runs on weights of different sizes share the rows of a figure.

    Schemes keep their names (``k = 64``) where two shares gave the same k.
    """
    names = _names_by_share(table["scheme"].unique(), dropped)
    return table.assign(scheme=table["scheme"].map(names))


def _names_by_share(schemes: Iterable[str], dropped: Sequence[float]) -> dict[str, str]:
    """The name of each scheme by its share. The left projections have the shares ``dropped``."""
    names = {scheme: scheme for scheme in schemes}
    ranks = {}
    for scheme in names:
        if scheme != VANILLA:
            rank = scheme.removeprefix("k = ").partition(",")[0]
            ranks[scheme] = int(rank)
    left_ranks = sorted(rank for scheme, rank in ranks.items() if "," not in scheme)
    shares_dropped = sorted(set(dropped))
    if len(left_ranks) != len(shares_dropped):
        return names
    share_of_rank = dict(zip(left_ranks, shares_dropped, strict=True))
    for scheme, rank in ranks.items():
        if rank in share_of_rank:
            share = f"{100 * share_of_rank[rank]:.3g}% dropped"
            names[scheme] = scheme.replace(f"k = {rank}", share)
    return names


def over_by_run(over: pd.DataFrame, dropped: Sequence[float], notebook: str) -> pd.DataFrame:
    """Return :func:`over_vanilla` of the notebook's records and of this run, with names
    :func:`by_share`, for the quantities that this run's table ``over`` has.
    """

    def recorded(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        measured = table[table["quantity"].isin(over["quantity"])]
        return by_share(over_vanilla(measured), run.params["dropped"])

    return beside(by_share(over, dropped), notebook, "equal_psi", recorded)


def of_strongest(over: pd.DataFrame, quantity: str) -> stats.Estimate:
    """Return the estimate of the left projection that drops the most directions, in the table of
    :func:`over_vanilla`.
    """
    is_left = ~over["scheme"].str.contains(",")
    dropped = over.loc[is_left, "scheme"].str.removeprefix("k = ").astype(int)
    return of_scheme(over, over.loc[dropped.idxmax(), "scheme"])[quantity]


def left_over_vanilla(table: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Divide the share of its mean ψ that a scheme keeps after the edits by the share that the
    vanilla scheme keeps, over the same pairs. The edits of a text are averaged.
    """
    state = np.where(table["edit"] == UNEDITED, "before", "after")
    # (pairs, (scheme, state))
    psi = table.assign(state=state).pivot_table("psi", "pair", ["scheme", "state"])
    columns = [(name, state) for name in (scheme, VANILLA) for state in ("after", "before")]

    def share(rows: np.ndarray) -> float:
        psi_after, psi_before, vanilla_after, vanilla_before = rows.mean(0)
        return (psi_after / psi_before) / (vanilla_after / vanilla_before)

    return stats.interval(psi[columns].to_numpy(), share)


def misuses(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    **options,
) -> dict[str, np.ndarray]:
    """Return ψ of a projected watermark, and two wrong statistics, in which a P is missing.

    =============  ==================  ========================================================
    ``RIGHT``      ⟨Pξ, PG⟩ / (σ‖PG‖)  N(0, 1) under the null, mean σ‖PG‖ on its own text
    ``DIVIDED``    ⟨Pξ, PG⟩ / (σ‖G‖)   N(0, ‖PG‖²/‖G‖²) under the null: the level is not α
    ``FORGOTTEN``  ⟨ξ, G⟩ / (σ‖G‖)     N(0, 1) under the null, but the mean is σ‖PG‖²/‖G‖
    =============  ==================  ========================================================

    Options are those of ``score.score``. The ψ have the order of its rows.
    """
    without_p = replace(wm, rank_dropped=0)
    right = score.score(model, prompts, responses, wm, keys, **options)
    forgotten = score.score(model, prompts, responses, without_p, keys, **options)
    # ψ times σ‖PG‖ is the inner product; σ cancels
    divided = right["psi"] * right["grad_norm"] / forgotten["grad_norm"]
    psi = {
        RIGHT: right["psi"],
        DIVIDED: divided,
        FORGOTTEN: forgotten["psi"],
    }
    return {statistic: values.to_numpy() for statistic, values in psi.items()}


def detected(psi: Mapping[str, np.ndarray], level: float) -> pd.DataFrame:
    """Return the share that each statistic of :func:`misuses` detects: ``statistic, value, low,
    high, n``.
    """
    return pd.DataFrame(  # one row per statistic
        {"statistic": name} | stats.tpr(values, level).row() for name, values in psi.items()
    )


def of_scheme(over: pd.DataFrame, scheme: str) -> dict[str, stats.Estimate]:
    """Return the estimates of a scheme in the table of :func:`over_vanilla`, by quantity."""
    rows = over[over["scheme"] == scheme]  # one row per quantity
    return {row["quantity"]: of_row(row) for row in rows.to_dict("records")}


def left_in_words(
    promised: Mapping[str, np.ndarray],
    scheme: str,
    even: float,
    measured: stats.Estimate,
) -> str:
    """Word how much of ψ a scheme keeps at one σ. With an even spread it would keep the share
    ``even`` of ‖G‖².
    """
    predicted_share = promised[scheme].mean() / promised[VANILLA].mean()
    return (
        f"At {scheme}, an even spread would leave $\\sqrt{{1-k/d}}$ = {even**0.5:.0%} of ψ. The"
        f" gradients predict {predicted_share:.0%}. Measured ψ divided by predicted ψ:"
        f" **{measured}**."
    )


def prices_in_words(
    costs: pd.DataFrame,
    over: Mapping[str, stats.Estimate],
    scheme: str,
) -> str:
    """Word the prices of a scheme (:func:`prices`), and divided by the vanilla scheme's prices
    (:func:`of_scheme`).
    """
    mean = costs.groupby(["quantity", "scheme"])["value"].mean()
    return (
        f"The mean price of {scheme} in nats per token is {mean[OWN, scheme]:.3f} on its own text"
        f" (vanilla {mean[OWN, VANILLA]:.3f}) and {mean[HUMAN, scheme]:.3f} on human text (vanilla"
        f" {mean[HUMAN, VANILLA]:.3f}). Its price divided by the vanilla price (with 95% intervals)"
        f" is {over[OWN]} on its own text, and {over[HUMAN]} on human text. So on human text,"
        f" {scheme} is {_cheaper(over[HUMAN])}."
    )


def _cheaper(price: stats.Estimate) -> str:
    """What the interval of a price, divided by another price, says about the two."""
    if np.isnan(price.low):
        return "not comparable with the vanilla scheme, because there is no interval"
    if price.high < 1:
        return f"between {1 - price.high:.0%} and {1 - price.low:.0%} cheaper"
    if price.low > 1:
        return f"between {price.low - 1:.0%} and {price.high - 1:.0%} more expensive"
    return f"at most {1 - price.low:.0%} cheaper and at most {price.high - 1:.0%} more expensive"


def misuses_in_words(rates: pd.DataFrame) -> str:
    """Say what the right test and the two wrong tests detect (:func:`detected`), in one run."""
    share = rates.set_index("statistic")["value"]
    return (
        f"the right test detects {share[RIGHT]:.0%} of {rates['n'].iloc[0]} watermarked texts, the"
        f" test with the denominator $\\sigma\\lVert G\\rVert$ {share[DIVIDED]:.0%}, and the test"
        f" without P {share[FORGOTTEN]:.0%}"
    )


def draw_one_sigma(
    shares_of_psi: pd.DataFrame,
    promised: Mapping[str, np.ndarray],
    dropped: Sequence[float],
) -> Figure:
    """Draw :func:`share_of_psi` of each run with names :func:`by_share`, and in the panel of this
    run the predictions.
    """
    vanilla = promised[VANILLA].mean()
    names = _names_by_share(promised, dropped)
    forecast = [
        {"scheme": names[scheme], "value": values.mean() / vanilla}
        for scheme, values in promised.items()
        if scheme != VANILLA
    ]
    pairs_by_run = shares_of_psi.groupby("run", sort=False)["n"].first()
    sizes = "; ".join(f"{run}: {n} pairs" for run, n in pairs_by_run.items())
    points = pd.concat(
        [
            shares_of_psi.assign(by="measured"),
            pd.DataFrame(forecast).assign(by="predicted", run=THIS_RUN),
        ]
    )
    # the left projections of all runs first
    points = points.sort_values("scheme", key=lambda names: names.str.contains(","), kind="stable")
    return panels(
        points,
        "scheme",
        by="by",
        panel="run",
        at={"vanilla": 1},
        ylim=(0, 1.05 * points[["value", "high"]].max().max()),  # one axis for all runs
        title="How much of ψ is left at the same σ?",
        caption=f"{sizes}; 95% intervals",
        ylabel="mean ψ divided by the vanilla mean ψ",
    )


def draw_null(psi: Mapping[str, np.ndarray], caption: str) -> Figure:
    """Draw the distribution of each statistic under fresh keys, and Φ."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    for i, (statistic, values) in enumerate(psi.items()):
        axes.ecdf(values, color=style.OTHERS[i], label=statistic)
    grid = np.linspace(-4, 4, 200)  # where Φ is drawn
    axes.plot(grid, norm.cdf(grid), **style.DASHED, label="N(0, 1)")
    axes.set(
        xlabel="statistic of one human text",
        ylabel="share of keys with at most this value",
    )
    style.legend_beside(axes)
    return style.caption(
        figure,
        caption,
        "Which statistics are N(0, 1) under fresh keys?",
    )


def draw_spectrum(
    singular_values: np.ndarray,
    norms: Norms,
    shape: Sequence[int],
    caption: str,
) -> Figure:
    """Draw the weight's singular values (left) and the share of ‖G‖² in the top k of each side's
    directions, mean and range over texts, next to the share of the weight's own ‖θ‖² (right).
    """
    figure, (spectrum, energies) = plt.subplots(1, 2, figsize=(10.5, 4.0))
    squares = singular_values**2
    energy = np.append(0, squares.cumsum()) / squares.sum()  # share of ‖θ‖² at k = 0, 1, 2…
    spectrum.plot(
        1 + np.arange(len(singular_values)),
        singular_values,
        color=style.THEORY,
    )
    spectrum.set(
        xlabel="singular direction, the strongest first",
        ylabel="singular value of θ",
        ylim=(0, None),
    )
    spectrum.set_title("Does the weight have strong directions?")
    for side, n_directions, colour in zip(("left", "right"), shape, style.OTHERS, strict=False):
        share = shares(norms[side])  # (texts, k)
        at = np.arange(len(energy)) / n_directions  # k/d
        rows = pd.DataFrame(
            {
                "value": share.mean(0),
                "low": share.min(0),
                "high": share.max(0),
            }
        )
        label = f"of ‖G‖², {n_directions} {side} directions"
        intervals.band(energies, at, rows, marker="", color=colour, label=label)
        energies.plot(
            at,
            energy,
            ":",
            color=colour,
            label=f"of the weight's ‖θ‖², {side}",
        )
    energies.plot([0, 1], [0, 1], **style.THIN, label="an even spread")
    energies.set(
        xlabel="k/d: share of left or right directions",
        ylabel="share in the top k",
    )
    energies.set_title("Does the gradient favour the same directions?")
    style.legend_beside(energies)
    return style.caption(figure, caption)
