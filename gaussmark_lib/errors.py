"""The named errors of the library, and the checks that its doors share.

An error says what was expected, what came (:func:`shown`), and what to do. Doors check: what loads
a model, writes, perturbs, scores, and reads files. Functions inside trust their arguments.
"""

import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf
from numbers import Real
from operator import index
from typing import Any

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


class GaussMarkError(ValueError):
    """Anything that this library refuses to do; catch it to catch them all."""


class InvalidWatermarkError(GaussMarkError):
    """A σ, a rank or a weight that the model cannot carry, or that rounding would remove."""


class InvalidModelError(GaussMarkError):
    """A model that cannot be loaded, or that does not compute what a language model should."""


class PerturbedModelError(GaussMarkError):
    """A watermarked model where the base model is needed."""


class KeyFileError(GaussMarkError):
    """A file of secrets that is missing, truncated, changed, open to others, or something else."""


class KeyMismatchError(GaussMarkError):
    """A key for another weight, σ, rank or base model, or something that is no key."""


class InvalidTextError(GaussMarkError):
    """Texts that are no token ids, empty, longer than the context, or not to be had."""


class DegenerateScoreError(GaussMarkError):
    """A zero or non-finite gradient, for which ψ does not exist."""


class ParameterError(GaussMarkError):
    """A notebook's parameter that is unknown, of the wrong type, or out of range."""


class KernelDiedError(GaussMarkError):
    """The process that ran a notebook was killed, or ended before the notebook did."""


class GaussMarkWarning(UserWarning):
    """The call succeeded, but may not have done what was intended."""


def shown(value: Any) -> str:
    """A value in an error: on one line, and short."""
    try:
        return " ".join(_short.repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in itself
        return f"{type(value).__name__} of a length that cannot be shown"


def kind(value: Any) -> str:
    """What a value is that may be a secret, without a look into it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"


def is_number(value: Any) -> bool:
    """Whether it is a real number that float64 can hold, or an infinity."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and float(value) is not None
    except OverflowError:
        return False


Refusal = type[GaussMarkError]


def require_int(
    value: Any,
    name: str,
    error: Refusal = InvalidTextError,
    *,
    least: float = 1,
    most: float = inf,
    show: Callable[[Any], str] = shown,
) -> int:
    """A whole number from ``least`` to ``most``, as Python's int; NumPy's and torch's integers
    are such numbers, True and 3.0 are none.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        bounds = f"≥ {least}" if most == inf else f"from {least} to {most}"
        raise error(f"{name}: expected a whole number {bounds}, got {show(value)}")
    return number


def require_between(
    value: Any, name: str, error: Refusal = GaussMarkError, *, low: float = 0, high: float = inf
) -> float:
    """A number above ``low`` and below ``high``."""
    if not is_number(value) or not low < value < high:
        expected = f"expected a number above {low:g} and below {high:g}"
        raise error(f"{name}: {expected}, got {shown(value)}")
    return float(value)


def require_one_of(value: Any, name: str, options: Collection[str], error: Refusal) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in options:
        raise error(f"{name}: expected {' or '.join(map(repr, options))}, got {shown(value)}")
    return value


def require_list(
    values: Any,
    expected: str,
    error: Refusal = InvalidTextError,
    *,
    least: int = 0,
    show: Callable[[Any], str] = shown,
) -> list:
    """A new list of the items, at least so many; no text, bytes, mapping or set is one."""
    unlike = str, bytes, bytearray, memoryview, Mapping, AbstractSet  # have other items, no order
    is_list = isinstance(values, Iterable) and not isinstance(values, unlike)
    items = list(values) if is_list else []
    if not is_list or len(items) < least:
        raise error(f"{expected}, got {show(values)}")
    return items
