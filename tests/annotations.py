"""Check every call in ``gaussmark_lib`` against its signature, array shapes included, in the whole
test run. Functions within functions are not checked, because they are made again at each call.

pytest's addopts name :func:`checked` as what jaxtyping's import hook puts on each function and
dataclass. As in Python's own numeric tower, an int is a float, and a NumPy scalar counts as an int,
a float, or an array without dimensions. ``Self`` is not checked, because a method alone does not
know its class.

jaxtyping's own wrapper checks the arguments twice, before the call and together with the result,
and binds them by name first: a third of the suite's time. :func:`once` checks them only once, by
beartype's check around the call, with jaxtyping's memory of the size of each letter of a shape.
"""

import functools
import inspect
from types import FunctionType
from typing import Any, Self, get_type_hints

import jaxtyping
import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping._storage import pop_shape_memo, push_shape_memo

OVERRIDES = {Self: Any, int: int | np.integer, np.ndarray: np.ndarray | np.generic}

checked = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,
        hint_overrides=FrozenDict(OVERRIDES),
        violation_type=jaxtyping.TypeCheckError,
    )
)
_of_jaxtyping = jaxtyping.jaxtyped


def once(fn=None, *, typechecker):
    """Take the place of ``jaxtyping.jaxtyped`` for plain functions."""
    if fn is None:
        return functools.partial(once, typechecker=typechecker)
    if not inspect.isfunction(fn) or inspect.isgeneratorfunction(fn):
        return _of_jaxtyping(fn, typechecker=typechecker)
    if "<locals>" in fn.__qualname__:  # compiling its check at each call took a tenth of all time
        return fn
    # made at the first call, because a worker calls few of the functions that it imports
    with_check = None

    @functools.wraps(fn)
    def call(*args, **kwargs):
        nonlocal with_check
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        with_check = with_check or typechecker(_resolved(fn))
        push_shape_memo({})
        try:
            return with_check(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call


def _resolved(fn: FunctionType) -> FunctionType:
    """A copy, with Any for a hint that has a string in it which names what is not there yet, or is
    imported for type checkers only.
    """
    copied = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(copied, fn)
    copied.__kwdefaults__ = fn.__kwdefaults__
    copied.__annotations__ = {
        name: _known(hint, fn.__globals__) for name, hint in fn.__annotations__.items()
    }
    del copied.__wrapped__
    return copied


def _known(hint: Any, names: dict[str, Any]) -> Any:
    def one(value: hint): ...

    try:
        return get_type_hints(one, names, include_extras=True)["value"]
    except (NameError, TypeError):
        return Any


jaxtyping.jaxtyped = once
