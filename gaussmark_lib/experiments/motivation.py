"""Experiments of 01_motivation: the likelihood ratio beside its first-order form, ψ under fresh
keys, and what a watermark is worth and costs.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import divergence, likelihood, models, perturb, score, stats
from gaussmark_lib.experiments import crossed, written_and_scored
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN
from gaussmark_lib.tokens import Texts

AT_ONCE = 2**24  # numbers of the noises that are held together
COLUMNS = [
    "kind",
    "weight",
    "sigma",
    "key_id",
    "prompt",
    "n_tokens",
    "psi",
    "grad_norm",
    "log_ratio",
    "first_order",
    "wrong_psi",
    "price",
]


def measure(
    lm: models.LM,
    prompts: Texts,
    watermarks: Sequence[perturb.Watermark],
    keys: Sequence[perturb.Key],
    n_tokens: int,
    *,
    ratio_of: perturb.Watermark | None = None,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> pd.DataFrame:
    """Continues every prompt under every watermark × key, and by the base model; tests each text,
    and measures its log likelihood ratio.

    Args:
        watermarks: of one weight, without projection. keys: at least two, as a text is also tested
            for another key, the next of the list.
        ratio_of: the one whose log likelihood ratios are measured; all by default. The others have
            no rows of plain texts, and NaN for the ratio.
        dtype: lowest precision of scoring and of likelihoods. sampling: ``top_p, temperature,
            until_end``.

    Returns:
        One row a text × watermark × key, watermarked texts (``kind`` OWN) under their own and plain
        ones (PLAIN) under each: ``kind, weight, sigma, key_id, prompt, n_tokens, psi, grad_norm``,
        in nats a text ``log_ratio`` = log p_{θ+ξ}(y) − log p_θ(y) and ``first_order`` = ⟨ξ, G⟩ −
        σ²‖G‖²/2, and for OWN also ``wrong_psi`` and ``price`` = Σ_t KL(p_{θ+ξ} ‖ p_θ), nats a text.
    """
    cells, precision = (
        [(wm, key) for wm in watermarks for key in keys],
        models.arithmetic(lm.model, dtype),
    )
    seeds = [seed, *(seed + 1 + number % len(keys) for number in range(len(cells)))]
    options = {"seeds": seeds, "sampling": sampling, "dtype": dtype}
    scores, (plain, *marked) = written_and_scored.of_cells(
        lm, prompts, [None, *cells], keys, n_tokens, **options
    )
    own, of_plain = (
        written_and_scored.own_rows(scores, keys).assign(kind=OWN),
        scores[scores["kind"] == PLAIN],
    )
    tables = []
    for (wm, key), texts in zip(cells, marked, strict=True):
        mine = own[(own["sigma"] == wm.sigma) & (own["key_id"] == key.key_id)].sort_values("prompt")
        theirs = (
            of_plain[of_plain["key_id"] == key.key_id].sort_values("prompt").assign(sigma=wm.sigma)
        )
        with models.computing_in(lm.model, precision):
            mine = mine.assign(
                price=divergence.per_text(lm.model, prompts, texts, wm, key), log_ratio=np.nan
            )
            if ratio_of not in (None, wm):
                tables.append(mine)
                continue
            with perturb.watermarked(lm.model, wm, key):
                for rows, written in ((mine, texts), (theirs, plain)):
                    tables.append(
                        rows.assign(
                            log_ratio=_log_likelihoods(lm.model, prompts, written) - rows["log_lik"]
                        )
                    )
    table = pd.concat(tables, ignore_index=True)
    length = table["sigma"] * table["grad_norm"]
    return table.assign(first_order=length * table["psi"] - length**2 / 2)[COLUMNS]


def _log_likelihoods(model: PreTrainedModel, prompts: Texts, texts: Texts) -> np.ndarray:
    """log p(y | x) of each text, nats."""
    return -likelihood.cross_entropy(model, texts, prompts=prompts) * np.array(
        [len(text) for text in texts]
    )


def agreement(table: pd.DataFrame) -> stats.Estimate:
    """Correlation of ``log_ratio`` with ``first_order`` over all texts of one σ of :func:`measure`,
    with a 95% interval over prompts and keys.

    n counts prompts × keys, each with its watermarked and its plain text.
    """
    kinds = [table[table["kind"] == kind] for kind in (OWN, PLAIN)]
    matrices = [
        np.stack([stats.matrix(rows, column) for rows in kinds], axis=2)
        for column in ("first_order", "log_ratio")
    ]
    n_prompts, n_keys, _ = matrices[0].shape
    number = np.arange(n_prompts * n_keys).reshape(
        n_prompts, n_keys
    )  # of a prompt × key, whose two texts are resampled together
    pairs = [matrix.reshape(-1, 2) for matrix in matrices]
    return stats.crossed_interval(
        lambda chosen: float(
            np.corrcoef(*(pair[chosen.ravel().astype(int)].ravel() for pair in pairs))[0, 1]
        ),
        number,
    )


def summary(table: pd.DataFrame, typical_norm: float) -> pd.DataFrame:
    """One row a σ of the watermarked texts of :func:`measure`, each mean with its 95% interval
    (``…_low``, ``…_high``) over prompts and keys.

    Args:
        typical_norm: ‖∇ log p_θ‖ of unwatermarked text; ``predicted`` is σ times it,
            ``predicted_price`` = predicted²/(2T) nats a token.

    Returns:
        ``sigma, predicted, n, psi, wrong_psi, price`` (nats a *token*), ``predicted_price``.
    """
    own = table[table["kind"] == OWN]
    own = own.assign(price=own["price"] / own["n_tokens"])
    rows = []
    for sigma, texts in own.groupby("sigma"):
        predicted = sigma * typical_norm
        row = {
            "sigma": sigma,
            "predicted": predicted,
            "n": len(texts),
            "predicted_price": predicted**2 / (2 * texts["n_tokens"].mean()),
        }
        for column in ("psi", "wrong_psi", "price"):
            row |= crossed.mean(texts, column).row(column)
        rows.append(row)
    return pd.DataFrame(rows)


def under_fresh_keys(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    n_keys: int,
    *,
    first_seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """ψ of each text under keys that nobody wrote it with. Few noises are held at a time, however
    many keys there are.

    Returns:
        One row a text × key: ``text, key`` (number), ``psi, inner`` (⟨ξ, G⟩, nats), ``grad_norm``.
    """
    gradients = list(score.gradients(model, prompts, responses, wm, dtype=dtype))
    several = max(1, AT_ONCE // prod(wm.on(model).linear.shape))
    tables = []
    for first in range(0, n_keys, several):
        numbers = range(first, min(first + several, n_keys))
        xis = perturb.noises(
            model, wm, [perturb.Key.from_seed(first_seed + number) for number in numbers]
        ).to(model.device)
        for g in gradients:
            psi = score.statistic(g, xis, wm.sigma)
            tables.append(
                pd.DataFrame(
                    {
                        "text": g.text,
                        "key": numbers,
                        "psi": psi,
                        "inner": psi * wm.sigma * g.norm,
                        "grad_norm": g.norm,
                    }
                )
            )
    return pd.concat(tables, ignore_index=True)


def by_entropy(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    *,
    dtype: str | None = None,
) -> pd.DataFrame:
    """How sure the model was, beside how long the gradient is.

    Returns:
        One row a text: ``text, n_tokens, entropy`` (of the model's choice, nats, mean over the
            text's tokens), ``grad_norm, per_token`` = ‖G‖/√T.
    """
    entropy = [float(values.mean()) for values in likelihood.entropies(model, prompts, responses)]
    gradients = score.gradients(model, prompts, responses, wm, dtype=dtype)
    rows = [
        (g.text, g.n_tokens, entropy[g.text], g.norm, g.norm / g.n_tokens**0.5) for g in gradients
    ]
    return pd.DataFrame(
        rows, columns=["text", "n_tokens", "entropy", "grad_norm", "per_token"]
    ).sort_values("text", ignore_index=True)
