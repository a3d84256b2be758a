"""The noise ξ of a key: its bytes, order and scale. Inside ``watermarked`` the weight is θ + ξ;
outside it is θ, to the last bit.
"""

import hashlib
import warnings

import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import divergence, generate, generate_many, normal, perturb
from gaussmark_lib.errors import (
    GaussMarkError,
    InvalidWatermarkError,
    PerturbedModelError,
    RoundingWarning,
    UnknownWeightError,
)
from gaussmark_lib.perturb import Key, Watermark

MODEL = tiny_models.build("llama")


def test_golden_hash_of_the_noise():
    """If this fails, watermarks made before can no longer be detected. Do not update the hash: find
    what changed.
    """
    xi = perturb.noise(
        MODEL, Watermark("model.layers.2.mlp.down_proj.weight", 0.05), Key.from_seed(0)
    )
    assert xi.shape == (32, 48)
    assert (
        hashlib.sha256(xi.numpy().astype("<f4").tobytes()).hexdigest()
        == "3a9db523c497ac9b72bd8c34253f90c3e5211edee2a42f3c87a21f329370a30b"
    )


def test_golden_seed():
    assert Key.from_seed(0).secret.hex() == "99a6e4721b9ffa3bcd2419f8f49a0799"


@given(
    seed=st.integers(0, 10**6),
    sigma=st.floats(1e-6, 1e3),
    architecture=st.sampled_from(["llama", "gpt2"]),
)
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
    first, last = (
        perturb.noise(MODEL, Watermark(f"model.layers.{i}.mlp.down_proj.weight", 0.05), key)
        for i in (0, 2)
    )
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


def test_small_noises_side_by_side_are_the_single_ones(monkeypatch):
    wm, keys, before = (
        Watermark("model.layers.2.mlp.down_proj.weight", 0.05),
        [Key.from_seed(i) for i in range(5)],
        torch.get_num_threads(),
    )
    expected = [perturb.noise(MODEL, wm, key) for key in keys]
    monkeypatch.setattr(perturb, "LEAST_A_THREAD", 1)
    torch.set_num_threads(2)
    try:
        assert torch.equal(perturb.noises(MODEL, wm, keys), torch.stack(expected))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16])
def test_a_noise_does_not_depend_on_torchs_defaults(default):
    wm, key = Watermark("model.layers.2.mlp.down_proj.weight", 0.05), Key.from_seed(3)
    expected = perturb.noise(MODEL, wm, key)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            found = perturb.noise(MODEL, wm, key)
    finally:
        torch.set_default_dtype(before)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_standard_deviation_is_sigma():
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.3)
    n = 40 * 32 * 48
    xis = perturb.noises(MODEL, wm, [Key.from_seed(i) for i in range(40)])
    assert abs(xis.std().item() / 0.3 - 1) < 3.3 / (2 * n) ** 0.5  # 99.9%


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("architecture", "weight", "dtype"), tiny_models.alternating(*DTYPES))
def test_inside_it_is_theta_plus_xi_and_outside_theta_to_the_last_bit(
    architecture, weight, dtype, key
):
    model = tiny_models.build(architecture, dtype)
    wm = Watermark(weight, 0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    where = {name: p.data_ptr() for name, p in model.named_parameters()}
    parameter, stored = tiny_models.parameter(model, weight), weight
    xi = perturb.noise(model, wm, key).double()
    xi = xi.T if architecture == "gpt2" else xi  # Conv1D stores its matrix transposed
    with perturb.watermarked(model, wm, key) as inside:
        assert inside is model
        assert tiny_models.parameter(model, weight) is parameter
        exact = before[stored].double().clone()
        exact.add_(xi)
        torch.testing.assert_close(
            parameter.double(),
            exact,
            rtol=torch.finfo(dtype).eps,
            atol=1e-7 if dtype != torch.float64 else 0,
        )
        for name, p in model.named_parameters():
            assert p.dtype == dtype
            assert torch.equal(p, before[name]) == (name != stored)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.data_ptr() == where[name]
    assert tiny_models.parameter(model, weight) is parameter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_also_after_an_exception(dtype, error, wm, key):
    model = tiny_models.build("llama", dtype)
    parameter = wm.on(model).linear.parameter
    before, where = parameter.detach().clone(), parameter.data_ptr()
    with pytest.raises(error), perturb.watermarked(model, wm, key):
        raise error
    assert torch.equal(parameter, before)
    assert parameter.data_ptr() == where
    with perturb.watermarked(model, wm, key):
        pass  # and can be watermarked again


def test_also_after_a_very_strong_watermark_and_writes_from_within(model, key):
    """Subtracting ξ again would not do: 1e20 swallows θ whole."""
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 1e20)
    parameter = wm.on(model).linear.parameter
    before = parameter.detach().clone()
    with perturb.watermarked(model, wm, key):
        parameter.data.add_(5)
    assert torch.equal(parameter, before)


def test_theta_plus_xi_is_rounded_once(key):
    """In bfloat16, rounding ξ first and then the sum gives other weights."""
    model = tiny_models.build("llama", torch.bfloat16)
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
    theta, xi = wm.on(model).linear.value().clone(), perturb.noise(model, wm, key)
    twice = theta + xi.bfloat16()
    with perturb.watermarked(model, wm, key):
        inside = wm.on(model).linear.value()
        assert torch.equal(inside, (theta.float() + xi).bfloat16())
        assert not torch.equal(inside, twice)


def test_gpt2s_layout_is_transposed_and_the_function_is_not(key):
    """y = (W + ξ)·x for Conv1D as for Linear: the layer's own output tells."""
    model = tiny_models.build("gpt2")
    wm = Watermark("transformer.h.0.mlp.c_fc.weight", 0.05)
    layer, xi = model.transformer.h[0].mlp.c_fc, perturb.noise(model, wm, key)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        base = layer(x)
        with perturb.watermarked(model, wm, key):
            torch.testing.assert_close(layer(x) - base, x @ xi.T, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "weight", ["model.layers.2.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight"]
)
def test_watermarking_twice_is_refused_and_harmless(model, wm, key, weight):
    before = wm.on(model).linear.value().clone()
    with perturb.watermarked(model, wm, key):
        inside = wm.on(model).linear.value().clone()
        with (
            pytest.raises(PerturbedModelError, match=r"inside watermarked\(\)"),
            perturb.watermarked(model, Watermark(weight, 0.05), Key.from_seed(1)),
        ):
            pytest.fail("watermarked twice")
        assert torch.equal(wm.on(model).linear.value(), inside)
        with pytest.raises(PerturbedModelError):
            perturb.refuse_perturbed(model)
    assert torch.equal(wm.on(model).linear.value(), before)
    perturb.refuse_perturbed(model)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"weight": "model.norm.weight"}, UnknownWeightError),
        ({"rank_dropped": 32}, InvalidWatermarkError),
    ],
    ids=["weight", "rank"],
)
def test_a_refusal_leaves_the_model_unmarked(model, key, wrong, error):
    wm = Watermark(**{"weight": "model.layers.2.mlp.down_proj.weight", "sigma": 0.05} | wrong)
    with pytest.raises(error), perturb.watermarked(model, wm, key):
        pytest.fail("watermarked")
    perturb.refuse_perturbed(model)


def test_two_models_can_be_watermarked_at_once(wm, key):
    one, two = tiny_models.build("llama"), tiny_models.build("llama", seed=1)
    with perturb.watermarked(one, wm, key), perturb.watermarked(two, wm, key):
        pass
    perturb.refuse_perturbed(one)


def test_the_library_refuses_with_its_own_error(model, wm, key):
    with perturb.watermarked(model, wm, key), pytest.raises(GaussMarkError):
        perturb.refuse_perturbed(model)


def test_parameters_keep_asking_for_gradients_or_not(model, wm, key):
    wm.on(model).linear.parameter.requires_grad_(False)
    with perturb.watermarked(model, wm, key):
        assert not wm.on(model).linear.parameter.requires_grad
    assert not wm.on(model).linear.parameter.requires_grad


W = "model.layers.2.mlp.down_proj.weight"
USES = {
    "watermarked": lambda model, wm, key: perturb.watermarked(model, wm, key).__enter__(),
    "bind": lambda model, wm, key: perturb.bind(model, wm, key),
    "divergence": lambda model, wm, key: divergence.per_text(model, [[1]], [[2, 3]], wm, key),
    "generate_many": lambda model, wm, key: generate_many.sample(model, [[1]], [(wm, key)], 2),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("sigma", "dtype"), [(1e-30, torch.float32), (1e-20, torch.float32), (1e-7, torch.bfloat16)]
)
def test_a_watermark_that_rounding_takes_whole_is_refused(key, use, sigma, dtype):
    model = tiny_models.build("llama", dtype)
    theta = model.get_parameter(W).clone()
    with pytest.raises(
        InvalidWatermarkError,
        match=(
            rf"sigma = {sigma:g} changes none of the numbers of {W}, which are {str(dtype)[6:]}:"
            r" .*larger"
        ),
    ):
        USES[use](model, Watermark(W, sigma), key)
    assert torch.equal(model.get_parameter(W), theta)
    perturb.refuse_perturbed(model)


def test_a_watermark_beyond_the_range_of_the_weights_is_refused(key):
    with pytest.raises(
        InvalidWatermarkError,
        match=(
            rf"sigma = 100000 takes {W} out of the range of its dtype, torch.float16; choose a"
            r" smaller"
        ),
    ):
        perturb.bind(tiny_models.build("llama", torch.float16), Watermark(W, 1e5), key)


@pytest.mark.parametrize("use", USES)
def test_a_watermark_that_rounding_takes_a_part_of_is_said_to_be_one(key, use):
    with pytest.warns(
        RoundingWarning,
        match=(
            rf"sigma = 0\.001 changes only 68\.23% of the numbers of {W}, which are bfloat16: they"
            r" carry .* 0\.00099"
        ),
    ):
        USES[use](tiny_models.build("llama", torch.bfloat16), Watermark(W, 1e-3), key)


@pytest.mark.parametrize(("sigma", "share"), [(3e-5, 0.02), (1e-3, 0.5), (0.05, 0.9)])
def test_the_sigma_carried_is_the_slope_of_what_was_added_along_the_noise(key, sigma, share):
    """By least squares over the numbers, in float64; with a part of the watermark lost it is below
    σ only where hardly anything is left.
    """
    model, wm = tiny_models.build("llama", torch.bfloat16), Watermark(W, sigma, rank_dropped=2)
    theta, xi = wm.on(model).linear.value().clone(), perturb.noise(model, wm, key)
    with warnings.catch_warnings(action="ignore"):
        carried = perturb.bind(model, wm, key).binding.sigma_carried
        with perturb.watermarked(model, wm, key):
            added = (model.get_parameter(W).double() - theta.double()).flatten()
    [[slope]] = torch.linalg.lstsq(xi.double().view(-1, 1), added[:, None]).solution.tolist()
    assert carried == pytest.approx(sigma * slope, rel=1e-5)
    assert (added != 0).double().mean() > share
    assert share * sigma / 10 < carried < 1.1 * sigma


def test_a_watermark_far_below_the_weights_precision_changes_no_text(model, key):
    """σ → 0: the negative control of everything that follows."""
    plain = generate.sample(model, [[1, 2, 3]], 20)
    with (
        pytest.warns(RoundingWarning, match=r"changes only 8\.27%"),
        perturb.watermarked(model, Watermark(W, 1e-9), key),
    ):
        assert generate.sample(model, [[1, 2, 3]], 20) == plain


def test_a_strong_one_does(model, wm, key):
    plain = generate.sample(model, [[1, 2, 3]], 20)
    with perturb.watermarked(model, Watermark(wm.weight, 1.0), key):
        assert generate.sample(model, [[1, 2, 3]], 20) != plain
