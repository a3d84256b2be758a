"""Can generated texts be told apart without the key? Two tests on embeddings of texts that two
models wrote to the same prompts.

Both tests take pairs: x_i by one model and y_i by the other, to prompt i, drawn independently. If
the models do not differ, swapping the two within a pair changes nothing, whatever the prompts were.
Both p-values rest on that alone.

    MMD² = E k(x, x') + E k(y, y') − 2 E k(x, y)  =  mean over i ≠ j of  H_ij,
    H_ij = k(x_i, x_j) + k(y_i, y_j) − k(x_i, y_j) − k(y_i, x_j)

Swapping pair i flips the sign of row and column i of H, so each permutation is one quadratic form
sᵀHs. The mean leaves out i = j, where the two texts share a prompt: it is unbiased, and can be
below zero.
"""

import math
from dataclasses import astuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial.distance import cdist, pdist
from scipy.stats import binom
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, tokens
from gaussmark_lib.errors import StatisticsError
from gaussmark_lib.stats import Estimate, Paired, rate
from gaussmark_lib.tokens import Texts

Embeddings = Float[np.ndarray, "n d"]
FEWEST = 10  # pairs


@torch.no_grad()
def embed(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 32
) -> Embeddings:
    """Each response, given its prompt, as the mean of the model's last hidden states over the
    response's tokens, float64.

    Raises:
        PerturbedModelError: for a model inside ``watermarked()``, because the tests must not know
            the key.
        InvalidTextError: an empty response, or a text that does not fit the model.
    """
    perturb.refuse_perturbed(model)
    pairs = tokens.checked_pairs(model, prompts, responses)
    means = np.empty((len(pairs), tokens.config(model).hidden_size))
    order = sorted(pairs, key=lambda i: sum(map(len, pairs[i])))
    with models.evaluating(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids, mask = tokens.pad(
                [[*pairs[i][0], *pairs[i][1]] for i in batch], "right", model.device
            )
            states = model.base_model(
                input_ids=ids, attention_mask=mask, use_cache=False
            ).last_hidden_state
            for i, row in zip(batch, states, strict=True):
                prompt, response = pairs[i]
                means[i] = row[len(prompt) :][: len(response)].double().mean(0).cpu().numpy()
    return means


def median_bandwidth(x: Embeddings, y: Embeddings) -> float:
    """The median distance between any two of all texts: the usual scale for a Gaussian kernel."""
    distance = float(np.median(pdist(np.concatenate([x, y]))))
    if not np.isfinite(distance) or distance == 0:
        raise StatisticsError(
            f"expected embeddings that differ and are finite, got a median distance of {distance}:"
            " are all texts the same?"
        )
    return distance


def mmd(
    x: Embeddings,
    y: Embeddings,
    *,
    n_resamples: int = 999,
    bandwidth: float | None = None,
    seed: int = 0,
) -> Paired:
    """Unbiased MMD² (which has no interval) with a Gaussian kernel exp(−d²/(2h²)). p = (1 + swaps
    with as large a value) / (1 + n_resamples).

    ``bandwidth`` is h, by default the median distance. It does not depend on which model wrote a
    text, so the p-value stays exact.
    """
    _check(x, y)
    h = median_bandwidth(x, y) if bandwidth is None else bandwidth
    cross = _kernel(x, y, h)
    contrast = _kernel(x, x, h) + _kernel(y, y, h) - (cross + cross.T)
    np.fill_diagonal(contrast, 0.0)
    n = len(x)
    observed = contrast.sum() / (n * (n - 1))
    signs = np.random.default_rng(seed).integers(2, size=(n_resamples, n)) * 2.0 - 1
    swapped = ((signs @ contrast) * signs).sum(1) / (n * (n - 1))
    as_large = int((swapped >= observed - 1e-12).sum())
    return Paired(
        Estimate(float(observed), math.nan, math.nan, n),
        (1 + as_large) / (1 + n_resamples),
        int((x == y).all(axis=1).sum()),
    )


def _kernel(a: Embeddings, b: Embeddings, h: float) -> np.ndarray:
    return np.exp(-cdist(a, b, "sqeuclidean") / (2 * h * h))


def classifier(x: Embeddings, y: Embeddings, *, seed: int = 0) -> Paired:
    """Two texts to one prompt: how often does a trained classifier know which of them the other
    model wrote? Chance is ½.

    Half of the prompts train a logistic regression (its penalty by cross-validation within that
    half), the other half judge it. Under the null each held-out pair is a fair coin, so the
    binomial test and interval are exact for this classifier, and say nothing about a better one.

    Returns:
        Accuracy − ½ over the held-out pairs of different texts; the p-value is one-sided: better
        than chance. Where all held-out pairs are equal, the change is 0, and n and n_equal count
        them.
    """
    _check(x, y)
    order = np.random.default_rng(seed).permutation(len(x))
    train, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    fitted = _fit(x[train], y[train])
    margin = fitted.decision_function(y[held_out]) - fitted.decision_function(x[held_out])
    right = margin[margin != 0] > 0  # equal texts cannot be told apart
    if len(right) == 0:
        return Paired(Estimate(0.0, 0.0, 0.0, len(margin)), 1.0, len(margin))
    value, low, high, n = astuple(rate(right))
    p_value = binom.sf(right.sum() - 1, n, 0.5)
    return Paired(Estimate(value - 0.5, low - 0.5, high - 0.5, n), float(p_value), 0)


def _fit(x: Embeddings, y: Embeddings):
    """Folds keep pairs whole: x_i and y_i share a prompt, and a classifier that was trained on one
    of them is misled about the other.
    """
    both, labels = np.concatenate([x, y]), np.repeat([0, 1], len(x))
    splits = GroupKFold(5).split(both, labels, groups=np.tile(np.arange(len(x)), 2))
    regression = LogisticRegressionCV(
        Cs=np.logspace(-4, 0, 5),
        cv=list(splits),
        max_iter=2_000,
        scoring="neg_log_loss",
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )
    return make_pipeline(StandardScaler(), regression).fit(both, labels)


def _check(x: Embeddings, y: Embeddings) -> None:
    if x.shape != y.shape or len(x) < FEWEST:
        raise StatisticsError(
            f"expected as many texts of both models, at least {FEWEST}, got {len(x)} and {len(y)}"
        )
