"""Functions by name: what ``register`` adds to, and what ``named`` chooses from."""

from collections.abc import Callable, Sequence

from gaussmark_lib.errors import Refusal, require_list


class Registry(dict[str, Callable]):
    """Functions by name, in the order of their registration.

    Args:
        what: one of them is called in errors.
    """

    def __init__(self, what: str, error: Refusal):
        super().__init__()
        self.what, self.error = what, error

    def register(self, name: str) -> Callable[[Callable], Callable]:
        """A decorator that adds a function under a name of its own."""

        def add(function: Callable) -> Callable:
            if name in self:
                raise self.error(f"{name!r} is the name of another {self.what}; choose a new name")
            self[name] = function
            return function

        return add

    def chosen(self, names: Sequence[str] | None) -> dict[str, Callable]:
        """Those of these names, in their order; None: all."""
        if names is None:
            return dict(self)
        known = f"expected some of {', '.join(self)}"
        names = require_list(names, f"names: {known}", self.error)
        if unknown := [name for name in names if name not in self]:
            raise self.error(f"no {self.what} is called {unknown[0]!r}: {known}")
        return {name: self[name] for name in names}
