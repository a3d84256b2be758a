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
