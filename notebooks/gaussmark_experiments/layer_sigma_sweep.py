"""04: the map of a model: what each weight at each σ detects and costs, measured; and the same map
predicted from one gradient pass.

The paper measures every cell of its heat maps over layer and σ². In the linear regime the mean of ψ
is σ·mean‖G‖, with ‖G‖ of plain text, for every weight from the same backward pass. Where the two
maps differ, linearity ends. A cell is one weight at one σ. All cells have the same pairs of a
prompt and a key: rows of one cell are independent, and a mean over cells is clustered by pair.

To first order the carrier of a watermark cancels: whatever the weight, a mean ψ costs the model's
own text ψ²/(2T) nats per token. So ψ²/(2T·price) should be 1 for every carrier (:func:`carriers`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import optimize
from scipy.stats import chi2
from transformers import PreTrainedModel

from gaussmark_lib import (
    divergence,
    generate,
    gradients,
    likelihood,
    models,
    score,
    stats,
    texts,
    tokens,
)
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import block, some_weights
from gaussmark_lib.workbench.pairs import Pairs, means
from gaussmark_lib.workbench.plots import intervals, style
from gaussmark_lib.workbench.runs import Run

LINEAR = 4.0  # the predicted ψ up to which a cell counts as linear, chosen beforehand
PASS = 12  # rows of a forward pass whose logits are kept: a multiple of most numbers of σ
MOST_PILOT = 48  # texts of the pilot: their number is limited
# Names of quantities and outcomes, as tables and figures show them.
EFFICIENCY = "own text: ψ² ÷ (2T · price)"
HUMAN = "human text: change of cross-entropy ÷ (ψ²/2T)"
DIFFERENT = "different"
EQUAL = "equal within the margin"
OPEN = "n too small to say"


def cross(model: PreTrainedModel, n: int | None = None) -> list[str]:
    """Return matrices that separate the layer from the kind: the default weight's kind in several
    blocks, from the first to the last, and then other kinds in the middle block, those of the MLP
    first. They are n in all; None for all blocks and all kinds.

    >>> [short(name) for name in cross(models.load("doclm").model, 5)]
    ['0.down_proj', '3.down_proj', '5.down_proj', '3.gate_proj', '3.up_proj']
    """
    default = models.default_weight(model)
    if block(default) is None:
        return some_weights(model, n)
    all_names = models.watermarkable(model)
    same_kind = [name for name in all_names if _role(name) == _role(default)]
    middle = same_kind[len(same_kind) // 2]
    in_middle = [name for name in all_names if block(name) == block(middle)]
    other_blocks = [name for name in same_kind if name != middle]
    other_kinds = [name for name in in_middle if name != middle]
    other_kinds.sort(key=lambda name: ".mlp." not in name)  # stable: the MLP's come first
    if n is not None:
        n_kinds = min((n - 1) // 2, len(other_kinds))
        n_blocks = min(n - 1 - n_kinds, len(other_blocks))
        places = np.linspace(0, len(other_blocks) - 1, n_blocks).round().astype(int)
        other_blocks = [other_blocks[place] for place in places]
        other_kinds = other_kinds[:n_kinds]
    blocks = [name for name in same_kind if name == middle or name in other_blocks]
    return blocks + other_kinds


def _role(weight: str) -> str:
    """The name without the block's number: ``c_proj`` of an MLP is not that of an attention."""
    return ".".join(part for part in weight.split(".") if not part.isdigit())


def arms(weights: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the matrices of the kind that stands in most blocks, and the matrices of the block
    that has most kinds.

    >>> arms(["1.up.weight", "2.up.weight", "2.down.weight"])
    (['1.up.weight', '2.up.weight'], ['2.up.weight', '2.down.weight'])
    """
    in_blocks = pd.Series([name for name in weights if block(name) is not None], dtype=object)
    in_blocks = in_blocks.drop_duplicates()
    if in_blocks.empty:
        return [], []
    kinds = in_blocks.map(_role)
    blocks = in_blocks.map(block)
    same_kind = in_blocks[kinds == kinds.value_counts().idxmax()]
    same_block = in_blocks[blocks == blocks.value_counts().idxmax()]
    return list(same_kind), list(same_block)


def is_cross(table: pd.DataFrame) -> bool:
    """Whether the weights of a table tell the layer from the kind: at least three blocks of one
    kind, and three kinds in one block.
    """
    return min(len(arm) for arm in arms(table["weight"])) >= 3


def crossed(table: pd.DataFrame) -> pd.DataFrame:
    """Keep a table of a record if it :func:`is_cross`, else return it without rows."""
    return table if is_cross(table) else table.iloc[:0]


def relative_norms(norms: pd.DataFrame) -> pd.DataFrame:
    """Divide the mean ‖G‖ of each weight by that of the first kind in the middle of the cross.

    Returns:
        ``arm`` ("one kind" or "one block"), ``block`` (a number), ``weight, kind, value, low,
        high``.
    """
    same_kind, same_block = arms(norms["weight"])
    shared = [name for name in same_kind if name in same_block]
    of_weights = norms.pivot(index="text", columns="weight", values="grad_norm")
    base = of_weights[shared[0] if shared else of_weights.columns[0]]
    rows = []
    for arm, weights in (("one kind", same_kind), ("one block", same_block)):
        for weight in weights:
            ratio = stats.ratio(of_weights[weight], base)
            place = {"arm": arm, "weight": weight, "kind": matrix_kind(weight)}
            rows.append(place | {"block": int(block(weight))} | ratio.row())
    return pd.DataFrame(rows)


def norms_in_words(norms: pd.DataFrame) -> str:
    """Say which weights have the largest and the smallest mean ‖G‖, and what that means for σ."""
    mean = norms.groupby("weight")["grad_norm"].mean()
    largest = short(mean.idxmax())
    smallest = short(mean.idxmin())
    return (
        f"of {len(mean)} weights, the mean ‖G‖ is largest for {largest} and smallest for"
        f" {smallest}. For the same predicted ψ, {smallest} needs {mean.max() / mean.min():.1f}"
        f" times the σ of {largest}."
    )


def beyond_linear(written: pd.DataFrame, cells: pd.DataFrame) -> stats.Estimate:
    """Divide measured by predicted ψ, as :func:`ratio`, in the cells that predict more than
    ``LINEAR``.
    """
    return ratio(written, cells, least=1.02 * LINEAR, most=np.inf)


def recorded_beyond_linear(run: Run) -> stats.Estimate | None:
    """Return :func:`beyond_linear` of a record; None if it has no such cells."""
    found = beyond_linear(run.table("texts"), run.table("cells"))
    return found if found.n else None


def one_per_kind(weights: Sequence[str]) -> list[str]:
    """Return the middle matrix of each kind (:func:`matrix_kind`)."""
    # names, grouped by kind, in the model's order
    kinds = pd.Series(weights).groupby([matrix_kind(name) for name in weights], sort=False)
    return [names.iloc[len(names) // 2] for _, names in kinds]


def output_head(model: PreTrainedModel) -> list[str]:
    """Return the output head's matrix if it is not that of the input embeddings."""
    head = model.get_output_embeddings()
    return [
        name
        for name in models.watermarkable(model)
        if model.get_submodule(name.removesuffix(".weight")) is head
    ]


def matrix_kind(weight: str) -> str:
    """Return ``down_proj`` for ``model.layers.4.mlp.down_proj.weight``."""
    return weight.removesuffix(".weight").split(".")[-1]


def short(weight: str) -> str:
    """Shorten the name of a weight to its block and kind.

    >>> short("model.layers.4.mlp.down_proj.weight"), short("lm_head.weight")
    ('4.down_proj', 'lm_head')
    """
    parts = (block(weight), matrix_kind(weight))
    return ".".join(filter(None, parts))  # the output head has no block


def pilot(
    lm: models.LM,
    kind: str | Path,
    n: int,
    prompt_tokens: int,
) -> list[list[int]]:
    """Return the prompts on whose plain continuations σ is solved, at most ``MOST_PILOT``, from
    documents that no measurement uses.
    """
    return texts.prompts(
        lm,
        kind,
        min(n, MOST_PILOT),
        prompt_tokens,
        split="pilot",
    )


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
    """Return ‖G‖ of plain continuations of the prompts for all weights, from one gradient pass: the
    table of ``gradients.norms``.
    """
    # σ does not matter: the texts are unmarked
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    return gradients.norms(lm.model, prompts, plain, weights, dtype=dtype)


def sigmas_for(norms: pd.DataFrame, psis: Sequence[float]) -> list[float]:
    """Return the σ, to two digits, at which the weight of median mean ‖G‖ predicts these ψ."""
    middle = norms.groupby("weight")["grad_norm"].mean().median()
    return [float(f"{psi / middle:.2g}") for psi in psis]


def predicted(norms: pd.DataFrame, sigmas: Sequence[float]) -> pd.DataFrame:
    """Return the map that plain text predicts: ``weight, sigma, predicted_psi`` (σ·mean‖G‖), one
    row per cell.
    """
    mean_norms = norms.groupby("weight", sort=False)["grad_norm"].mean()  # by weight
    rows = [
        (weight, sigma, sigma * mean_norm)
        for (weight, mean_norm), sigma in product(mean_norms.items(), sigmas)
    ]
    return pd.DataFrame(rows, columns=["weight", "sigma", "predicted_psi"])


def at_equal_psi(norms: pd.DataFrame, psis: Sequence[float]) -> pd.DataFrame:
    """Return the cells of :func:`predicted` at these predicted ψ: each weight has a σ of its own,
    to three digits.
    """
    mean_norms = norms.groupby("weight", sort=False)["grad_norm"].mean()
    rows = []
    for (weight, mean_norm), psi in product(mean_norms.items(), psis):
        sigma = float(f"{psi / mean_norm:.3g}")
        rows.append((weight, sigma, sigma * mean_norm))  # ψ as predicted after rounding
    return pd.DataFrame(rows, columns=["weight", "sigma", "predicted_psi"])


def rows_of(cells: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return one row for each cell and each of n pairs: ``weight, sigma, prompt`` (the pair's
    number) and ``stream`` (of random numbers: the same for all weights). Rows of one noise stand
    together, so that it is drawn once.
    """
    by_weight = cells.groupby("weight", sort=False)
    # cell: the number of the σ at its weight; place: the number of the weight
    numbered = cells[["weight", "sigma"]].assign(
        cell=by_weight.cumcount(),
        place=by_weight.ngroup(),
    )
    rows = numbered.merge(pd.DataFrame({"prompt": range(n)}), how="cross")
    # the same σ and pair: the same random numbers
    rows["stream"] = n * rows["cell"] + rows["prompt"]
    rows = rows.sort_values(["place", "prompt", "cell"], ignore_index=True)
    return rows.drop(columns=["cell", "place"])


def marks_of(rows: pd.DataFrame, keys: Sequence[Key]) -> list[generate.Mark]:
    """Return the watermark and the key of each of these rows."""
    cells = zip(
        rows["weight"],
        rows["sigma"],
        rows["prompt"],
        strict=True,
    )
    return [(Watermark(weight, sigma), keys[pair]) for weight, sigma, pair in cells]


def measured(
    lm: models.LM,
    pairs: Pairs,
    cells: pd.DataFrame,
    *,
    n_tokens: int,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> tuple[list[list[int]], pd.DataFrame]:
    """Write every pair's text in every cell, as many as possible in one batch, and test it with its
    own key.

    Returns:
        The texts, and :func:`rows_of` with the columns of ``score.score``. ``text`` is the number
        of the text.
    """
    rows = rows_of(cells, pairs.n)  # a row per text
    prompts = [pairs.prompts[pair] for pair in rows["prompt"]]
    written = generate.sample(
        lm.model,
        prompts,
        n_tokens,
        marks=marks_of(rows, pairs.keys),
        rows=rows["stream"].tolist(),
        seed=seed,
        **sampling,
    )
    tables = []
    for weight, of_weight in rows.groupby("weight", sort=False):  # a score has one weight
        numbers = of_weight.index
        scores = score.score(
            lm.model,
            [prompts[i] for i in numbers],
            [written[i] for i in numbers],
            Watermark(weight, 1.0),  # σ cancels in ψ
            [pairs.keys[pair] for pair in of_weight["prompt"]],
            paired=True,
            dtype=dtype,
        )
        tables.append(scores.assign(text=numbers))
    scores = pd.concat(tables).sort_values("text", ignore_index=True)
    return written, pd.concat([rows.drop(columns="stream"), scores], axis=1)


def own_prices(
    lm: models.LM,
    pairs: Pairs,
    written: pd.DataFrame,
    responses: Texts,
) -> Float[np.ndarray, " texts"]:
    """Return Σ_t KL(p_{θ+ξ} ‖ p_θ) of each text of :func:`measured`, nats per text."""
    # a pair's prompt stands in many rows
    prompts = [pairs.prompts[pair] for pair in written["prompt"]]
    marks = marks_of(written, pairs.keys)
    return divergence.per_text(
        lm.model,
        prompts,
        responses,
        marks=marks,
        batch_size=PASS,
    )


def detected(
    prediction: pd.DataFrame,
    written: pd.DataFrame,
    level: float,
) -> pd.DataFrame:
    """Return one row per cell: the columns of :func:`predicted`, and ``psi, tpr`` with ``_low,
    _high``.
    """
    rows = []
    for (weight, sigma), cell in written.groupby(["weight", "sigma"], sort=False):
        tpr = stats.tpr(cell["psi"], level)  # exact share above the threshold
        psi = stats.interval(cell["psi"])
        where = {"weight": weight, "sigma": sigma, "n": tpr.n}
        rows.append(where | psi.row("psi") | tpr.row("tpr"))
    return prediction.merge(pd.DataFrame(rows), on=["weight", "sigma"])


def ratio(
    written: pd.DataFrame,
    cells: pd.DataFrame,
    least: float = 0.0,
    most: float = LINEAR,
) -> stats.Estimate:
    """Divide measured by predicted ψ, mean over the cells with a predicted ψ in this range,
    clustered by pair. The value is NaN without such cells.
    """
    rows = _within(written, cells, least, most)
    return _mean_of_pairs(rows["psi"] / rows["predicted_psi"], rows["prompt"])


def price_ratio(
    written: pd.DataFrame,
    cells: pd.DataFrame,
    most: float = LINEAR,
) -> stats.Estimate:
    """Divide the column ``price`` by the law's price, ½ψ² nats per text with the predicted ψ.
    Otherwise as :func:`ratio`.
    """
    rows = _within(written, cells, 0.0, most)
    law = rows["predicted_psi"] ** 2 / 2
    return _mean_of_pairs(rows["price"] / law, rows["prompt"])


def _within(
    written: pd.DataFrame,
    cells: pd.DataFrame,
    least: float,
    most: float,
) -> pd.DataFrame:
    """The rows in cells with a predicted ψ in this range, with it."""
    # a σ solved for the bound has it up to its rounding
    wanted = cells.loc[cells["predicted_psi"].between(0.99 * least, 1.01 * most)]
    return written.merge(
        wanted[["weight", "sigma", "predicted_psi"]],
        on=["weight", "sigma"],
    )


def _mean_of_pairs(values: pd.Series, pair: pd.Series) -> stats.Estimate:
    """The mean with an interval that clusters by pair: a pair has a row in several cells."""
    if values.empty:
        return stats.Estimate(np.nan, np.nan, np.nan, 0)
    return stats.interval(values, cluster=pair)


def cost(
    lm: models.LM,
    passages: Texts,
    cells: pd.DataFrame,
    pairs: Pairs,
    *,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Measure what human text pays, in nats per token: passage i under key i.

    Returns:
        One row per cell and passage: ``weight, sigma, passage``, the cross-entropies ``base`` and
        ``watermarked``, and ``linear`` = −⟨ξ, G⟩/T, the part of their difference that is linear in
        the noise. Its mean over keys is 0, so that the difference without it has the same mean and
        less spread.
    """
    rows = rows_of(cells, len(passages)).drop(columns="stream")
    # passages may outnumber the pairs
    keys = [pairs.keys[i % pairs.n] for i in range(len(passages))]
    no_prompts = [[]] * len(passages)
    # (prompt, passage) as the model reads it
    placed = [*tokens.Reader(lm.model).pairs(no_prompts, passages).values()]
    marks = marks_of(rows, keys)
    nats = []  # of each row
    with torch.no_grad(), evaluating(lm.model):
        for batch, marked in generate.in_batches(lm.model, len(rows), PASS, marks):
            of_batch = [placed[i] for i in rows["prompt"][batch]]
            with marked:
                log_p, number = likelihood.token_log_p(lm.model, of_batch)
            n_tokens = (number > 0).sum(1)
            nats += (-log_p.double().sum(1) / n_tokens).tolist()
    base = likelihood.cross_entropy(lm.model, passages)
    linear = _linear(lm, passages, keys, cells["weight"].unique(), dtype)  # at σ = 1
    rows = rows.assign(base=base[rows["prompt"]], watermarked=nats)
    rows = rows.merge(linear, on=["weight", "prompt"])
    rows = rows.assign(linear=rows["sigma"] * rows["linear"])
    return rows.rename(columns={"prompt": "passage"})


def _linear(
    lm: models.LM,
    passages: Texts,
    keys: Sequence[Key],
    weights: Iterable[str],
    dtype: str | None,
) -> pd.DataFrame:
    """−⟨ξ, G⟩/T at σ = 1 of each passage under its own key: ``weight, prompt, linear``."""
    no_prompts = [[]] * len(passages)
    tables = []
    for weight in weights:
        wm = Watermark(weight, 1.0)
        scores = score.score(
            lm.model,
            no_prompts,
            passages,
            wm,
            keys,
            paired=True,
            dtype=dtype,
        )
        columns = {
            "weight": weight,
            "prompt": scores["text"],
            "linear": -scores["psi"] * scores["grad_norm"] / scores["n_tokens"],
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def priced(cost: pd.DataFrame, margin: float) -> pd.DataFrame:
    """Return one row per cell of :func:`cost`: ``delta, delta_low, delta_high`` (of
    :func:`changes`), and ``outcome``.

    The outcome is ``DIFFERENT`` if the interval does not contain 0, ``EQUAL`` if all of it lies
    within ± the margin, else ``OPEN``.
    """
    change = cost.assign(change=changes(cost))  # a row per cell and passage
    cells = means(change, ["weight", "sigma"], "change")
    is_different = (cells["low"] > 0) | (cells["high"] < 0)
    is_equal = (-margin <= cells["low"]) & (cells["high"] <= margin)
    # the first that holds: a small difference is a difference
    cells["outcome"] = np.select([is_different, is_equal], [DIFFERENT, EQUAL], OPEN)
    names = {
        "value": "delta",
        "low": "delta_low",
        "high": "delta_high",
    }
    return cells.rename(columns=names)


def outcomes_in_words(priced: pd.DataFrame) -> str:
    """Say how many cells of :func:`priced` have each outcome.

    >>> print(outcomes_in_words(pd.DataFrame({"outcome": [DIFFERENT, EQUAL, DIFFERENT]})))
    3 cells: 2 different from the base model, 1 equal within the margin, 0 undecided.
    """
    counts = priced["outcome"].value_counts()
    return (
        f"{len(priced)} cells: {counts.get(DIFFERENT, 0)} different from the base model,"
        f" {counts.get(EQUAL, 0)} {EQUAL}, {counts.get(OPEN, 0)} undecided."
    )


def human_costs_in_words(cells: pd.DataFrame) -> str:
    """Say which weights change the cross-entropy of human text least and most for a unit of ψ², in
    cells (``weight, psi, delta``) with a measured ψ from 1 to 4.
    """
    usable = cells[cells["psi"].between(1, 4)]
    if usable.empty:
        return "No cell has a measured ψ from 1 to 4."
    per_square = (usable["delta"] / usable["psi"] ** 2).groupby(usable["weight"]).median()
    return (
        "In the cells with a measured ψ from 1 to 4, we divide the change of the cross-entropy of"
        " human text by ψ². The median over the cells of a weight is smallest for"
        f" {short(per_square.idxmin())} ({per_square.min():.4f} nats per token) and largest for"
        f" {short(per_square.idxmax())} ({per_square.max():.4f})."
    )


def changes(cost: pd.DataFrame) -> pd.Series:
    """Return what a passage pays: watermarked minus base, without the linear part."""
    return cost["watermarked"] - cost["base"] - cost["linear"]


def prices(written: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """Return what the model's own text pays in each cell, nats per token: ``weight, sigma, price,
    price_low, price_high``.
    """
    per_token = written.assign(price=written["price"] / n_tokens)
    cells = means(per_token, ["weight", "sigma"], "price").drop(columns="n")
    names = {
        "value": "price",
        "low": "price_low",
        "high": "price_high",
    }
    return cells.rename(columns=names)


def solved(
    lm: models.LM,
    pairs: Pairs,
    norms: pd.DataFrame,
    weights: Sequence[str],
    power: float,
    level: float,
    **options,
) -> pd.DataFrame:
    """Solve σ of each weight for a wanted power, from its ``norms``, and measure the share detected
    there on new pairs: ``weight, sigma, value, low, high, n``. Options are those of
    :func:`measured`.
    """
    by_weight = norms.groupby("weight")["grad_norm"]
    sigmas = [
        stats.sigma_for_power(by_weight.get_group(weight), power, level) for weight in weights
    ]
    cells = pd.DataFrame({"weight": weights, "sigma": sigmas})  # each weight at its own σ
    _, at_sigma = measured(lm, pairs, cells, **options)
    shares = []
    for weight in weights:
        psi = at_sigma.loc[at_sigma["weight"] == weight, "psi"]
        shares.append(stats.tpr(psi, level).row())
    return pd.concat([cells, pd.DataFrame(shares)], axis=1)


def far_out(
    lm: models.LM,
    pairs: Pairs,
    norms: pd.DataFrame,
    weights: Iterable[str],
    psis: Sequence[float],
    level: float,
    **options,
) -> tuple[pd.DataFrame, dict[str, stats.Estimate]]:
    """Measure each weight at the σ of these predicted ψ. Options are those of :func:`measured`.

    Returns:
        The rows of :func:`detected`, and by weight the mean ψ at the largest σ minus the mean ψ
        at the smallest σ.
    """
    cells = at_equal_psi(norms[norms["weight"].isin(weights)], sorted(psis))
    _, noisy = measured(lm, pairs, cells, **options)
    falls = {}  # ψ may fall again where noise is large
    for weight, of_weight in noisy.groupby("weight", sort=False):
        psi = of_weight.pivot(index="prompt", columns="sigma", values="psi")
        falls[weight] = stats.interval(psi[psi.columns.max()] - psi[psi.columns.min()])
    return detected(cells, noisy, level), falls


def carriers(
    written: pd.DataFrame,
    cells: pd.DataFrame,
    cost: pd.DataFrame,
    n_tokens: int,
) -> pd.DataFrame:
    """Compare what the carriers give and take at equal price, one row per weight and ``quantity``.

    Returns:
        ``weight, quantity, value, low, high, n``. ``EFFICIENCY`` is ψ² over 2·price, summed over
        the weight's cells with a predicted ψ up to ``LINEAR``; the square of a mean of n numbers is
        freed of its bias s²/n. ``HUMAN`` is the change of human text's cross-entropy at
        ``LINEAR``, divided by what the law says of the model's own text. By the law, ``EFFICIENCY``
        is 1.
    """
    rows = []
    for weight, table in _own(written, cells).items():
        estimate = stats.interval(table, efficiency)
        rows.append(
            {
                "weight": weight,
                "quantity": EFFICIENCY,
                **estimate.row(),
            }
        )
    for weight, ratios in human_ratios(cost, cells, n_tokens).items():
        estimate = stats.interval(ratios)
        rows.append(
            {
                "weight": weight,
                "quantity": HUMAN,
                **estimate.row(),
            }
        )
    return pd.DataFrame(rows)


def _own(
    written: pd.DataFrame, cells: pd.DataFrame
) -> dict[str, Float[np.ndarray, "pairs cells 2"]]:
    """By weight, ψ and price of each pair in the linear cells."""
    linear = _within(written, cells, 0.0, LINEAR)
    tables = {}
    for weight, rows in linear.groupby("weight", sort=False):
        by_cell = rows.pivot(  # (pairs, (quantity, σ))
            index="prompt",
            columns="sigma",
            values=["psi", "price"],
        )
        psi_and_price = [
            by_cell["psi"].to_numpy(),
            by_cell["price"].to_numpy(),
        ]
        tables[weight] = np.stack(psi_and_price, axis=-1)
    return tables


def efficiency(
    table: Float[np.ndarray, "pairs cells 2"],
) -> float:
    """Return Σ ψ² ÷ Σ 2·price over cells, from each pair's ψ and price (nats per text). By the law
    it is 1.
    """
    psi = table[..., 0]
    price = table[..., 1]
    squares = psi.mean(0) ** 2 - psi.var(0, ddof=1) / len(psi)  # E mean² is larger by the variance
    return float(squares.sum() / (2 * price.mean(0).sum()))


def human_ratios(cost: pd.DataFrame, cells: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """Divide a passage's change of cross-entropy by ψ²/(2T), at the σ of each weight whose
    predicted ψ is nearest to ``LINEAR``: a column per weight, a row per passage.
    """
    distance = np.log(cells["predicted_psi"] / LINEAR).abs()  # on a log scale, as σ is
    nearest = cells.loc[distance.groupby(cells["weight"], sort=False).idxmin()]
    rows = cost.assign(change=changes(cost)).merge(nearest, on=["weight", "sigma"])
    law = rows["predicted_psi"] ** 2 / (2 * n_tokens)
    rows = rows.assign(ratio=rows["change"] / law)
    return rows.pivot(index="passage", columns="weight", values="ratio")[nearest["weight"]]


def largest_over_smallest(
    ratios: Float[np.ndarray, "passages weights"],
) -> float:
    """Divide the largest mean of a column by the smallest. The ratio is 100 if the smallest is less
    than 1% of the largest, or negative.
    """
    means = np.mean(ratios, axis=0)
    return float(means.max() / max(means.min(), means.max() / 100))


def spread(written: pd.DataFrame, cells: pd.DataFrame) -> stats.Estimate:
    """Return the standard deviation of :func:`efficiency` between carriers, as a share of its mean,
    and without the noise of few pairs (:func:`between`). The noise is that of each carrier's
    deviation from the mean of all, by the jackknife over pairs: what all carriers share cancels.
    """
    tables = [*_own(written, cells).values()]  # (pairs, cells, ψ and price) of each carrier
    if len(tables) < 2 or len(tables[0]) < 3:
        return stats.Estimate(np.nan, np.nan, np.nan, len(tables))

    def deviations(pairs: np.ndarray) -> np.ndarray:
        values = np.array([efficiency(table[pairs]) for table in tables])
        return values / values.mean() - 1

    n = len(tables[0])
    without = [deviations(np.delete(np.arange(n), i)) for i in range(n)]
    errors = np.std(without, axis=0) * np.sqrt(n - 1)
    return between(deviations(np.arange(n)), errors)


def spread_in_words(spread: stats.Estimate, n_pairs: int) -> str:
    """Say what :func:`spread` estimated, or that this run is too small for it."""
    if np.isnan(spread.value):
        return "This run has too few weights or pairs for a standard deviation between weights."
    return (
        f"Without the sampling error of {n_pairs} pairs, the standard deviation of this ratio"
        f" between weights is {spread.value:.0%} of its mean ({spread.low:.0%} to"
        f" {spread.high:.0%}, n = {spread.n} weights)."
    )


def between(
    values: Float[np.ndarray, " k"],
    errors: Float[np.ndarray, " k"],
    confidence: float = 0.95,
) -> stats.Estimate:
    """Estimate the standard deviation τ of k independent quantities, from an estimate of each
    quantity with its standard error e: value ~ N(μ, τ² + e²).

    Q(τ²) = Σ (value − μ̂)²/(τ² + e²) is χ² with k − 1 degrees of freedom, and falls in τ². The
    estimate solves Q(τ²) = k − 1 (Paule and Mandel). The ends of the interval solve Q(τ²) = c for
    the quantiles c of χ² (Viechtbauer 2007). τ is 0 if Q(0) is smaller already.

    >>> print(between(np.array([1.0, 2.0, 4.0]), np.zeros(3) + 1e-9))
    1.53 (0.795 to 9.6), n = 3
    """

    def excess(variance: float, target: float) -> float:
        weights = 1 / (variance + errors**2)
        centre = (weights * values).sum() / weights.sum()
        return (weights * (values - centre) ** 2).sum() - target

    def tau(target: float) -> float:
        if excess(0.0, target) <= 0:
            return 0.0
        beyond = 2 * ((values - values.mean()) ** 2).sum() / target  # Q is below the target there
        return float(np.sqrt(optimize.brentq(excess, 0.0, beyond, args=(target,))))

    freedom = len(values) - 1  # degrees of freedom of Q
    tail = (1 - confidence) / 2
    low, high = chi2.isf([tail, 1 - tail], freedom)
    return stats.Estimate(tau(freedom), tau(low), tau(high), len(values))


def draw_norms(norms: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`relative_norms` of each run (column ``run``): one kind over the blocks, and the
    kinds of one block.
    """
    figure, (over_blocks, over_kinds) = plt.subplots(1, 2, figsize=(11.0, 3.8))
    of_runs = {run: relative_norms(of_run) for run, of_run in norms.groupby("run", sort=False)}
    every = pd.concat(of_runs.values())
    kinds = list(every[every["arm"] == "one block"]["kind"].unique())
    for place, (run, relative) in enumerate(of_runs.items()):
        look = style.look(run)
        same_kind = relative[relative["arm"] == "one kind"].sort_values("block")
        same_block = relative[relative["arm"] == "one block"]
        kind = same_kind["kind"].iloc[0]
        label = f"{run}: {kind}; right: block {same_block['block'].iloc[0]}"
        line = {"linestyle": "-", "linewidth": 1, "label": label} | look
        intervals.bars(over_blocks, same_kind["block"], same_kind, "value", **line)
        shift = 0.2 * (place - (len(of_runs) - 1) / 2)
        rows = [kinds.index(name) + shift for name in same_block["kind"]]
        points = {"linestyle": "none"} | look
        intervals.bars(over_kinds, rows, same_block, "value", horizontal=True, **points)
    over_blocks.set_title("One kind in each block")
    over_blocks.set(xlabel="block", ylabel="mean ‖G‖, relative", ylim=(0, None))
    over_kinds.set_title("Each kind in one block")
    over_kinds.set(xlabel="mean ‖G‖, relative", xlim=(0, None))
    style.categories(over_kinds, kinds)
    over_blocks.legend(fontsize="x-small")
    return style.caption(figure, caption, "Which weights have a large gradient?")


def draw_map(cells: pd.DataFrame, caption: str) -> Figure:
    """Draw the measured mean ψ over weights × σ, with the predicted ψ of each cell: one kind in
    several blocks, and the kinds of one block. Weights outside of both stand with the kinds.
    """
    same_kind, same_block = arms(cells["weight"])
    others = [name for name in cells["weight"].unique() if name not in same_kind + same_block]
    groups = {
        "one kind in several blocks": same_kind,
        "the kinds in one block": same_block + others,
    }
    groups = {title: weights for title, weights in groups.items() if weights}
    sigmas_of_weights = cells.groupby("weight", sort=False)["sigma"].apply(tuple)
    is_shared = sigmas_of_weights.nunique() == 1
    column = "sigma" if is_shared else "predicted_psi"
    named = cells.assign(column=cells[column].map("{:.2g}".format))
    psi = named["psi"].map("{:.1f}".format)
    named["text"] = psi + " of " + named["predicted_psi"].map("{:.1f}".format)
    columns = named["column"].unique()
    height = 1.6 + 0.4 * max(len(weights) for weights in groups.values())
    width = 2.0 + 0.85 * len(columns)
    figure, [row] = plt.subplots(
        1, len(groups), figsize=(max(9.0, width * len(groups)), height), squeeze=False
    )
    for axes, (title, weights) in zip(row, groups.items(), strict=True):
        of_arm = named[named["weight"].isin(weights)]
        share = of_arm.assign(share=of_arm["psi"] / of_arm["predicted_psi"])
        grid = share.pivot(index="weight", columns="column", values="share")
        texts_of_cells = of_arm.pivot(index="weight", columns="column", values="text")
        sns.heatmap(
            grid.loc[weights, columns],
            ax=axes,
            vmin=0,
            vmax=1,
            cmap="Wistia_r",
            annot=texts_of_cells.loc[weights, columns],
            annot_kws={"size": 9, "color": "k"},
            fmt="",
            cbar=False,  # each cell shows its numbers
            linewidths=1,
        )
        axes.set(xlabel="σ" if is_shared else "predicted ψ", ylabel="", title=title)
        axes.set_yticklabels([short(weight) for weight in weights])
        axes.tick_params("both", rotation=0)
    title = "Measured ψ (of the predicted ψ): where does the prediction fail?"
    return style.caption(figure, caption, title)


def human_prices(priced: pd.DataFrame, cells: pd.DataFrame, params: Mapping) -> pd.DataFrame:
    """Return what human text pays in each cell of a run with these parameters: ``weight,
    predicted_psi, delta`` with its interval; ``law``, ψ²/(2T) for the model's own text; ``margin``.
    """
    predicted = cells[["weight", "sigma", "predicted_psi"]]
    rows = priced.merge(predicted, on=["weight", "sigma"])
    law = rows["predicted_psi"] ** 2 / (2 * params["n_tokens"])
    return rows.assign(law=law, margin=params["margin"])


def draw_cost(prices: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`human_prices` of several runs against the predicted ψ: a line per weight, the law
    of the model's own text, and the margin.
    """
    runs = prices["run"].unique()
    size = (1.4 + 4.4 * len(runs), 4.0)
    figure, [row] = plt.subplots(1, len(runs), figsize=size, sharey=True, squeeze=False)
    for axes, run in zip(row, runs, strict=True):
        of_run = prices[prices["run"] == run].sort_values("predicted_psi")
        for number, (_, of_weight) in enumerate(of_run.groupby("weight", sort=False)):
            label = {"label": "human text, one line per weight"} if number == 0 else {}
            look = {"color": style.PLAIN, "alpha": 0.6, "linewidth": 1, "markersize": 4}
            look |= {"marker": "o", "linestyle": "-"}
            intervals.bars(axes, of_weight["predicted_psi"], of_weight, "delta", **(look | label))
        law = of_run[["predicted_psi", "law"]].drop_duplicates().to_numpy().T
        axes.plot(*law, **style.DASHED, label="own text, by the law ψ²/(2T)")
        axes.axhline(of_run["margin"].iloc[0], **style.DOTTED, label="the margin")
        axes.set(xscale="log", yscale="log", xlabel="predicted ψ", title=run)
        style.few_log_ticks(axes.xaxis)
    row[0].set_ylabel("change of cross-entropy, nats per token")
    style.legend_beside(row[-1])
    return style.caption(figure, caption, "At which ψ does human text pay more than the margin?")
