"""Standard normal numbers from a 128-bit seed, bit for bit the same on every machine.

A key must mean the same noise on every computer and in every year. NumPy promises that for the raw
bits of its Philox4x64-10 counter, not for its normal numbers, and ``log`` and ``cos`` differ in the
last bit between processors. So the stream is

    bits  →  u = (k + ½)·2⁻⁵², k the top 52 bits  →  z = Φ⁻¹(u)

with Φ⁻¹ as the rational functions of Wichura's algorithm AS 241 (Applied Statistics 37, 1988;
relative error about 1e-16), computed by additions, multiplications, divisions and square roots
alone, which IEEE 754 rounds in one way only. The logarithm that the tails need is built from the
same four operations.

They are compiled (numba), a chunk at a time; without ``fastmath``, none of them is fused or
reordered. A counter can start anywhere, so several threads make one stream, each a span at a time.
(NumPy's uniforms with torch's ``ndtri`` take 2.3 times as long on two threads.)
"""

import inspect
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator, suppress
from copy import deepcopy

import numba
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from gaussmark_lib import checks
from gaussmark_lib.errors import StatisticsError

CHUNK = 1 << 14  # numbers at a time: the temporaries stay in the processor's cache
SPAN = (
    1 << 19
    # numbers that a thread makes with one counter, which takes as long to set up as some thousand
    # numbers
)
MOST = 1 << 40  # numbers, beyond any memory

# AS 241, highest power first: |u − ½| ≤ 0.425, then √(−log r) ≤ 5, then beyond; r is the distance
# of u to the nearer end.
_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)
_ARTANH = tuple(1.0 / k for k in range(23, 0, -2))  # of artanh t = t·Σ (t²)ʲ/(2j + 1)
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476


def standard_normal(
    seed: int,
    n: int,
    scale: float = 1.0,
    dtype: type[np.floating] = np.float64,
    out: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """The first n ≥ 0 numbers of the stream of a seed, 0 ≤ seed < 2¹²⁸, times ``scale``; they do
    not depend on n. Into ``out``, where it is given.

    Returns:
        shape (n,), computed in float64 and rounded once to ``dtype`` (or ``out``'s): independent
        N(0, scale²); |z| ≤ 8.3 before the scale.
    """
    if not checks.is_whole(seed) or not 0 <= seed < 1 << 128:
        raise StatisticsError(
            "seed: expected a whole number from 0 to 2¹²⁸ − 1, got another"
        )  # which may be a secret
    bits = np.random.Philox(key=seed)
    del seed  # which no traceback of what follows shows
    if checks.whole(n, "n", StatisticsError, least=0) > MOST:
        raise StatisticsError(f"n: expected at most {MOST:,} numbers, got {checks.shown(n)}")
    scale, out, starts = (
        checks.positive(scale, "scale"),
        np.empty(n, dtype) if out is None else out,
        range(0, n, SPAN),
    )
    if out.shape != (n,) or out.dtype.kind != "f" or not out.flags.writeable:
        raise StatisticsError(
            f"out: expected room for {n:,} floating-point numbers that can be written to, got"
            f" {out.dtype} of shape {out.shape}"
        )

    def fill(start: int) -> None:
        span, stream = (
            out[start : start + SPAN],
            deepcopy(bits).advance(start // 4),
        )  # its counter gives four numbers at a time
        stream.random_raw(start % 4)
        for part in np.split(span, range(CHUNK, len(span), CHUNK)):
            part[:] = _of_bits(stream.random_raw(len(part)), scale)

    if (at_once := min(torch.get_num_threads(), len(starts))) > 1:
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(fill, starts))
    else:  # starting a thread takes longer than a few numbers
        list(map(fill, starts))
    return out


def quantile(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Φ⁻¹(u) for 0 < u < 1, float64, shape (n,): the same bits on every machine.

    >>> quantile(np.array([0.5, 0.975]))
    array([0.        , 1.95996398])
    """
    u = np.array(u, float)
    if (
        u.ndim != 1 or not (right := (u >= 2.0**-1022) & (u < 1)).all()
    ):  # below, numbers have fewer digits
        raise StatisticsError(
            "u: expected 0 < u < 1, and 2⁻¹⁰²² at least, got"
            f" {checks.shown(u[~right][:3].tolist() if u.ndim == 1 else u.shape)}"
        )
    return _quantiles(u, 1.0)


def _compiled(function: Callable, is_kept: bool = True) -> Callable:
    """By numba when it is first called, and kept beside this file (or in the user's cache) for the
    next process; other threads run meanwhile.

    All calls have arguments of the same types: two processes that keep two versions of a function
    at the same time can mix them up.
    """
    made = numba.njit(
        inspect.unwrap(function), nogil=True, error_model="numpy"
    )  # without what checks shapes in the tests
    if is_kept:
        with suppress(
            RuntimeError, AttributeError
        ):  # of a machine that has no folder to keep it in, and with NUMBA_DISABLE_JIT
            made.enable_caching()
            for name in ("load_overload", "save_overload"):
                setattr(made._cache, name, _OrNone(Exception)(getattr(made._cache, name)))
    return made


class _OrNone(suppress, ContextDecorator):
    """What it decorates gives None where it fails, as where a kept file is damaged or another
    user's: then the function is compiled again.
    """


def _horner(coefficients, x):
    """The polynomial in x."""
    value = coefficients[0] * x
    for c in coefficients[1:-1]:
        value += c
        value *= x
    value += coefficients[-1]
    return value


_polynomial = _compiled(_horner, is_kept=False)  # but as a part of those below


@_compiled
def _of_bits(raw, scale):
    """The numbers of these bits, times ``scale``."""
    u = np.empty(len(raw))
    for i in range(len(raw)):
        u[i] = (np.float64(np.int64(raw[i] >> np.uint64(12))) + 0.5) * 2.0**-52
    return _quantiles(u, scale)


@_compiled
def _quantiles(u, scale):
    """Φ⁻¹(u)·scale: the centre's polynomials for all, then the tails where they are due, so that
    the processor does several at once.
    """
    z, where, n = np.empty(len(u)), np.empty(len(u), np.int32), 0
    for i in range(len(u)):
        q = u[i] - 0.5
        x = 0.180625 - q * q
        z[i] = _polynomial(_CENTRE[0], x) / _polynomial(_CENTRE[1], x) * q * scale
    for i in range(len(u)):
        where[n] = i
        n += abs(u[i] - 0.5) > 0.425
    nearer = np.empty(n)
    for i in range(n):
        nearer[i] = min(u[where[i]], 1.0 - u[where[i]])
    r, size = _logs(nearer), np.empty(n)
    for i in range(n):
        r[i] = math.sqrt(-r[i])
        size[i] = _polynomial(_TAIL[0], r[i] - 1.6) / _polynomial(_TAIL[1], r[i] - 1.6)
    for i in range(n):
        if r[i] > 5.0:  # about one number in 10¹¹
            size[i] = _polynomial(_FAR_TAIL[0], r[i] - 5.0) / _polynomial(_FAR_TAIL[1], r[i] - 5.0)
        z[where[i]] = math.copysign(size[i], u[where[i]] - 0.5) * scale
    return z


@_compiled
def _logs(x):
    """log x of positive numbers, from x = m·2ᵉ with √½ ≤ m < √2."""
    e, half = np.empty(len(x)), np.empty(len(x))  # ½ ≤ half = x·2⁻ᵉ < 1
    for i, bits in enumerate(x.view(np.int64)):
        e[i] = (bits >> 52) - 1022
        half.view(np.int64)[i] = bits & 0xFFFFFFFFFFFFF | 0x3FE0000000000000
    for i in range(len(x)):
        low = half[i] < _SQRT_HALF
        m = 2 * half[i] if low else half[i]
        t = (m - 1) / (m + 1)
        e[i] = (e[i] - low) * _LN2 + 2 * t * _polynomial(_ARTANH, t * t)
    return e
