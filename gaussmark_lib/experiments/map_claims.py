"""What a map over weight × σ says, with intervals over prompts and keys: how far the prediction
holds, and which σ has a wanted power.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import models, perturb, stats
from gaussmark_lib.experiments import crossed
from gaussmark_lib.experiments.layer_sigma_sweep import matrix_kind, measured
from gaussmark_lib.tokens import Texts

LINEAR = 4.0  # the predicted ψ up to which a cell counts as linear, chosen beforehand
BEND = (2.0, 6.0)  # the predicted ψ between which kinds of matrix are compared


def agreement(cells: pd.DataFrame, up_to: float = LINEAR) -> dict[str, float | None]:
    """Predicted against measured mean ψ over the cells predicted up to a bound: ``r`` (Pearson),
    ``median_error`` (relative), ``n``.
    """
    linear = cells[cells["predicted_psi"] <= up_to]
    error = ((linear["psi"] - linear["predicted_psi"]) / linear["predicted_psi"]).abs()
    r = (
        float(np.corrcoef(linear["predicted_psi"], linear["psi"])[0, 1])
        if len(linear) > 2
        else None
    )
    return {
        "r": r,
        "median_error": float(error.median()) if len(linear) else None,
        "n": len(linear),
    }


def ratio(
    texts: pd.DataFrame, cells: pd.DataFrame, least: float = 0.0, most: float = LINEAR, **options
) -> stats.Estimate:
    """Measured over predicted ψ, mean over the cells with a predicted ψ from ``least`` to ``most``,
    over prompts and keys; NaN without such cells.

    Args:
        texts: of ``layer_sigma_sweep.measured``. cells: ``weight, sigma, predicted_psi``. options:
            of ``stats.crossed_interval``.
    """
    wanted = cells.loc[
        cells["predicted_psi"].between(least, most), ["weight", "sigma", "predicted_psi"]
    ]
    rows = texts.merge(wanted, on=["weight", "sigma"])
    return _over_cells(rows, rows["psi"] / rows["predicted_psi"], **options)


def bends(texts: pd.DataFrame, cells: pd.DataFrame, **options) -> dict[str, stats.Estimate]:
    """:func:`ratio` between the bounds of ``BEND`` for each kind of matrix that has such cells, by
    the kind's name.
    """
    kinds = cells["weight"].map(matrix_kind)
    found = {kind: ratio(texts, cells[kinds == kind], *BEND, **options) for kind in kinds.unique()}
    return {kind: estimate for kind, estimate in found.items() if estimate.n}


def wrong_key(texts: pd.DataFrame, level: float, **options) -> stats.Estimate:
    """Share of all texts that another key than their own calls watermarked, with an interval over
    prompts and keys.
    """
    return _over_cells(texts, texts["wrong_psi"] >= stats.threshold(level), share=True, **options)


def change(texts: pd.DataFrame, first: float, last: float, **options) -> stats.Estimate:
    """Mean ψ at one σ less that at another, paired over prompts and keys."""
    psi = texts.pivot(index=["prompt", "key_id"], columns="sigma", values="psi")
    return crossed.mean(
        (psi[last] - psi[first]).rename("change").reset_index(), "change", **options
    )


def cost_of_noise(passages: pd.DataFrame) -> stats.Estimate:
    """Δ cross-entropy at the largest σ less that at the smallest, mean over the weights, paired by
    passage.
    """
    nats = passages.groupby(["sigma", "passage"])["watermarked"].mean().unstack("sigma")
    return stats.paired(nats[nats.columns.min()], nats[nats.columns.max()]).change


def cheapest(
    cells: pd.DataFrame,
    passages: pd.DataFrame,
    *,
    psi: tuple[float, float] = (1.0, 4.0),
    n_resamples: int = stats.N_RESAMPLES,
    seed: int = 0,
) -> pd.Series:
    """By weight, the share of resamples of the passages in which its Δ cross-entropy per ψ² is the
    smallest: how sure that order is.

    A weight's Δ/ψ² is the median over its cells with a measured ψ in the range, ψ taken as it was
    measured; weights without any are left out.

    Args:
        cells: of ``layer_sigma_sweep.summary``. passages: of ``layer_sigma_sweep.cost``.
    """
    usable = cells[cells["psi"].between(*psi)].set_index(["weight", "sigma"])["psi"]
    if usable.empty:
        return pd.Series(dtype=float)
    rises = passages.assign(delta=passages["watermarked"] - passages["base"]).pivot(
        index=["weight", "sigma"], columns="passage", values="delta"
    )
    chosen = np.random.default_rng(seed).integers(
        rises.shape[1], size=(n_resamples, rises.shape[1])
    )
    drawn = rises.loc[usable.index].to_numpy()[:, chosen].mean(2) / usable.to_numpy()[:, None] ** 2
    medians = pd.DataFrame(drawn, index=usable.index).groupby(level="weight", sort=False).median()
    return medians.idxmin().value_counts(normalize=True).reindex(medians.index, fill_value=0.0)


def power(texts: pd.DataFrame, level: float, **options) -> stats.Estimate:
    """Share detected of texts of one cell, over prompts and keys."""
    return _over_cells(texts, texts["psi"] >= stats.threshold(level), share=True, **options)


def _over_cells(texts: pd.DataFrame, values: pd.Series, **options) -> stats.Estimate:
    """Mean of a value a text: first over the cells, so that prompts and keys alone are
    resampled.
    """
    if texts.empty:
        return stats.Estimate(np.nan, np.nan, np.nan, 0)
    each = (
        texts.assign(value=values)
        .groupby(["prompt", "key_id"], sort=False)["value"]
        .mean()
        .reset_index()
    )
    return crossed.mean(each, "value", **options)


def search_sigma(
    lm: models.LM,
    prompts: Texts,
    weight: str,
    keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    power: float,
    level: float,
    low: float,
    high: float,
    steps: int,
    seed: int = 0,
    **options,
) -> pd.DataFrame:
    """What one does without a prediction: bisect (on the log scale) for the σ at which a measured
    TPR is the wanted power.

    Args:
        options: of ``layer_sigma_sweep.measured``.

    Returns:
        One row a step: ``sigma``, ``value, low, high, n`` of the TPR, ``next`` (the next σ),
            ``tokens`` (generated so far).
    """
    rows, spent = [], 0
    for step in range(steps):
        sigma = float(np.sqrt(low * high))
        texts = measured(
            lm,
            prompts,
            [weight],
            [sigma],
            keys,
            n_tokens=n_tokens,
            seed=seed + 1000 * step,
            **options,
        )
        detected = _over_cells(texts, texts["psi"] >= stats.threshold(level), share=True)
        low, high = (sigma, high) if detected.value < power else (low, sigma)
        spent += int(texts["n_tokens"].sum())
        rows.append(
            {"sigma": sigma}
            | detected.row()
            | {"next": float(np.sqrt(low * high)), "tokens": spent}
        )
    return pd.DataFrame(rows)
