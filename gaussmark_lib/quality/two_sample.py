"""Can generated texts be told apart without the key? Two tests on embeddings of texts that two models wrote to the same prompts.

The paper argues that this weaker closeness, of text rather than of distributions, is what a user can notice. Both tests take pairs: x_i by one model
and y_i by the other, to prompt i, drawn independently. If the models do not differ, swapping the two within a pair changes nothing, whatever the
prompts were. Both p-values rest on that alone.

    MMD² = E k(x, x') + E k(y, y') − 2 E k(x, y)  =  mean over i ≠ j of  H_ij,
    H_ij = k(x_i, x_j) + k(y_i, y_j) − k(x_i, y_j) − k(y_i, x_j)

Swapping pair i flips the sign of row and column i of H, so each permutation is one quadratic form sᵀHs. The mean leaves out i = j, where the
two texts share a prompt: it is unbiased, and can be below zero.
"""

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial.distance import cdist, pdist
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, tokens
from gaussmark_lib.errors import InvalidTextError

Embeddings = Float[np.ndarray, "n d"]


@torch.no_grad()
def embed(model: PreTrainedModel, prompts, responses, *, batch_size: int = 32) -> Embeddings:
    """Each response, given its prompt, as the mean of the model's last hidden states over the response's tokens, float64.

    Always the *base* model's: an embedding that knew the key would be no test without it.

    Raises:
        PerturbedModelError: for a model inside ``watermarked()``.
    """
    perturb.refuse_perturbed(model)
    pairs = list(zip(tokens.checked_prompts(model, prompts), responses, strict=True))
    if empty := [i for i, (_, response) in enumerate(pairs) if not response]:
        raise InvalidTextError(f"expected responses of at least one token, but {len(empty)} are empty, the first is response {empty[0]}")
    found = np.empty((len(pairs), model.config.hidden_size))
    order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    with models.evaluating(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids, mask = tokens.pad([[*pairs[i][0], *pairs[i][1]] for i in batch], "right", model.device)
            states = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            for i, row in zip(batch, states, strict=True):
                first, n = len(pairs[i][0]), sum(map(len, pairs[i]))
                found[i] = row[first:n].double().mean(0).cpu().numpy()
    return found


def median_bandwidth(x: Embeddings, y: Embeddings) -> float:
    """The median distance between any two of all texts: the usual scale for a Gaussian kernel."""
    distance = float(np.median(pdist(np.concatenate([x, y]))))
    if not np.isfinite(distance) or distance == 0:
        raise ValueError(f"expected embeddings that differ and are finite, got a median distance of {distance}: are all texts the same?")
    return distance


def mmd(x: Embeddings, y: Embeddings, *, permutations: int = 999, bandwidth: float | None = None, seed: int = 0) -> dict[str, float]:
    """Unbiased MMD² with a Gaussian kernel exp(−d²/(2h²)), and its p-value from swaps within pairs, (1 + as large) / (1 + permutations).

    Args:
        x, y: embeddings of the two models' texts; row i of both answers prompt i.
        bandwidth: h; the median distance if not given. It depends on the texts only as a set, so the p-value stays exact.

    Returns:
        ``mmd2``, ``p_value``, ``bandwidth``, ``null_95`` (95% quantile of MMD² under swaps), ``n`` (texts a side).
    """
    _check(x, y)
    h = median_bandwidth(x, y) if bandwidth is None else bandwidth
    contrast = _kernel(x, x, h) + _kernel(y, y, h)
    cross = _kernel(x, y, h)
    contrast -= cross + cross.T
    np.fill_diagonal(contrast, 0.0)
    n = len(x)
    observed = contrast.sum() / (n * (n - 1))
    signs = np.random.default_rng(seed).integers(2, size=(permutations, n)) * 2.0 - 1
    swapped = ((signs @ contrast) * signs).sum(1) / (n * (n - 1))
    as_large = int((swapped >= observed - 1e-12).sum())
    return {
        "mmd2": float(observed),
        "p_value": (1 + as_large) / (1 + permutations),
        "bandwidth": h,
        "null_95": float(np.quantile(swapped, 0.95)),
        "n": n,
        "n_equal": int((x == y).all(axis=1).sum()),
    }


def _kernel(a: Embeddings, b: Embeddings, h: float) -> np.ndarray:
    return np.exp(-cdist(a, b, "sqeuclidean") / (2 * h * h))


def classifier(x: Embeddings, y: Embeddings, *, confidence: float = 0.95, seed: int = 0) -> dict[str, float]:
    """Two texts to one prompt: how often does a trained classifier know which is the other model's? Chance is ½.

    Half of the prompts train a logistic regression (its penalty by cross-validation within that half), the other half judge it. Given the classifier
    and the prompts, each held-out pair is a fair coin under the null, so the binomial test and interval are exact. They say nothing about
    what another classifier, or more training text, would find.

    Returns:
        ``accuracy, low, high, p_value`` (one-sided: better than chance), ``n`` (held-out pairs that differ), ``n_equal`` (those that do not).
    """
    _check(x, y)
    order = np.random.default_rng(seed).permutation(len(x))
    train, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    fitted = _fit(x[train], y[train])
    margin = fitted.decision_function(y[held_out]) - fitted.decision_function(x[held_out])
    right = margin[margin != 0] > 0  # the same text twice is no question
    n_equal = len(margin) - len(right)
    if len(right) == 0:
        return {"accuracy": 0.5, "low": 0.5, "high": 0.5, "p_value": 1.0, "n": n_equal, "n_equal": n_equal}
    test = binomtest(int(right.sum()), len(right), 0.5, alternative="greater")
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(confidence, method="exact")
    found = {"accuracy": float(right.mean()), "low": interval.low, "high": interval.high, "p_value": float(test.pvalue)}
    return found | {"n": len(right), "n_equal": n_equal}


def _fit(x: Embeddings, y: Embeddings):
    """Folds keep pairs whole: x_i and y_i share a prompt, and a classifier that has met one of them is misled about the other."""
    n, folds = len(x), 5
    fold = np.arange(n) * folds // n
    splits = [(np.flatnonzero(np.tile(fold != k, 2)), np.flatnonzero(np.tile(fold == k, 2))) for k in range(folds)]
    regression = LogisticRegressionCV(
        Cs=np.logspace(-4, 0, 5), cv=splits, max_iter=2_000, scoring="neg_log_loss", l1_ratios=(0.0,), use_legacy_attributes=False
    )
    return make_pipeline(StandardScaler(), regression).fit(np.concatenate([x, y]), np.repeat([0, 1], n))


def _check(x: Embeddings, y: Embeddings) -> None:
    if x.shape != y.shape or x.ndim != 2 or len(x) < 10:
        raise ValueError(f"expected two tables of the same shape, a row a prompt and at least 10 of them, got {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("expected finite embeddings, got NaN or infinity: is the model damaged?")
