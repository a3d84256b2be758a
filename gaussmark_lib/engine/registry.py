"""Functions by name: what ``register`` adds to, and what ``named`` chooses from."""

from collections.abc import Callable, Sequence

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
        """Return a decorator that adds a function under this name, or raises if it is taken."""

        def add(function: Callable) -> Callable:
            if name in self:
                raise self.error(f"{name!r} is the name of another {self.what}; choose a new name")
            self[name] = function
            return function

        return add

    def chosen(self, names: Sequence[str] | None) -> dict[str, Callable]:
        """Return the functions of these names, in the order of the names; None: all functions."""
        if names is None:
            return dict(self)
        expected = f"expected some of {', '.join(self)}"
        names = require_list(names, f"names: {expected}", self.error)
        unknown = [name for name in names if name not in self]
        if unknown:
            raise self.error(f"no {self.what} is called {unknown[0]!r}: {expected}")
        return {name: self[name] for name in names}
