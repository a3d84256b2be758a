"""Two models on the same yes-or-no items: is one of them right more often, and could we have seen
it?

    lost    items that the base model gets right and the other wrong
    gained  the other way round

If the models are equally good, a changed answer is lost or gained with probability ½, so ``lost``
is Binomial(lost + gained, ½): McNemar's exact test.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, norm

from gaussmark_lib.stats import Estimate


class Paired(NamedTuple):
    """The change of accuracy with its interval and p-value, and on how many items both agree."""

    change: Estimate
    p_value: float
    n_equal: int


def changes(base: ArrayLike, other: ArrayLike) -> tuple[int, int]:
    """(lost, gained) of two models' answers to the same items, 1 where an item is right.

    >>> changes([1, 1, 1, 0], [1, 0, 0, 0])
    (2, 0)
    """
    base, other = np.asarray(base), np.asarray(other)
    return int((base > other).sum()), int((base < other).sum())


def paired(base: ArrayLike, other: ArrayLike, confidence: float = 0.95) -> Paired:
    """The change of accuracy from base to other over the same items, with McNemar's p-value and
    Bonett and Price's interval (2012), which keeps its coverage where changes are few.

    >>> paired([1, 1, 1, 0], [1, 0, 0, 0]).change.value
    -0.5
    """
    (lost, gained), n = changes(base, other), np.size(base)
    p_lost, p_gained = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    middle = p_gained - p_lost
    half = norm.isf((1 - confidence) / 2) * np.sqrt((p_lost + p_gained - middle**2) / (n + 2))
    low, high = float(max(-1.0, middle - half)), float(min(1.0, middle + half))
    change = Estimate((gained - lost) / n, low, high, n)
    return Paired(change, float(mcnemar(lost, gained)), n - lost - gained)


def mcnemar(lost: ArrayLike, gained: ArrayLike) -> ArrayLike:
    """Two-sided exact p-value: twice the smaller tail of Binomial(lost + gained, ½), at most 1.

    >>> mcnemar(5, 0).item(), mcnemar(0, 0).item()
    (0.0625, 1.0)
    """
    lost, gained = np.asarray(lost), np.asarray(gained)
    return np.minimum(1.0, 2 * binom.cdf(np.minimum(lost, gained), lost + gained, 0.5))


def power(n: int, drop: float, churn: float, level: float = 0.05) -> float:
    """P(McNemar's test of n items rejects at this level), exact.

    An item is lost with probability drop + churn/2 and gained with churn/2: accuracy falls by
    ``drop``, and a share ``churn`` of the items changes as between two models of the same quality.
    """
    if drop + churn == 0:
        return 0.0
    n_changes, total = binom(n, drop + churn), 0.0
    for m in range(int(n_changes.ppf(1e-9)), int(n_changes.isf(1e-9)) + 1):
        lost = np.arange(m + 1)
        rejected = lost[mcnemar(lost, m - lost) <= level]
        share_lost = (drop + churn / 2) / (drop + churn)
        total += n_changes.pmf(m) * binom.pmf(rejected, m, share_lost).sum()
    return float(total)
