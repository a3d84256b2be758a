"""Two models on the same yes-or-no items: is one of them right more often, and could we have seen
it?

    lost    items that the base model gets right and the other wrong
    gained  the other way round

If the models are equally good, a changed answer is lost or gained with probability ½, so ``lost``
is Binomial(lost + gained, ½): McNemar's exact test.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom


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
