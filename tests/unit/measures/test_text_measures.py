"""The classifier: embeddings against a pass over each text alone, what it finds, and its level
where prompts matter more than the model; repetition and length by hand.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_experiments.measures import text_measures
from gaussmark_lib import stats


def embeddings(n, shift=0.0, seed=0):
    """Two references and another model's texts: prompts spread widely, what a model adds does
    not.
    """
    rng = np.random.default_rng(seed)
    prompts = rng.normal(size=(n, 4)) * 2
    *references, y = (prompts + rng.normal(size=(n, 4)) for _ in range(3))
    y[:, 0] += shift
    return references, y


def test_it_finds_a_shift_and_judges_half_of_the_pairs():
    right = text_measures.told_apart(*embeddings(200, shift=1.5))
    assert right.shape == (100,)
    assert set(right) <= {0, 0.5, 1}
    assert right.mean() > 0.75


def test_the_level_holds_where_the_models_do_not_differ():
    right = [text_measures.told_apart(*embeddings(40, seed=i)).mean() for i in range(40)]
    share = stats.interval(np.array(right), confidence=0.999)
    assert share.low <= 0.5 <= share.high


def test_equal_texts_are_a_tie():
    _, y = embeddings(20)
    assert text_measures.told_apart([y, y], y).tolist() == [0.5] * 10


@torch.no_grad()
def test_an_embedding_is_the_mean_of_the_responses_states():
    model = tiny_models.build()
    prompts, responses = [[5, 6], [7], []], [[8, 9, 10], [11], [12, 13, 14, 15]]
    means = text_measures.embed(model, prompts, responses, batch_size=2)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        before = prompt or [model.config.bos_token_id]
        ids = torch.tensor([before + response])
        states = model(ids, output_hidden_states=True).hidden_states[-1][0]
        expected = states[len(before) :].double().mean(0)
        np.testing.assert_allclose(means[i], expected, rtol=1e-4, atol=1e-5)


def test_diversity_by_hand():
    table = text_measures.diversity([[1, 2, 1, 2, 1, 2], [3, 4, 0, 5, 6, 7]], ends={0})
    assert table["distinct_2"].tolist() == pytest.approx([2 / 5, 1.0])
    assert table["length"].tolist() == [6, 2]
