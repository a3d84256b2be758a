"""Two models on the same yes-or-no items: which of them is right more often, and could we have seen
it?

    lost    items that the base model gets right and the other wrong
    gained  the other way round

Under the null a changed answer is lost or gained with equal probability, so ``lost`` is
Binomial(lost + gained, ½): McNemar's exact test. A watermark at its working strength changes 2 to 6
answers in a hundred: too few for two separate accuracies to show a difference.
"""

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as distributions

from gaussmark_lib.errors import StatisticsError
from gaussmark_lib.stats import Estimate, Paired


def changes(base: ArrayLike, other: ArrayLike) -> tuple[int, int]:
    """(lost, gained) of two models' answers to the same items: True or 1 where an item is right, 0
    where it is not.

    >>> changes([1, 1, 1, 0], [1, 0, 0, 0])
    (2, 0)
    """
    base, other = np.asarray(base), np.asarray(other)
    if base.shape != other.shape or base.size == 0:
        raise StatisticsError(
            f"expected the same items, at least one, got {base.size} and {other.size}"
        )
    return int((base > other).sum()), int((base < other).sum())


def paired(base: ArrayLike, other: ArrayLike, confidence: float = 0.95) -> Paired:
    """The change of accuracy from base to other, over the same items.

    The p-value is McNemar's. The interval is Wald's with one item added to each kind of change
    (Bonett and Price 2012), which keeps its coverage where changes are few.

    >>> paired([1, 1, 1, 0], [1, 0, 0, 0]).change.value
    -0.5
    """
    (lost, gained), n = changes(base, other), np.size(base)
    p_lost, p_gained = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    middle = p_gained - p_lost
    half = distributions.norm.isf((1 - confidence) / 2) * np.sqrt(
        (p_lost + p_gained - middle**2) / (n + 2)
    )
    change = Estimate(
        (gained - lost) / n, float(max(-1.0, middle - half)), float(min(1.0, middle + half)), n
    )
    return Paired(change, float(mcnemar(lost, gained)), n - lost - gained)


def mcnemar(lost: ArrayLike, gained: ArrayLike) -> np.ndarray:
    """Two-sided exact p-value of these counts: twice the smaller tail of Binomial(lost + gained,
    ½), at most 1.

    >>> mcnemar(5, 0).item(), mcnemar(0, 0).item()
    (0.0625, 1.0)
    """
    lost, gained = np.asarray(lost), np.asarray(gained)
    return np.minimum(
        1.0, 2 * distributions.binom.cdf(np.minimum(lost, gained), lost + gained, 0.5)
    )


def power(n: int, drop: float, churn: float, level: float = 0.05) -> float:
    """P(McNemar's test of n items rejects at this level), exact. An item is lost with probability
    drop + churn/2, gained with churn/2.

    So accuracy falls by ``drop`` (0: the test's own level), and a share ``churn`` changes as
    between two models of the same quality.
    """
    if drop + churn == 0:
        return 0.0
    n_changes = distributions.binom(n, drop + churn)
    total = 0.0
    for m in range(int(n_changes.ppf(1e-9)), int(n_changes.isf(1e-9)) + 1):
        lost = np.arange(m + 1)
        rejected = mcnemar(lost, m - lost) <= level
        total += (
            n_changes.pmf(m)
            * distributions.binom.pmf(lost[rejected], m, (drop + churn / 2) / (drop + churn)).sum()
        )
    return float(total)


def detectable_drop(n: int, churn: float, wanted_power: float = 0.8, level: float = 0.05) -> float:
    """The smallest fall of accuracy, to a tenth of a point, that is found with the wanted power;
    nan if none is.
    """
    drops = np.arange(0.001, 1 - churn, 0.001)
    first = bisect_left(
        drops, wanted_power, key=lambda drop: power(n, float(drop), churn, level)
    )  # power grows with the drop
    return float(drops[first]) if first < len(drops) else float("nan")
