"""Experiments of 01_motivation: what a watermark on a language model is worth and what it costs, beside the prediction from plain text."""

from collections.abc import Sequence

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, perturb, stats
from gaussmark_lib.experiments import written_and_scored
from gaussmark_lib.tokens import Texts


def measure(
    model: PreTrainedModel,
    prompts: Texts,
    watermarks: Sequence[perturb.Watermark],
    keys: Sequence[perturb.Key],
    wrong_keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Continues every prompt under every watermark, and returns what each text is worth and costs.

    Args:
        keys, wrong_keys: K of each. Prompt i is continued under key i mod K, and its text tested against that key and against wrong key i mod K.

    Returns:
        One row a watermark × prompt: ``weight, sigma, prompt, key_id, n_tokens, psi, wrong_psi, grad_norm, price`` (nats a text).
    """
    runs = [(wm, j, both) for wm in watermarks for j, both in enumerate(zip(keys, wrong_keys, strict=True))]
    tables = []
    for number, (wm, j, (key, wrong_key)) in enumerate(runs):
        mine = range(j, len(prompts), len(keys))
        chosen = [prompts[k] for k in mine]
        with perturb.watermarked(model, wm, key):  # not in one batch of many cells, which rounds differently
            responses = generate.sample(model, chosen, n_tokens, seed=seed + number)
        scores = written_and_scored.scored(model, chosen, [responses], [(wm, key)], [key, wrong_key])
        table = written_and_scored.own_rows(scores, [key, wrong_key])
        tables.append(table.assign(price=divergence.per_text(model, chosen, responses, wm, key), prompt=list(mine)))
    return pd.concat(tables, ignore_index=True)


def summary(table: pd.DataFrame, typical_norm: float) -> pd.DataFrame:
    """One row a watermark of :func:`measure`'s table, each mean with its 95% interval (``…_low``, ``…_high``) over texts.

    Args:
        typical_norm: ‖∇ log p_θ‖ of unwatermarked text; ``predicted`` is σ times it.

    Returns:
        ``weight, sigma, predicted, n``, then ``psi, wrong_psi`` and ``price`` (nats a *token*).
    """
    per_token = table.assign(price=table["price"] / table["n_tokens"])
    rows = []
    for (weight, sigma), texts in per_token.groupby(["weight", "sigma"], sort=False):
        psi, wrong_psi, price = (stats.mean(texts[column]).row(column) for column in ("psi", "wrong_psi", "price"))
        rows.append({"weight": weight, "sigma": sigma, "predicted": sigma * typical_norm, "n": len(texts)} | psi | wrong_psi | price)
    return pd.DataFrame(rows)
