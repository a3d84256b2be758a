"""Keys: fresh ones differ, none shows its secret, a bound one refuses another use than its own. Key
files: complete or not at all, the owner's only, never overwritten; any damage is an error.
"""

import hashlib
import hmac
import json
import os
import pickle
import re
import stat
import subprocess

import numpy as np
import pytest
import tiny_models
import torch
from secrecy import assert_not_shown, leaks

from gaussmark_lib import divergence, evidence, generate, perturb, score
from gaussmark_lib.beyond import joint, schemes, tracing
from gaussmark_lib.beyond.token_level import divergence as token_divergence
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.engine import key_files, stream
from gaussmark_lib.errors import KeyFileError, KeyMismatchError
from gaussmark_lib.perturb import Key, Watermark


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


@pytest.mark.usefixtures("wrong_types")
def test_a_secret_of_another_type_is_refused_and_not_shown():
    for secret in ("0123456789abcdef", list(range(16)), 5, None, bytearray(16)):
        complaint = f"16 bytes, got a value of type {type(secret).__name__}"
        with pytest.raises(KeyFileError, match=complaint) as error:
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
            assert leaks(printed.encode(), key.secret) == []
    assert key.key_id in repr(key)
    assert "unbound" in repr(key)
    assert wm.weight in repr(bound)


def test_a_key_survives_pickling_for_worker_processes(model, wm, key):
    bound = perturb.bind(model, wm, key)
    assert pickle.loads(pickle.dumps(bound)) == bound


def test_no_traceback_shows_the_secret(model, wm, key, monkeypatch):
    other = Watermark(wm.weight, 2 * wm.sigma)
    with pytest.raises(KeyMismatchError) as error:
        perturb.noise(model, other, perturb.bind(model, wm, key))
    assert_not_shown(error.value, key)
    monkeypatch.setattr(stream, "_normals", lambda *_: np.zeros(1 << 55))
    with pytest.raises(MemoryError) as error:
        perturb.noise(model, wm, key)
    assert_not_shown(error.value, key)


# ---- every door checks what a bound key is for

UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
LOCAL = "model.layers.2.mlp.up_proj.weight"
X, Y = [[1]], [[2, 3]]
DOORS = {
    "noise": perturb.noise,
    "noises": lambda model, wm, key: perturb.noises(model, wm, [Key.from_seed(9), key]),
    "bind": perturb.bind,
    "watermarked": lambda model, wm, key: perturb.watermarked(model, wm, key).__enter__(),
    "score": lambda model, wm, key: score.score(model, X, Y, wm, [key]),
    "score, xis": lambda model, wm, key: score.score(
        model, X, Y, wm, [key], xis=perturb.noises(model, wm, [Key(key.secret)])
    ),
    "sequence": lambda model, wm, key: joint.sequence(model, X, Y, wm, [key]),
    "author": lambda model, wm, key: tracing.author(model, X, Y, wm, [key]),
    "scan": lambda model, wm, key: tracing.scan(model, X, Y, wm, [key], block=1),
    "evidence": lambda model, wm, key: evidence.per_token(model, X[0], Y[0], wm, key),
    "divergence": lambda model, wm, key: divergence.per_text(model, X, Y, marks=[(wm, key)]),
    "marks": lambda model, wm, key: generate.sample(model, [[1], [1]], 2, marks=[None, (wm, key)]),
    "token_keys.sample": lambda model, wm, key: token_keys.sample(model, X, 2, wm, [key]),
    "token_keys.per_token": lambda model, wm, key: token_keys.per_token(model, X, Y, wm, [key]),
    "token divergence": lambda model, wm, key: token_divergence.per_text(model, X, Y, wm, [key]),
    "scheme, generate": lambda model, wm, key: schemes.GaussMark(wm, key).generate(model, X, 2),
    "scheme, score": lambda model, wm, key: schemes.GaussMark(wm, key).score(model, X, Y),
    "scheme, token keys": lambda model, wm, key: schemes.TokenKeys(wm, key).score(model, X, Y),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_that_takes_a_key_checks_what_it_is_for(model, key, door):
    bound = perturb.bind(model, Watermark(UP, 0.05, rank_dropped=1), key)
    complaint = f"does not fit this use; weight: the key was made for '{re.escape(UP)}"
    with pytest.raises(KeyMismatchError, match=complaint) as error:
        DOORS[door](model, Watermark(LOCAL, 0.05, rank_dropped=1), bound)
    perturb.refuse_perturbed(model)
    assert_not_shown(error.value, key)


DIFFERENCES = {
    "weight": (Watermark(LOCAL, 0.05, 2), ["weight", "base_sha256"]),
    "shape": (Watermark(DOWN, 0.05, 2), ["weight", "shape", "base_sha256"]),
    "sigma": (Watermark(UP, 0.0500001, 2), ["sigma"]),
    "rank": (Watermark(UP, 0.05, 1), ["rank_dropped"]),
    "side": (Watermark(UP, 0.05, 2, "right"), ["side"]),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_another_use_is_refused_and_each_difference_named(model, key, tmp_path, what):
    bound = perturb.bind(model, Watermark(UP, 0.05, rank_dropped=2), key)
    wm, differ = DIFFERENCES[what]
    with pytest.raises(KeyMismatchError, match=f"key {bound.key_id} does not fit") as error:
        perturb.export(model, wm, bound, tmp_path / "out")
    assert re.findall(r" (\w+): the key was made for", str(error.value)) == differ
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyMismatchError, match=r"base_sha256: .*Use the watermark and the base"):
        perturb.noise(tiny_models.build("llama", seed=1), bound.watermark, bound)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_same_model_in_another_precision_is_the_same_base(model, key, dtype):
    """bfloat16 rounds θ, and so turns its singular vectors a little."""
    wm = Watermark(UP, 0.05, rank_dropped=2)
    bound = perturb.bind(model, wm, key)
    again = perturb.noise(tiny_models.build("llama", dtype), wm, bound)
    torch.testing.assert_close(again, perturb.noise(model, wm, key), rtol=0, atol=0.02 * wm.sigma)


def test_without_a_rank_the_side_makes_no_difference(model, key):
    bound = perturb.bind(model, Watermark(UP, 0.05, side="right"), key)
    perturb.noise(model, Watermark(UP, 0.05), bound)
    with pytest.raises(KeyMismatchError, match=r"not bound to a weight.*perturb\.bind"):
        _ = key.watermark


# ---- files


@pytest.fixture
def bound(model, wm, key) -> Key:
    return perturb.bind(model, wm, key)


def test_bound_and_unbound_keys_come_back_equal(tmp_path, key, bound):
    for name, one in (("plain.json", key), ("bound.json", bound)):
        assert one.save(tmp_path / name) == tmp_path / name
        assert Key.load(tmp_path / name) == one
        assert Key.load(str(tmp_path / name)).binding == one.binding


def test_only_the_owner_can_read_the_file_whatever_the_umask(tmp_path, key):
    before = os.umask(0)
    try:
        path = key.save(tmp_path / "key.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_never_overwritten_not_even_at_the_same_moment(tmp_path, key, monkeypatch):
    path = key.save(tmp_path / "my.key")
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match=r"my\.key exists.*never overwritten"):
        Key.from_seed(1).save(path)
    assert path.read_bytes() == before
    other, dump = tmp_path / "other.key", json.dump
    monkeypatch.setattr(
        key_files.json, "dump", lambda *a, **k: (other.write_text("theirs"), dump(*a, **k))
    )
    with pytest.raises(KeyFileError, match="exists"):
        key.save(other)
    assert other.read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["my.key", "other.key"]


@pytest.mark.parametrize("step", ["dump", "link"])
def test_a_failure_while_writing_leaves_nothing_behind(tmp_path, key, monkeypatch, step):
    def fail(*args, **kwargs):
        if step == "dump":
            args[1].write('{"format": "gauss')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_files.json if step == "dump" else key_files.os, step, fail)
    complaint = "cannot write a key file in .*: No space left"
    with pytest.raises(KeyFileError, match=complaint) as error:
        key.save(tmp_path / "my.key")
    assert os.listdir(tmp_path) == []
    assert_not_shown(error.value, key)
    with pytest.raises(KeyFileError, match=r"nowhere.*make the folder"):
        key.save(tmp_path / "nowhere" / "my.key")


def refused(path, key: Key, message: str) -> str:
    with pytest.raises(KeyFileError, match=message) as error:
        Key.load(path)
    assert str(path) in str(error.value)
    assert_not_shown(error.value, key)
    return str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.95, 0.999])
def test_a_truncated_file_is_refused(tmp_path, bound, share):
    path = bound.save(tmp_path / "my.key")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, bound, "not a complete key file.*restore it from a copy")


ZEROS = dict.fromkeys(["seal", "binding.base_sha256", "binding.model_sha256"], "0" * 64)
OTHER = ZEROS | {
    "key_id": "00000000",
    "secret": "00" * 16,
    "binding": None,
    "binding.weight": "model.layers.0.mlp.down_proj.weight",
    "binding.shape": [48, 32],
    "binding.sigma": 0.06,
    "binding.rank_dropped": 1,
    "binding.side": "right",
    "binding.sigma_carried": 0.04,
}


def edited(path, field: str, value) -> dict:
    content = json.loads(path.read_text())
    *outer, name = field.split(".")
    inside = content[outer[0]] if outer else content
    if value == "missing":
        del inside[name]
    else:
        assert inside[name] != value
        inside[name] = value
    path.write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("field", OTHER)
def test_an_edit_of_any_field_is_refused(tmp_path, bound, field):
    path = bound.save(tmp_path / "my.key")
    content = edited(path, field, OTHER[field])
    refused(path, bound, "edited or damaged: its seal does not fit its content")
    public = {name: value for name, value in content.items() if name != "seal"}
    forged = hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(public | {"seal": forged}))  # without the secret
    refused(path, bound, "edited or damaged")


def test_the_seal_is_an_hmac_under_the_secret(tmp_path, bound):
    content = json.loads(bound.save(tmp_path / "my.key").read_text())
    seal = content.pop("seal")
    under = hmac.digest(bound.secret, b"gaussmark key file seal", "sha256")
    text = json.dumps(content, sort_keys=True).encode()
    assert seal == hmac.new(under, text, "sha256").hexdigest()


@pytest.mark.parametrize("field", [f for f in OTHER if f not in ("binding.side", "binding")])
@pytest.mark.parametrize("value", ["missing", {"a": "b"}])
def test_a_missing_or_malformed_field_is_named(tmp_path, bound, field, value):
    path = bound.save(tmp_path / "my.key")
    edited(path, field, value)
    optional = ("binding.sigma_carried", "binding.model_sha256")  # earlier versions lack them
    is_formed = value == "missing" and field in optional
    refused(path, bound, "edited" if is_formed else f"missing or malformed: .*{field}")


def test_another_format_or_field_is_named(tmp_path, bound):
    path = bound.save(tmp_path / "my.key")
    content = edited(path, "format", "gaussmark key 3")
    refused(path, bound, "expected format 'gaussmark key 2', got 'gaussmark key 3'")
    path.write_text(json.dumps(content | {"note": "mine"}))
    refused(path, bound, "malformed: note")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((c, "not a complete key file") for c in (b"", bytes(range(256)), b"hello")),
        *((c, "not a complete key file") for c in (b"[" * 100_000, b"9" * 5000)),
        *((c, "not a key file: missing or malformed") for c in (b"null", b"{}", b'{"seed": 3}')),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, key, content, message):
    path = tmp_path / "my.key"
    path.write_bytes(content)
    refused(path, key, message)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o777])
def test_a_file_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path, key, mode):
    path = key.save(tmp_path / "my other.key")
    path.chmod(mode)
    message = refused(path, key, rf"open to others \(mode {mode:o}\).*make a new key")
    subprocess.run(re.search("`(.*?)`", message)[1], shell=True, check=True)
    assert Key.load(path) == key
    path.chmod(0o400)
    assert Key.load(path) == key
