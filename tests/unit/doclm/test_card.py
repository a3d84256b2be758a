"""A saved model is a checkpoint that loads, with a card whose numbers are those it was given."""

import pandas as pd
import pytest
import torch

from gaussmark_experiments.doclm import card, train
from gaussmark_lib import models

SHAPE = {"vocab": 300, "hidden": 16, "blocks": 1, "heads": 2, "intermediate": 24}
RECIPE = train.Recipe(**SHAPE, context=32, short_context=16, steps=1000)
PARAGRAPHS = [("scipy/a.py", "Some words." * 9, "train"), ("abc.py", "More.", "train")]
PARAGRAPHS += [("scipy/b.py", "Held.", "heldout")]
CORPUS = pd.DataFrame(PARAGRAPHS, columns=["source", "text", "split"])
STEPS = [(500, 10, 5.25, 5.5, 30.0), (1000, 20, 4.5, 4.75, 90.0)]
CURVE = pd.DataFrame(STEPS, columns=["step", "tokens", "loss", "held_out", "seconds"])
FACTS = {
    "recipe": RECIPE,
    "corpus": CORPUS,
    "curve": CURVE,
    "quality": {"bits_per_char": 1.2345, "nats_per_token": 3.21, "tokens": 5, "characters": 12345},
    "stream_tokens": 1_000_000,
    "hardware": "an abacus",
}
TOKENIZER = train.train_tokenizer(["Some words and more words, again and again."] * 3, RECIPE.vocab)


def save(folder, **more):
    return card.save(train.new_model(RECIPE), TOKENIZER, folder, **FACTS | more)


def test_it_loads_with_its_weights_rounded_to_bfloat16(tmp_path):
    weights = train.new_model(RECIPE).state_dict()
    lm = models.load(save(tmp_path / "made" / "model"))
    for name, p in lm.model.state_dict().items():
        assert torch.equal(p, weights[name].to(torch.bfloat16).float()), name
    assert lm.decode(lm.encode("words, ψ")) == "words, ψ"


@pytest.mark.parametrize("own", [True, False])
def test_the_card_says_what_was_measured(tmp_path, own):
    text = (save(tmp_path / "model", own=own) / "README.md").read_text()
    facts = ["1.234", "3.210", "12,345", "an abacus", "2 paragraphs and 104 characters to train on"]
    for fact in [*facts, "1000      20 4.500     4.750", "4.1 epochs", "# model"]:
        assert fact in text, fact
    assert "{" not in text
    assert own != ("ocumentation" in text)
