"""The benchmark's own arithmetic; nothing here looks at how fast anything is."""

import time

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch

from gaussmark_lib import perturb, score
from gaussmark_lib.experiments import speed

PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 1, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 5, 9)


def test_tasks_take_turns_and_the_warm_up_is_not_counted():
    order = []
    found = speed.alternating({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 4
    assert found[["task", "repeat"]].to_numpy().tolist() == [[task, repeat] for repeat in range(3) for task in "ab"]
    assert (found["seconds"] >= 0).all()


def test_ratios_are_formed_within_a_repeat():
    times = pd.DataFrame({"task": ["ref", "x"] * 3, "repeat": [0, 0, 1, 1, 2, 2], "seconds": [2.0, 1.0, 20.0, 4.0, 3.0, 3.0]})
    found = speed.ratios(times, "ref").set_index("task")
    assert found.loc["x", ["ratio", "low", "high", "seconds"]].tolist() == [2.0, 1.0, 5.0, 3.0]
    assert found.loc["ref", "ratio"] == 1


def test_a_ratio_is_the_median_over_repeats_with_an_interval_that_one_repeat_does_not_decide():
    load = np.exp(np.random.default_rng(0).normal(size=15))
    times = pd.DataFrame({"task": ["a", "b"] * 15, "repeat": np.repeat(range(15), 2), "seconds": np.column_stack([3 * load, load]).ravel()})
    times.loc[4, "seconds"] *= 100
    found = speed.ratio(times, "a", "b")
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(3), pytest.approx(3), pytest.approx(3), 15)


def test_the_exponent_of_a_power_is_found_whatever_the_repeats_load():
    rows = [(repeat, n, (repeat + 1) * n**1.5) for repeat in range(3) for n in (10, 20, 80)]
    found = speed.exponent(pd.DataFrame(rows, columns=["repeat", "n_tokens", "seconds"]), "n_tokens")
    assert (found.value, found.n) == (pytest.approx(1.5), 3)


def test_blocks_from_a_weight_up_are_counted(model):
    share = {weight: speed.share_of_blocks(model, weight) for weight in tiny_models.WEIGHTS["llama"]}
    assert share["model.layers.0.mlp.gate_proj.weight"] == 1
    assert share["model.layers.1.self_attn.q_proj.weight"] == pytest.approx(2 / 3)
    assert share["model.layers.2.mlp.down_proj.weight"] == pytest.approx(1 / 3)
    assert share["lm_head.weight"] == 1


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_the_plain_loop_finds_the_same_psi(architecture):
    model = tiny_models.build(architecture)
    wm, key = perturb.Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05), perturb.Key.from_seed(3)
    loop = speed.plain_loop(model, PROMPTS, RESPONSES, wm, perturb.noise(model, wm, key))
    np.testing.assert_allclose(loop, score.score(model, PROMPTS, RESPONSES, wm, [key])["psi"], atol=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_the_floor_reads_every_text_once(model):
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True)
    speed.forward_only(model, PROMPTS, RESPONSES, batch_size=2)
    assert seen == [(2, 16), (1, 16)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerator's memory is watched instead")
def test_memory_is_seen_while_it_is_held():
    with speed.peak_memory() as held:
        block = np.ones(50_000_000 // 8)
        time.sleep(0.1)
    del block
    assert 45e6 < held["bytes"] < 200e6
    with speed.peak_memory() as nothing:
        time.sleep(0.05)
    assert nothing["bytes"] < 20e6
