"""Experiments on the level: what p-values do when text and key have nothing to do with each other (paper, Prop. on level).

For any text, a fresh key's ψ is N(0, 1). That is over the draw of the *key*: one fixed key can have many false positives or none on texts of one
kind, because their gradients share directions.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch

from gaussmark_lib import generate, gradients, models, perturb, score, stats, texts, tokens
from gaussmark_lib.corrupt import Pairs

HUMAN = ("docs", "licences", "source")
KINDS = (*HUMAN, "model samples", "random tokens")


def null_texts(lm: models.LM, kind: str, n: int, *, n_prompt: int = 32, n_tokens: int = 200, seed: int = 0) -> Pairs:
    """n unwatermarked prompts and responses of one of ``KINDS``: human text cut in two, or the model's own or random ids after documentation.

    Human texts shorter than n_prompt + n_tokens are skipped.
    """
    if kind in HUMAN:
        wanted = n_prompt + n_tokens
        rows = texts.load(kind, split="heldout", min_chars=6 * wanted)["text"]
        long_enough = list(islice((ids for ids in map(lm.encode, rows) if len(ids) >= wanted), n))
        if len(long_enough) < n:
            raise texts.CorpusError(f"{kind}: expected {n} texts of {wanted} tokens, found {len(long_enough)}; ask for fewer or shorter ones")
        return [row[:n_prompt] for row in long_enough], [row[n_prompt:wanted] for row in long_enough]
    prompts, _ = null_texts(lm, "docs", n, n_prompt=n_prompt, n_tokens=1)
    if kind == "model samples":
        return prompts, generate.sample(lm.model, prompts, n_tokens, seed=seed)
    if kind == "random tokens":
        rng = np.random.default_rng(seed)
        return prompts, rng.integers(lm.model.config.vocab_size, size=(n, n_tokens)).tolist()
    raise texts.CorpusError(f"expected one of {', '.join(KINDS)}, got {kind!r}")


def fresh_keys(lm: models.LM, pairs: Pairs, wm: perturb.Watermark, *, keys_per_text: int, first_seed: int = 0, batch_size: int = 16) -> pd.DataFrame:
    """ψ and p (``score``'s columns) of each text under ``keys_per_text`` keys that no other text shares, so that all rows are independent.

    Keys are ``Key.from_seed(first_seed)`` and its successors, in the order of the texts.
    """
    wm, rows = wm.on(lm.model), []
    for found in score.gradients(lm.model, *pairs, wm, batch_size=batch_size):
        first = first_seed + found.text * keys_per_text
        keys = [perturb.Key.from_seed(seed) for seed in range(first, first + keys_per_text)]
        psi = score.statistic(found, perturb.noises(lm.model, wm, keys).to(found.G.device), wm.sigma)
        rows.append(score.table(found, psi, [key.key_id for key in keys]))
    return pd.concat(rows).sort_values("text", kind="stable", ignore_index=True)


def mean_cosine(units: torch.Tensor) -> float:
    """Mean cosine between two different rows' directions: |Σ u|² = n + Σ_{i≠j} cos_ij, for unit rows u, shape (n, d)."""
    n = len(units)
    return float((units.sum(0).square().sum() - n) / (n * (n - 1)))


def fixed_key_experiment(
    lm: models.LM, pairs: Pairs, wm: perturb.Watermark, keys: Sequence[perturb.Key], *, level: float, batch_size: int = 16
) -> tuple[pd.DataFrame, float]:
    """The rate of false positives of each key over these texts, and the mean cosine of the texts' gradients that explains its spread."""
    found = list(score.gradients(lm.model, *pairs, wm, batch_size=batch_size))
    units = torch.stack([one.G.flatten() / one.norm for one in found])
    psi = np.stack([(units @ perturb.noise(lm.model, wm, key).flatten().to(units)).double().cpu().numpy() / wm.sigma for key in keys])
    rows = [{"key_id": key.key_id} | stats.tpr(row, level).row() for key, row in zip(keys, psi, strict=True)]
    return pd.DataFrame(rows).sort_values("value", ignore_index=True), mean_cosine(units)


def trap(lm: models.LM, pairs: Pairs, wm: perturb.Watermark, keys: Sequence[perturb.Key], *, batch_size: int = 16) -> pd.DataFrame:
    """The mistake, on purpose: ψ of null texts with the gradient taken at θ + ξ, beside the right one at θ. Columns ``text, key_id, at, psi``.

    At θ + ξ the gradient depends on ξ: it points back towards θ, where texts that are likely under θ are more likely. So ψ is negative on average.
    """
    right = score.score(lm.model, *pairs, wm, keys, batch_size=batch_size).assign(at="θ")
    wm, checked, wrong = wm.on(lm.model), tokens.checked_pairs(lm.model, *pairs), []
    for key in keys:
        xi = perturb.noise(lm.model, wm, key)
        with perturb.moved(lm.model, wm, xi, by=key.key_id):
            for found in gradients.of_pairs(lm.model, checked, wm, perturbed=True, batch_size=batch_size):
                [psi] = score.statistic(found, xi[None].to(found.G.device), wm.sigma)
                wrong.append({"text": found.text, "key_id": key.key_id, "psi": psi, "at": "θ + ξ"})
    return pd.concat([right[["text", "key_id", "at", "psi"]], pd.DataFrame(wrong)], ignore_index=True)
