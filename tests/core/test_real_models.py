"""SmolLM2 and Gemma: prompts, the level, and a watermark that is read back from characters. They
run where `make models` has installed the models.
"""

import numpy as np
import pytest
from scipy.stats import binomtest

from gaussmark_lib import generate, models, perturb, score, texts
from gaussmark_lib.engine import packages

pytestmark = pytest.mark.slow
START, END = "<|im_start|>", "<|im_end|>"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
INSTRUCTIONS = [
    "Explain how vaccines work to a ten-year-old.",
    "Write a short story about a lighthouse keeper.",
    "How do I prepare for a job interview?",
    "Describe the city of Paris to somebody who was never there.",
    "What are the advantages of riding a bicycle to work?",
    "Give me advice on how to sleep better.",
    "Tell me about the history of chess.",
    "Why is the sky blue?",
]


def load(name: str) -> models.LM:
    if not packages.is_installed(packages.MODELS[name]):
        pytest.skip("`make models` has not been run")
    return models.load(name)


@pytest.fixture(scope="module")
def smollm2() -> models.LM:
    return load("smollm2")


@pytest.fixture(scope="module")
def gemma() -> models.LM:
    return load("gemma-3-270m")


def test_a_prompt_is_the_users_turn_as_typed(smollm2):
    ids = smollm2.prompt("Why is the sky blue?")
    shown = smollm2.tokenizer.decode(ids)
    assert shown == (
        f"{START}system\n{SYSTEM}{END}\n{START}user\nWhy is the sky blue?{END}\n{START}assistant\n"
    )
    assert ids[0] == smollm2.tokenizer.bos_token_id
    assert ids[1] != ids[0]  # one start token
    assert smollm2.prompt(shown) == ids  # which is not templated again
    own_system = f"{START}system\nBe brief.{END}\n{START}user\nHi{END}\n{START}assistant\n"
    assert smollm2.tokenizer.decode(smollm2.prompt(own_system)) == own_system


def test_a_model_without_a_template_continues_what_was_typed(gemma):
    ids = gemma.prompt("Why is the sky blue?")
    assert gemma.tokenizer.decode(ids) == "<bos>Why is the sky blue?"
    assert ids.count(gemma.tokenizer.bos_token_id) == 1
    assert gemma.continuation("Why") == gemma.prompt("Why")
    assert gemma.unknown_prompt() == []


def test_an_answer_ends_where_the_model_ends_it(smollm2):
    prompt = smollm2.prompt("What is 2 + 2? Answer in one word.")
    [answer] = generate.sample(smollm2.model, [prompt], 80, temperature=0, until_end=True)
    assert 0 < len(answer) < 80
    assert smollm2.tokenizer.eos_token_id not in answer


def test_the_level_on_human_text(smollm2):
    """24 texts of three kinds × 400 fresh keys."""
    human = []
    for kind in ("speeches", "news", "source"):
        human += texts.human(smollm2, kind, 8, 64)
    wm = perturb.Watermark(models.default_weight(smollm2.model), 0.1)
    keys = [perturb.Key.from_seed(70_000 + i) for i in range(400)]
    p = score.score(smollm2.model, [[]] * len(human), human, wm, keys)["p_value"]
    for level in (0.05, 0.01):
        n_alarms = int((p <= level).sum())
        interval = binomtest(n_alarms, len(p)).proportion_ci(0.99, method="exact")
        assert interval.low <= level <= interval.high, (level, n_alarms, len(p))


def test_a_mark_is_read_back_from_characters_with_an_unknown_prompt(smollm2):
    wm = perturb.Watermark(models.default_weight(smollm2.model), 0.12)
    keys = [perturb.Key.from_seed(80_000 + i) for i in range(len(INSTRUCTIONS))]
    prompts = [smollm2.prompt(instruction) for instruction in INSTRUCTIONS]
    marks = [(wm, key) for key in keys]
    written = generate.sample(smollm2.model, prompts, 120, temperature=0.7, marks=marks, seed=5)
    read = [smollm2.encode(smollm2.decode(ids)) for ids in written]
    unknown = [smollm2.unknown_prompt()] * len(read)
    own = score.score(smollm2.model, unknown, read, wm, keys, paired=True)["psi"]
    wrong = score.score(smollm2.model, unknown, read, wm, keys[1:] + keys[:1], paired=True)["psi"]
    assert own.mean() > 1.8  # its standard error is 1/√8, about .35
    assert abs(wrong.mean()) < 4 / np.sqrt(len(wrong))
