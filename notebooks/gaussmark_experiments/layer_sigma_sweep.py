"""04: the map of a model: what each weight at each σ is worth and costs, measured; and the same map
predicted from one gradient pass.

The paper measures every cell of its heat maps over layer and σ². In the linear regime the mean of ψ
is σ·mean‖G‖, with ‖G‖ of plain text, for every weight from the same backward pass. Where the two
maps differ, linearity ends. A cell is one weight and one σ. All cells have the same pairs of a
prompt and a key: rows of one cell are independent, and a mean over cells is clustered by pair.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, likelihood, models, stats
from gaussmark_lib.perturb import Watermark, watermarked
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import block
from gaussmark_lib.workbench.pairs import Pairs, means, under_own_keys
from gaussmark_lib.workbench.plots import style

LINEAR = 4.0  # the predicted ψ up to which a cell counts as linear, chosen beforehand
DIFFERENT, EQUAL, OPEN = "different", "equal within the margin", "n too small to say"


def one_per_kind(weights: Sequence[str]) -> list[str]:
    """Of each kind of matrix (:func:`matrix_kind`) the middle one."""
    kinds = pd.Series(weights).groupby([matrix_kind(name) for name in weights], sort=False)
    return [names.iloc[len(names) // 2] for _, names in kinds]


def output_head(model: PreTrainedModel) -> list[str]:
    """The output head's matrix, where it is one of its own and not that of the input embeddings."""
    head = model.get_output_embeddings()
    return [
        name
        for name in models.watermarkable(model)
        if model.get_submodule(name.removesuffix(".weight")) is head
    ]


def matrix_kind(weight: str) -> str:
    """``down_proj`` for ``model.layers.4.mlp.down_proj.weight``."""
    return weight.removesuffix(".weight").split(".")[-1]


def short(weight: str) -> str:
    """
    >>> short("model.layers.4.mlp.down_proj.weight"), short("lm_head.weight")
    ('4.down_proj', 'lm_head')
    """
    return ".".join(filter(None, (block(weight), matrix_kind(weight))))


def norms(
    lm: models.LM,
    prompts: Texts,
    weights: Sequence[str],
    *,
    n_tokens: int,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> pd.DataFrame:
    """‖G‖ of plain continuations of the prompts for all weights, from one gradient pass:
    ``gradients.norms``'s table.
    """
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    return gradients.norms(lm.model, prompts, plain, weights, dtype=dtype)


def sigmas_for(norms: pd.DataFrame, psis: Sequence[float]) -> list[float]:
    """The σ, to two digits, at which the weight of median mean ‖G‖ has these predicted ψ."""
    middle = norms.groupby("weight")["grad_norm"].mean().median()
    return [float(f"{psi / middle:.2g}") for psi in psis]


def predicted(norms: pd.DataFrame, sigmas: Sequence[float]) -> pd.DataFrame:
    """The map from plain text alone: ``weight, sigma, predicted_psi`` (σ·mean‖G‖), one row per
    cell.
    """
    means = norms.groupby("weight", sort=False)["grad_norm"].mean()
    rows = [
        (weight, sigma, sigma * means[weight]) for weight, sigma in product(means.index, sigmas)
    ]
    return pd.DataFrame(rows, columns=["weight", "sigma", "predicted_psi"])


def measured(
    lm: models.LM,
    pairs: Pairs,
    weights: Sequence[str],
    sigmas: Sequence[float],
    *,
    n_tokens: int,
    **options,
) -> pd.DataFrame:
    """Writes every pair's text in every cell, all σ of a weight in one batch, and tests it with its
    own key: the table, and the options, of ``pairs.under_own_keys``.
    """
    tables = []
    for weight in weights:
        wms = [Watermark(weight, sigma) for sigma in sigmas]
        _, table = under_own_keys(lm, pairs, wms, n_tokens, **options)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def detected(prediction: pd.DataFrame, texts: pd.DataFrame, level: float) -> pd.DataFrame:
    """One row per cell: the columns of :func:`predicted`, and ``psi, tpr`` with ``_low, _high``."""
    rows = []
    for (weight, sigma), cell in texts.groupby(["weight", "sigma"], sort=False):
        tpr = stats.tpr(cell["psi"], level)
        estimates = stats.interval(cell["psi"]).row("psi") | tpr.row("tpr")
        rows.append({"weight": weight, "sigma": sigma, "n": tpr.n} | estimates)
    return prediction.merge(pd.DataFrame(rows), on=["weight", "sigma"])


def ratio(
    texts: pd.DataFrame, cells: pd.DataFrame, least: float = 0.0, most: float = LINEAR
) -> stats.Estimate:
    """Measured over predicted ψ, mean over the cells with a predicted ψ in this range, clustered by
    pair; NaN without such cells.
    """
    wanted = cells.loc[cells["predicted_psi"].between(least, most)]
    rows = texts.merge(wanted[["weight", "sigma", "predicted_psi"]], on=["weight", "sigma"])
    if rows.empty:
        return stats.Estimate(np.nan, np.nan, np.nan, 0)
    return stats.interval(rows["psi"] / rows["predicted_psi"], cluster=rows["prompt"])


def cost(lm: models.LM, passages: Texts, cells: pd.DataFrame, pairs: Pairs) -> pd.DataFrame:
    """Cross-entropy of human passage i under key i, in nats per token: ``weight, sigma, passage,
    base, watermarked``, one row per cell and passage.
    """
    base, rows = likelihood.cross_entropy(lm.model, passages), []
    for cell, (i, passage) in product(cells.itertuples(), enumerate(passages)):
        wm = Watermark(cell.weight, cell.sigma)
        with watermarked(lm.model, wm, pairs.keys[i % pairs.n]):
            [nats] = likelihood.cross_entropy(lm.model, [passage])
        rows.append((cell.weight, cell.sigma, i, base[i], nats))
    return pd.DataFrame(rows, columns=["weight", "sigma", "passage", "base", "watermarked"])


def priced(cost: pd.DataFrame, margin: float) -> pd.DataFrame:
    """One row per cell of :func:`cost`: ``delta, delta_low, delta_high`` (the change, paired by
    passage), and ``outcome``: ``DIFFERENT`` if the interval does not contain 0, ``EQUAL`` if all of
    it lies within ± the margin, else ``OPEN``.
    """
    change = cost.assign(change=cost["watermarked"] - cost["base"])
    cells = means(change, ["weight", "sigma"], "change")
    is_different = (cells["low"] > 0) | (cells["high"] < 0)
    is_equal = (-margin <= cells["low"]) & (cells["high"] <= margin)
    cells["outcome"] = np.select([is_different, is_equal], [DIFFERENT, EQUAL], OPEN)
    return cells.rename(columns={"value": "delta", "low": "delta_low", "high": "delta_high"})


def solved(
    lm: models.LM,
    pairs: Pairs,
    norms: pd.DataFrame,
    weights: Sequence[str],
    power: float,
    level: float,
    **options,
) -> pd.DataFrame:
    """σ of each weight for a wanted power, from its ``norms``, and the share detected there of new
    pairs: ``weight, sigma, value, low, high, n``. Options are those of :func:`measured`.
    """
    rows = []
    for weight in weights:
        of_one = norms.loc[norms["weight"] == weight, "grad_norm"]
        sigma = stats.sigma_for_power(of_one, power, level)
        there = measured(lm, pairs, [weight], [sigma], **options)
        rows.append({"weight": weight, "sigma": sigma} | stats.tpr(there["psi"], level).row())
    return pd.DataFrame(rows)


def far_out(
    lm: models.LM,
    pairs: Pairs,
    norms: pd.DataFrame,
    weights: Sequence[str],
    psis: Sequence[float],
    level: float,
    **options,
) -> tuple[pd.DataFrame, dict[str, stats.Estimate]]:
    """Each weight at the σ of these predicted ψ: the rows of :func:`detected`, and by weight the
    mean ψ at the largest σ less that at the smallest. Options are those of :func:`measured`.
    """
    tables, falls = [], {}
    for weight in weights:
        of_one = norms[norms["weight"] == weight]
        steps = sorted(sigmas_for(of_one, psis))
        noisy = measured(lm, pairs, [weight], steps, **options)
        psi = noisy.pivot(index="prompt", columns="sigma", values="psi")
        falls[weight] = stats.interval(psi[steps[-1]] - psi[steps[0]])
        tables.append(detected(predicted(of_one, steps), noisy, level))
    return pd.concat(tables, ignore_index=True), falls


def draw_map(cells: pd.DataFrame, caption: str) -> Figure:
    """Predicted mean ψ, measured mean ψ, and the share detected, over weights × σ."""
    named = cells.assign(weight=cells["weight"].map(short)).rename(columns={"sigma": "σ"})
    size = 12.0, 1.8 + 0.3 * cells["weight"].nunique()
    figure, three = plt.subplots(1, 3, figsize=size, sharey=True)
    strength = {"vmax": 1.2 * cells["psi"].max(), "fmt": ".1f"}
    columns = {
        "predicted ψ, from plain text": ("predicted_psi", strength),
        "measured ψ": ("psi", strength),
        "share detected": ("tpr", {"vmax": 1, "fmt": ".2f"}),
    }
    for axes, (title, (column, look)) in zip(three, columns.items(), strict=True):
        grid = named.pivot(index="weight", columns="σ", values=column)
        look |= {"annot": True, "annot_kws": {"size": 9, "color": "k"}, "cbar": False}
        rows = grid.loc[named["weight"].unique()]
        sns.heatmap(rows, ax=axes, vmin=0, cmap="Wistia", **look)
        axes.set(ylabel="", title=title)
        axes.tick_params("both", rotation=0)
    return style.caption(figure, caption, "Does plain text predict the map?")
