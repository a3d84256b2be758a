"""What a unit of ψ costs: the rise of cross-entropy against the mean ψ it buys, weight by weight.

The linear law says that a mean ψ over T tokens costs ψ²/(2T) nats a token, whatever the weight. To
second order in σ

    mean ψ     ≈ σ E‖G‖             power: the Fisher information F along the noise, on the model's
    own text E_ξ Δ_own   ≈ ½ σ² tr(F)         price on the model's own text: the same F, so the law
    holds for every weight E_ξ Δ_human ≈ ½ σ² tr(H)         price on human text: its loss's
    curvature H, which is F for a model that has learnt it perfectly

So weights differ from the law on human text only. The divergence of the two models on *watermarked*
text is in ``divergence``.

Δ for one key also has a term linear in ξ, ⟨ξ, ∇⟩, with mean zero over keys. ξ and −ξ have the same
distribution, so (Δ(ξ) + Δ(−ξ))/2 has the same mean without that term: the estimate here. It says
nothing about any single key.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, likelihood, models, perturb, stats
from gaussmark_lib.experiments import layer_sigma_sweep
from gaussmark_lib.tokens import Texts


def measure(
    lm: models.LM,
    prompts: Texts,
    human: Texts,
    weights: Sequence[str],
    wanted_psi: Sequence[float],
    keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    batch_size: int = 16,
    seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """For every weight at every wanted ψ: the ψ of watermarked continuations, and Δ cross-entropy
    of plain and of human ones under ±ξ.

    Args:
        human: how their authors continued the first of the prompts, token ids. Δ needs fewer texts
            than ψ and is measured on these prompts only.
        wanted_psi: σ is wanted ψ over the median ‖G‖ of unwatermarked continuations.
        dtype: the lowest precision of scoring that will do.

    Returns:
        One row a kind × prompt × key: ``weight, wanted, sigma, n_tokens, key_id, kind, item,
        value``. ``kind`` is ``"psi"``, or ``"human"`` or ``"own"``: Δ of a human or of the model's
        own plain continuation, nats a token, mean over ξ and −ξ.
    """
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed)
    continuations = {"human": human, "own": plain[: len(human)]}
    first = prompts[: len(human)]
    base = {
        kind: likelihood.cross_entropy(lm.model, texts, prompts=first, batch_size=batch_size)
        for kind, texts in continuations.items()
    }
    norms = gradients.norms(
        lm.model, first, plain[: len(first)], weights, batch_size=batch_size, dtype=dtype
    )
    tables = []
    for weight in weights:
        norm = norms.loc[norms["weight"] == weight, "grad_norm"]
        sigmas = [stats.sigma_for_psi(norm, wanted) for wanted in wanted_psi]
        written = layer_sigma_sweep.measured(
            lm, prompts, [weight], sigmas, keys, n_tokens=n_tokens, seed=seed + 1, dtype=dtype
        )
        for wanted, sigma in zip(wanted_psi, sigmas, strict=True):
            psi = written.loc[written["sigma"] == sigma, ["key_id", "prompt", "psi"]].rename(
                columns={"prompt": "item", "psi": "value"}
            )
            wm = perturb.Watermark(weight, sigma)
            changes = [
                delta(lm.model, first, texts, base[kind], wm, keys, batch_size).assign(kind=kind)
                for kind, texts in continuations.items()
            ]
            cell = pd.concat([psi.assign(kind="psi"), *changes])
            tables.append(cell.assign(weight=weight, wanted=wanted, sigma=sigma, n_tokens=n_tokens))
    return pd.concat(tables, ignore_index=True)


def delta(
    model: PreTrainedModel,
    prompts,
    texts,
    base: np.ndarray,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    batch_size: int = 16,
):
    """(Δ(ξ) + Δ(−ξ))/2 of each text under each key, against its cross-entropy ``base`` under the
    base model: ``key_id, item, value``.
    """
    wm, tables = wm.on(model), []
    for key in keys:
        xi = perturb.noise(model, wm, key)
        both = []
        for signed in (xi, -xi):
            with perturb.moved(model, wm, signed):
                both.append(
                    likelihood.cross_entropy(model, texts, prompts=prompts, batch_size=batch_size)
                    - base
                )
        tables.append(
            pd.DataFrame(
                {"key_id": key.key_id, "item": range(len(texts)), "value": np.mean(both, axis=0)}
            )
        )
    return pd.concat(tables)


def rates(
    table: pd.DataFrame,
    by: Sequence[str] = ("weight", "wanted"),
    *,
    n_resamples: int = 2_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Of :func:`measure`'s table, a row a group and kind of text: mean ψ, mean Δ, the law's price,
    and how expensive the weight is.

    ``rate`` = Δ / (ψ²/(2T)); below 1 the weight costs less than the law says. With
    ``by=("weight",)``, Σ Δ over Σ ψ²/(2T) of all strengths.

    Returns:
        The ``by`` columns, ``text`` (``"human"`` or ``"own"``), ``sigma`` (mean), ``psi, psi_low,
        psi_high, delta, delta_low, delta_high, law, rate, low, high`` (95%, bootstrap over texts,
        prompts and keys), ``n_texts``, ``n_keys``.
    """
    rows = []
    for group, cells in table.groupby(list(by), sort=False):
        for text in ("human", "own"):
            arrays = _arrays(cells, text)
            rng = np.random.default_rng(seed)
            psi, change, law = np.array(
                [_means(arrays), *(_means(_redrawn(arrays, rng)) for _ in range(n_resamples))]
            ).T
            row = dict(zip(by, group, strict=True)) | {
                "text": text,
                "sigma": cells["sigma"].mean(),
                "law": law[0],
            }
            for name, values in {"psi": psi, "delta": change, "rate": change / law}.items():
                low, high = np.quantile(values[1:], [0.025, 0.975])
                prefix = "" if name == "rate" else f"{name}_"
                row |= {name: values[0], f"{prefix}low": low, f"{prefix}high": high}
            n_keys, n_texts = arrays[0][1].shape
            rows.append(row | {"n_texts": n_texts, "n_keys": n_keys})
    return pd.DataFrame(rows)


Arrays = list[tuple[np.ndarray, np.ndarray, int]]


def _arrays(cells: pd.DataFrame, text: str) -> Arrays:
    """Of each strength: ψ (texts,), Δ (keys, texts), T."""
    found = []
    for _, cell in cells.groupby("wanted", sort=False):
        change = (
            cell[cell["kind"] == text]
            .pivot(index="key_id", columns="item", values="value")
            .to_numpy()
        )
        found.append(
            (
                cell.loc[cell["kind"] == "psi", "value"].to_numpy(),
                change,
                int(cell["n_tokens"].iloc[0]),
            )
        )
    return found


def _redrawn(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """A bootstrap sample: of ψ, keys and texts each with replacement."""
    found = []
    for psi, change, n_tokens in arrays:
        keys, texts = (rng.integers(n, size=n) for n in change.shape)
        found.append(
            (psi[rng.integers(len(psi), size=len(psi))], change[np.ix_(keys, texts)], n_tokens)
        )
    return found


def _means(arrays: Arrays) -> tuple[float, float, float]:
    """Mean ψ, mean Δ and mean of ψ²/(2T), over strengths."""
    return tuple(
        np.mean(
            [
                (psi.mean(), change.mean(), stats.predicted_price(psi.mean(), n))
                for psi, change, n in arrays
            ],
            axis=0,
        )
    )
