"""A saved model is a checkpoint that loads, with a card whose numbers are those it was given."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gaussmark_lib import models
from gaussmark_lib.doclm import card, train

RECIPE = replace(
    train.Recipe(),
    vocab=300,
    hidden=16,
    blocks=1,
    heads=2,
    intermediate=24,
    context=32,
    short_context=16,
    steps=1000,
)
CORPUS = pd.DataFrame(
    {
        "source": ["scipy/a.py", "abc.py", "scipy/b.py"],
        "text": ["Some words." * 9, "More.", "Held."],
        "split": ["train", "train", "heldout"],
    }
)
CURVE = pd.DataFrame(
    {
        "step": [500, 1000],
        "tokens": [10, 20],
        "loss": [5.25, 4.5],
        "held_out": [5.5, 4.75],
        "seconds": [30.0, 90.0],
    }
)
QUALITY = {"bits_per_char": 1.2345, "nats_per_token": 3.21, "tokens": 5, "characters": 12345}


@pytest.fixture
def saved(tmp_path):
    tokenizer = train.train_tokenizer(
        ["Some words and more words, again and again."] * 3, RECIPE.vocab
    )
    network = train.new_model(RECIPE)
    keep = {name: p.clone() for name, p in network.state_dict().items()}
    target = tmp_path / "made" / "model"
    facts = {
        "recipe": RECIPE,
        "corpus": CORPUS,
        "curve": CURVE,
        "quality": QUALITY,
        "stream_tokens": 1_000_000,
        "hardware": "an abacus",
    }
    return card.save(network, tokenizer, target, **facts), keep, (tokenizer, facts)


def test_it_loads_with_its_weights_rounded_to_bfloat16(saved):
    folder, keep, _ = saved
    lm = models.load(folder)
    for name, p in lm.model.state_dict().items():
        assert torch.equal(p, keep[name].to(torch.bfloat16).float()), name
    assert lm.decode(lm.encode("words, ψ")) == "words, ψ"


def test_the_card_says_what_was_measured(saved):
    text = (saved[0] / "README.md").read_text()
    for fact in (
        "1.234",
        "3.210",
        "12,345",
        "an abacus",
        "2 paragraphs and 104 characters to train on",
        "| 1,000 | 20 | 4.500 | 4.750 |",
        "4.1 epochs",
    ):
        assert fact in text, fact
    assert "{" not in text


def test_the_card_of_a_model_of_own_text_does_not_speak_of_documentation(saved):
    _, _, (tokenizer, facts) = saved
    folder = card.save(train.new_model(RECIPE), tokenizer, saved[0], **facts, own=True)
    text = (folder / "README.md").read_text()
    for fact in (
        "1.234",
        "12,345",
        "2 paragraphs and 104 characters to train on",
        "| 1,000 | 20 | 4.500 | 4.750 |",
    ):
        assert fact in text, fact
    assert "{" not in text
    assert "documentation" not in text


def test_a_new_model_replaces_the_old_one_whole(saved):
    folder, _, (tokenizer, facts) = saved
    (folder / "stale.txt").write_text("of the old one")
    card.save(train.new_model(replace(RECIPE, seed=1)), tokenizer, folder, **facts)
    assert not (folder / "stale.txt").exists()
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    np.testing.assert_allclose(pd.read_csv(folder / "curve.csv")["loss"], CURVE["loss"])
