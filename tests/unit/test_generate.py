"""Sampling's promises: repeatable, each row its own, whole or refused."""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import generate
from gaussmark_lib.errors import InvalidModelError, InvalidTextError

PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 1, 12, 5, 0, 30, 3, 8)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_row_does_not_depend_on_its_batch(architecture):
    model = tiny_models.build(architecture)
    expected = generate.sample(model, PROMPTS, 12, seed=1)
    for batch_size in (1, 5):
        assert generate.sample(model, PROMPTS, 12, seed=1, batch_size=batch_size) == expected
    assert generate.sample(model, PROMPTS[:3], 12, seed=1) == expected[:3]
    longer = [*PROMPTS[:-1], [1] * 40]
    assert generate.sample(model, longer, 12, seed=1)[:-1] == expected[:-1]


def test_the_same_seed_gives_the_same_text_and_another_seed_another(model):
    texts = [generate.sample(model, PROMPTS, 20, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert all(a != b for a, b in zip(texts[0], texts[2], strict=True))


def test_torchs_random_state_is_neither_used_nor_moved(model):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    text = generate.sample(model, PROMPTS, 10)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert generate.sample(model, PROMPTS, 10) == text


def test_equal_prompts_get_different_texts(model):
    texts = generate.sample(model, [[1, 2, 3]] * 6, 20)
    assert len({tuple(text) for text in texts}) == 6


def test_a_longer_text_begins_with_the_shorter_one(model):
    assert [row[:7] for row in generate.sample(model, PROMPTS, 20)] == generate.sample(
        model, PROMPTS, 7
    )


def test_responses_have_the_length_asked_for_and_are_plain_ids(model):
    responses = generate.sample(model, PROMPTS, 9)
    assert [len(row) for row in responses] == [9] * len(PROMPTS)
    assert all(
        type(token) is int and 0 <= token < tiny_models.VOCAB for row in responses for token in row
    )


def test_prompts_come_back_unchanged(model):
    prompts = [list(prompt) for prompt in PROMPTS]
    generate.sample(model, prompts, 5)
    assert prompts == PROMPTS


def test_an_empty_prompt_is_the_start_token(model):
    assert generate.sample(model, [[]], 12) == generate.sample(
        model, [[model.config.bos_token_id]], 12
    )


def test_without_a_start_token_an_empty_prompt_is_refused():
    model = tiny_models.build("llama")
    model.config.bos_token_id = None
    assert generate.sample(model, [[]], 8) == generate.sample(
        model, [[model.config.eos_token_id]], 8
    )
    model.config.eos_token_id = [5, 6]
    assert generate.sample(model, [[]], 8) == generate.sample(model, [[5]], 8)
    model.config.eos_token_id = None
    with pytest.raises(
        InvalidTextError,
        match=r"an empty prompt needs a start token.*give a prompt of at least one token",
    ):
        generate.sample(model, [[]], 8)


class TestUntilEnd:
    """The model is made to like its end token (2) so much that most texts meet it."""

    @pytest.fixture
    def ending(self):
        model = tiny_models.build("llama")
        model.lm_head.weight.data[2] = 0.5 * torch.ones(32)
        return model

    def test_a_response_stops_before_the_first_end_token(self, ending):
        whole = generate.sample(ending, [[3, 4]] * 60, 25, seed=2)
        cut = generate.sample(ending, [[3, 4]] * 60, 25, seed=2, until_end=True)
        for all_of_it, part in zip(whole, cut, strict=True):
            ends = [i for i, token in enumerate(all_of_it) if token == 2 and i > 0]
            assert part == all_of_it[: ends[0] if ends else 25]
        assert {len(part) for part in cut} > {1, 25}  # some cut short, some not at all

    def test_no_response_is_empty(self, ending):
        ending.lm_head.weight.data[2] = 0
        ending.lm_head.weight.data[:] -= 100 * ending.lm_head.weight.data.sign()
        cut = generate.sample(ending, [[3, 4]] * 20, 10, until_end=True)
        assert all(len(part) >= 1 for part in cut)

    def test_the_first_token_may_be_an_end_token(self, ending):
        assert generate.cut(ending, [[2, 5, 2, 6], [2], [5, 6]]) == [[2, 5], [2], [5, 6]]

    def test_all_end_tokens_of_the_generation_config_count(self, ending):
        ending.generation_config.eos_token_id = [2, 7]
        cut = generate.sample(ending, [[3, 4]] * 60, 25, seed=2, until_end=True)
        assert all(not {2, 7} & set(part[1:]) for part in cut)

    def test_a_model_without_end_token_is_never_cut(self, model):
        model.generation_config.eos_token_id = model.config.eos_token_id = None
        assert generate.sample(model, [[3, 4]], 25, until_end=True) == generate.sample(
            model, [[3, 4]], 25
        )


@pytest.mark.parametrize("n_tokens", [0, -1, 1.5, None, "10"])
@pytest.mark.usefixtures("wrong_types")
def test_fewer_than_one_token(model, n_tokens):
    with pytest.raises(InvalidTextError, match="n_tokens: expected a whole number ≥ 1, got"):
        generate.sample(model, [[1]], n_tokens)


@pytest.mark.parametrize(
    "kwargs",
    [{"top_p": p} for p in (0, -0.1, 1.01, float("nan"))]
    + [{"temperature": t} for t in (-1, float("nan"), float("inf"))],
)
def test_top_p_and_temperature_out_of_range(model, kwargs):
    with pytest.raises(
        InvalidTextError, match="expected 0 < top_p ≤ 1 and a finite temperature ≥ 0, got"
    ):
        generate.sample(model, [[1]], 3, **kwargs)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0])
@pytest.mark.usefixtures("wrong_types")
def test_a_batch_size_below_one(model, batch_size):
    with pytest.raises(InvalidTextError, match="batch_size: expected a whole number ≥ 1"):
        generate.sample(model, [[1]], 3, batch_size=batch_size)


@pytest.mark.parametrize("prompts", [[], "text", np.zeros((0, 3), dtype=int)])
@pytest.mark.usefixtures("wrong_types")
def test_no_prompts(model, prompts):
    with pytest.raises(InvalidTextError, match="expected a list of at least one prompt"):
        generate.sample(model, prompts, 3)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a"], "whole numbers"),
        ("a b", "got text"),
        ([97], "0 to 96"),
        ([-1], "0 to 96"),
        (3, "a list of token ids"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_prompts_that_are_no_ids(model, prompt, message):
    with pytest.raises(InvalidTextError, match=f"prompt 1: .*{message}"):
        generate.sample(model, [[1], prompt], 3)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_beyond_the_context(architecture):
    model = tiny_models.build(architecture)
    assert len(generate.sample(model, [[1] * 60], 4)[0]) == 4
    with pytest.raises(
        InvalidTextError,
        match=r"prompt 1: expected at most 64 tokens .* got 60 of prompt \+ 5 of response = 65",
    ):
        generate.sample(model, [[1], [1] * 60], 5)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite(model, value, temperature):
    model.model.norm.weight.data[3] = value
    with pytest.raises(
        InvalidModelError,
        match=r"expected finite logits, got NaN or infinity: is the noise far too strong",
    ):
        generate.sample(model, [[1]], 3, temperature=temperature)


def test_minus_infinity_forbids_a_token_and_is_no_error():
    logits = torch.tensor([[-torch.inf, 0.0]])
    assert generate.pick(logits, torch.tensor([0.5]), 1.0, 1.0).tolist() == [1]
    with pytest.raises(InvalidModelError):
        generate.pick(torch.full((1, 2), -torch.inf), torch.tensor([0.5]), 1.0, 1.0)
