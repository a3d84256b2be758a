"""A model whose language part has a configuration of its own, as those that also see have: context,
start token and vocabulary are found there.
"""

import pytest
import tiny_lm
import tiny_models
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from gaussmark_lib import generate, models, tokens
from gaussmark_lib.beyond import schemes
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key, Watermark

X, Y = [[3, 4], [5]], [[5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 25]]
TEXT = tiny_models.IDS | tiny_models.SIZES | {"head_dim": 16, "sliding_window": 16}
SIGHT = tiny_models.SIZES | {"image_size": 28, "patch_size": 14}
INDICES = {"image_token_index": 90, "boi_token_index": 91, "eoi_token_index": 92}


@pytest.fixture(scope="module")
def lm() -> models.LM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {"text_config": TEXT, "vision_config": SIGHT, "mm_tokens_per_image": 4}
        model = Gemma3ForConditionalGeneration(Gemma3Config(**parts, **INDICES))
    return models.LM(model.eval(), tiny_lm.build().tokenizer, "gemma3")


def test_its_context_and_its_start_token_are_those_of_its_language_part(lm):
    assert tokens.config(lm.model).max_position_embeddings == tiny_models.CONTEXT
    assert tokens.Reader(lm.model).prompt([]) == [1]
    with pytest.raises(InvalidTextError, match=f"at most {tiny_models.CONTEXT} tokens"):
        generate.sample(lm.model, X, tiny_models.CONTEXT)


@pytest.mark.parametrize("name", schemes.named(Watermark("w", 0.1, 1), Key.from_seed(0)))
def test_every_scheme_writes_and_scores(lm, name):
    wm = Watermark(models.default_weight(lm.model), 0.05, 1)
    scheme = schemes.named(wm, Key.from_seed(0), [name])[name]
    texts = scheme.generate(lm.model, X, 8)
    assert [len(text) for text in texts] == [8, 8]
    assert scheme.score(lm.model, X, texts)["p_value"].between(0, 1).all()
