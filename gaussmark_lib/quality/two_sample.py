"""Can texts be told apart without the key? A classifier is trained on embeddings of texts that two
models wrote to the same prompts.

x_i is by one model and y_i by the other, to prompt i. If the models do not differ, a classifier
that saw other prompts only names the author of a pair by the toss of a fair coin. So its share of
right answers has an exact test, whatever the classifier; it says nothing about a better one.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

from gaussmark_lib import models, tokens
from gaussmark_lib.tokens import Texts

Embeddings = Float[np.ndarray, "n d"]


@torch.no_grad()
def embed(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 32
) -> Embeddings:
    """The base model's last hidden states, averaged over each response's tokens, float64."""
    pairs = list(tokens.checked_pairs(model, prompts, responses).values())
    means = np.empty((len(pairs), tokens.config(model).hidden_size))
    order = sorted(range(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    with models.evaluating(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            texts = [[*pairs[i][0], *pairs[i][1]] for i in batch]
            ids, mask = tokens.pad(texts, "right", model.device)
            states = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
            for i, row in zip(batch, states.last_hidden_state, strict=True):  # (tokens, d)
                prompt, response = pairs[i]
                of_response = row[len(prompt) : len(prompt) + len(response)]
                means[i] = of_response.double().mean(0).cpu().numpy()
    return means


def told_apart(x: Embeddings, y: Embeddings, *, seed: int = 0) -> Bool[np.ndarray, " pairs"]:
    """Half of the prompts train a logistic regression. Of each other prompt: does it know which of
    the two texts the model of y wrote? Pairs of equal embeddings are left out.
    """
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[: len(x) // 2], order[len(x) // 2 :]
    fitted = _fit(x[train], y[train])
    margin = fitted.decision_function(y[test]) - fitted.decision_function(x[test])
    return margin[margin != 0] > 0


def _fit(x: Embeddings, y: Embeddings):
    """The penalty is chosen by cross-validation, whose folds keep the two texts of a prompt
    together: a classifier that saw one of them is misled about the other.
    """
    both, labels = np.concatenate([x, y]), np.repeat([0, 1], len(x))
    folds = GroupKFold(5).split(both, labels, groups=np.tile(np.arange(len(x)), 2))
    regression = LogisticRegressionCV(
        Cs=np.logspace(-4, 0, 5),
        cv=list(folds),
        max_iter=2_000,
        scoring="neg_log_loss",
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )
    return make_pipeline(StandardScaler(), regression).fit(both, labels)
