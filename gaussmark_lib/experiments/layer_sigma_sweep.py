"""The map of a model: what each weight at each σ is worth and costs, measured; and the same map
predicted from one gradient pass.

The paper measures every cell of its heat maps over layer and σ². In the linear regime the mean of ψ
is σ·mean‖G‖, with ‖G‖ of plain text, for every weight from the same backward pass. Where the two
maps differ, linearity ends. A cell is one weight and one σ, over all keys and prompts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, likelihood, models, perturb, stats
from gaussmark_lib.experiments import crossed, written_and_scored
from gaussmark_lib.quality import compare
from gaussmark_lib.quality.verdict import outcome, sentence
from gaussmark_lib.tokens import Texts


def mlp_weights(model: PreTrainedModel, blocks: Iterable[int] | None = None) -> list[str]:
    """Full names of the MLP matrices of each block (up, gate and down, or what the architecture
    calls them), in order; of all blocks by default.

    Where no name says ``mlp``, all matrices in blocks that are not of the attention.
    """
    inside = [name for name in models.watermarkable(model) if _block(name)]
    names = [name for name in inside if ".mlp." in name] or [
        name for name in inside if "attn" not in name and "attention" not in name
    ]
    return (
        names
        if blocks is None
        else [name for name in names if _block(name) in set(map(str, blocks))]
    )


def some_weights(model: PreTrainedModel, n: int | None) -> list[str]:
    """The rows of a map where none are named: n of the MLP matrices, evenly spread from the first
    block to the last; None for all.
    """
    names = mlp_weights(model) or models.watermarkable(model)
    return (
        names
        if n is None
        else [
            names[i]
            for i in sorted({round(i) for i in np.linspace(0, len(names) - 1, min(n, len(names)))})
        ]
    )


def output_head(model: PreTrainedModel) -> str | None:
    """Full name of the output head's matrix, where it is a matrix of its own and not that of the
    input embeddings.
    """
    head = model.get_output_embeddings()
    return next(
        (
            name
            for name in models.watermarkable(model)
            if model.get_submodule(name.removesuffix(".weight")) is head
        ),
        None,
    )


def _block(weight: str) -> str | None:
    return next((part for part in weight.split(".") if part.isdigit()), None)


def short(weight: str) -> str:
    """``4.down_proj`` for ``model.layers.4.mlp.down_proj.weight``.

    >>> short("model.layers.4.mlp.down_proj.weight")
    '4.down_proj'
    >>> short("lm_head.weight")
    'lm_head'
    """
    block = _block(weight)
    return f"{block}.{matrix_kind(weight)}" if block else matrix_kind(weight)


def matrix_kind(weight: str) -> str:
    """``down_proj`` for ``model.layers.4.mlp.down_proj.weight``."""
    return weight.removesuffix(".weight").split(".")[-1]


def norms(
    lm: models.LM,
    prompts: Texts,
    weights: Sequence[str],
    *,
    n_tokens: int,
    seed: int = 0,
    batch_size: int = 128,
    **settings,
) -> pd.DataFrame:
    """‖G‖ of plain continuations of the prompts for all weights, from one gradient pass:
    ``gradients.norms``'s table.

    Args:
        settings: ``dtype`` of ``gradients.norms``, and ``top_p, temperature, until_end`` of
            ``generate.sample``.
    """
    dtype = settings.pop("dtype", None)
    plain = generate.sample(
        lm.model, prompts, n_tokens, seed=seed, batch_size=batch_size, **settings
    )
    return gradients.norms(lm.model, prompts, plain, weights, dtype=dtype)


def sigmas_for(norms: pd.DataFrame, psis: Sequence[float]) -> list[float]:
    """The columns of a map where none are named: the σ, to two digits, at which the weight of
    median mean ‖G‖ has these predicted ψ.
    """
    middle = norms.groupby("weight")["grad_norm"].mean().median()
    return [float(f"{psi / middle:.2g}") for psi in psis]


def predicted(norms: pd.DataFrame, sigmas: Sequence[float], *, level: float = 0.05) -> pd.DataFrame:
    """The map from plain text alone (:func:`norms`), a row a cell: ``weight, sigma, predicted_psi``
    (σ·mean‖G‖), ``predicted_power`` (at level).
    """
    rows = []
    for (weight, norm), sigma in product(norms.groupby("weight", sort=False)["grad_norm"], sigmas):
        rows.append((weight, sigma, sigma * norm.mean(), stats.predicted_power(norm, sigma, level)))
    return pd.DataFrame(rows, columns=["weight", "sigma", "predicted_psi", "predicted_power"])


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
    """Continues every prompt in every cell, a weight at a time, and tests each text for its own key
    and the next: ``written_and_scored.own_rows``.

    Options are ``batch_size``, ``sampling`` and ``dtype`` of ``written_and_scored.of_cells``.
    """
    tables = []
    for weight in weights:
        cells = [(perturb.Watermark(weight, sigma), key) for sigma in sigmas for key in keys]
        seeds = range(seed, seed + len(cells))
        table, _ = written_and_scored.of_cells(
            lm, prompts, cells, keys, n_tokens, seeds=seeds, **options
        )
        tables.append(written_and_scored.own_rows(table, keys))
    return pd.concat(tables, ignore_index=True)


def cost(
    lm: models.LM,
    passages: Texts,
    weights: Sequence[str],
    sigmas: Sequence[float],
    keys: Sequence[perturb.Key],
    *,
    batch_size: int = 16,
) -> pd.DataFrame:
    """Cross-entropy of human passages, nats a token: ``weight, sigma, passage, base, watermarked``
    (mean over the keys), a row a cell × passage.
    """
    base = likelihood.cross_entropy(lm.model, passages, batch_size=batch_size)
    tables = []
    for weight, sigma in product(weights, sigmas):
        nats = []
        for key in keys:
            with perturb.watermarked(lm.model, perturb.Watermark(weight, sigma), key):
                nats.append(likelihood.cross_entropy(lm.model, passages, batch_size=batch_size))
        cell = {
            "weight": weight,
            "sigma": sigma,
            "passage": range(len(passages)),
            "base": base,
            "watermarked": np.mean(nats, axis=0),
        }
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
    """lm-evaluation-harness in every cell, paired by item with the base model (the paper's maps of
    GSM8K).

    Args:
        definitions: tasks as for ``quality.harness.evaluate``.

    Returns:
        One row a cell × task: ``weight, sigma, task, base, value`` (accuracies), ``difference, low,
        high, n, p_value``, and ``outcome, verdict`` of ``quality.verdict``, with a margin of five
        points.
    """
    cells = {
        f"{weight} {sigma}": perturb.Watermark(weight, sigma)
        for weight, sigma in product(weights, sigmas)
    }
    contenders = [
        compare.Contender("base"),
        *(compare.Contender(name, wm, key) for name, wm in cells.items()),
    ]
    compared = compare.task_rows(
        compare.evaluations(lm, contenders, definitions, batch_size=batch_size)
    )
    rows = compare.table(compared, level).rename(columns={"metric": "task"})
    found = rows[["task", "base", "value", "difference", "low", "high", "n", "p_value", "verdict"]]
    where = [{"weight": cells[name].weight, "sigma": cells[name].sigma} for name in rows["model"]]
    return pd.DataFrame(where).join(
        found.assign(outcome=[outcome(row.metric, row.test, level) for row in compared])
    )


def detected(prediction: pd.DataFrame, texts: pd.DataFrame, *, level: float = 0.05) -> pd.DataFrame:
    """One row a cell: columns of :func:`predicted`, ``wrong_psi, median_p, n``, mean ``psi, tpr``
    with ``…_low, …_high`` over prompts × keys.
    """
    rows = []
    for (weight, sigma), cell in texts.groupby(["weight", "sigma"], sort=False):
        cell = cell.assign(hit=cell["psi"] >= stats.threshold(level)).sort_values(
            "key_id", kind="stable"
        )
        psi, tpr = (crossed.mean(cell, column, n_resamples=400) for column in ("psi", "hit"))
        row = {
            "weight": weight,
            "sigma": sigma,
            "wrong_psi": cell["wrong_psi"].mean(),
            "median_p": cell["p_value"].median(),
            "n": psi.n,
        }
        rows.append(row | psi.row("psi") | tpr.row("tpr"))
    return prediction.merge(pd.DataFrame(rows), on=["weight", "sigma"])


def summary(
    prediction: pd.DataFrame,
    texts: pd.DataFrame,
    passages: pd.DataFrame,
    *,
    level: float = 0.05,
    margin: float = compare.CROSS_ENTROPY.margin,
) -> pd.DataFrame:
    """One row a cell: what was predicted, what was measured, what it costs.

    Returns:
        Columns of :func:`detected`; ``delta, delta_low, delta_high`` (change of the cross-entropy,
        nats a token, over passages), ``delta_p``, and ``outcome, verdict`` of ``quality.verdict``
        on it with this margin.
    """
    metric, rows = replace(compare.CROSS_ENTROPY, margin=margin), []
    for (weight, sigma), pairs in passages.groupby(["weight", "sigma"], sort=False):
        delta = stats.paired(pairs["base"], pairs["watermarked"])
        says = {
            "delta_p": delta.p_value,
            "outcome": outcome(metric, delta, level),
            "verdict": sentence(metric, delta, level),
        }
        rows.append({"weight": weight, "sigma": sigma} | delta.change.row("delta") | says)
    return detected(prediction, texts, level=level).merge(
        pd.DataFrame(rows), on=["weight", "sigma"]
    )


def outcomes(
    cells: pd.DataFrame, *, level: float = 0.05, margin: float = compare.CROSS_ENTROPY.margin
) -> pd.Series:
    """``quality.verdict.outcome`` of the cells of a table made before, from its ``delta, delta_low,
    delta_high, delta_p``.
    """
    metric = replace(compare.CROSS_ENTROPY, margin=margin)
    tests = (
        stats.Paired(
            stats.Estimate(cell.delta, cell.delta_low, cell.delta_high, int(cell.n)),
            cell.delta_p,
            0,
        )
        for cell in cells.itertuples()
    )
    return pd.Series([outcome(metric, test, level) for test in tests], index=cells.index)
