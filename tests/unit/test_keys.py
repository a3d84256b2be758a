"""Keys: fresh ones differ, none shows its secret, and a bound one refuses another use than
its own.
"""

import hashlib
import pickle

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from secrecy import assert_not_shown

from gaussmark_lib import divergence, evidence, generate_many, perturb, schemes, score
from gaussmark_lib.errors import BaseModelWarning, KeyFileError, KeyMismatchError
from gaussmark_lib.experiments import exchange, level_check, low_rank
from gaussmark_lib.models import LM
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.token_level import divergence as token_divergence
from gaussmark_lib.token_level import keys as token_keys


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
        with pytest.raises(KeyFileError, match="seed: expected a whole number"):
            Key.from_seed(seed)


@pytest.mark.parametrize("n", [0, 15, 17, 32])
def test_a_secret_of_another_length_is_refused(n):
    with pytest.raises(KeyFileError, match=f"16 bytes, got {n}"):
        Key(bytes(n))


@pytest.mark.usefixtures("wrong_types")
def test_a_secret_of_another_type_is_refused_and_not_shown():
    for secret in ("0123456789abcdef", list(range(16)), 5, None, bytearray(16)):
        with pytest.raises(
            KeyFileError, match=f"16 bytes, got a value of type {type(secret).__name__}"
        ) as error:
            Key(secret)
        assert "0123456789" not in str(error.value)


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
    assert_not_shown(error.value, key)


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
    return perturb.bind(
        model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05, rank_dropped=2), key
    )


WRONG = {
    "weight": (Watermark("model.layers.2.mlp.up_proj.weight", 0.05, 2), ["weight", "base_sha256"]),
    "shape": (
        Watermark("model.layers.1.mlp.down_proj.weight", 0.05, 2),
        ["weight", "shape", "base_sha256"],
    ),
    "sigma": (Watermark("model.layers.1.mlp.up_proj.weight", 0.0500001, 2), ["sigma"]),
    "rank": (Watermark("model.layers.1.mlp.up_proj.weight", 0.05, 1), ["rank_dropped"]),
    "side": (Watermark("model.layers.1.mlp.up_proj.weight", 0.05, 2, "right"), ["side"]),
}


LOCAL = "model.layers.2.mlp.up_proj.weight"
DOORS = {
    "noise": lambda model, wm, key: perturb.noise(model, wm, key),
    "noises": lambda model, wm, key: perturb.noises(model, wm, [Key.from_seed(9), key]),
    "bind": lambda model, wm, key: perturb.bind(model, wm, key),
    "watermarked": lambda model, wm, key: perturb.watermarked(model, wm, key).__enter__(),
    "score": lambda model, wm, key: score.score(model, [[1]], [[2, 3]], wm, [key]),
    "score, xis": lambda model, wm, key: score.score(
        model, [[1]], [[2, 3]], wm, [key], xis=perturb.noises(model, wm, [Key(key.secret)])
    ),
    "evidence": lambda model, wm, key: evidence.per_token(model, [1], [2, 3], wm, key),
    "divergence": lambda model, wm, key: divergence.per_text(model, [[1]], [[2, 3]], wm, key),
    "generate_many": lambda model, wm, key: generate_many.sample(
        model, [[1]], [None, (wm, key)], 2
    ),
    "token_keys.sample": lambda model, wm, key: token_keys.sample(model, [[1]], 2, wm, key),
    "token_keys.per_token": lambda model, wm, key: token_keys.per_token(
        model, [[1]], [[2, 3]], wm, key
    ),
    "token divergence": lambda model, wm, key: token_divergence.per_text(
        model, [[1]], [[2, 3]], wm, key
    ),
    "scheme, generate": lambda model, wm, key: schemes.GaussMark(wm, key).generate(model, [[1]], 2),
    "scheme, score": (
        lambda model, wm, key: schemes.GaussMark(wm, key).score(model, [[1]], [[2, 3]])
    ),
    "scheme, token keys": (
        lambda model, wm, key: schemes.TokenKeys(wm, key).score(model, [[1]], [[2, 3]])
    ),
    "exchange": lambda model, wm, key: exchange.delta(
        model, [[1]], [[2, 3]], np.zeros(1), wm, [key]
    ),
    "low_rank": lambda model, wm, key: low_rank.misuses(model, [[1]], [[2, 3]], wm, [[key]]),
    "level_check": lambda model, wm, key: level_check.trap(
        LM(model, tiny_lm.build().tokenizer, "tiny"), ([[1]], [[2, 3]]), wm, [key]
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_that_takes_a_key_checks_what_it_is_for(model, key, door):
    wm = Watermark(LOCAL, 0.05, rank_dropped=1)
    with pytest.raises(
        KeyMismatchError,
        match=(
            r"does not fit this use; weight: the key was made for 'model\.layers\.1\.mlp\.up_proj"
        ),
    ) as error:
        DOORS[door](
            model,
            wm,
            perturb.bind(
                model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05, rank_dropped=1), key
            ),
        )
    perturb.refuse_perturbed(model)
    assert_not_shown(error.value, key)


def test_no_traceback_shows_the_secret_where_the_memory_ends(model, wm, key, monkeypatch):
    monkeypatch.setattr("gaussmark_lib.normal._of_bits", lambda *_: np.zeros(1 << 55))
    with pytest.raises(MemoryError) as error:
        perturb.noise(model, wm, key)
    assert_not_shown(error.value, key)


@pytest.mark.parametrize("scale", [-1.0, 1.0])
def test_no_traceback_shows_the_secret_where_nothing_is_drawn(key, monkeypatch, scale):
    empty = np.empty

    def full(shape, *its, **options):
        if shape == 10 and its:
            raise MemoryError
        return empty(shape, *its, **options)

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(MemoryError if scale > 0 else ValueError) as error:
        key.normals(10, scale)
    monkeypatch.undo()
    assert_not_shown(error.value, key)


def test_one_secret_bound_in_one_group_and_not_in_another(model, key):
    """The tables of both; what names a key in between is no secret, which a KeyError would show."""
    wm = Watermark(LOCAL, 0.05)
    bound, texts = perturb.bind(model, wm, key), ([[1]], [[2, 3]])
    one, other = token_keys.per_token_by_owner(model, [(*texts, [key]), (*texts, [bound])], wm)
    assert one.equals(other)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("use", ["noise", "watermarked", "score", "export"])
def test_another_use_is_refused_and_the_difference_named(model, bound, tmp_path, what, use):
    wm, differ = WRONG[what]
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(KeyMismatchError, match=f"key {bound.key_id} does not fit") as error:
        used(use, model, wm, bound, tmp_path)
    named = [
        name
        for name in bound.binding.model_dump()
        if f" {name}: the key was made for" in str(error.value)
    ]
    assert named == differ
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", ["noise", "watermarked", "score", "export"])
def test_another_base_model_is_refused(bound, tmp_path, use):
    other = tiny_models.build("llama", seed=1)
    with pytest.raises(
        KeyMismatchError,
        match=r"base_sha256: the key was made for .*Use the watermark and the base model",
    ) as error:
        used(use, other, bound.watermark, bound, tmp_path)
    assert "noise_sha256" not in str(error.value)


def test_one_changed_number_in_the_base_weight_is_another_base(model, bound):
    linear = bound.watermark.on(model).linear
    linear.parameter.data[3, 4] *= 1.01
    with pytest.raises(KeyMismatchError, match="base_sha256"):
        perturb.noise(model, bound.watermark, bound)


def test_a_change_of_another_weight_is_no_other_base_but_named(model, bound):
    model.model.layers[0].mlp.up_proj.weight.data += 1
    message = (
        rf"key {bound.key_id}: .* but 1 other weights are not those of the key's model:"
        r" model\.layers\.0\.mlp\.up_proj\.weight\. The test"
    )
    with pytest.warns(BaseModelWarning, match=message):
        score.score(model, [[1]], [[2, 3]], bound.watermark, [bound])


def test_a_quantised_base_still_scores_and_says_what_is_other(model, bound):
    """All but the marked matrix rounded to 16 steps: ψ is that of the rounded model, as it would be
    for an unbound key.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name != bound.binding.weight:
                step = weight.abs().max() / 8
                weight.copy_((weight / step).round() * step)
    with pytest.warns(BaseModelWarning, match=r"29 other weights are not .* and 24 more\."):
        found = score.score(model, [[1]], [[2, 3]], bound.watermark, [bound, Key(bound.secret)])
    assert found["psi"][0] == pytest.approx(found["psi"][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_model_in_another_precision_is_the_same_base(bound, dtype):
    wm = bound.watermark
    kept = perturb.noise(tiny_models.build("llama"), wm, bound)
    again = perturb.noise(tiny_models.build("llama", dtype), wm, bound)
    torch.testing.assert_close(
        again, kept, rtol=0, atol=0.02 * wm.sigma
    )  # bfloat16 rounds θ, and so turns its singular vectors a little


def test_a_bound_key_gives_the_noise_and_the_scores_of_the_unbound_one(model, key, bound):
    wm = bound.watermark
    assert torch.equal(perturb.noise(model, wm, bound), perturb.noise(model, wm, key))
    table = score.score(model, [[1, 2]], [[3, 4, 5]], wm, [bound, key])
    assert table["psi"][0] == pytest.approx(table["psi"][1], rel=1e-5)


def test_without_a_rank_the_side_makes_no_difference(model, key):
    bound = perturb.bind(
        model, Watermark("model.layers.1.mlp.up_proj.weight", 0.05, side="right"), key
    )
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
