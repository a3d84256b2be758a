"""The noise ξ of a key: its bytes, order and scale. Inside ``watermarked`` the weight is θ + ξ;
outside it is θ, to the last bit. An exported checkpoint is θ + ξ, and is known as one.
"""

import hashlib
import json
import os
import warnings

import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from secrecy import leaks
from transformers import AutoModelForCausalLM, PreTrainedModel

from gaussmark_experiments.doclm import train
from gaussmark_lib import keys, perturb, score
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.errors import (
    GaussMarkWarning,
    InvalidModelError,
    InvalidWatermarkError,
    KeyMismatchError,
    PerturbedModelError,
)
from gaussmark_lib.perturb import Key, Watermark

W = "model.layers.2.mlp.down_proj.weight"
SEVERAL = Watermark([W, "model.layers.0.mlp.up_proj.weight"], [0.05, 0.2])
BUILT = {name: tiny_models.build(name) for name in ("llama", "gpt2")}


def test_golden_hash_of_the_noise():
    """If this fails, watermarks made before can no longer be detected. Do not update the hash: find
    what changed.
    """
    xi = perturb.noise(BUILT["llama"], Watermark(W, 0.05), Key.from_seed(0))
    assert xi.shape == (32, 48)
    digest = hashlib.sha256(xi.numpy().astype("<f4").tobytes()).hexdigest()
    assert digest == "3a9db523c497ac9b72bd8c34253f90c3e5211edee2a42f3c87a21f329370a30b"
    assert Key.from_seed(0).secret.hex() == "99a6e4721b9ffa3bcd2419f8f49a0799"


@given(
    seed=st.integers(0, 10**6), sigma=st.floats(1e-6, 1e3), architecture=st.sampled_from([*BUILT])
)
def test_noise_is_the_stream_in_row_order_times_sigma(seed, sigma, architecture):
    key, wm = Key.from_seed(seed), Watermark(tiny_models.ONE_WEIGHT[architecture], sigma)
    xi = perturb.noise(BUILT[architecture], wm, key)
    expected = keys.standard_normal(key.seed, 32 * 48) * sigma
    assert xi.dtype == torch.float32
    assert (xi.flatten().numpy() == expected.astype("float32")).all()


def test_several_weights_share_one_stream_in_their_order(model, key):
    z = torch.from_numpy(keys.standard_normal(key.seed, 2 * 32 * 48))
    xis = perturb.noise(model, SEVERAL, key)
    for xi, part, sigma in zip(xis, z.split(32 * 48), SEVERAL.sigma, strict=True):
        torch.testing.assert_close(xi.flatten().double(), sigma * part, rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_neither_the_models_precision_nor_torchs_state_changes_the_noise(wm, key, dtype):
    expected = perturb.noise(BUILT["llama"], wm, key)
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        xi = perturb.noise(tiny_models.build("llama", dtype), wm, key)
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(torch.get_rng_state(), state)
    assert xi.dtype == torch.float32
    assert torch.equal(xi, expected)


@pytest.mark.parametrize("rank", [0, 5])
def test_many_noises_at_once_are_the_single_ones_and_uncorrelated(model, rank):
    some = [Key.from_seed(i) for i in range(50)]
    xis = perturb.noises(model, Watermark(W, 0.3, rank), some)
    for key, xi in zip(some[:3], xis, strict=False):
        assert torch.equal(xi, perturb.noise(model, Watermark(W, 0.3, rank), key))
    correlation = torch.corrcoef(xis.flatten(1))
    off = correlation[~torch.eye(50, dtype=bool)]
    assert off.abs().max() < 4.9 / ((32 - rank) * 48) ** 0.5  # the largest of 1,225 pairs, 99.9%


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("architecture", "weight", "dtype"), tiny_models.alternating(*DTYPES))
def test_inside_it_is_theta_plus_xi_and_outside_theta_to_the_last_bit(
    architecture, weight, dtype, key
):
    model, wm = tiny_models.build(architecture, dtype), Watermark(weight, 0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    where = {name: p.data_ptr() for name, p in model.named_parameters()}
    parameter = tiny_models.parameter(model, weight)
    xi = perturb.noise(model, wm, key).double()
    xi = xi.T if architecture == "gpt2" else xi  # Conv1D stores its matrix transposed
    exact = (before[weight].double() + xi).to(torch.promote_types(dtype, torch.float32)).to(dtype)
    with perturb.watermarked(model, wm, key) as inside:
        assert inside is model
        assert torch.equal(parameter, exact), "rounded once"
        for name, p in model.named_parameters():
            assert torch.equal(p, before[name]) == (name != weight)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.data_ptr() == where[name]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("wm", [Watermark(W, 1e20), SEVERAL], ids=["strong", "several"])
def test_also_after_an_exception_and_writes_from_within(model, error, wm, key):
    """Subtracting ξ again would not do: 1e20 swallows θ."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def fail() -> None:
        model.get_parameter(W).data.add_(5)
        raise error

    with pytest.raises(error), perturb.watermarked(model, wm, key):
        fail()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not hasattr(model.config, "gaussmark")
    perturb.refuse_perturbed(model)


def test_watermarking_twice_is_refused_and_harmless(model, wm, key):
    with perturb.watermarked(model, wm, key):
        inside = model.get_parameter(W).clone()
        for second in (wm, Watermark("model.layers.0.mlp.down_proj.weight", 0.05)):
            with pytest.raises(PerturbedModelError, match=r"inside watermarked\(\)"):
                perturb.watermarked(model, second, Key.from_seed(1)).__enter__()
        assert torch.equal(model.get_parameter(W), inside)


@pytest.mark.parametrize("xi", [torch.tensor(0.1), torch.ones(1, 1), torch.ones(3, 2)])
@pytest.mark.usefixtures("wrong_types")
def test_a_noise_of_another_shape_is_refused(model, xi):
    complaint = r"xi: expected a noise of .*'s shape, \(32, 48\), got"
    with pytest.raises(InvalidWatermarkError, match=complaint):
        perturb.moved(Watermark(W, 0.1).on(model), [xi]).__enter__()


# ---- what rounding to the weights' dtype leaves

USES = {
    "watermarked": lambda model, wm, key: perturb.watermarked(model, wm, key).__enter__(),
    "bind": perturb.bind,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("sigma", "dtype"), [(1e-30, torch.float32), (1e-7, torch.bfloat16)])
def test_a_watermark_that_rounding_takes_is_refused(key, use, sigma, dtype):
    model = tiny_models.build("llama", dtype)
    complaint = rf"sigma = {sigma:g} changes none of the numbers of {W}, which are {str(dtype)[6:]}"
    with pytest.raises(InvalidWatermarkError, match=complaint):
        USES[use](model, Watermark(W, sigma), key)
    perturb.refuse_perturbed(model)


@pytest.mark.parametrize("use", USES)
def test_a_watermark_that_rounding_takes_a_part_of_is_reported(key, use):
    with pytest.warns(GaussMarkWarning, match=r"changes only 68\.23% .* bfloat16: .* 0\.00099"):
        USES[use](tiny_models.build("llama", torch.bfloat16), Watermark(W, 1e-3), key)


def test_a_watermark_beyond_the_range_of_the_weights_is_refused(key):
    with pytest.raises(InvalidWatermarkError, match=r"takes .* out of their range: choose a small"):
        perturb.bind(tiny_models.build("llama", torch.float16), Watermark(W, 1e5), key)


@pytest.mark.parametrize(("sigma", "share"), [(3e-5, 0.02), (1e-3, 0.5), (0.05, 0.9)])
def test_the_sigma_carried_is_the_slope_of_what_was_added_along_the_noise(key, sigma, share):
    """By least squares over the numbers, in float64."""
    model, wm = tiny_models.build("llama", torch.bfloat16), Watermark(W, sigma, rank_dropped=2)
    theta, xi = model.get_parameter(W).clone(), perturb.noise(model, wm, key)
    with warnings.catch_warnings(action="ignore"):
        carried = perturb.bind(model, wm, key).binding.sigma_carried
        with perturb.watermarked(model, wm, key):
            added = (model.get_parameter(W).double() - theta.double()).flatten()
    [[slope]] = torch.linalg.lstsq(xi.double().view(-1, 1), added[:, None]).solution.tolist()
    assert carried == pytest.approx(sigma * slope, rel=1e-5)
    assert (added != 0).double().mean() > share
    assert share * sigma / 10 < carried < 1.1 * sigma


# ---- bound keys


@pytest.mark.parametrize("wm", [Watermark(W, 0.05, 2, "both"), SEVERAL], ids=["one", "several"])
def test_a_bound_key_knows_its_use_also_from_its_file(model, wm, key, tmp_path):
    bound = Key.load(perturb.bind(model, wm, key).save(tmp_path / "my.key"))
    assert bound.watermark == wm
    assert bound.binding.sigma_carried == pytest.approx(wm.sigma, rel=1e-4)
    score.score(model, [[1]], [[2, 3]], wm, [bound])
    with pytest.raises(KeyMismatchError, match=f"key {key.key_id} does not fit this use"):
        score.score(model, [[1]], [[2, 3]], Watermark(wm.weight, 0.06), [bound])
    model.get_parameter(W).data[0, 0] += 1
    with pytest.raises(KeyMismatchError, match="base_sha256"):
        perturb.noise(model, wm, bound)


def test_other_weights_elsewhere_are_a_warning(model, wm, key):
    bound = perturb.bind(model, wm, key)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight")[0, 0] += 1
    with pytest.warns(GaussMarkWarning, match="other weights are not those of the key's model"):
        score.score(model, [[1]], [[2, 3]], wm, [bound])


def test_a_model_is_the_same_in_every_precision_and_another_after_a_change(model):
    digest = checkpoints.digest(model)
    for dtype in (torch.float64, torch.bfloat16):
        assert checkpoints.digest(tiny_models.build("llama", dtype)) == digest
    assert checkpoints.digest(tiny_models.build("llama", seed=1)) != digest
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[3] += 1
    assert checkpoints.digest(model) != digest


# ---- exported checkpoints


def reload(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_weights_are_theta_plus_xi(architecture, dtype, key, tmp_path):
    model = tiny_models.build(architecture, dtype)
    wm = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05)
    exported = reload(perturb.export(model, wm, key, tmp_path / "out"))
    with perturb.watermarked(model, wm, key):
        expected = {name: p.clone() for name, p in model.state_dict().items()}
    assert exported.state_dict().keys() == expected.keys()
    assert all(torch.equal(p, expected[name]) for name, p in exported.state_dict().items())


def test_what_was_saved_from_a_watermarked_model_is_refused_by_name(model, wm, key, tmp_path):
    perturb.export(model, wm, key, tmp_path / "exported")
    with perturb.watermarked(model, wm, key):
        model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "base")
    score.score(reload(tmp_path / "base"), [[1]], [[2, 3]], wm, [key])
    for name in ("exported", "saved"):
        marked = reload(tmp_path / name)
        message = f"a checkpoint with the watermark of key {key.key_id}; load the model it was"
        with pytest.raises(PerturbedModelError, match=message):
            score.score(marked, [[1]], [[2, 3]], wm, [key])
        with pytest.raises(PerturbedModelError, match=message):
            perturb.export(marked, wm, key, tmp_path / "again")
    model.config.gaussmark = "someone's"
    with pytest.raises(PerturbedModelError, match="someone's"):
        perturb.bind(model, wm, key)


def test_its_files_name_the_weight_and_never_the_secret(model, wm, key, tmp_path):
    out = perturb.export(model, wm, key, tmp_path / "a/out", train.train_tokenizer(["a b"], 257))
    mark = {"key_id": key.key_id, "weight": wm.weight, "sigma_carried": 0.05}
    assert json.loads((out / "config.json").read_text())["gaussmark"] == mark
    contents = {file.name: file.read_bytes() for file in out.iterdir()}
    assert contents.keys() >= {"model.safetensors", "tokenizer.json"}
    assert leaks(b"".join(contents.values()), key.secret) == []
    with pytest.raises(InvalidModelError, match=r"expected a new folder to export to, but .*out"):
        perturb.export(model, wm, key, out)


@pytest.mark.parametrize("who", ["model", "tokenizer"])
def test_a_failure_leaves_nothing_half_written(model, wm, key, tmp_path, monkeypatch, who):
    tokenizer = train.train_tokenizer(["a b"], 257)

    def fail(_, folder, *args, **kwargs):
        os.makedirs(folder, exist_ok=True)
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    kind = PreTrainedModel if who == "model" else type(tokenizer)
    monkeypatch.setattr(kind, "save_pretrained", fail)
    with pytest.raises(InvalidModelError, match="No space"):
        perturb.export(model, wm, key, tmp_path / "out", tokenizer)
    assert os.listdir(tmp_path) == []
    perturb.refuse_perturbed(model)
    assert not hasattr(model.config, "gaussmark")
