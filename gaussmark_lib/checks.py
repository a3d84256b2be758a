"""Checks that many functions share: each refuses a value by the error it is given, and says what
was expected and what came.
"""

from collections.abc import Collection
from numbers import Real
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gaussmark_lib.errors import GaussMarkError, InvalidTextError, StatisticsError, shown

Refusal = type[GaussMarkError]


def whole(value: Any, what: str, error: Refusal = InvalidTextError, *, least: int = 1) -> int:
    """A whole number, Python's or NumPy's, that is at least ``least``."""
    if not is_whole(value) or value < least:
        raise error(f"{what}: expected a whole number ≥ {least}, got {shown(value)}")
    return index(value)


def positive(
    value: Any, what: str, error: Refusal = StatisticsError, *, or_zero: bool = False
) -> float:
    """A finite number above 0; with ``or_zero`` at least 0."""
    if not is_number(value) or not 0 <= value < np.inf or (value == 0 and not or_zero):
        raise error(
            f"{what}: expected a finite number {'≥' if or_zero else '>'} 0, got {shown(value)}"
        )
    return float(value)


def share(value: Any, what: str, error: Refusal = StatisticsError) -> float:
    """A number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise error(f"{what}: expected 0 < {what} < 1, got {shown(value)}")
    return float(value)


def chosen(value: Any, what: str, options: Collection[str], error: Refusal) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in options:
        raise error(f"{what}: expected {' or '.join(map(repr, options))}, got {shown(value)}")
    return value


def numbers(
    values: ArrayLike,
    what: str,
    *,
    finite: bool = False,
    empty: bool = False,
    least: float = -np.inf,
) -> np.ndarray:
    """Numbers as float64, in their shape: no text that looks like numbers, no NaN; with ``finite``
    no infinity; with ``empty`` perhaps none.
    """
    try:
        found = np.asarray(values)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # rows of several lengths, a tensor that requires a gradient
        found = np.array(None)
    if found.dtype.kind not in "biuf" and not (
        found.dtype == object and all(map(is_number, found.flat))
    ):
        raise StatisticsError(f"{what}: expected numbers, got {shown(values)}")
    found = found.astype(float)
    if not found.size and not empty:
        raise StatisticsError(f"{what}: expected at least one number, got none")
    if n := int((~np.isfinite(found) if finite else np.isnan(found)).sum()):
        kind = "NaN or infinite" if finite else "NaN"
        raise StatisticsError(
            f"{what}: expected numbers, got {n} of {found.size} that are {kind}; leave them out,"
            " and say so"
        )
    if found.size and found.min() < least:
        raise StatisticsError(f"{what}: expected numbers ≥ {least:g}, got {found.min():g}")
    return found


def counts(hits: ArrayLike, n: ArrayLike) -> None:
    """StatisticsError unless 0 ≤ hits ≤ n everywhere."""
    hits, n = numbers(hits, "hits"), numbers(n, "n")
    if (hits < 0).any() or (hits > n).any():
        raise StatisticsError(
            f"expected 0 ≤ hits ≤ n, got {shown(hits.tolist())} hits of {shown(n.tolist())}"
        )


def is_whole(value: Any) -> bool:
    """Whether it counts something: Python's, NumPy's and torch's integers do, True and 3.0
    do not.
    """
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number that float64 can hold, or an infinity."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and float(value) is not None
    except OverflowError:
        return False


def kind(value: Any) -> str:
    """What a value is that may be a secret, without a look into it."""
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"a value of type {type(value).__name__}"
    )
