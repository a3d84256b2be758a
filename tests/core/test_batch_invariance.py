"""A text's ψ, ‖G‖ and log p are its own: alone, in any batch, at any batch size, in any order,
beside any other text.

So are the tokens of a text that is written. Both hold up to rounding, whose bounds here are those
of the docstrings of ``score.score`` and ``generate.sample``.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(2)]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
# by which a batch moves ψ in bfloat16: one text's, and the root mean square
MOST, USUAL = 0.3, 0.03
VALUES = ["psi", "grad_norm", "log_lik"]
RNG = np.random.default_rng(11)
PROMPTS = tiny_models.random_ids(RNG, 1, 25, 3, 8, 8, 2, 40, 0, 14, 5)
RESPONSES = tiny_models.random_ids(RNG, 30, 2, 1, 8, 20, 50, 24, 13, 1, 44)
IN_ORDER = range(len(PROMPTS))


def run(model, wm, order=IN_ORDER, **kwargs) -> np.ndarray:
    """(texts in their own order, keys, values)"""
    table = score.score(
        model, [PROMPTS[i] for i in order], [RESPONSES[i] for i in order], wm, KEYS, **kwargs
    )
    values = table[VALUES].to_numpy().reshape(len(order), len(KEYS), len(VALUES))
    return values[np.argsort(list(order))]


def assert_same(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(found[..., 1:], expected[..., 1:], rtol=tolerance)
    # ψ's unit is its own standard deviation
    np.testing.assert_allclose(found[..., 0], expected[..., 0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_alone_or_in_any_batch(architecture, dtype):
    model, wm = tiny_models.marked(architecture, dtype)
    alone = run(model, wm, batch_size=1)
    for batch_size in (3, len(PROMPTS), 1000):
        assert_same(run(model, wm, batch_size=batch_size), alone, TOLERANCE[dtype])
    order = np.random.default_rng(0).permutation(len(PROMPTS)).tolist()
    assert_same(run(model, wm, order, batch_size=4), alone, TOLERANCE[dtype])


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_bfloat16_moves_psi_by_no_more_than_is_promised(architecture):
    model, wm = tiny_models.marked(architecture, torch.bfloat16)
    alone = run(model, wm, batch_size=1)[..., 0]
    for batch_size in (3, len(PROMPTS)):
        assert np.abs(run(model, wm, batch_size=batch_size)[..., 0] - alone).max() <= MOST
    in_float32 = run(model, wm, batch_size=64, dtype="float32")
    assert_same(in_float32, run(model, wm, batch_size=1, dtype="float32"), 1e-4)


def test_a_trained_model_in_bfloat16_one_at_a_time_or_64():
    """No verdict changes unless p was at the level already."""
    lm = models.load("doclm", dtype="bfloat16")
    wm = Watermark(models.default_weight(lm.model), 0.1)
    prompt = lm.encode("The function returns")
    prompts = [prompt] * 64
    marks = [(wm, KEYS[0])] * 32 + [None] * 32
    options = {"seed": 3, "marks": marks}
    together = generate.sample(lm.model, prompts, 40, batch_size=64, **options)
    few = generate.sample(lm.model, prompts[:2], 40, batch_size=1, seed=3, marks=marks[:2])
    assert [len(text) for text in few] == [40, 40]
    texts = [text[: 5 + i % 36] for i, text in enumerate(together)]
    alone = score.score(lm.model, prompts, texts, wm, KEYS, batch_size=1)
    batched = score.score(lm.model, prompts, texts, wm, KEYS, batch_size=64)
    moved = batched["psi"] - alone["psi"]
    assert 0 < np.abs(moved).max() <= MOST
    assert np.sqrt(np.square(moved).mean()) <= USUAL
    threshold = stats.threshold(0.05)
    changed = (alone["psi"] >= threshold) != (batched["psi"] >= threshold)
    assert (np.abs(alone["psi"][changed] - threshold) <= MOST).all()
    of_key = alone["key_id"] == KEYS[0].key_id
    assert alone[of_key & (alone["text"] < 32)]["psi"].mean() > 0.5
    assert abs(alone[~of_key]["psi"].mean()) < 0.6


def departures(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int]:
    """At how many of how many tokens a text leaves its twin; what comes after is another text."""
    same = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x))
        for x, y in zip(ours, theirs, strict=True)
    ]
    left = [n < len(x) for n, x in zip(same, ours, strict=True)]
    return sum(left), sum(same) + sum(left)


# dtype, and the share of tokens: of one model between batches, and of a weight θ + ξ against a
# row's own σ z·x
SHARES = {"float64": (0.0, 0.0), "float32": (3e-3, 3e-3), "bfloat16": (0.05, 0.3)}


@pytest.mark.parametrize("dtype", SHARES)
def test_rounding_changes_no_more_tokens_than_is_promised(dtype):
    model, wm = tiny_models.marked("llama", getattr(torch, dtype))
    prompts = tiny_models.random_ids(np.random.default_rng(5), *[3, 9, 5, 1] * 12)
    together, alone = (generate.sample(model, prompts, 30, seed=2, batch_size=n) for n in (48, 5))
    with perturb.watermarked(model, wm, KEYS[0]):
        one = generate.sample(model, prompts, 30, seed=2)
    many = generate.sample(model, prompts, 30, seed=2, marks=[(wm, KEYS[0])] * len(prompts))
    pairs = [(together, alone), (one, many)]
    for pair, share in zip(pairs, SHARES[dtype], strict=True):
        n, tokens = departures(*pair)
        assert n <= share * tokens
        assert tokens > 100
