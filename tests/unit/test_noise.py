"""The noise ξ of a key: its golden bytes, its order, its scale, and that nothing else can change it."""

import hashlib

import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import normal, perturb
from gaussmark_lib.perturb import Key, Watermark

MODEL = tiny_models.build("llama")


def test_golden_hash_of_the_noise():
    """If this fails, watermarks made before can no longer be detected. Do not update the hash: find what changed."""
    xi = perturb.noise(MODEL, Watermark("model.layers.2.mlp.down_proj.weight", 0.05), Key.from_seed(0))
    assert xi.shape == (32, 48)
    assert hashlib.sha256(xi.numpy().astype("<f4").tobytes()).hexdigest() == "3a9db523c497ac9b72bd8c34253f90c3e5211edee2a42f3c87a21f329370a30b"


def test_golden_seed():
    assert Key.from_seed(0).secret.hex() == "99a6e4721b9ffa3bcd2419f8f49a0799"


@given(seed=st.integers(0, 10**6), sigma=st.floats(1e-6, 1e3), architecture=st.sampled_from(["llama", "gpt2"]))
def test_noise_is_the_stream_in_row_order_times_sigma(seed, sigma, architecture):
    model = MODEL if architecture == "llama" else GPT2
    key, wm = Key.from_seed(seed), Watermark(tiny_models.ONE_WEIGHT[architecture], sigma)
    xi = perturb.noise(model, wm, key)
    expected = normal.standard_normal(key.seed, 32 * 48) * sigma
    assert xi.dtype == torch.float32
    assert xi.device.type == "cpu"
    assert xi.shape == (32, 48)
    assert xi.is_contiguous()
    assert (xi.flatten().numpy() == expected.astype("float32")).all()


GPT2 = tiny_models.build("gpt2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_models_precision_does_not_change_the_noise(wm, key, dtype):
    xi = perturb.noise(tiny_models.build("llama", dtype), wm, key)
    assert xi.dtype == torch.float32
    assert torch.equal(xi, perturb.noise(MODEL, wm, key))


def test_nor_does_torchs_random_state(wm, key):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    xi = perturb.noise(MODEL, wm, key)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(perturb.noise(MODEL, wm, key), xi)


def test_sigma_scales_the_noise_and_changes_nothing_else(key):
    weight = "model.layers.2.mlp.down_proj.weight"
    one, two = (perturb.noise(MODEL, Watermark(weight, sigma), key) for sigma in (0.05, 0.1))
    torch.testing.assert_close(2 * one, two, rtol=1e-6, atol=0)


def test_weights_of_one_shape_share_the_noise_of_a_key(key):
    first, last = (perturb.noise(MODEL, Watermark(f"model.layers.{i}.mlp.down_proj.weight", 0.05), key) for i in (0, 2))
    assert torch.equal(first, last)


def test_different_keys_give_independent_noise(wm):
    xis = perturb.noises(MODEL, wm, [Key.from_seed(i) for i in range(50)])
    assert xis.shape == (50, 32, 48)
    correlation = torch.corrcoef(xis.flatten(1))
    off = correlation[~torch.eye(50, dtype=bool)]
    assert off.abs().max() < 4.7 / (32 * 48) ** 0.5  # the largest of 1,225 pairs, 99.9%


@pytest.mark.parametrize("rank", [0, 5])
def test_many_noises_at_once_are_the_single_ones(rank):
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.05, rank)
    keys = [Key.from_seed(i) for i in range(3)]
    for key, xi in zip(keys, perturb.noises(MODEL, wm, keys), strict=True):
        assert torch.equal(xi, perturb.noise(MODEL, wm, key))


def test_standard_deviation_is_sigma():
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.3)
    n = 40 * 32 * 48
    xis = perturb.noises(MODEL, wm, [Key.from_seed(i) for i in range(40)])
    assert abs(xis.std().item() / 0.3 - 1) < 3.3 / (2 * n) ** 0.5  # 99.9%
