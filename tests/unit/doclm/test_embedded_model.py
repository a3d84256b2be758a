"""The embedded model is what its card says."""

import re

import pytest
import torch
from safetensors import safe_open

from gaussmark_experiments.doclm import train
from gaussmark_lib import models
from gaussmark_lib.engine import corpus
from gaussmark_lib.files import DATA

FOLDER = DATA / "doclm"


@pytest.fixture(scope="module")
def lm() -> models.LM:
    return models.load("doclm")


def test_size_and_shape_are_as_promised(lm):
    assert 6e6 <= sum(p.numel() for p in lm.model.parameters()) <= 10e6
    assert lm.model.config.model_type == "llama"
    assert lm.model.config.max_position_embeddings >= 1024
    assert 4096 <= lm.model.config.vocab_size == len(lm.tokenizer) <= 8192
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size < 20e6
    with safe_open(weights, "pt") as file:
        names = file.keys()
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}


@pytest.mark.slow
def test_held_out_bits_per_character_are_those_of_the_card(lm):
    card = (FOLDER / "README.md").read_text()
    on_the_card = float(re.search(r"held-out bits per character \| \*\*([\d.]+)\*\*", card)[1])
    assert on_the_card <= 1.28
    pages = train.pages(corpus.load(), "heldout")[::12]
    measured = train.bits_per_character(lm.model, lm.tokenizer, pages)
    # a twelfth of the pages, and perhaps other package versions
    assert measured["bits_per_char"] == pytest.approx(on_the_card, rel=0.08)
