"""Experiments on the level: what p-values do when text and key have nothing to do with each other
(paper, Prop. on level).

For any text, a fresh key's ψ is N(0, 1). That is over the draw of the *key*: one fixed key can have
many false positives or none on texts of one kind, because their gradients share directions. If any
two of n texts have gradients of cosine c, their ψ under one key are jointly normal with correlation
c, and the share of them above τ_α has over keys the mean α and the variance

    (α − α²)/n + (1 − 1/n)(P(ψ_1 ≥ τ_α, ψ_2 ≥ τ_α) − α²)
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import bootstrap, multivariate_normal

from gaussmark_lib import generate, gradients, models, perturb, score, stats, texts, tokens
from gaussmark_lib.corrupt import Pairs

OWN, RANDOM = "model samples", "random tokens"
NOISE_AT_ONCE = 2**24  # numbers of noise held at a time
GRADIENTS_AT_ONCE = 2**29  # numbers of gradients held at a time: 2 GiB in float32


def kinds(text: str = "docs") -> dict[str, str]:
    """The five kinds of text of the level check by the name that a table shows: human text of three
    kinds, the model's own, and random ids.

    >>> list(kinds("folder/plays.jsonl"))
    ['plays.jsonl', 'licences', 'source', 'model samples', 'random tokens']
    """
    return {Path(kind).name: kind for kind in (text, "licences", "source", OWN, RANDOM)}


def null_texts(
    lm: models.LM,
    kind: str,
    n: int,
    *,
    text: str = "docs",
    n_prompt: int = 32,
    n_tokens: int = 200,
    seed: int = 0,
    **sampling,
) -> Pairs:
    """n prompts and responses without a watermark: human text of a kind (of ``texts``) cut in two,
    or the model's own or random ids after ``text``.

    Human texts shorter than n_prompt + n_tokens are skipped.

    Args:
        kind: ``OWN``, ``RANDOM``, or a kind of text or a .jsonl file. sampling: of
            ``generate.sample``.
    """
    if kind not in (OWN, RANDOM):
        whole = texts.beginnings(lm, kind, n, n_prompt + n_tokens)
        return [row[:n_prompt] for row in whole], [row[n_prompt:] for row in whole]
    prompts = texts.beginnings(lm, text, n, n_prompt)
    if kind == OWN:
        return prompts, generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    rng = np.random.default_rng(seed)
    return (
        prompts,
        rng.integers(lm.model.get_input_embeddings().num_embeddings, size=(n, n_tokens)).tolist(),
    )


def fresh_keys(
    lm: models.LM,
    pairs: Pairs,
    wm: perturb.Watermark,
    *,
    keys_per_text: int,
    first_seed: int = 0,
    **settings,
) -> pd.DataFrame:
    """ψ and p (``score``'s columns) of each text under ``keys_per_text`` keys that no other text
    shares, so that all rows are independent.

    Keys are ``Key.from_seed(first_seed)`` and its successors, in the order of the texts. Noises are
    held a few at a time, whatever the matrix.

    Args:
        settings: ``dtype, batch_size`` of ``score.gradients``.
    """
    wm, rows = wm.on(lm.model), []
    for found in score.gradients(lm.model, *pairs, wm, **settings):
        first = first_seed + found.text * keys_per_text
        keys = [perturb.Key.from_seed(seed) for seed in range(first, first + keys_per_text)]
        psi = [
            score.statistic(found, perturb.noises(lm.model, wm, few).to(found.G.device), wm.sigma)
            for few in _few(keys, found.G.numel())
        ]
        rows.append(score.table(found, np.concatenate(psi), [key.key_id for key in keys]))
    return pd.concat(rows).sort_values("text", kind="stable", ignore_index=True)


def _few(keys: Sequence[perturb.Key], numel: int) -> Iterator[Sequence[perturb.Key]]:
    each = max(1, NOISE_AT_ONCE // numel)
    return (keys[start : start + each] for start in range(0, len(keys), each))


def fixed_keys(
    lm: models.LM, pairs: Pairs, wm: perturb.Watermark, keys: Sequence[perturb.Key], **settings
) -> tuple[Float[np.ndarray, "keys texts"], float]:
    """ψ of each text under each key, and the mean cosine between the gradients of two texts.

    One noise is held at a time, and as many gradients as ``GRADIENTS_AT_ONCE`` allows; for the next
    ones, the noises are drawn again.
    """
    wm, n, total = wm.on(lm.model), len(pairs[0]), 0.0
    psi, each = np.empty((len(keys), n)), score.gradients(lm.model, *pairs, wm, **settings)
    while several := list(islice(each, max(1, GRADIENTS_AT_ONCE // wm.linear.parameter.numel()))):
        units = torch.stack([found.unit() for found in several])
        total = total + units.sum(0)
        for row, key in zip(psi, keys, strict=True):
            xi = perturb.noise(lm.model, wm, key).flatten().to(units)
            row[[found.text for found in several]] = (units @ xi).double().cpu().numpy() / wm.sigma
    return psi, mean_cosine(total, n)


def mean_cosine(total: Float[torch.Tensor, " d"], n: int) -> float:
    """Mean cosine between two of n directions from the sum of their unit vectors: |Σ u|² = n +
    Σ_{i≠j} cos_ij.
    """
    return float((total.square().sum() - n) / (n * (n - 1)))


def rates(
    psi: Float[np.ndarray, "keys texts"], keys: Sequence[perturb.Key], level: float
) -> pd.DataFrame:
    """Each key's rate of false positives over the texts: ``key_id, value, low, high, n``, in rising
    order.

    The exact interval takes a key's texts for independent, which they are for cosine 0 alone.
    """
    rows = [
        {"key_id": key.key_id} | stats.tpr(row, level).row()
        for key, row in zip(keys, psi, strict=True)
    ]
    return pd.DataFrame(rows).sort_values("value", ignore_index=True)


def spread(
    values: Float[np.ndarray, " keys"],
    expected: float,
    *,
    n_resamples: int = stats.N_RESAMPLES,
    seed: int = 0,
) -> stats.Estimate:
    """Standard deviation over keys, over an expected one, with the percentile bootstrap over the
    keys; the texts are given.

    The interval is too narrow where a few keys out of few make up most of the spread.
    """
    interval = bootstrap(
        (values,), np.std, n_resamples=n_resamples, method="percentile", rng=seed
    ).confidence_interval
    return stats.Estimate(*(float(x / expected) for x in (values.std(), *interval)), len(values))


def predicted_spread(cosine: float, n: int, level: float) -> float:
    """Standard deviation over keys of one key's rate over n texts, any two of which have gradients
    of this cosine (formula above).

    >>> round(predicted_spread(0.0, 100, 0.05), 4)  # binomial
    0.0218
    >>> round(predicted_spread(1.0, 100, 0.05), 4)  # all texts at once, or none
    0.2179
    """
    c, below = min(max(cosine, 0.0), 1.0), [-stats.threshold(level)] * 2
    both = float(multivariate_normal.cdf(below, cov=[[1, c], [c, 1]], allow_singular=True))
    return float(np.sqrt((level - level**2) / n + (1 - 1 / n) * max(0.0, both - level**2)))


def trap(
    lm: models.LM, pairs: Pairs, wm: perturb.Watermark, keys: Sequence[perturb.Key], **settings
) -> pd.DataFrame:
    """The mistake, on purpose: ψ of null texts with the gradient at θ + ξ, beside the right one at
    θ. Columns ``text, key_id, at, psi, grad_norm``.

    At θ + ξ the gradient depends on ξ: for text of p_θ it points back towards θ. Near θ it is G −
    Hξ, with H the Hessian of −log p(y | x), whose mean is that of GGᵀ. So E ψ ≈ −σ E‖G‖² / ‖G‖ ≈
    −σ‖G‖: plain text falls as far below 0 as watermarked text rises above it.
    """
    right = score.score(lm.model, *pairs, wm, keys, **settings).assign(at="θ")
    wm, checked, wrong = wm.on(lm.model), tokens.checked_pairs(lm.model, *pairs), []
    for key in keys:
        xi = perturb.noise(lm.model, wm, key)
        with perturb.moved(lm.model, wm, xi, by=key.key_id):
            for found in gradients.of_pairs(lm.model, checked, wm, perturbed=True, **settings):
                [psi] = score.statistic(found, xi[None].to(found.G.device), wm.sigma)
                wrong.append(
                    {
                        "text": found.text,
                        "key_id": key.key_id,
                        "psi": psi,
                        "at": "θ + ξ",
                        "grad_norm": found.norm,
                    }
                )
    return pd.concat(
        [right[["text", "key_id", "at", "psi", "grad_norm"]], pd.DataFrame(wrong)],
        ignore_index=True,
    )
