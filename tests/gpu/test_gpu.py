"""The same computations on a GPU, against the processor's numbers. Random numbers of a GPU are
others, so what draws them there is left out.
"""

from functools import partial

import numpy as np
import on_devices
import pytest
import torch

from gaussmark_lib import generate, perturb, score
from gaussmark_lib.engine import blocks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# transformers' processors draw their lists with a generator on the model's device
DRAWN_THERE = [name for name in on_devices.COMPUTATIONS if "KGW" in name or "SynthID" in name]
STRONG = perturb.Watermark(on_devices.WM.weight, 0.3)


@pytest.fixture(scope="module")
def here():
    return on_devices.build()


@pytest.fixture(scope="module")
def there():
    return on_devices.build().to("cuda")


@pytest.mark.parametrize("name", sorted(on_devices.COMPUTATIONS.keys() - DRAWN_THERE))
def test_on_a_gpu_it_is_the_same(here, there, name):
    call = on_devices.COMPUTATIONS[name]
    # of a norm of 6.9 nothing is left without all directions, but for the root of rounding
    atol = 4e-3 if name == "gradient_norms" else 1e-3
    on_devices.same(call(there), call(here), rtol=1e-3, atol=atol)


@pytest.mark.parametrize("name", DRAWN_THERE)
def test_schemes_with_generators_run_on_a_gpu(there, name):
    texts, table, divergences = on_devices.COMPUTATIONS[name](there)
    assert len(texts) == len(table) == len(divergences) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_keys_in_bounded_memory(monkeypatch, there, dtype):
    """Streamed in parts, ψ is what it is with all noises held."""
    call = partial(score.score, there, *on_devices.TEXTS, on_devices.WM, on_devices.KEYS)
    held = call(dtype=dtype)
    monkeypatch.setattr(blocks, "HELD", 0)
    on_devices.same(call(dtype=dtype), held, rtol=1e-4, atol=1e-4)


def test_a_key_has_the_same_noise():
    z = on_devices.KEYS[0].on_gpu(5_000_001, 0.05, torch.device("cuda")).cpu().numpy()
    on_the_processor = on_devices.KEYS[0].normals(5_000_001, 0.05, np.float32)
    assert (z != on_the_processor).sum() <= 3
    np.testing.assert_allclose(z, on_the_processor, rtol=1e-6)


def test_dropped_directions_are_the_same(here, there):
    """A projection by vectors of the GPU's own would not be one."""
    expected, left = (on_devices.DROPPED.on(model).projectors[0].left for model in (here, there))
    torch.testing.assert_close(left.cpu(), expected, rtol=0, atol=0)
    torch.testing.assert_close(left.T @ left, torch.eye(3, device="cuda"))


def test_marked_text_is_detected(there):
    prompts = on_devices.TEXTS[0] * 4
    with perturb.watermarked(there, STRONG, on_devices.KEYS[0]):
        texts = generate.sample(there, prompts, 40)
    table = score.score(there, prompts, texts, STRONG, on_devices.KEYS[:2])
    of_key, of_another = table["psi"].to_numpy().reshape(-1, 2).mean(0)
    assert of_key > 2 > abs(of_another)


@pytest.mark.filterwarnings("default")  # what torch's compiler says
@pytest.mark.parametrize("engine", ["transformers", "compiled"])
def test_other_engines_read_the_weights_as_they_are(there, engine):
    """A compiled graph must not remember the weights it was compiled with: base, marked, and base
    again.
    """

    def greedy(engine: str) -> list[list[int]]:
        return generate.sample(there, on_devices.TEXTS[0], 20, temperature=0, engine=engine)

    def base_marked_base(engine: str) -> list[list[list[int]]]:
        before = greedy(engine)
        with perturb.watermarked(there, STRONG, on_devices.KEYS[0]):
            marked = greedy(engine)
        return [before, marked, greedy(engine)]

    expected = base_marked_base("exact")
    assert base_marked_base(engine) == expected
    assert expected[0] != expected[1]
