"""The map of a model: what each weight at each σ is worth and costs, measured; and the same map predicted from one gradient pass.

The paper measures every cell of its heat maps over layer and σ². In the linear regime the mean of ψ is σ·mean‖G‖, with ‖G‖ of plain text, for every
weight from the same backward pass. Where the two maps differ, linearity ends. A cell is one weight and one σ, over all keys and prompts.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, likelihood, models, perturb, stats
from gaussmark_lib.experiments import crossed, written_and_scored
from gaussmark_lib.quality import compare
from gaussmark_lib.tokens import Texts


def mlp_weights(model: PreTrainedModel, blocks: Iterable[int] | None = None) -> list[str]:
    """Full names of the MLP matrices of each block (up, gate and down, or what the architecture calls them), in order; of all blocks by default."""
    names = [name for name in models.watermarkable(model) if ".mlp." in name]
    return names if blocks is None else [name for name in names if _block(name) in set(map(str, blocks))]


def _block(weight: str) -> str | None:
    return next((part for part in weight.split(".") if part.isdigit()), None)


def short(weight: str) -> str:
    """``4.down_proj`` for ``model.layers.4.mlp.down_proj.weight``.

    >>> short("model.layers.4.mlp.down_proj.weight")
    '4.down_proj'
    >>> short("lm_head.weight")
    'lm_head'
    """
    block, name = _block(weight), weight.removesuffix(".weight").split(".")[-1]
    return f"{block}.{name}" if block else name


def predicted(
    lm: models.LM,
    prompts: Texts,
    weights: Sequence[str],
    sigmas: Sequence[float],
    *,
    n_tokens: int,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int = 128,
    dtype: str | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The map from plain continuations of the prompts alone, with one gradient pass for all weights; and their gradient norms.

    Returns:
        One row a cell: ``weight, sigma, predicted_psi`` (σ·mean‖G‖), ``predicted_power`` (at ``level``); and ``gradients.norms``'s table.
    """
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, batch_size=batch_size)
    norms = gradients.norms(lm.model, prompts, plain, weights, dtype=dtype)
    rows = []
    for weight, sigma in product(weights, sigmas):
        norm = norms.loc[norms["weight"] == weight, "grad_norm"]
        rows.append((weight, sigma, sigma * norm.mean(), stats.predicted_power(norm, sigma, level)))
    return pd.DataFrame(rows, columns=["weight", "sigma", "predicted_psi", "predicted_power"]), norms


def measured(
    lm: models.LM,
    prompts: Texts,
    weights: Sequence[str],
    sigmas: Sequence[float],
    keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    seed: int = 0,
    **options,
) -> pd.DataFrame:
    """Continues every prompt in every cell, a weight at a time, and tests each text for its own key and the next: ``written_and_scored.own_rows``.

    Options are ``batch_size`` and ``dtype`` of ``written_and_scored.of_cells``.
    """
    tables = []
    for weight in weights:
        cells = [(perturb.Watermark(weight, sigma), key) for sigma in sigmas for key in keys]
        seeds = range(seed, seed + len(cells))
        table, _ = written_and_scored.of_cells(lm, prompts, cells, keys, n_tokens, seeds=seeds, **options)
        tables.append(written_and_scored.own_rows(table, keys))
    return pd.concat(tables, ignore_index=True)


def cost(
    lm: models.LM, passages: Texts, weights: Sequence[str], sigmas: Sequence[float], keys: Sequence[perturb.Key], *, batch_size: int = 16
) -> pd.DataFrame:
    """Cross-entropy of human passages, nats a token: ``weight, sigma, passage, base, watermarked`` (mean over the keys), a row a cell × passage."""
    base = likelihood.cross_entropy(lm.model, passages, batch_size=batch_size)
    tables = []
    for weight, sigma in product(weights, sigmas):
        nats = []
        for key in keys:
            with perturb.watermarked(lm.model, perturb.Watermark(weight, sigma), key):
                nats.append(likelihood.cross_entropy(lm.model, passages, batch_size=batch_size))
        cell = {"weight": weight, "sigma": sigma, "passage": range(len(passages)), "base": base, "watermarked": np.mean(nats, axis=0)}
        tables.append(pd.DataFrame(cell))
    return pd.concat(tables, ignore_index=True)


def answers(
    lm: models.LM,
    definitions: Mapping[str, dict] | Sequence[str],
    weights: Sequence[str],
    sigmas: Sequence[float],
    key: perturb.Key,
    *,
    level: float = 0.05,
    batch_size: int = 16,
) -> pd.DataFrame:
    """lm-evaluation-harness in every cell, paired by item with the base model (the paper's maps of GSM8K).

    Args:
        definitions: tasks as for ``quality.harness.evaluate``.

    Returns:
        One row a cell × task: ``weight, sigma, task, base, value`` (accuracies), ``difference, low, high, n, p_value, flagged`` (at the level).
    """
    cells = {f"{weight} {sigma}": perturb.Watermark(weight, sigma) for weight, sigma in product(weights, sigmas)}
    contenders = [compare.Contender("base"), *(compare.Contender(name, wm, key) for name, wm in cells.items())]
    rows = compare.table(compare.task_rows(compare.evaluations(lm, contenders, definitions, batch_size=batch_size)), level)
    where = pd.DataFrame([{"weight": cells[name].weight, "sigma": cells[name].sigma} for name in rows["model"]])
    wanted = rows.rename(columns={"metric": "task"})[["task", "base", "value", "difference", "low", "high", "n", "p_value", "flagged"]]
    return pd.concat([where, wanted.reset_index(drop=True)], axis=1)


def summary(prediction: pd.DataFrame, texts: pd.DataFrame, passages: pd.DataFrame, *, level: float = 0.05) -> pd.DataFrame:
    """One row a cell: what was predicted, what was measured, what it costs.

    Returns:
        Columns of :func:`predicted`, ``wrong_psi, median_p, n``; with ``…_low, …_high``, mean ``psi`` (over prompts and keys), ``tpr`` (over texts)
        and ``delta`` (cross-entropy, nats a token, over passages); ``delta_p``; ``indistinguishable``: ``delta_p`` exceeds the level.
    """
    rows = []
    for (weight, sigma), cell in texts.groupby(["weight", "sigma"], sort=False):
        psi = crossed.mean(cell.sort_values("key_id", kind="stable"), "psi", n_resamples=400)
        detected = stats.tpr(cell["psi"], level)
        pairs = passages[(passages["weight"] == weight) & (passages["sigma"] == sigma)]
        delta = stats.paired(pairs["base"], pairs["watermarked"])
        row = {"weight": weight, "sigma": sigma, "wrong_psi": cell["wrong_psi"].mean(), "median_p": cell["p_value"].median(), "n": detected.n}
        row |= psi.row("psi") | detected.row("tpr") | delta.change.row("delta")
        rows.append(row | {"delta_p": delta.p_value, "indistinguishable": bool(delta.p_value > level)})
    return prediction.merge(pd.DataFrame(rows), on=["weight", "sigma"])


def agreement(cells: pd.DataFrame, up_to: float = 4.0) -> dict[str, float]:
    """Predicted against measured mean ψ over the cells predicted up to a bound: ``r`` (Pearson), ``median_error`` (relative), ``n``."""
    linear = cells[cells["predicted_psi"] <= up_to]
    error = ((linear["psi"] - linear["predicted_psi"]) / linear["predicted_psi"]).abs()
    return {"r": float(np.corrcoef(linear["predicted_psi"], linear["psi"])[0, 1]), "median_error": float(error.median()), "n": len(linear)}


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
) -> pd.DataFrame:
    """What one does without a prediction: bisect (on the log scale) for the σ at which a measured TPR is the wanted power.

    Returns:
        One row a step: ``sigma``, ``value, low, high, n`` of the TPR, ``next`` (the next σ), ``tokens`` (generated so far).
    """
    rows, spent = [], 0
    for step in range(steps):
        sigma = float(np.sqrt(low * high))
        texts = measured(lm, prompts, [weight], [sigma], keys, n_tokens=n_tokens, seed=seed + 1000 * step)
        detected = stats.tpr(texts["psi"], level)
        low, high = (sigma, high) if detected.value < power else (low, sigma)
        spent += len(texts) * n_tokens
        rows.append({"sigma": sigma} | detected.row() | {"next": float(np.sqrt(low * high)), "tokens": spent})
    return pd.DataFrame(rows)
