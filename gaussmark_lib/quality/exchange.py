"""What a unit of ψ costs: the rise of cross-entropy on human text against the mean ψ it buys, weight by weight.

The linear law says that a mean ψ over T tokens costs ψ²/(2T) nats a token, whatever the weight. To second order

    mean ψ ≈ σ E‖G‖            power:  the Fisher information along the noise, on the model's own text
    E_ξ Δ ≈ ½ σ² tr(Hessian)   price:  the curvature of the loss, on human text

The two traces agree for a model that is calibrated on that text; where they differ, a weight sells power cheaper or dearer than the law. (The
divergence KL(p_{θ+ξ} ‖ p_θ) on the model's own text is ``price.py``'s, and obeys the law by construction: to second order it is the Fisher
information.)

Δ for one key also has a term linear in ξ, ⟨ξ, ∇⟩, of either sign and mean zero over keys. ξ and −ξ have the same law, so
(Δ(ξ) + Δ(−ξ))/2 has the same mean over keys without that term: the estimate here. It is no statement about any single key.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import cross_entropy, generate, models, perturb, score, stats


def measure(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    passages: Sequence[Sequence[int]],
    weights: Sequence[str],
    wanted_psi: Sequence[float],
    keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> pd.DataFrame:
    """For every weight at every wanted ψ: the ψ of watermarked texts, and Δ cross-entropy of human passages under ±ξ.

    Args:
        prompts: continued by n_tokens; prompt i under key i mod K.
        passages: human text without a start token.
        wanted_psi: σ is solved for, as wanted ψ over the median ‖G‖ of unwatermarked continuations.

    Returns:
        One row a measurement: ``weight, wanted, sigma, n_tokens, key_id, kind, item, value``; ``kind`` is ``"psi"`` (one a prompt) or
        ``"delta"`` (one a passage × key, nats a token, the mean over ξ and −ξ).
    """
    plain = generate.sample(model, prompts, n_tokens, seed=seed)
    base = cross_entropy.per_passage(model, passages, batch_size=batch_size)
    tables = []
    with tqdm(total=len(weights) * len(wanted_psi), desc="exchange", unit="cell", disable=not progress) as bar:
        for weight in weights:
            norms = [found.norm for found in score.gradients(model, prompts, plain, perturb.Watermark(weight, 1.0), batch_size=batch_size)]
            for wanted in wanted_psi:
                wm = perturb.Watermark(weight, stats.sigma_for_psi(norms, wanted))
                cell = pd.concat(
                    [_psi(model, prompts, wm, keys, n_tokens, seed + 1, batch_size), _delta(model, passages, base, wm, keys, batch_size)]
                )
                tables.append(cell.assign(weight=weight, wanted=wanted, sigma=wm.sigma, n_tokens=n_tokens))
                bar.update()
    return pd.concat(tables, ignore_index=True)


def _psi(model, prompts, wm, keys, n_tokens, seed, batch_size) -> pd.DataFrame:
    tables = []
    for j, key in enumerate(keys):
        mine = list(range(j, len(prompts), len(keys)))
        chosen = [prompts[i] for i in mine]
        with perturb.watermarked(model, wm, key):
            responses = generate.sample(model, chosen, n_tokens, seed=seed + j)
        psi = score.score(model, chosen, responses, wm, [key], batch_size=batch_size)["psi"]
        tables.append(pd.DataFrame({"key_id": key.key_id, "kind": "psi", "item": mine, "value": psi}))
    return pd.concat(tables)


def _delta(model, passages, base, wm, keys, batch_size) -> pd.DataFrame:
    tables = []
    for key in keys:
        xi = perturb.noise(key, wm, model)
        both = []
        for signed in (xi, -xi):
            with _moved(model, wm, signed):
                both.append(cross_entropy.per_passage(model, passages, batch_size=batch_size) - base)
        tables.append(pd.DataFrame({"key_id": key.key_id, "kind": "delta", "item": range(len(passages)), "value": np.mean(both, axis=0)}))
    return pd.concat(tables)


@contextmanager
def _moved(model: PreTrainedModel, wm: perturb.Watermark, xi: Tensor) -> Iterator[None]:
    """The model at θ + ξ for a noise that no key stands for (−ξ), as ``perturb.watermarked`` moves it."""
    perturb.refuse_perturbed(model)
    linear = models.linear(model, wm.weight)
    theta = linear.parameter.data
    moved = theta.to(torch.promote_types(theta.dtype, torch.float32)) + linear.oriented(xi).to(theta.device)
    linear.parameter.data = moved.to(theta.dtype)
    try:
        yield
    finally:
        linear.parameter.data = theta


def rates(
    table: pd.DataFrame, by: Sequence[str] = ("weight", "wanted"), *, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> pd.DataFrame:
    """Of :func:`measure`'s table, a row a group: mean ψ, mean Δ, the law's price, and how dear the weight is.

    ``rate`` = Δ / (ψ²/(2T)); below 1 the weight buys power cheaper than the law. Its interval is the bootstrap's, over texts, passages and keys at
    once. With ``by=("weight",)`` the rate of all strengths together: Σ Δ over Σ ψ²/(2T).

    Returns:
        The ``by`` columns, ``sigma`` (mean), ``psi, psi_low, psi_high, delta, delta_low, delta_high, law, rate, low, high``, and the numbers
        ``n_texts, n_passages, n_keys``.
    """
    rows = []
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    for group, cells in table.groupby(list(by), sort=False):
        arrays = _arrays(cells)
        rng = np.random.default_rng(seed)
        drawn = np.array([_means(arrays), *(_means(_redrawn(arrays, rng)) for _ in range(resamples))])
        psi, delta, law = drawn.T
        rate = delta / law
        row = dict(zip(by, group, strict=True)) | {"sigma": cells["sigma"].mean()}
        for name, values in {"psi": psi, "delta": delta, "": rate}.items():
            low, high = np.quantile(values[1:], tails)
            row |= {name or "rate": values[0], f"{name}_low" if name else "low": low, f"{name}_high" if name else "high": high}
        texts, passages = cells[cells["kind"] == "psi"], cells[cells["kind"] == "delta"]
        counts = {"n_texts": texts["item"].nunique(), "n_passages": passages["item"].nunique(), "n_keys": passages["key_id"].nunique()}
        rows.append(row | {"law": law[0]} | counts)
    return pd.DataFrame(rows)


def _arrays(cells: pd.DataFrame) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Of each strength: ψ (texts,), Δ (keys, passages), T."""
    found = []
    for _, cell in cells.groupby("wanted", sort=False):
        delta = cell[cell["kind"] == "delta"].pivot(index="key_id", columns="item", values="value").to_numpy()
        found.append((cell.loc[cell["kind"] == "psi", "value"].to_numpy(), delta, int(cell["n_tokens"].iloc[0])))
    return found


def _redrawn(arrays: list[tuple[np.ndarray, np.ndarray, int]], rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """A bootstrap sample: texts, keys and passages each with replacement."""
    return [
        (
            psi[rng.integers(len(psi), size=len(psi))],
            delta[rng.integers(len(delta), size=len(delta))][:, rng.integers(delta.shape[1], size=delta.shape[1])],
            n,
        )
        for psi, delta, n in arrays
    ]


def _means(arrays: list[tuple[np.ndarray, np.ndarray, int]]) -> tuple[float, float, float]:
    """Mean ψ, mean Δ and mean of ψ²/(2T), over strengths."""
    return tuple(np.mean([(psi.mean(), delta.mean(), stats.predicted_price(psi.mean(), n)) for psi, delta, n in arrays], axis=0))
