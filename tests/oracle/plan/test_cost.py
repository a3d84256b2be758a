"""What a plan predicts beside what is measured while the library works: operations, counted by
torch, and memory, read off the process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import LlamaConfig, LlamaForCausalLM

from gaussmark_lib import (
    divergence,
    generate,
    generate_many,
    gradients,
    likelihood,
    paths,
    perturb,
    score,
)
from gaussmark_lib.plan import cost, shapes
from gaussmark_lib.plan.cost import Read, Score, Write
from gaussmark_lib.plan.steps import Setting

CLOSE = 0.25
WHAT = [
    "scored, last block",
    "scored, first block",
    "scored, 6 keys",
    "written",
    "drawn, top-p",
    "6 cells",
    "read",
    "compared",
]
WHAT += [
    "scored, head",
    "scored, soft cap",
    "read, soft cap",
    "scored, eager",
    "scored, eager, first",
    "read, eager",
    "written, eager",
]
KEYS = [perturb.Key.from_seed(i) for i in range(3)]
WEIGHTS = [
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "lm_head.weight",
]


@pytest.fixture(scope="module")
def wide():
    """Two blocks, wider than a text is long, and a vocabulary that is not small: as the models are
    that a plan is for.
    """
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 896,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    }
    config = LlamaConfig(
        **sizes,
        vocab_size=4000,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def setting(model, weight: str) -> Setting:
    shape = shapes.read(model.config.to_dict())
    return Setting(shape, shape.weight(weight))


def texts(n: int, prompt: int, tokens: int) -> tuple[list[list[int]], list[list[int]]]:
    one = list(range(3, 3 + prompt + tokens))
    return [[i + 3, *one[1:prompt]] for i in range(n)], [one[prompt:] for _ in range(n)]


aten = torch.ops.aten
FORMULAS = {  # the CPU's attention does what the GPU's does
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        aten._scaled_dot_product_flash_attention
    ],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
    **flop_registry,
}


class Counter(TorchDispatchMode):
    """As ``FlopCounterMode``, whose hooks on modules do not go with ``torch.autograd.grad``."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if count := FORMULAS.get(function._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def counted(call) -> float:
    with Counter() as counter:
        call()
    return counter.total


@pytest.mark.parametrize("weight", WEIGHTS)
def test_operations_of_scoring(wide, weight):
    x, y = texts(4, 16, 48)
    step = Score("", 4, 16, 48, 2, keys=3)
    measured = counted(
        lambda: score.score(wide, x, y, perturb.Watermark(weight, 0.1), KEYS, batch_size=2)
    )
    assert step.flops(setting(wide, weight)) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("weight", WEIGHTS[1:2])
def test_operations_of_scoring_at_several_lengths(wide, weight):
    x, y = texts(2, 16, 48)
    measured = counted(
        lambda: score.score(wide, x, y, perturb.Watermark(weight, 0.1), KEYS, lengths=[24, 48])
    )
    assert Score("", 2, 16, 48, 2, keys=3, parts=2).flops(setting(wide, weight)) == pytest.approx(
        measured, rel=CLOSE
    )


def test_operations_for_several_weights(wide):
    x, y = texts(2, 16, 48)
    at = setting(wide, WEIGHTS[0])
    weights = tuple(at.shape.weight(name) for name in WEIGHTS)
    measured = counted(lambda: gradients.norms(wide, x, y, WEIGHTS))
    assert Score("", 2, 16, 48, 2, weights=weights).flops(at) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("prompt", "tokens"), [(8, 12), (64, 4)])
def test_operations_of_writing(wide, prompt, tokens):
    x, _ = texts(3, prompt, tokens)
    at = setting(wide, WEIGHTS[0])
    measured = counted(lambda: generate.sample(wide, x, tokens))
    assert Write("", 3, prompt, tokens).flops(at) == pytest.approx(measured, rel=0.03)
    cells = [(perturb.Watermark(WEIGHTS[0], 0.1), key) for key in KEYS]
    measured = counted(lambda: generate_many.sample(wide, x, cells, tokens))
    assert Write("", 9, prompt, tokens, keys=3).flops(at) == pytest.approx(measured, rel=0.03)


def test_operations_of_reading(wide):
    x, y = texts(4, 16, 48)
    at, wm = setting(wide, WEIGHTS[0]), perturb.Watermark(WEIGHTS[0], 0.1)
    measured = counted(lambda: likelihood.cross_entropy(wide, y, prompts=x))
    assert Read("", 4, 16, 48).flops(at) == pytest.approx(measured, rel=0.03)
    measured = counted(lambda: divergence.per_text(wide, x, y, wm, KEYS[0]))
    assert Read("", 4, 16, 48, times=2, whole=True).flops(at) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_operations_on_every_architecture(architecture):
    model, weight = tiny_models.build(architecture), tiny_models.ONE_WEIGHT[architecture]
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # torch's counter does not see products of groups
    x, y = texts(3, 8, 24)
    measured = counted(lambda: score.score(model, x, y, perturb.Watermark(weight, 0.1), KEYS))
    assert Score("", 3, 8, 24, keys=3).flops(setting(model, weight)) == pytest.approx(
        measured, rel=CLOSE
    )
    assert Write("", 3, 8, 24).flops(setting(model, weight)) == pytest.approx(
        counted(lambda: generate.sample(model, x, 24)), rel=CLOSE
    )


@pytest.mark.parametrize(
    "weight", [weight for weight in tiny_models.WEIGHTS["qwen2_moe"] if "[" in weight]
)
def test_operations_for_one_expert(weight):
    model, (x, y) = tiny_models.build("qwen2_moe"), texts(3, 8, 24)
    model.set_experts_implementation("eager")
    likelihood.ends_in_its_head(model)  # which is tried out once a model
    wm, at = perturb.Watermark(weight, 0.1), setting(model, weight)
    assert Score("", 3, 8, 24, keys=3).flops(at) == pytest.approx(
        counted(lambda: score.score(model, x, y, wm, KEYS)), rel=0.03
    )
    measured = counted(lambda: generate_many.sample(model, x, [(wm, key) for key in KEYS], 24))
    assert Write("", 9, 8, 24, keys=3).flops(at) == pytest.approx(measured, rel=0.03)


@pytest.fixture(scope="module")
def memory() -> dict[str, tuple[float, float]]:
    """Predicted and measured bytes, by what was done: in a fresh process, whose memory comes from
    the system and goes back tensor by tensor.
    """
    there = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(paths.ROOT)}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("measured.py")],
        env=there,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
def test_memory(memory, what):
    predicted, measured = memory[what]
    assert predicted == pytest.approx(measured, rel=CLOSE)


def test_the_limits_are_those_of_scoring():
    assert (cost.HELD, cost.FEW_KEYS, cost.FEW_TEXTS) == (
        score.HELD,
        score.FEW_KEYS,
        score.FEW_TEXTS,
    )
