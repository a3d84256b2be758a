"""The stream of a key against its definition: Philox by hand, Φ⁻¹ of SciPy, moments."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from secrecy import assert_not_shown

from gaussmark_lib.engine import philox
from gaussmark_lib.engine.stream import CHUNK, SPAN, _normals, standard_normal
from gaussmark_lib.keys import Key

ULP = 2.0**-52


def test_golden_hash_of_the_stream():
    """If this fails, every key in the world means another noise. Do not update the hash: find what
    changed.
    """
    z = standard_normal(2**127 + 12345, 100_000, dtype=np.float32)
    digest = hashlib.sha256(z.astype("<f4").tobytes()).hexdigest()
    assert digest == "893a3f39512dc9257482528f3e7965878e93189b4028367dc73f30ee2091ffa5"


def philox_by_hand(key: int, block: int) -> list[int]:
    """Philox4x64-10 (Salmon et al., 2011) of one counter, from the definition, in Python's
    integers.
    """
    mask = 2**64 - 1
    k0, k1 = key & mask, key >> 64
    c0, c1, c2, c3 = block, 0, 0, 0
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


def test_philox_by_hand_gives_the_published_answer():
    words = " ".join(f"{word:016x}" for word in philox_by_hand(0, 0))
    assert words == "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"


@pytest.mark.parametrize("seed", [0, 1, 2**64, 2**128 - 1, 0x0123456789ABCDEF0123456789ABCDEF])
def test_the_stream_is_the_quantile_of_philox(seed):
    # NumPy counts from 1
    bits = [word for block in range(1, 6) for word in philox_by_hand(seed, block)]
    u = np.array([((word >> 12) + 0.5) * ULP for word in bits])
    np.testing.assert_allclose(standard_normal(seed, len(u)), ndtri(u), rtol=1e-14)


@pytest.mark.parametrize(
    "u",
    [
        np.linspace(0.0751, 0.9249, 10_001),  # the centre's polynomial
        np.geomspace(1.4e-11, 0.075, 10_001),  # the tail's
        np.geomspace(2.0**-53, 1.3e-11, 10_001),  # the far tail's
        np.array([2.0**-53, 0.075, 0.425, 0.5 - 2**-53, 0.5 + 2**-52, 0.925]),
    ],
    ids=["centre", "tail", "far tail", "edges"],
)
def test_quantile_agrees_with_scipy_and_is_odd_around_one_half(u):
    k = np.minimum(np.floor(u / ULP), 2.0**52 - 1).astype(np.uint64)
    z = _normals(k << np.uint64(12), 1.0)
    np.testing.assert_allclose(z, ndtri((k + 0.5) * ULP), rtol=2e-14)
    assert (z == -_normals((np.uint64(2**52 - 1) - k) << np.uint64(12), 1.0)).all()
    assert np.isfinite(z).all()
    assert np.abs(z).max() < 8.3


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_neither_threads_nor_length_matter(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        z = standard_normal(7, 5 * SPAN + 5)
    finally:
        torch.set_num_threads(before)
    assert (z == _normals(np.random.Philox(key=7).random_raw(len(z)), 1.0)).all()
    for n in (0, 1, 3, CHUNK + 1, SPAN + 3):
        assert (standard_normal(7, n) == z[:n]).all()


def test_scale_and_dtype_round_once():
    z = standard_normal(7, 1000)
    into = np.empty(1000, np.float32)
    assert standard_normal(7, 1000, 0.05, out=into) is into
    assert (into == (z * 0.05).astype(np.float32)).all()


@pytest.mark.parametrize("seed", [0, 2**63, 2**128 - 1, 0x0123456789ABCDEF0123456789ABCDEF])
def test_what_a_gpu_makes_is_the_same_stream(monkeypatch, seed):
    monkeypatch.setattr(philox, "SPAN", 100_000)  # several spans, and a rest
    for n in (1, 4000, 900_003):
        z = philox.standard_normal(seed, n, 0.05, torch.device("cpu")).numpy()
        same = standard_normal(seed, n, 0.05, np.float32)
        np.testing.assert_allclose(z, same, rtol=1.2e-7)  # one unit in the last place
        assert (z != same).sum() <= 1


@pytest.mark.parametrize("step", ["empty", "zeros_like"])
def test_a_gpu_without_room_shows_no_secret(monkeypatch, step):
    def full(*_, **__):
        raise torch.OutOfMemoryError("no room")

    key = Key.from_seed(7)
    monkeypatch.setattr(torch, step, full)
    with pytest.raises(torch.OutOfMemoryError) as error:
        key.on_gpu(10, 1.0, torch.device("cpu"))
    assert_not_shown(error.value, key)


@pytest.mark.parametrize("n", [1, 4, 10])
def test_the_bits_of_several_streams_are_numpys(n):
    seeds = [0, 1, (1 << 127) + 12_345]
    bits = philox.bits(seeds, n, torch.device("cpu"))
    for row, seed in zip(bits, seeds, strict=True):
        expected = np.random.Philox(key=seed).random_raw(n)
        assert row.numpy().view(np.uint64).tolist() == expected.tolist()
