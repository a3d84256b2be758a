"""The embedded model is what its card says, and on it the scheme works as predicted: real model,
real text, held-out prompts.
"""

import re

import pytest
import torch
from safetensors import safe_open

from gaussmark_lib import generate, models, perturb, score, stats, texts
from gaussmark_lib.doclm import train
from gaussmark_lib.engine import corpus
from gaussmark_lib.files import DATA

FOLDER = DATA / "doclm"
CHOICES = [
    "model.layers.4.mlp.down_proj.weight",
    "model.layers.2.mlp.up_proj.weight",
    "model.layers.5.mlp.gate_proj.weight",
]
N_PROMPTS, N_TOKENS = 48, 150


@pytest.fixture(scope="module")
def lm() -> models.LM:
    return models.load("doclm")


@pytest.fixture(scope="module")
def plain(lm):
    """Held-out prompts of 32 tokens, and what the model says to them without a watermark."""
    prompts = [
        lm.encode(text)[:32] for text in texts.load("docs", split="heldout", n=N_PROMPTS)["text"]
    ]
    return prompts, generate.sample(lm.model, prompts, N_TOKENS, seed=1)


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
    on_the_card = float(
        re.search(
            r"held-out bits per character \| \*\*([\d.]+)\*\*", (FOLDER / "README.md").read_text()
        )[1]
    )
    assert on_the_card <= 1.28
    pages = train.pages(corpus.load(), "heldout")[::12]
    measured = train.bits_per_character(lm.model, lm.tokenizer, pages)
    assert measured["bits_per_char"] == pytest.approx(
        on_the_card, rel=0.08
    )  # a twelfth of the pages, and perhaps other package versions


@pytest.mark.slow
@pytest.mark.parametrize("weight", CHOICES)
def test_solved_sigma_gives_the_wanted_psi_and_only_the_right_key_sees_it(lm, plain, weight):
    prompts, unmarked = plain
    norms = [
        found.norm
        for found in score.gradients(lm.model, prompts, unmarked, perturb.Watermark(weight, 1.0))
    ]
    wm = perturb.Watermark(weight, stats.sigma_for_psi(norms, psi=3.0))
    key, wrong = (
        perturb.Key.from_seed(CHOICES.index(weight) + 100),
        perturb.Key.from_seed(CHOICES.index(weight) + 200),
    )
    with perturb.watermarked(lm.model, wm, key):
        marked = generate.sample(lm.model, prompts, N_TOKENS, seed=2)
    psi = {
        key_id: rows["psi"]
        for key_id, rows in score.score(lm.model, prompts, marked, wm, [key, wrong]).groupby(
            "key_id"
        )
    }

    assert 2.4 <= psi[key.key_id].mean() <= 3.6
    assert (
        stats.tpr(psi[key.key_id], 0.05).value >= 0.65
    )  # of 48 texts, which differ between processors; .85 to .9 are promised
    control = stats.tpr(psi[wrong.key_id], 0.05, confidence=0.99)
    assert control.low <= 0.05 <= control.high
    plain_psi = score.score(lm.model, prompts, unmarked, wm, [key])["psi"]
    control = stats.tpr(plain_psi, 0.05, confidence=0.99)
    assert control.low <= 0.05 <= control.high
