"""Scoring holds a bounded number of noises and gradients, however many keys and texts there are."""

import numpy as np
import pytest
import tiny_models
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from gaussmark_lib import perturb, score
from gaussmark_lib.errors import KeyMismatchError
from gaussmark_lib.perturb import Key, Watermark

D_OUT, D_IN = 64, 256
ONE = 4 * D_OUT * D_IN  # bytes of a noise
WM = Watermark("model.layers.0.mlp.down_proj.weight", 0.05)
KEYS = [Key.from_seed(i) for i in range(60)]
# matrices: a noise and a gradient while they are made, projected and hashed, and a pass through
# this small model
WORK = 8


@pytest.fixture(scope="module")
def wide():
    sizes = {
        "hidden_size": D_OUT,
        "intermediate_size": D_IN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(vocab_size=tiny_models.VOCAB, **sizes)).eval()


def peak(call) -> float:
    """The most that torch held at once while this was called, beyond what it held before, in
    noises.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    return max(np.cumsum([n_bytes for _, n_bytes in changes])) / ONE


def texts(n: int) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(0)
    return tiny_models.random_ids(rng, *[3] * n), tiny_models.random_ids(rng, *[5] * n)


def test_memory_does_not_grow_with_keys_or_texts(monkeypatch, wide):
    def called(n: int) -> None:
        score.score(wide, *texts(n), WM, KEYS, batch_size=2)

    whole = peak(lambda: called(2))
    assert whole > len(KEYS)  # the control: within the budget all noises are held
    monkeypatch.setattr(score, "HELD", 10 * ONE)
    assert 10 + 2 < peak(lambda: called(2)) < 10 + 2 + WORK
    assert 10 + 10 < peak(lambda: called(30)) < 10 + 10 + WORK


def test_each_noise_is_drawn_once_a_block_of_texts(monkeypatch, wide):
    drawn = []
    isotropic = perturb.isotropic
    monkeypatch.setattr(
        perturb, "isotropic", lambda key, *rest: drawn.append(key) or isotropic(key, *rest)
    )
    monkeypatch.setattr(score, "HELD", 10 * ONE)
    for n_keys, blocks in ((10, 1), (11, 3)):  # all of 10 keys are held
        drawn.clear()
        score.score(wide, *texts(21), WM, KEYS[:n_keys])
        assert drawn == KEYS[:n_keys] * blocks


def test_few_keys_are_held_whatever_their_size(monkeypatch, wide):
    monkeypatch.setattr(score, "HELD", 0)
    wm = WM.on(wide)
    assert score.Noises(wm, KEYS[:4]).held.shape == (4, D_OUT, D_IN)
    many = score.Noises(wm, KEYS[:5])
    assert (many.held, many.n_texts, [len(part) for part in many.parts()]) == (None, 8, [4, 1])


def test_a_key_for_another_use_is_refused_before_any_text_is_read(monkeypatch, wide):
    monkeypatch.setattr(score, "HELD", 0)
    monkeypatch.setattr(score, "of_pairs", lambda *_, **__: pytest.fail("read a text"))
    other = perturb.bind(wide, Watermark(WM.weight, 0.06), KEYS[0])
    with pytest.raises(KeyMismatchError, match="sigma"):
        score.score(wide, *texts(1), WM, [*KEYS[1:8], other])
