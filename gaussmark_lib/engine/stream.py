"""Normal numbers from a 128-bit seed, the same on every computer and in every year.

NumPy promises this for the raw bits of its Philox4x64-10 counter, not for its normal numbers. So

    bits  →  u = (k + ½)·2⁻⁵², k the top 52 bits  →  z = Φ⁻¹(u)

with Φ⁻¹ as the rational functions of Wichura's algorithm AS 241 (Applied Statistics 37, 1988;
relative error about 1e-16). They are compiled (numba): NumPy's uniforms with torch's ``ndtri`` take
2.3 times as long. A counter can start anywhere, so several threads make one stream.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numba
import numpy as np
import torch
from jaxtyping import Float

SPAN = 1 << 19  # numbers that a thread makes with one counter
CHUNK = 1 << 14  # numbers at a time: the temporaries stay in the processor's cache


def standard_normal(
    seed: int,
    n: int,
    scale: float = 1.0,
    dtype: type[np.floating] = np.float64,
    out: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """Return the first n numbers of the stream of a seed, 0 ≤ seed < 2¹²⁸, times ``scale``.

    The numbers do not depend on n. If ``out`` is given, they are written to it.

    >>> standard_normal(5, 2).round(4), standard_normal(5, 3).round(4)
    (array([0.6242, 0.2289]), array([ 0.6242,  0.2289, -0.814 ]))

    Returns:
        shape (n,), computed in float64 and rounded once to ``dtype`` (or the dtype of ``out``):
        independent N(0, scale²); |z| ≤ 8.3 before the scale.
    """
    bits = np.random.Philox(key=seed)
    del seed  # so that no traceback shows it
    if out is None:
        out = np.empty(n, dtype)

    def fill(start: int) -> None:
        span = out[start : start + SPAN]
        stream = deepcopy(bits).advance(start // 4)  # its counter gives four numbers at a time
        for part in np.split(span, range(CHUNK, len(span), CHUNK)):
            part[:] = _normals(stream.random_raw(len(part)), scale)

    _each(fill, range(0, n, SPAN))
    return out


def streams(
    keys: Sequence, n: int, scale: float, device: torch.device | str = "cpu"
) -> Float[torch.Tensor, "k n"]:
    """Return ``scale`` times the first n numbers of each key (``key.normals``), float32."""
    if torch.device(device).type == "cuda":
        return torch.stack([key.on_gpu(n, scale, device) for key in keys])
    rows = np.empty((len(keys), n), np.float32)

    def fill(i: int) -> None:
        keys[i].normals(n, scale, out=rows[i])

    # A long row is made by several threads already.
    _each(fill, range(len(keys)), in_threads=n <= SPAN)
    return torch.from_numpy(rows)


def _each(fill: Callable[[int], object], numbers: Sequence[int], in_threads: bool = True) -> None:
    """Call the function with each number, in threads if there are several numbers."""
    threads = min(torch.get_num_threads(), len(numbers))
    if in_threads and threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, numbers))
    else:
        for number in numbers:
            fill(number)


def _table(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the coefficients of numerator and denominator, highest power first."""
    numbers = tuple(map(float, text.split()))
    return numbers[:8], numbers[8:]


# AS 241, with r the distance of u from the nearer end of (0, 1): the centre |u − ½| ≤ 0.425, the
# tail √(−log r) ≤ 5, and the far tail.
_CENTRE = _table("""
    2.5090809287301226727e3 3.3430575583588128105e4 6.7265770927008700853e4
    4.5921953931549871457e4 1.3731693765509461125e4 1.9715909503065514427e3
    1.3314166789178437745e2 3.3871328727963666080e0
    5.2264952788528545610e3 2.8729085735721942674e4 3.9307895800092710610e4
    2.1213794301586595867e4 5.3941960214247511077e3 6.8718700749205790830e2
    4.2313330701600911252e1 1.0
""")
_TAIL = _table("""
    7.74545014278341407640e-4 2.27238449892691845833e-2 2.41780725177450611770e-1
    1.27045825245236838258e0 3.64784832476320460504e0 5.76949722146069140550e0
    4.63033784615654529590e0 1.42343711074968357734e0
    1.05075007164441684324e-9 5.47593808499534494600e-4 1.51986665636164571966e-2
    1.48103976427480074590e-1 6.89767334985100004550e-1 1.67638483018380384940e0
    2.05319162663775882187e0 1.0
""")
_FAR_TAIL = _table("""
    2.01033439929228813265e-7 2.71155556874348757815e-5 1.24266094738807843860e-3
    2.65321895265761230930e-2 2.96560571828504891230e-1 1.78482653991729133580e0
    5.46378491116411436990e0 6.65790464350110377720e0
    2.04426310338993978564e-15 1.42151175831644588870e-7 1.84631831751005468180e-5
    7.86869131145613259100e-4 1.48753612908506148525e-2 1.36929880922735805310e-1
    5.99832206555887937690e-1 1.0
""")


def _compiled(function):
    """Let numba compile a function when it is first called, and keep it for the next process."""
    function = inspect.unwrap(function)  # without the checks of shapes that the tests add
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # there is no folder to keep it in
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def _polynomial(coefficients, x):
    value = coefficients[0] * x
    for c in coefficients[1:-1]:
        value += c
        value *= x
    return value + coefficients[-1]


def _normals(raw: np.ndarray, scale: float) -> np.ndarray:
    """Return Φ⁻¹ of these bits, times ``scale``.

    All numbers get the centre's formula, and then those in the tails the formula of the tails.
    """
    z, tails, ends = _centre(raw, scale)
    r = np.sqrt(-np.log(np.abs(ends)))
    z[tails] = _tail(r, ends, scale)
    return z


@_compiled
def _centre(raw, scale):
    """Return z by the centre's formula, where the tails are, and u there, or u − 1 if nearer."""
    z = np.empty(len(raw))
    tails = np.empty(len(raw), np.int32)
    ends = np.empty(len(raw))
    n = 0
    # Two loops, so that the first one has no branch and can be vectorised.
    for i in range(len(raw)):
        q = (np.float64(np.int64(raw[i] >> np.uint64(12))) + 0.5) * 2.0**-52 - 0.5
        x = 0.180625 - q * q
        z[i] = _polynomial(_CENTRE[0], x) / _polynomial(_CENTRE[1], x) * q * scale
    for i in range(len(raw)):
        u = (np.float64(np.int64(raw[i] >> np.uint64(12))) + 0.5) * 2.0**-52
        tails[n] = i  # overwritten by the next number, unless this one is counted
        ends[n] = u if u < 0.5 else u - 1.0
        n += abs(u - 0.5) > 0.425
    return z, tails[:n], ends[:n]


@_compiled
def _tail(r, ends, scale):
    """Return z by the tails' formulas from r = √(−log |end|). Its sign is opposite to its end's."""
    z = np.empty(len(r))
    for i in range(len(r)):
        size = _polynomial(_TAIL[0], r[i] - 1.6) / _polynomial(_TAIL[1], r[i] - 1.6)
        z[i] = math.copysign(size * scale, -ends[i])
    for i in range(len(r)):
        if r[i] > 5.0:  # about one number in 10¹¹
            size = _polynomial(_FAR_TAIL[0], r[i] - 5.0) / _polynomial(_FAR_TAIL[1], r[i] - 5.0)
            z[i] = math.copysign(size * scale, -ends[i])
    return z
