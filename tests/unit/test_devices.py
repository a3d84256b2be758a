"""Every tensor is on its model's device: on a pretended second one a forgotten ``.to`` is an error,
and all numbers are those of the processor.
"""

import on_devices
import pytest
import torch
from second_device import SECOND, Elsewhere, moved, second_device

from gaussmark_lib import generate, gradients, perturb
from gaussmark_lib.engine import hooks


@pytest.fixture(scope="module")
def here():
    return on_devices.build()


@pytest.fixture(scope="module")
def there():
    return moved(on_devices.build())


@pytest.mark.parametrize("name", on_devices.COMPUTATIONS)
def test_on_a_second_device_it_is_the_same(here, there, name, no_table_of_selfhash):
    call = on_devices.COMPUTATIONS[name]
    expected = call(here)
    with second_device():
        assert there.device == SECOND
        found = call(there)
    on_devices.same(found, expected, rtol=1e-6, atol=1e-9)


def test_a_noise_is_moved_to_the_model_once_and_not_at_each_step(there, monkeypatch):
    made = []
    products_of = hooks._products

    def spied(noises, device):
        products = products_of(noises, device)
        made.extend(products)
        return products

    monkeypatch.setattr(hooks, "_products", spied)
    marks = [(on_devices.WM, key) for key in on_devices.KEYS[:2]]
    with second_device():
        generate.sample(there, on_devices.TEXTS[0][:2], 3, marks=marks)
    [product] = made
    assert product.z.shape[0] == 2
    assert product.z.device == SECOND


def test_a_head_on_another_device_than_the_rest():
    """As a model that is spread over several: what is given to the head is moved to it, and the
    model's logits to where its input was.
    """
    expected = {name: call(on_devices.build()) for name, call in on_devices.COMPUTATIONS.items()}
    model = on_devices.build()
    moved(model.lm_head).register_forward_pre_hook(lambda _, inputs: (inputs[0].to(SECOND),))
    model.register_forward_hook(
        lambda _, inputs, output: output.__setitem__("logits", output.logits.cpu())
    )
    with second_device():
        for name, before in expected.items():
            on_devices.same(on_devices.COMPUTATIONS[name](model), before, rtol=1e-6, atol=1e-9)


def test_a_forgotten_move_is_found(there):
    """The pretended device does what it is for: noises on the processor do not meet gradients
    elsewhere, and these become no arrays.
    """
    with second_device():
        [found] = gradients.gradients(
            there, on_devices.TEXTS[0][:1], on_devices.TEXTS[1][:1], on_devices.WM
        )
        xi = perturb.noise(there, on_devices.WM, on_devices.KEYS[0])
        assert isinstance(found.G, Elsewhere)
        assert xi.device.type == "cpu"
        with pytest.raises(RuntimeError, match="same device"):
            found.G.flatten() @ xi.flatten()
        with pytest.raises(RuntimeError, match="same device"):
            torch.stack([found.G, xi])
        with pytest.raises(RuntimeError, match="numpy"):
            found.G.numpy()
