"""The noise stream against its definition: Philox by hand, Φ⁻¹ of SciPy, logarithms of the standard
library, moments and distribution.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from gaussmark_lib import normal

ULP = 2.0**-52


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
    assert [f"{word:016x}" for word in philox_by_hand(0, 0)] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


@pytest.mark.parametrize("seed", [0, 1, 2**64, 2**128 - 1, 0x0123456789ABCDEF0123456789ABCDEF])
def test_the_stream_is_the_quantile_of_philox(seed):
    bits = [
        word for block in range(1, 6) for word in philox_by_hand(seed, block)
    ]  # NumPy counts from 1
    u = np.array([((word >> 12) + 0.5) * ULP for word in bits])
    np.testing.assert_allclose(normal.standard_normal(seed, len(u)), ndtri(u), rtol=1e-14)


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
def test_quantile_agrees_with_scipy(u):
    np.testing.assert_allclose(normal.quantile(u), ndtri(u), rtol=2e-14)
    np.testing.assert_allclose(normal.quantile(1 - u), ndtri(1 - u), rtol=2e-14)


@given(st.integers(0, 2**52 - 1))
def test_quantile_is_odd_around_one_half(k):
    """u and 1 − u are both on the grid, so the two tails must be each other's mirror image to the
    last bit.
    """
    u = np.array([(k + 0.5) * ULP])
    assert normal.quantile(u)[0] == -normal.quantile(1 - u)[0]


@given(st.lists(st.integers(0, 2**52 - 1), min_size=2, max_size=2, unique=True))
def test_quantile_never_decreases(pair):
    low, high = (np.array([(k + 0.5) * ULP]) for k in sorted(pair))
    assert normal.quantile(low)[0] <= normal.quantile(high)[0] + 1e-14


@given(st.floats(2.0**-60, 1.0, exclude_max=True))
def test_log_agrees_with_the_standard_library(x):
    """To a few units in the last place; near x = 1, where the logarithm itself goes to 0, to as
    many of the number.
    """
    assert normal._logs(np.array([x]))[0] == pytest.approx(
        math.log(x), rel=4 * ULP, abs=4 * ULP * (1 - x)
    )


def test_moments_and_distribution():
    n = 200_000
    z = normal.standard_normal(12345, n)
    assert abs(z.mean()) < 3.3 / math.sqrt(n)  # 99.9%
    assert abs(z.var() - 1) < 3.3 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 3.3 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 3.3 * math.sqrt(96 / n)
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_neighbours_are_uncorrelated_and_seeds_too():
    n = 100_000
    a, b = normal.standard_normal(1, n), normal.standard_normal(2, n)
    for x, y in ((a[1:], a[:-1]), (a[4:], a[:-4]), (a, b)):
        assert abs(np.corrcoef(x, y)[0, 1]) < 3.5 / math.sqrt(n)
