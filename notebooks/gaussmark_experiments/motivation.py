"""01_motivation: the likelihood ratio beside its gradient form, ψ under fresh keys, and what a
watermark is worth and costs.

    log p_{θ+ξ}(y) − log p_θ(y)  ≈  ⟨ξ, G⟩ − σ²‖G‖²/2,      E ψ ≈ σ‖G‖,      price ≈ ψ²/2 nats
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import (
    divergence,
    generate,
    gradients,
    likelihood,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.engine import arithmetic
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import OWN, PLAIN, WRONG, Pairs, scored
from gaussmark_lib.workbench.plots import style

STRENGTH, PRICE = "mean ψ", "price, nats per text"


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
    """Each prompt is continued under its key with every watermark (of one weight), and by the base
    model; the texts are tested, and their log likelihood ratios measured.

    Returns:
        The table of ``pairs.scored`` for each ``sigma``, with ``first_order`` = ⟨ξ, G⟩ − σ²‖G‖²/2
        and ``log_ratio`` = log p_{θ+ξ}(y) − log p_θ(y) (not for wrong keys), nats per text, and for
        marked texts ``price`` = Σ_t KL(p_{θ+ξ} ‖ p_θ), nats per text; and the plain texts.
    """
    marks = [(wm, key) for wm in watermarks for key in pairs.keys] + [None] * pairs.n
    prompts = pairs.prompts * (len(watermarks) + 1)
    texts = generate.sample(lm.model, prompts, n_tokens, marks=marks, seed=seed, **sampling)
    *marked, plain = (texts[start : start + pairs.n] for start in range(0, len(texts), pairs.n))
    tables = []
    with arithmetic.computing_in(lm.model, arithmetic.arithmetic(lm.model, dtype)):
        for wm, own in zip(watermarks, marked, strict=True):
            table = scored(lm, pairs, own, plain, wm, dtype=dtype).assign(sigma=wm.sigma)
            tables.append(_with_ratio(lm, pairs, {OWN: own, PLAIN: plain}, wm, table))
    return pd.concat(tables, ignore_index=True), plain


def _with_ratio(
    lm: models.LM,
    pairs: Pairs,
    texts: dict[str, list[list[int]]],
    wm: perturb.Watermark,
    table: pd.DataFrame,
) -> pd.DataFrame:
    """The columns of :func:`measured`, one key after another."""
    log_p, price = {}, {}
    for i, (prompt, key) in enumerate(zip(*pairs, strict=True)):
        both = [texts[OWN][i], texts[PLAIN][i]]
        with perturb.watermarked(lm.model, wm, key):
            entropy = likelihood.cross_entropy(lm.model, both, prompts=[prompt] * 2)
        log_p[OWN, i], log_p[PLAIN, i] = -entropy * [len(text) for text in both]
        [price[OWN, i]] = divergence.per_text(lm.model, [prompt], both[:1], marks=[(wm, key)])
    rows = list(zip(table["kind"], table["prompt"], strict=True))
    length = wm.sigma * table["grad_norm"]
    return table.assign(
        first_order=length * table["psi"] - length**2 / 2,
        log_ratio=[log_p.get(row, np.nan) for row in rows] - table["log_lik"],
        price=[price.get(row, np.nan) for row in rows],
    )


def agreement(table: pd.DataFrame) -> stats.Estimate:
    """Correlation of ``log_ratio`` with ``first_order`` over the marked and plain texts of a table;
    pairs are resampled.
    """
    table = table.dropna(subset="log_ratio")
    both = table[["log_ratio", "first_order"]].to_numpy()
    return stats.interval(both, lambda rows: np.corrcoef(rows.T)[0, 1], cluster=table["prompt"])


def strength_and_price(table: pd.DataFrame, typical_norm: float) -> pd.DataFrame:
    """For ``panels``: mean ψ and price of each ``sigma`` with intervals over pairs, against
    ``predicted`` = σ · ``typical_norm`` (‖G‖ of plain text), beside the first-order prediction.
    """
    rows = []
    for sigma, texts in table.groupby("sigma"):
        by_kind = dict(list(texts.groupby("kind")))
        predicted = sigma * typical_norm
        estimates = {
            (STRENGTH, OWN): stats.interval(by_kind[OWN]["psi"]).row(),
            (STRENGTH, WRONG): stats.interval(by_kind[WRONG]["psi"]).row(),
            (STRENGTH, "predicted"): {"value": predicted},
            (PRICE, OWN): stats.interval(by_kind[OWN]["price"]).row(),
            (PRICE, "predicted"): {"value": predicted**2 / 2},
        }
        rows += [
            {"sigma": sigma, "predicted": predicted, "quantity": quantity, "curve": curve} | row
            for (quantity, curve), row in estimates.items()
        ]
    return pd.DataFrame(rows)


def over_prediction(table: pd.DataFrame, sigma: float, quantity: str) -> stats.Estimate:
    """A row of :func:`strength_and_price`, divided by its prediction."""
    rows = table[(table["sigma"] == sigma) & (table["quantity"] == quantity)].set_index("curve")
    own, predicted = rows.loc[OWN], rows.loc["predicted", "value"]
    return stats.Estimate(*(own[["value", "low", "high"]] / predicted), int(own["n"]))


def under_fresh_keys(
    lm: models.LM,
    texts: dict[str, tuple[list[int], list[int]]],
    wm: perturb.Watermark,
    n_keys: int,
    *,
    first_seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """``score.score``'s table of each named (prompt, text) under the same n keys, which wrote none
    of them, with ``inner`` = ⟨ξ, G⟩, nats.
    """
    keys = [perturb.Key.from_seed(first_seed + i) for i in range(n_keys)]
    prompts, responses = map(list, zip(*texts.values(), strict=True))
    table = score.score(lm.model, prompts, responses, wm, keys, dtype=dtype)
    inner = wm.sigma * table["grad_norm"] * table["psi"]
    return table.assign(text=np.array(list(texts))[table["text"]], inner=inner)


def by_entropy(
    lm: models.LM, prompts: Texts, texts: Texts, wm: perturb.Watermark, dtype: str | None = None
) -> pd.DataFrame:
    """How sure the model was, beside how long the gradient is, one row per text: ``entropy`` of the
    model's choice (nats, mean over the tokens), ``grad_norm, per_token`` = ‖G‖/√T.
    """
    entropy = [nats.mean() for nats in likelihood.entropies(lm.model, prompts, texts)]
    norms = gradients.norms(lm.model, prompts, texts, [wm.weight], dtype=dtype)
    per_token = norms["grad_norm"] / norms["n_tokens"] ** 0.5
    columns = {"entropy": entropy, "grad_norm": norms["grad_norm"], "per_token": per_token}
    return pd.DataFrame(columns)


def draw_log_ratio(table: pd.DataFrame, caption: str) -> Figure:
    """The log likelihood ratio of each text against its gradient form."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for kind, rows in table.dropna(subset="log_ratio").groupby("kind"):
        look = style.look(kind)
        axes.scatter(rows["first_order"], rows["log_ratio"], s=20, alpha=0.7, label=kind, **look)
    axes.axline((0, 0), slope=1, **style.THIN, label="equal")
    ratio = r"$\log\, p_{\theta+\xi}(y) - \log\, p_\theta(y)$, nats"
    axes.set(xlabel="⟨ξ, G⟩ − σ²‖G‖²/2, nats", ylabel=ratio)
    style.legend_beside(axes)
    return style.caption(figure, caption, "Does the gradient know the likelihood ratio?")


def draw_fresh_keys(table: pd.DataFrame, sigma: float, caption: str) -> Figure:
    """⟨ξ, G⟩ and ψ over keys, one row of panels per text, and the normal densities that they must
    follow.
    """
    texts = table["text"].unique()
    figure, grid = plt.subplots(len(texts), 2, figsize=(8.6, 5.2), sharex="col")
    for (left, right), text, colour in zip(grid, texts, style.COLOURS, strict=False):
        rows = table[table["text"] == text]
        widths = {"inner": sigma * rows["grad_norm"].iloc[0], "psi": 1.0}
        for axes, (column, width) in zip((left, right), widths.items(), strict=True):
            axes.hist(rows[column], bins=20, density=True, color=colour, alpha=0.5)
            x = np.linspace(-4, 4, 200) * width
            axes.plot(x, norm.pdf(x, scale=width), **style.THIN)
            axes.set(yticks=[])
        left.set_ylabel(text, rotation=0, ha="right", va="center")
    grid[-1, 0].set(xlabel="⟨ξ, G⟩, nats")
    grid[-1, 1].set(xlabel="ψ = ⟨ξ, G⟩/(σ‖G‖)")
    return style.caption(figure, caption, "How large is ψ of a key that did not write the text?")


def draw_entropy(table: pd.DataFrame, caption: str) -> Figure:
    """A text's gradient per √token against the model's entropy."""
    figure, axes = plt.subplots(figsize=(6.4, 3.9))
    axes.scatter(table["entropy"], table["per_token"], s=20, color=style.PLAIN)
    axes.set(
        xlabel="mean entropy, nats per token",
        ylabel="‖G‖/√T",
        ylim=(0, 1.1 * table["per_token"].max()),
    )
    return style.caption(figure, caption, "Is a gradient longer where the model is less sure?")
