"""Functions by name: what ``register`` adds to, and what ``named`` chooses from.

A name ``"my_module:my name"`` imports the module, which registers its functions, and then stands
for ``"my name"``. So a function outside the library needs no line inside it. Python must find the
module: put its folder on ``PYTHONPATH``.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from gaussmark_lib.errors import Refusal, require_list


class Registry(dict[str, Callable]):
    """Functions by name, in the order of their registration.

    >>> from gaussmark_lib.errors import InvalidTextError
    >>> edits = Registry("edit", InvalidTextError)
    >>> @edits.register("reverse")
    ... def reverse(ids):
    ...     return ids[::-1]
    >>> edits.chosen(["reverse"])["reverse"]([1, 2])
    [2, 1]

    Args:
        what: what errors call such a function.
        error: the class of errors.
    """

    def __init__(self, what: str, error: Refusal):
        super().__init__()
        self.what = what
        self.error = error

    def register(self, name: str) -> Callable[[Callable], Callable]:
        """Return a decorator that adds a function under this name, or raises if it is taken.

        The same function may be registered again, by a module that is loaded again.
        """

        def add(function: Callable) -> Callable:
            if name in self and not _is_same(self[name], function):
                raise self.error(f"{name!r} is the name of another {self.what}; choose a new name")
            self[name] = function
            return function

        return add

    def chosen(self, names: Sequence[str] | None) -> dict[str, Callable]:
        """Return the functions of these names, in the order of the names; None: all functions.

        Raise the registry's error for a name that no function has, and for a module that cannot be
        imported. The keys of the result are names without their modules.
        """
        if names is None:
            return dict(self)
        expected = f"expected some of {', '.join(self)}, or 'my_module:my name'"
        names = require_list(names, f"names: {expected}", self.error)
        names = [self._imported(name) for name in names]
        unknown = [name for name in names if name not in self]
        if unknown:
            raise self.error(f"no {self.what} is called {unknown[0]!r}: {expected}")
        return {name: self[name] for name in names}

    def _imported(self, name: Any) -> Any:
        """Import the module of a name, if it has one, and return the name without it."""
        module = module_of(name)
        if module is None:
            return name
        try:
            import_module(module)
        except Exception as error:  # the module is a program of the user
            why = f"{type(error).__name__}: {error}"
            raise self.error(
                f"{name}: expected a module {module!r} that registers the {self.what}, got {why};"
                " Python finds it if its folder is on PYTHONPATH"
            ) from error
        return name.removeprefix(f"{module}:")


def _is_same(function: Callable, again: Callable) -> bool:
    """Return whether both have the same name in the same module. A ``partial`` has no name."""
    names = [getattr(either, "__qualname__", None) for either in (function, again)]
    has_one_name = names[0] is not None and names[0] == names[1]
    return has_one_name and function.__module__ == again.__module__


def module_of(name: Any) -> str | None:
    """Return the module that a name asks for, or None if it asks for none.

    >>> module_of("my_module:my scheme"), module_of("KGW-2")
    ('my_module', None)
    """
    if not isinstance(name, str):
        return None
    module, colon, _ = name.partition(":")
    is_module = all(part.isidentifier() for part in module.split("."))
    return module if colon and is_module else None
