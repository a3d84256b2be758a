"""Keys: fresh ones differ, none shows its secret, and a bound one refuses another use than its own."""

import hashlib
import pickle
import traceback

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import perturb, score
from gaussmark_lib.errors import KeyFileError, KeyMismatchError
from gaussmark_lib.perturb import Key, Watermark


@given(st.integers(0, 2**128 - 1))
def test_the_seed_is_the_secret_as_a_number(secret):
    assert Key(secret.to_bytes(16, "big")).seed == secret


def test_new_keys_are_all_different_and_a_seed_always_gives_the_same():
    assert len({Key.new().secret for _ in range(100)}) == 100
    assert Key.from_seed(3) == Key.from_seed(3)
    assert len({Key.from_seed(seed).secret for seed in range(-50, 50)}) == 100
    assert len(Key.new().secret) == 16


@pytest.mark.usefixtures("wrong_types")
def test_a_seed_is_a_whole_number():
    assert Key.from_seed(np.int64(3)) == Key.from_seed(3)
    for seed in (1.5, "1", None):  # rounded, it would quietly be another key's seed
        with pytest.raises(TypeError, match="integer"):
            Key.from_seed(seed)


@pytest.mark.parametrize("n", [0, 15, 17, 32])
def test_a_secret_of_another_length_is_refused(n):
    with pytest.raises(KeyFileError, match=f"16 bytes, got {n}"):
        Key(bytes(n))


def test_key_id_is_a_hash_and_differs_between_keys():
    key = Key.from_seed(7)
    assert key.key_id == hashlib.sha256(b"gaussmark key id" + key.secret).hexdigest()[:8]
    assert key.key_id not in key.secret.hex()
    assert len({Key.from_seed(seed).key_id for seed in range(500)}) == 500


def test_no_printed_form_shows_the_secret(model, wm, key):
    bound = perturb.bind(model, wm, key)
    for one in (key, bound):
        for printed in (repr(one), str(one), f"{one}", f"{[one]}", f"{(one,)!r}", f"{one.binding}"):
            assert key.secret.hex() not in printed
            assert repr(key.secret) not in printed
            assert str(key.seed) not in printed
    assert key.key_id in repr(key)
    assert "unbound" in repr(key)
    assert wm.weight in repr(bound)


def test_no_traceback_shows_the_secret(model, wm, key):
    with pytest.raises(KeyMismatchError) as error:
        perturb.noise(model, Watermark(wm.weight, 2 * wm.sigma), perturb.bind(model, wm, key))
    text = "".join(traceback.format_exception(error.value))
    assert key.secret.hex() not in text
    assert str(key.seed) not in text


def test_a_key_survives_pickling_for_worker_processes(model, wm, key):
    bound = perturb.bind(model, wm, key)
    assert pickle.loads(pickle.dumps(bound)) == bound


def test_a_bound_key_knows_its_watermark_and_an_unbound_one_says_how_to_bind(model, wm, key):
    wm = Watermark(wm.weight, 0.125, rank_dropped=3)
    assert perturb.bind(model, wm, key).watermark == wm
    with pytest.raises(KeyMismatchError, match=r"not bound to a weight.*perturb\.bind"):
        _ = key.watermark


@pytest.fixture
def bound(model, key):
    return perturb.bind(model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05, rank_dropped=2), key)


WRONG = {
    "weight": (Watermark("model.layers.2.mlp.up_proj.weight", 0.05, 2), ["weight", "base_sha256"]),
    "shape": (Watermark("model.layers.1.mlp.down_proj.weight", 0.05, 2), ["weight", "shape", "base_sha256"]),
    "sigma": (Watermark("model.layers.1.mlp.up_proj.weight", 0.0500001, 2), ["sigma"]),
    "rank": (Watermark("model.layers.1.mlp.up_proj.weight", 0.05, 1), ["rank_dropped"]),
    "side": (Watermark("model.layers.1.mlp.up_proj.weight", 0.05, 2, "right"), ["side"]),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("use", ["noise", "watermarked", "score", "export"])
def test_another_use_is_refused_and_the_difference_named(model, bound, tmp_path, what, use):
    wm, differ = WRONG[what]
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(KeyMismatchError, match=f"key {bound.key_id} does not fit") as error:
        used(use, model, wm, bound, tmp_path)
    named = [name for name in bound.binding.model_dump() if f" {name}: the key was made for" in str(error.value)]
    assert named == differ
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", ["noise", "watermarked", "score", "export"])
def test_another_base_model_is_refused(bound, tmp_path, use):
    other = tiny_models.build("llama", seed=1)
    with pytest.raises(KeyMismatchError, match=r"base_sha256: the key was made for .*Use the watermark and the base model") as error:
        used(use, other, bound.watermark, bound, tmp_path)
    assert "noise_sha256" not in str(error.value)


def test_one_changed_number_in_the_base_weight_is_another_base(model, bound):
    linear = bound.watermark.on(model).linear
    linear.parameter.data[3, 4] *= 1.01
    with pytest.raises(KeyMismatchError, match="base_sha256"):
        perturb.noise(model, bound.watermark, bound)


def test_a_change_of_another_weight_is_no_other_base(model, bound):
    model.model.layers[0].mlp.up_proj.weight.data += 1
    perturb.noise(model, bound.watermark, bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_model_in_another_precision_is_the_same_base(bound, dtype):
    wm = bound.watermark
    kept = perturb.noise(tiny_models.build("llama"), wm, bound)
    again = perturb.noise(tiny_models.build("llama", dtype), wm, bound)
    torch.testing.assert_close(again, kept, rtol=0, atol=0.02 * wm.sigma)  # bfloat16 rounds θ, and so turns its singular vectors a little


def test_a_bound_key_gives_the_noise_and_the_scores_of_the_unbound_one(model, key, bound):
    wm = bound.watermark
    assert torch.equal(perturb.noise(model, wm, bound), perturb.noise(model, wm, key))
    table = score.score(model, [[1, 2]], [[3, 4, 5]], wm, [bound, key])
    assert table["psi"][0] == pytest.approx(table["psi"][1], rel=1e-5)


def test_without_a_rank_the_side_makes_no_difference(model, key):
    bound = perturb.bind(model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05, side="right"), key)
    perturb.noise(model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05), bound)


def test_binding_changes_neither_the_model_nor_the_key_id(model, key, wm):
    before = wm.on(model).linear.value().clone()
    bound = perturb.bind(model, wm, key)
    assert torch.equal(wm.on(model).linear.value(), before)
    assert bound.key_id == key.key_id
    assert bound.secret == key.secret


def test_a_fixed_binding_of_conv1d_is_of_the_oriented_matrix(key):
    model = tiny_models.build("gpt2")
    wm = Watermark("transformer.h.0.mlp.c_fc.weight", 0.05)
    assert perturb.bind(model, wm, key).binding.shape == (48, 32)


def used(use: str, model, wm, key, tmp_path) -> None:
    if use == "noise":
        perturb.noise(model, wm, key)
    elif use == "watermarked":
        with perturb.watermarked(model, wm, key):
            pytest.fail("the model was watermarked")
    elif use == "score":
        score.score(model, [[1]], [[2, 3]], wm, [key])
    else:
        perturb.export(model, wm, key, tmp_path / "out")
