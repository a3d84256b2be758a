"""The registered corruptions: each by its name, harmless at strength 0, and never changing its
input.
"""

import numpy as np
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import corrupt
from gaussmark_lib.corrupt import registry
from gaussmark_lib.errors import CorruptionError

LM = tiny_lm.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 5, 7, 4)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 20, 12, 20)
CHANGES = corrupt.named(LM)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_corruptions", dict(registry._corruptions))


def copies() -> corrupt.Pairs:
    return registry.copied(PROMPTS), registry.copied(RESPONSES)


@pytest.mark.parametrize("name", CHANGES)
def test_strength_0_changes_nothing(name):
    prompts, responses = copies()
    out = CHANGES[name](prompts, responses, 0.0, 1)
    assert out == (PROMPTS, RESPONSES)
    out[0][0].append(5)  # what comes out is the caller's own
    out[1][0].append(5)
    assert (prompts, responses) == (PROMPTS, RESPONSES)


@pytest.mark.parametrize("name", CHANGES)
def test_another_strength_changes_the_output_and_never_the_input(name):
    prompts, responses = copies()
    changed = CHANGES[name](prompts, responses, 0.5, 1)
    assert (prompts, responses) == (PROMPTS, RESPONSES)
    assert changed != (PROMPTS, RESPONSES)
    assert list(map(len, changed)) == [3, 3]
    assert CHANGES[name](prompts, responses, 0.5, 1) == changed, "the same seed, the same result"


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", CHANGES)
def test_a_strength_outside_0_to_1_is_refused(name, fraction):
    with pytest.raises(CorruptionError, match="fraction: expected a number from 0 to 1"):
        CHANGES[name](PROMPTS, RESPONSES, fraction, 1)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_all_or_nothing_does_the_same_at_every_strength_above_0(name):
    same = CHANGES[name](PROMPTS, RESPONSES, 0.2, 1) == CHANGES[name](PROMPTS, RESPONSES, 0.8, 1)
    assert same == (name in corrupt.ALL_OR_NOTHING)


def test_names_choose_and_order(model):
    assert list(corrupt.named(LM, ["truncate", "no prompt"])) == ["truncate", "no prompt"]
    assert corrupt.named(LM, []) == {}


@pytest.mark.parametrize("names", [["truncate", "paraphrase"], "truncate"])
def test_an_unknown_name_lists_the_known_ones(names):
    with pytest.raises(
        CorruptionError,
        match=(
            r"(no corruption is called 'paraphrase'|names): expected some of delete at random,"
            r" insert at random, "
        ),
    ):
        corrupt.named(LM, names)


def test_adding_one_takes_a_function(own_registry):
    @corrupt.register("reverse")
    def reverse(lm, prompts, responses, fraction, seed):
        return registry.copied(prompts), [
            list(reversed(ids)) if fraction else list(ids) for ids in responses
        ]

    assert (
        corrupt.named(LM, ["reverse"])["reverse"](PROMPTS, RESPONSES, 1.0, 0)[1][0]
        == RESPONSES[0][::-1]
    )
    assert list(corrupt.named(LM)) == [*CHANGES, "reverse"]


def test_two_of_one_name_are_refused(own_registry):
    with pytest.raises(
        CorruptionError,
        match="two corruptions are called 'truncate'; give one of them another name",
    ):
        corrupt.register("truncate")(lambda *_: copies())
    assert (
        corrupt.named(LM, ["truncate"])["truncate"](PROMPTS, RESPONSES, 0.25, 0)[1][0]
        == RESPONSES[0][:15]
    )


def test_and_the_example_is_gone():
    assert list(corrupt.named(LM)) == list(CHANGES)


@pytest.mark.parametrize(
    "name", ["delete at random", "insert at random", "substitute at random", "resample spans"]
)
def test_what_is_random_follows_the_seed(name):
    outs = [CHANGES[name](*copies(), 0.5, seed) for seed in (1, 1, 2)]
    assert outs[0] == outs[1]
    assert outs[0] != outs[2]
