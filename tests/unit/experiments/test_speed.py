"""The benchmark's own arithmetic; nothing here looks at how fast anything is."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import speed
from gaussmark_lib import generate, perturb, score

PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 1, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 5, 9)


def test_tasks_take_turns_and_the_warm_up_is_not_counted():
    order = []
    tasks = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = speed.alternating(tasks, repeats=3)
    assert order == ["a", "b"] * 4
    turns = [[task, repeat] for repeat in range(3) for task in "ab"]
    assert times[["task", "repeat"]].to_numpy().tolist() == turns
    assert (times["seconds"] >= 0).all()


def test_a_ratio_is_the_median_over_repeats_with_an_interval_that_one_repeat_does_not_decide():
    load = np.exp(np.random.default_rng(0).normal(size=15))
    times = pd.DataFrame({"task": ["a", "b"] * 15, "repeat": np.repeat(range(15), 2)})
    times["seconds"] = np.column_stack([3 * load, load]).ravel()
    times.loc[4, "seconds"] *= 100
    ratio = speed.ratio(times, "a", "b")
    assert [ratio.value, ratio.low, ratio.high] == pytest.approx([3, 3, 3])
    assert ratio.n == 15


def test_operations_are_those_of_the_matrix_products():
    a, b = torch.ones(3, 5), torch.ones(5, 7, requires_grad=True)
    assert speed.operations(lambda: a @ b) == 2 * 3 * 5 * 7
    assert speed.operations(lambda: (a @ b).sum().backward()) == 2 * 2 * 3 * 5 * 7


def test_scoring_has_fewer_operations_the_higher_its_weight(model):
    def of_block(number):
        wm = perturb.Watermark(f"model.layers.{number}.mlp.down_proj.weight", 0.1)
        keys = [perturb.Key.from_seed(0)]
        return speed.operations(lambda: score.score(model, PROMPTS, RESPONSES, wm, keys))

    forward = speed.operations(lambda: speed.forward_only(model, PROMPTS, RESPONSES))
    assert forward < of_block(2) < of_block(0) < 2.3 * forward


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_the_plain_loop_finds_the_same_psi(architecture):
    model, wm = tiny_models.marked(architecture)
    key = perturb.Key.from_seed(3)
    loop = speed.plain_loop(model, PROMPTS, RESPONSES, wm, perturb.noise(model, wm, key))
    expected = score.score(model, PROMPTS, RESPONSES, wm, [key])["psi"]
    np.testing.assert_allclose(loop, expected, atol=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_the_most_keys_are_compared_with_one():
    times = {"task": "a", "keys": [1, 4, 9] * 2, "repeat": [0] * 3 + [1] * 3}
    times = pd.DataFrame(times | {"seconds": [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]})
    assert speed.many_over_one(times)["a"].value == 3.0


def test_each_way_of_writing_is_divided_by_the_plain_model_of_its_repeat():
    times = {"task": ["plain", "watermarked"] * 2, "repeat": [0, 0, 1, 1]}
    over = speed.over_plain(pd.DataFrame(times | {"seconds": [1.0, 2.0, 4.0, 8.0]}))
    assert over[["task", "value", "n"]].to_numpy().tolist() == [["watermarked", 2.0, 2]]


def test_memory_of_the_records_stands_next_to_that_of_this_run():
    table = speed.memory_by_run("10_speed", {"plain loop, one text": 12.3})
    assert table.loc["plain loop, one text", "this run"] == 12
    assert table.loc["plain loop, one text", "doclm"] > 100
    assert table.loc["score, one text", "this run"] == ""


def test_the_four_ways_write_what_they_say():
    lm, wm = tiny_lm.build(), perturb.Watermark(tiny_lm.WEIGHT, 9)
    keys = [perturb.Key.from_seed(i) for i in range(2)]
    before = lm.model.get_parameter(tiny_lm.WEIGHT).clone()
    ways = speed.generations(lm, PROMPTS[:2], wm, keys, 6, seed=1)
    written = {name: way() for name, way in ways.items()}
    assert written["plain"] == generate.sample(lm.model, PROMPTS[:2], 6, seed=1)
    with perturb.watermarked(lm.model, wm, keys[0]):
        marked = generate.sample(lm.model, PROMPTS[:2], 6, seed=1)
    assert written["watermarked"] == marked != written["plain"]
    assert written["a key per row"][0] == marked[0]
    assert written["one key after the other"][0] == [marked[0]]
    assert lm.model.get_parameter(tiny_lm.WEIGHT).equal(before)
