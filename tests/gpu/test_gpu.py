"""The same computations on a GPU, against the processor's numbers. Random numbers of a GPU are
others, so what draws them there is left out.
"""

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
DRAWN_THERE = (
    "KGW",
    "SynthID",
)  # transformers' processors draw their lists with a generator on the model's device


@pytest.fixture(scope="module")
def here():
    return on_devices.build()


@pytest.fixture(scope="module")
def there():
    return on_devices.build().to("cuda")


@pytest.mark.parametrize(
    "name",
    [name for name in on_devices.COMPUTATIONS if not any(scheme in name for scheme in DRAWN_THERE)],
)
def test_on_a_gpu_it_is_the_same(here, there, name):
    call = on_devices.COMPUTATIONS[name]
    # of a norm of 6.9 nothing is left without all directions, but for the root of rounding
    atol = 4e-3 if name == "gradient_norms" else 1e-3
    on_devices.same(call(there), call(here), rtol=1e-3, atol=atol)


@pytest.mark.parametrize(
    "name",
    [name for name in on_devices.COMPUTATIONS if any(scheme in name for scheme in DRAWN_THERE)],
)
def test_schemes_with_generators_run_on_a_gpu(there, name):
    texts, table, divergences = on_devices.COMPUTATIONS[name](there)
    assert len(texts) == len(table) == len(divergences) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_keys_in_bounded_memory(monkeypatch, there, dtype):
    """Streamed in parts, ψ is what it is with all noises held."""
    held = score.score(there, *on_devices.TEXTS, on_devices.WM, on_devices.KEYS, dtype=dtype)
    monkeypatch.setattr(blocks, "HELD", 0)
    on_devices.same(
        score.score(there, *on_devices.TEXTS, on_devices.WM, on_devices.KEYS, dtype=dtype),
        held,
        1e-4,
        1e-4,
    )


def test_a_key_has_the_same_noise():
    z = on_devices.KEYS[0].on_gpu(5_000_001, 0.05, torch.device("cuda")).cpu().numpy()
    on_the_processor = on_devices.KEYS[0].normals(5_000_001, 0.05, np.float32)
    assert (z != on_the_processor).sum() <= 3
    np.testing.assert_allclose(z, on_the_processor, rtol=1e-6)


def test_dropped_directions_are_the_same(here, there):
    """A projection by vectors of the GPU's own would not be one."""
    one, other = (on_devices.DROPPED.on(model).projectors[0] for model in (here, there))
    torch.testing.assert_close(other.left.cpu(), one.left, rtol=0, atol=0)
    torch.testing.assert_close(other.left.T @ other.left, torch.eye(3, device="cuda"))


def test_marked_text_is_detected(there):
    strong = perturb.Watermark(on_devices.WM.weight, 0.3)
    with perturb.watermarked(there, strong, on_devices.KEYS[0]):
        texts = generate.sample(there, on_devices.TEXTS[0] * 4, 40)
    table = score.score(there, on_devices.TEXTS[0] * 4, texts, strong, on_devices.KEYS[:2])
    own, other = (
        table.loc[table["key_id"] == key.key_id, "psi"].mean() for key in on_devices.KEYS[:2]
    )
    assert own > 2 > abs(other)


@pytest.mark.filterwarnings("default")  # what torch's compiler says
@pytest.mark.parametrize("engine", ["transformers", "compiled"])
def test_other_engines_read_the_weights_as_they_are(there, engine):
    """A compiled graph must not remember the weights it was compiled with: base, marked, and base
    again.
    """

    def greedy(engine: str) -> list[list[int]]:
        return generate.sample(there, on_devices.TEXTS[0], 20, temperature=0, engine=engine)

    strong, found = perturb.Watermark(on_devices.WM.weight, 0.3), {}
    for one in ("exact", engine):
        before = greedy(one)
        with perturb.watermarked(there, strong, on_devices.KEYS[0]):
            marked = greedy(one)
        found[one] = [before, marked, greedy(one)]
    assert found[engine] == found["exact"]
    assert found["exact"][0] != found["exact"][1]
