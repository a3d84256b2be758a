"""The named errors of the library, and the checks that its entry points share.

All errors are :class:`GaussMarkError`, so one ``except`` catches them all. A message says what was
expected, what came (:func:`shown`), and what to do:

===========================  =======================================================================
``InvalidModelError``        this model cannot be used: load another, or a whole copy of it
``PerturbedModelError``      this model is watermarked: use the base model it was made from
``InvalidWatermarkError``    this weight, σ or rank cannot be used: choose another
``KeyFileError``             this key file cannot be read or written: see its path, owner and rights
``KeyMismatchError``         this key is for something else: use the watermark it was made with
``InvalidTextError``         this text or setting of a text cannot be used: shorten or encode it
``DegenerateScoreError``     this text has no gradient, so no ψ: choose a weight that it depends on
``ParameterError``           a notebook's parameter cannot have this value
``KernelDiedError``          a notebook's process ended before the notebook did
===========================  =======================================================================

Input is checked where it enters: where a model is loaded, a text is written, a weight is perturbed,
a text is scored, or a file is read. Functions inside trust their arguments.

The checks ``require_…`` return the value that they accept, in a plain type, and otherwise raise the
class of error that they are given.

>>> require_int("3", "n_tokens", InvalidTextError)
Traceback (most recent call last):
gaussmark_lib.errors.InvalidTextError: n_tokens: expected a whole number ≥ 1, got '3'
"""

import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf
from numbers import Real
from operator import index
from typing import Any

# Iterables that are not lists of items: their items are characters or bytes, or have no order.
NOT_LISTS = (str, bytes, bytearray, memoryview, Mapping, AbstractSet)

_short = reprlib.Repr()
_short.maxstring = 60
_short.maxother = 60


class GaussMarkError(ValueError):
    """Anything that this library refuses to do. Catch this class to catch every error below.

    >>> issubclass(InvalidTextError, GaussMarkError), issubclass(GaussMarkError, ValueError)
    (True, True)
    """


class InvalidWatermarkError(GaussMarkError):
    """A σ, a rank or a weight that the model cannot carry, or that rounding would remove."""


class InvalidModelError(GaussMarkError):
    """A model that cannot be loaded, or that does not compute what a language model should."""


class PerturbedModelError(GaussMarkError):
    """A watermarked model where the base model is needed."""


class KeyFileError(GaussMarkError):
    """A file of secrets that is missing, truncated, changed, of another kind or open to others."""


class KeyMismatchError(GaussMarkError):
    """A key for another weight, σ, rank or base model, or a value that is not a key."""


class InvalidTextError(GaussMarkError):
    """Texts that are not token ids, are empty or longer than the context, or cannot be had."""


class DegenerateScoreError(GaussMarkError):
    """A zero or non-finite gradient, for which ψ does not exist."""


class ParameterError(GaussMarkError):
    """A notebook's parameter that is unknown, of the wrong type, or out of range."""


class KernelDiedError(GaussMarkError):
    """The process that ran a notebook was killed, or ended before the notebook did."""


class GaussMarkWarning(UserWarning):
    """The call succeeded, but may not have done what was intended."""


def shown(value: Any) -> str:
    """Return a value as an error shows it: on one line, and short.

    >>> shown([1, 2])
    '[1, 2]'
    """
    try:
        return " ".join(_short.repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in itself
        return f"{type(value).__name__} of a length that cannot be shown"


def kind(value: Any) -> str:
    """Return what kind of value this is, without its content, which may be secret.

    >>> kind(b"a secret")
    'a value of type bytes'
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"


def is_number(value: Any) -> bool:
    """Return whether the value is a real number that float64 can hold, or an infinity.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


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
    """Return a whole number from ``least`` to ``most`` as Python's int, or raise the error.

    Accept NumPy's and torch's integers; reject True and 3.0.

    >>> require_int(3, "n_tokens")
    3
    """
    number = None
    if not isinstance(value, bool):
        try:
            number = index(value)
        except TypeError:
            number = None
    if number is None or not least <= number <= most:
        bounds = f" ≥ {least}" if most == inf else f" from {least} to {most}"
        bounds = "" if least == -inf else bounds
        raise error(f"{name}: expected a whole number{bounds}, got {show(value)}")
    return number


def require_between(
    value: Any, name: str, error: Refusal = GaussMarkError, *, low: float = 0, high: float = inf
) -> float:
    """Return a number above ``low`` and below ``high``, or raise the error.

    >>> require_between(0.25, "green_share", high=1)
    0.25
    """
    if not is_number(value) or not low < value < high:
        expected = f"expected a number above {low:g} and below {high:g}"
        raise error(f"{name}: {expected}, got {shown(value)}")
    return float(value)


def require_one_of(value: Any, name: str, options: Collection[str], error: Refusal) -> str:
    """Return the value if it is among the options, or raise the error.

    >>> require_one_of("exact", "test", ("exact", "z"), InvalidWatermarkError)
    'exact'
    """
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
    """Return the items in a new list, or raise the error if there are fewer than ``least``.

    Reject text, bytes, mappings and sets: they are iterable, but not lists of items.

    >>> require_list((1, 2), "expected token ids")
    [1, 2]
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, NOT_LISTS)
    items = list(values) if is_list else []
    if not is_list or len(items) < least:
        raise error(f"{expected}, got {show(values)}")
    return items
