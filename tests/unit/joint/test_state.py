"""A stream's state as a file: its owner's alone, complete or not written, of one use and format."""

import os

import numpy as np
import pytest
import tiny_models

from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint import directions
from gaussmark_lib.errors import KeyFileError, KeyMismatchError
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark

KEYS = [Key.from_seed(i) for i in range(2)]
RNG = np.random.default_rng(0)
X, Y = tiny_models.random_ids(RNG, *[4] * 10), tiny_models.random_ids(RNG, *range(20, 30))


@pytest.fixture
def saved(model, wm, tmp_path):
    state = joint.State()
    joint.sequence(model, X[:3], Y[:3], wm, KEYS, state=state)
    state.notes["lines"] = 3
    state.save(tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["by terms", "vectors"])
def test_resumed_from_a_file_is_one_go(model, wm, tmp_path, monkeypatch, small):
    monkeypatch.setattr(directions, "SMALL", small)
    monkeypatch.setattr(directions, "BLOCK", 3)
    file, copied = tmp_path / "state", [*Y[:9], Y[1]]  # the last repeats an earlier one
    whole = joint.sequence(model, X, copied, wm, KEYS).drop(columns=["key_id", "text"])
    joint.State().save(file)
    parts = []
    for start, end in ((0, 3), (3, 4), (4, 10)):
        state = joint.State.load(file)
        parts.append(joint.sequence(model, X[start:end], copied[start:end], wm, KEYS, state=state))
        state.save(file)
    again = np.concatenate([part.drop(columns=["key_id", "text"]) for part in parts])
    np.testing.assert_allclose(again.astype(float), whole.to_numpy(float), rtol=1e-4, atol=1e-5)
    assert (state.n_texts, joint.State.load(file).log_e) == (10, state.log_e)
    assert state.n_kept == 10


def test_the_state_is_its_owners_alone(saved):
    assert saved.stat().st_mode & 0o777 == 0o600
    assert os.listdir(saved.parent) == ["state"]
    saved.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        joint.State.load(saved)


def test_no_other_file_is_written_over(saved):
    state, other = joint.State.load(saved), saved.with_name("thesis.txt")
    for content in (b"years of work", b""):
        other.write_bytes(content)
        with pytest.raises(KeyFileError, match="got another file"):
            state.save(other)
        assert other.read_bytes() == content
    state.save(saved)
    assert joint.State.load(saved).n_texts == 3


def test_a_save_that_fails_leaves_the_state_before(saved):
    before, state = saved.read_bytes(), joint.State.load(saved)
    for bad in (object(), float("nan")):
        state.notes["bad"] = bad
        with pytest.raises(KeyFileError, match="notes: expected values that JSON can hold"):
            state.save(saved)
    with pytest.raises(KeyFileError, match="cannot write"):
        joint.State().save(saved.parent / "nowhere" / "state")
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["state"]


@pytest.mark.parametrize("place", [0.002, 0.5])
def test_one_wrong_bit_is_noticed(saved, place):
    content = bytearray(saved.read_bytes())
    content[40 + int(place * (len(content) - 40))] ^= 1
    saved.write_bytes(content)
    with pytest.raises(KeyFileError, match="a damaged file: its checksum"):
        joint.State.load(saved)


def test_a_file_of_another_format_is_refused_by_name(saved):
    saved.write_bytes(b"gaussmark joint state 5 " + b"0" * 64 + b"\n{}\n")
    expected = "expected the format 'gaussmark joint state 4', got 'gaussmark joint state 5'"
    with pytest.raises(KeyFileError, match=expected):
        joint.State.load(saved)


def test_another_weight_model_or_set_of_keys_is_refused(saved, wm):
    def resumed(model=None, wm=wm, keys=KEYS):
        model, state = model or tiny_models.build(), joint.State.load(saved)
        joint.sequence(model, X[3:4], Y[3:4], wm, keys, state=state)

    resumed()
    elsewhere = tiny_models.build()
    elsewhere.get_parameter("model.layers.0.mlp.up_proj.weight").data *= 1.5
    for words, use in (
        ("weight: .*layers.1", {"wm": Watermark("model.layers.1.mlp.down_proj.weight", wm.sigma)}),
        ("sigma", {"wm": Watermark(wm.weight, 0.06)}),
        ("base_sha256", {"model": tiny_models.build(seed=1)}),
        ("model_sha256", {"model": elsewhere}),
        ("keys: the state has", {"keys": KEYS[:1]}),
        ("keys: the state has", {"keys": KEYS[::-1]}),
        ("keys: the state has", {"keys": [KEYS[0], Key.from_seed(9)]}),
    ):
        with pytest.raises(KeyMismatchError, match=words):
            resumed(**use)


def test_a_key_twice_is_refused(model, wm):
    """Its evidence would be counted twice, and two keys of one id share it."""
    with pytest.raises(KeyMismatchError, match="keys of different ids"):
        joint.sequence(model, X[:1], Y[:1], wm, [KEYS[0], KEYS[0]])
