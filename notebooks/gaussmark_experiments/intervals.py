"""Intervals of a few values. A quick run has two or three releases or attackers, and the interval
of so few values is wider than any axis. So it is not shown; the value and n are.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from gaussmark_lib.stats import Estimate

FEWEST = 4  # values, or clusters of values, whose interval is shown


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
