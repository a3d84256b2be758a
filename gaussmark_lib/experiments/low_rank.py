"""Rank reduction measured: where a weight's gradient lives, what a projection costs in power, and
the σ that makes projections comparable.

With M → PM the projection off the top-k singular directions (``rank_reduce``), the linear law of
notebook 01 reads

    mean ψ ≈ σ‖PG‖,        price ≈ ½σ² E‖PG‖²        (nats a text, on the model's own text)

so both depend on σ‖PG‖ alone, and at the same σ every dropped direction lowers both.
``equal_price`` solves for the σ_k at which k dropped directions have the price of σ without a
projection. To second order ψ is then the same too, by construction: measured ψ and prices say how
far that order reaches, and only human text and edited text could speak for a projection.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import gradients, likelihood, models, perturb, rank_reduce, stats
from gaussmark_lib.experiments import compared, crossed, exchange, written_and_scored
from gaussmark_lib.schemes import GaussMark
from gaussmark_lib.tokens import Texts

STATISTICS = ["P on both", "divided by σ‖G‖", "P forgotten in the test"]


def gradient_norms(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    weight: str,
    ranks: Sequence[int],
    *,
    side: str = "left",
    lengths: Sequence[int] | None = None,
    dtype: str | None = None,
) -> pd.DataFrame:
    """‖PG‖ of each text for each number k of dropped directions, from one backward pass a text.

    Args:
        ranks: the k, 0 ≤ k ≤ min(d_out, d_in). lengths, dtype: as for ``gradients.gradients``.

    Returns:
        One row a text × length × k: ``text, n_tokens, rank_dropped, grad_norm`` (‖PG‖), ``share``
        (of ‖G‖² in the dropped directions).
    """
    linear = models.linear(model, weight)
    top = min(linear.shape)
    u, v = (rank_reduce.singular_vectors(linear.value(), top, this) for this in ("left", "right"))
    rows = []
    for found in gradients.gradients(
        model, prompts, responses, perturb.Watermark(weight, 1.0), lengths=lengths, dtype=dtype
    ):
        shares = _dropped(found.G.to(u), u, v, side)
        rows += [
            (found.text, found.n_tokens, k, found.norm * (1 - shares[k]) ** 0.5, shares[k])
            for k in ranks
        ]
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "rank_dropped", "grad_norm", "share"])
    return table.sort_values(["text", "n_tokens", "rank_dropped"], kind="stable", ignore_index=True)


def _dropped(
    G: Float[Tensor, "d_out d_in"],
    u: Float[Tensor, "d_out r"],
    v: Float[Tensor, "d_in r"],
    side: str,
) -> Float[np.ndarray, " k"]:
    """‖G − PGQ‖²/‖G‖² for k = 0 … r; with both sides, what either drops, and what both drop only
    once.
    """
    gone = torch.zeros(u.shape[1], dtype=torch.float64, device=G.device)
    if side in ("left", "both"):
        gone += (u.T @ G).square().sum(1).double().cumsum(0)
    if side in ("right", "both"):
        gone += (G @ v).square().sum(0).double().cumsum(0)
    if side == "both":
        gone -= (u.T @ G @ v).square().double().cumsum(0).cumsum(1).diagonal()
    return np.concatenate([[0.0], (gone / G.double().square().sum()).clamp(0, 1).cpu().numpy()])


def top(shape: Sequence[int], side: str, share: float = 1 / 8) -> tuple[int, int]:
    """How many directions this share of the left (d_out) or right (d_in) ones is, and their number
    d: at most as many as the weight has, min(shape).

    >>> top((96, 256), "left"), top((96, 256), "right"), top((16, 256), "right")
    ((12, 96), (32, 256), (16, 256))
    """
    d = shape[0] if side == "left" else shape[1]
    return max(1, min(int(share * d), *shape)), d


def favoured(norms: pd.DataFrame, shape: Sequence[int], side: str) -> stats.Estimate:
    """Mean share of ‖G‖² in the :func:`top` k of a side's d directions, over k/d: 1 where it is
    spread evenly. Of :func:`gradient_norms`.
    """
    k, d = top(shape, side)
    return stats.mean(norms.loc[norms["rank_dropped"] == k, "share"] * d / k)


def equal_price(
    wm: perturb.Watermark, norms: pd.DataFrame, rank: int, side: str = "left"
) -> perturb.Watermark:
    """The watermark with ``rank`` directions dropped whose price is, to second order, that of the
    vanilla ``wm``: σ_k = σ·rms‖G‖ / rms‖PG‖.

    ``norms`` are :func:`gradient_norms` of plain text on this side, with the ranks 0 and ``rank``.
    """
    rms = norms.groupby("rank_dropped")["grad_norm"].agg(lambda norm: np.sqrt(np.mean(norm**2)))
    return perturb.Watermark(wm.weight, float(wm.sigma * rms[0] / rms[rank]), rank, side)


def name(wm: perturb.Watermark) -> str:
    """``GaussMark`` for the vanilla scheme, ``k = 64``, or ``k = 64, right``."""
    side = "" if wm.side == "left" else f", {wm.side}"
    return f"k = {wm.rank_dropped}{side}" if wm.rank_dropped else "GaussMark"


def scheme(
    wm: perturb.Watermark, key: perturb.Key | None = None, *, dtype: str | None = None
) -> GaussMark:
    """As a ``schemes.Scheme`` of that name, scored in ``dtype``."""
    return GaussMark(wm, key or perturb.Key.from_seed(0), name=name(wm), dtype=dtype)


def measured(
    lm: models.LM,
    prompts: Texts,
    watermarks: Sequence[perturb.Watermark],
    keys: Sequence[perturb.Key],
    lengths: Sequence[int],
    *,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> pd.DataFrame:
    """Continues every prompt under every watermark (of one weight) and key, in one batch, and tests
    each text for its key and for the next one.

    Returns ``written_and_scored.own_rows``, a row a text × length, with a column ``scheme``.
    """
    cells = [(wm, key) for wm in watermarks for key in keys]
    seeds = [seed + i % len(keys) for i in range(len(cells))]
    options = {"lengths": lengths, "dtype": dtype, "sampling": sampling}
    scores, _ = written_and_scored.of_cells(
        lm, prompts, cells, keys, max(lengths), seeds=seeds, **options
    )
    table = written_and_scored.own_rows(scores, keys)
    names = {(wm.rank_dropped, wm.side): name(wm) for wm in watermarks}
    return table.assign(
        scheme=[
            names[projection]
            for projection in zip(table["rank_dropped"], table["side"], strict=True)
        ]
    )


def against_prediction(table: pd.DataFrame, norms: pd.DataFrame, level: float) -> pd.DataFrame:
    """:func:`measured`'s table, of one side, beside the prediction by :func:`gradient_norms` of
    *plain* text at the same ranks and lengths.

    Returns:
        One row a rank × length: ``rank_dropped, n_tokens, predicted_psi, predicted_power``; ``psi``
        and ``tpr`` with ``…_low, …_high`` (95%, over prompts and keys), ``false`` (share detected
        for the wrong key), ``n``.
    """
    threshold = stats.threshold(level)
    rows = []
    for (rank, n_tokens), cell in table.assign(hit=table["psi"] >= threshold).groupby(
        ["rank_dropped", "n_tokens"]
    ):
        plain = norms.loc[
            (norms["rank_dropped"] == rank) & (norms["n_tokens"] == n_tokens), "grad_norm"
        ]
        sigma = cell["sigma"].iloc[0]
        predicted = {
            "predicted_psi": sigma * plain.mean(),
            "predicted_power": stats.predicted_power(plain, sigma, level),
        }
        row = (
            {"rank_dropped": rank, "n_tokens": n_tokens}
            | predicted
            | crossed.mean(cell, "psi").row("psi")
            | crossed.mean(cell, "hit").row("tpr")
        )
        rows.append(row | {"false": np.mean(cell["wrong_psi"] >= threshold), "n": len(cell)})
    return pd.DataFrame(rows)


def over_sigma(table: pd.DataFrame) -> pd.DataFrame:
    """The median p-value of :func:`measured`'s texts at each σ: ``scheme, rank_dropped, sigma,
    value, low, high, n`` (95%, over prompts and keys).
    """

    def median(cell: pd.DataFrame) -> dict[str, float]:
        return stats.crossed_interval(
            lambda log10_p: float(10 ** np.median(log10_p)),
            stats.matrix(cell, "log10_p"),
            n_resamples=500,
        ).row()

    return crossed.by_cell(table, ["scheme", "rank_dropped", "sigma"], median)


def misuses(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    keys: Sequence[Sequence[perturb.Key]],
    *,
    dtype: str | None = None,
) -> pd.DataFrame:
    """The statistic of a rank-reduced watermark, and what becomes of it if P is not where it
    belongs.

    =======================  ==================  ===============================================
    P on both                ⟨Pξ, PG⟩ / (σ‖PG‖)  N(0, 1) under the null, mean σ‖PG‖ on its own text
    divided by σ‖G‖          ⟨Pξ, PG⟩ / (σ‖G‖)   N(0, ‖PG‖²/‖G‖²): the level is not α; the same as
                                                 ⟨Pξ, G⟩ / (σ‖G‖), P on the noise alone
    P forgotten in the test  ⟨ξ, G⟩ / (σ‖G‖)     N(0, 1), but the mean is σ‖PG‖²/‖G‖
    =======================  ==================  ===============================================

    ``keys`` are, for each text, those that it is tested for. Returns ``text, key_id, statistic,
    psi``, a row a text × key × statistic.
    """
    wm, rows = wm.on(model), []
    for key in {key for of_text in keys for key in of_text}:
        key.check(wm)
    for found in gradients.gradients(
        model, prompts, responses, perturb.Watermark(wm.weight, wm.sigma), dtype=dtype
    ):
        projected = wm.project(found.G)
        for key in keys[found.text]:
            xi = perturb.isotropic(key, wm.sigma, wm.linear.shape).to(found.G)
            inner, whole = (
                (xi * matrix).sum().item() / wm.sigma for matrix in (projected, found.G)
            )
            values = inner / rank_reduce.norm(projected), inner / found.norm, whole / found.norm
            rows += [
                (found.text, key.key_id, statistic, psi)
                for statistic, psi in zip(STATISTICS, values, strict=True)
            ]
    return pd.DataFrame(rows, columns=["text", "key_id", "statistic", "psi"])


def under_corruption(table: pd.DataFrame, base: str, level: float) -> pd.DataFrame:
    """Of ``robustness.measure``'s table: how much more each scheme detects than the base scheme, on
    the same prompts with the same random numbers.

    Returns:
        ``compared.differences`` a corruption × fraction × ``figure``: ``TPR`` (at ``level``) or
        ``statistic``.
    """
    own = table[table["kind"] == written_and_scored.OWN].assign(
        TPR=lambda rows: rows["p_value"] <= level
    )
    tables = [
        compared.differences(cell, figure, base).assign(
            corruption=corruption, fraction=fraction, figure=figure
        )
        for (corruption, fraction), cell in own.groupby(["corruption", "fraction"], sort=False)
        for figure in ("TPR", "statistic")
    ]
    return pd.concat(tables, ignore_index=True)


def human_cost(
    lm: models.LM,
    prompts: Texts,
    human: Texts,
    watermarks: Sequence[perturb.Watermark],
    keys: Sequence[perturb.Key],
) -> pd.DataFrame:
    """Δ cross-entropy of human continuations under each watermark, the mean over ξ and −ξ
    (``exchange``), nats a token.

    Returns ``scheme, rank_dropped, sigma, key_id, prompt, delta``, a row a watermark × key ×
    prompt.
    """
    base = likelihood.cross_entropy(lm.model, human, prompts=prompts)
    tables = []
    for wm in watermarks:
        deltas = exchange.delta(lm.model, prompts, human, base, wm, keys).rename(
            columns={"item": "prompt", "value": "delta"}
        )
        tables.append(deltas.assign(scheme=name(wm), rank_dropped=wm.rank_dropped, sigma=wm.sigma))
    return pd.concat(tables, ignore_index=True)


def cost_curve(table: pd.DataFrame, norms: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """Mean of :func:`human_cost`'s Δ, of one side, beside the price on the model's own text by
    :func:`gradient_norms` of plain texts of ``n_tokens``.

    Returns:
        One row a watermark: ``scheme, rank_dropped, sigma, law`` (½σ²·mean‖PG‖²/T, nats a token),
        ``delta, delta_low, delta_high`` (95%, over prompts and keys).
    """
    square = norms.groupby("rank_dropped")["grad_norm"].agg(lambda norm: np.mean(norm**2))
    rows = []
    for (scheme_name, rank, sigma), cell in table.groupby(
        ["scheme", "rank_dropped", "sigma"], sort=False
    ):
        law = stats.predicted_price(sigma * square[rank] ** 0.5, n_tokens)
        rows.append(
            {"scheme": scheme_name, "rank_dropped": rank, "sigma": sigma, "law": law}
            | crossed.mean(cell, "delta").row("delta")
        )
    return pd.DataFrame(rows)
