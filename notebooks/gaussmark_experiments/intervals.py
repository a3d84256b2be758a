"""Read an estimate from a row of a table, shift or divide it, and hide an interval of a few values.

A quick run has two or three releases or attackers, and the interval of so few values is wider than
any axis. So it is not shown; the value and n are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gaussmark_lib.stats import Estimate

ENDS = ("value", "low", "high")
FEWEST = 4  # values, or clusters of values, whose interval is shown


def of_row(row: Mapping[str, Any] | pd.Series) -> Estimate:
    """Return the estimate in the columns ``value, low, high, n`` of a row. None stands for an end
    that does not exist.

    >>> print(of_row({"value": 0.5, "low": None, "high": None, "n": 1}))
    0.5 (no interval), n = 1
    """
    value, low, high = (np.nan if row[name] is None else row[name] for name in ENDS)
    return Estimate(float(value), float(low), float(high), int(row["n"]))


def less(estimate: Estimate, number: float) -> Estimate:
    """Subtract a known number from an estimate and from the ends of its interval.

    >>> print(less(Estimate(0.75, 0.5, 1.0, 8), 0.25))
    0.5 (0.25 to 0.75), n = 8
    """
    ends = {name: getattr(estimate, name) - number for name in ENDS}
    return replace(estimate, **ends)


def divided(estimate: Estimate, number: float) -> Estimate:
    """Divide an estimate and the ends of its interval by a known positive number.

    >>> print(divided(Estimate(0.75, 0.5, 1.0, 8), 0.5))
    1.5 (1 to 2), n = 8
    """
    ends = {name: getattr(estimate, name) / number for name in ENDS}
    return replace(estimate, **ends)


def of_enough(estimate: Estimate) -> Estimate:
    """Return an estimate, without its interval if it rests on fewer than ``FEWEST`` values.

    >>> print(of_enough(Estimate(0.5, -3.1, 4.1, 3)))
    0.5 (no interval), n = 3
    """
    if estimate.n >= FEWEST:
        return estimate
    return replace(estimate, low=np.nan, high=np.nan)


def rows_of_enough(points: pd.DataFrame) -> pd.DataFrame:
    """Return points (``value, low, high, n``), without the intervals of those that rest on fewer
    than ``FEWEST`` values.
    """
    is_few = points["n"] < FEWEST
    return points.assign(
        low=points["low"].mask(is_few),
        high=points["high"].mask(is_few),
    )


def note(n: int, what: str) -> str:
    """Say in a caption what the intervals are over, or that there are none.

    >>> note(3, "releases"), note(8, "releases")
    ('no intervals over 3 releases', '95% intervals over releases')
    """
    return f"no intervals over {n} {what}" if n < FEWEST else f"95% intervals over {what}"
