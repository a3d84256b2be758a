"""Checks every call in ``gaussmark_lib`` against its signature, array shapes included, for the whole test run.

pytest's addopts name :func:`checked` as what jaxtyping's import hook puts on each function and dataclass. As in Python's own numeric tower,
an int is a float, and a NumPy scalar is what it looks like: an int, a float, an array without dimensions. ``Self`` is not looked at, since a
method alone does not know its class.
"""

from typing import Any, Self

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype

OVERRIDES = {Self: Any, int: int | np.integer, np.ndarray: np.ndarray | np.generic}

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict(OVERRIDES)))
