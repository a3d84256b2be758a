"""SynthID as a scheme: found by its key, not by another, and its level by the exact binomial."""

import numpy as np
import pytest
import tiny_models
from scipy import stats

from gaussmark_lib import generate
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key
from gaussmark_lib.schemes import SynthID

SCHEME = SynthID(Key.from_seed(3), depth=8)
PROMPTS = [[3, 4, 5]] * 20


def test_its_own_text_is_found_and_nothing_else(model):
    text = SCHEME.generate(model, PROMPTS, 30, seed=1)
    own, wrong = (scheme.score(model, PROMPTS, text) for scheme in (SCHEME, SCHEME.rekeyed(8)))
    plain = SCHEME.score(model, PROMPTS, generate.sample(model, PROMPTS, 30, seed=1))
    assert (own["p_value"] < 0.01).mean() > 0.5
    assert stats.binomtest(int(wrong["ones"].sum()), int(wrong["n_bits"].sum()), 0.5).pvalue > 1e-3
    assert stats.binomtest(int(plain["ones"].sum()), int(plain["n_bits"].sum()), 0.5).pvalue > 1e-3
    assert own["n_bits"].max() == 26 * 8


def test_a_row_does_not_depend_on_its_batch(model):
    prompts = tiny_models.random_ids(np.random.default_rng(0), 3, 9, 5)
    assert SCHEME.generate(model, prompts, 12)[:1] == SCHEME.generate(model, prompts[:1], 12)
    assert SCHEME.generate(model, prompts * 30, 12)[:3] == SCHEME.generate(model, prompts, 12)  # two batches, each with a memory of its own


def test_p_is_the_exact_tail_and_repetition_counts_once(model):
    response = np.random.default_rng(0).integers(97, size=25).tolist()
    once, repeated = (SCHEME.score(model, [[]], [ids]) for ids in (response, [7] * 25))
    expected = stats.binomtest(int(once["ones"][0]), int(once["n_bits"][0]), 0.5, alternative="greater").pvalue
    assert once["p_value"][0] == pytest.approx(expected)
    assert repeated["n_bits"][0] == SCHEME.depth  # one context


def test_the_level_over_keys(model):
    response = np.random.default_rng(1).integers(97, size=24).tolist()
    p = np.array([SCHEME.rekeyed(seed).score(model, [[]], [response])["p_value"][0] for seed in range(300)])
    assert stats.binom.sf((p <= 0.05).sum() - 1, 300, 0.05) > 1e-3
    assert (p <= 0.2).mean() > 0.1


def test_bad_input_is_named(model):
    with pytest.raises(InvalidTextError, match="response 0: expected at least 5 tokens"):
        SCHEME.score(model, [[]], [[1, 2, 3, 4]])
