"""What a key's stream of numbers promises: the same bits for ever, whatever is asked of it."""

import hashlib
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import normal
from gaussmark_lib.errors import StatisticsError


def test_golden_hash_of_the_stream():
    """If this fails, every key in the world means another noise. Do not update the hash: find what
    changed.
    """
    z = normal.standard_normal(2**127 + 12345, 100_000)
    assert (
        hashlib.sha256(z.astype("<f8").tobytes()).hexdigest()
        == "3e31a8764ca55aeaf4bbb51d12041fc1f2740cb666df7db12aff10d4370186c6"
    )


def test_first_numbers_do_not_depend_on_how_many_are_asked_for():
    z = normal.standard_normal(7, 3 * normal.SPAN + 5)
    for n in (
        0,
        1,
        3,
        4,
        *(size + i for size in (normal.CHUNK, normal.SPAN) for i in (-1, 0, 1)),
        2 * normal.SPAN,
    ):
        np.testing.assert_array_equal(normal.standard_normal(7, n), z[:n])


@given(chunk=st.integers(1, 200), span=st.integers(1, 300))
def test_the_sizes_of_chunks_and_spans_do_not_matter(chunk, span):
    expected = normal.standard_normal(7, 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal, "CHUNK", chunk)
        patch.setattr(normal, "SPAN", span)
        np.testing.assert_array_equal(normal.standard_normal(7, 500), expected)


def test_scale_and_dtype_round_once():
    z = normal.standard_normal(7, 5000)
    scaled = normal.standard_normal(7, 5000, 0.3, np.float32)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, (z * 0.3).astype(np.float32))


def test_each_compiled_function_knows_one_kind_of_arguments():
    """Two processes that keep two versions of one at the same time could take one for the other."""
    for scale, dtype in ((1.0, np.float64), (0.3, np.float32), (np.float64(2), np.float32)):
        normal.standard_normal(7, 10, scale, dtype, out=np.empty(20, dtype)[::2])
    normal.quantile(np.linspace(0.1, 0.9, 11)[::-2])
    assert (
        max(len(made.signatures) for made in (normal._of_bits, normal._quantiles, normal._logs))
        == 1
    )


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    "out", [np.empty(8), np.empty(10), np.empty((3, 3)), np.empty(9, int), np.broadcast_to(0.0, 9)]
)
def test_memory_that_is_not_for_so_many_numbers_is_refused(out):
    with pytest.raises(StatisticsError, match="room for 9 floating-point numbers"):
        normal.standard_normal(7, 9, out=out)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    "u",
    [
        np.array([0.0], np.float32),
        np.array([np.longdouble(1) - np.longdouble(2) ** -62]),
        np.array([[0.5]]),
        np.array(0.5),
    ],
)
def test_quantiles_of_what_is_no_row_of_probabilities_are_refused(u):
    with pytest.raises(StatisticsError, match="0 < u < 1"):
        normal.quantile(u)


@pytest.mark.parametrize("damage", [b"", b"no pickle"])
def test_a_damaged_file_of_a_compiled_function_stops_nothing(tmp_path, damage):
    (tmp_path / "kept.py").write_text("def doubled(x):\n    return 2 * x\n")
    sys.path.insert(0, str(tmp_path))
    try:
        function = importlib.import_module("kept").doubled
        assert normal._compiled(function)(2.0) == 4.0
        for index in tmp_path.rglob("*.nbi"):
            index.write_bytes(damage)
        assert list(tmp_path.rglob("*.nbi"))
        assert normal._compiled(function)(3.0) == 6.0
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("kept", None)


def test_the_numbers_are_the_same_without_compiling():
    code = (
        "from gaussmark_lib import normal; print(normal.standard_normal(7, 3000,"
        " out=None).tobytes().hex())"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert plain.stdout.strip() == normal.standard_normal(7, 3000).tobytes().hex()


def test_different_seeds_give_different_numbers():
    firsts = {
        normal.standard_normal(seed, 1)[0]
        for seed in (0, 1, 2, 2**64, 2**64 + 1, 2**127, 2**128 - 1)
    }
    assert len(firsts) == 7


@pytest.mark.parametrize("seed", [-1, 2**128])
def test_a_seed_outside_its_range_is_refused(seed):
    with pytest.raises(ValueError, match="seed: expected a whole number from 0") as refused:
        normal.standard_normal(seed, 1)
    assert str(seed) not in str(refused.value), "it may be a secret"


def test_no_number_is_infinite_even_at_the_ends_of_the_grid():
    ends = np.array([2.0**-53, 1 - 2.0**-53])
    z = normal.quantile(ends)
    assert np.isfinite(z).all()
    assert 8.2 < z[1] == -z[0] < 8.3


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_matter(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        z = normal.standard_normal(7, 5 * normal.SPAN + 5)
    finally:
        torch.set_num_threads(before)
    assert (
        hashlib.sha256(z.tobytes()).hexdigest()
        == hashlib.sha256(slow_stream(7, len(z)).tobytes()).hexdigest()
    )


def slow_stream(seed: int, n: int) -> np.ndarray:
    """The whole stream at once, by one counter from its start, in the words of NumPy."""
    u = ((np.random.Philox(key=seed).random_raw(n) >> np.uint64(12)) + 0.5) * 2.0**-52
    return normal.quantile(u)
