"""What a key is, and that nothing but its own file ever shows its secret."""

import hashlib
import pickle
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import perturb
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
