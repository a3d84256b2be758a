"""Checks every call in ``gaussmark_lib`` against its signature, array shapes included, for the whole test run.

pytest's addopts name :func:`checked` as what jaxtyping's import hook puts on each function and dataclass. As in Python's own numeric tower,
an int is a float; ``Self`` is not looked at, since a method alone does not know its class.
"""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any})))
