"""Two models on the same yes-or-no items: which of them is right more often, and could we have seen it?

    lost    items that the base model gets right and the other wrong
    gained  the other way round

Items on which they agree say nothing about the difference. Under the null a change is lost or gained with equal chance, so ``lost`` is
Binomial(lost + gained, ½): McNemar's exact test. With so few changes (a watermark at its working strength changes 2 to 6 answers in a hundred)
a paired comparison sees what two separate accuracies, each with its own standard error, never would.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as distributions


def paired(base: ArrayLike, other: ArrayLike, confidence: float = 0.95) -> dict[str, float]:
    """The change of accuracy from base to other, over the same items.

    The p-value is McNemar's, exact. The interval is Wald's with one item added to each kind of change (Bonett and Price 2012), which
    keeps its coverage where changes are few and does not collapse where there are none.

    Args:
        base, other: correct (True, 1) or not, an item each.

    Returns:
        ``base, other`` (accuracies), ``mean`` = other − base, ``low, high, p_value, n, lost, gained, n_equal``.

    >>> found = paired([1, 1, 1, 0], [1, 0, 0, 0])
    >>> found["mean"], found["lost"], found["gained"], found["p_value"]
    (-0.5, 2, 0, 0.5)
    """
    base, other = _checked(base), _checked(other)
    if base.shape != other.shape or base.size == 0:
        raise ValueError(f"expected the same items, at least one, got {base.size} and {other.size}")
    n, lost, gained = base.size, int((base & ~other).sum()), int((~base & other).sum())
    z = distributions.norm.isf((1 - confidence) / 2)
    p_lost, p_gained = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = z * np.sqrt((p_lost + p_gained - (p_gained - p_lost) ** 2) / (n + 2))
    middle = p_gained - p_lost
    return {
        "base": float(base.mean()),
        "other": float(other.mean()),
        "mean": (gained - lost) / n,
        "low": float(max(-1.0, middle - half)),
        "high": float(min(1.0, middle + half)),
        "p_value": float(mcnemar(lost, gained)),
        "n": n,
        "lost": lost,
        "gained": gained,
        "n_equal": n - lost - gained,
    }


def mcnemar(lost: ArrayLike, gained: ArrayLike) -> np.ndarray:
    """Two-sided exact p-value of so many changes each way: twice the smaller tail of Binomial(lost + gained, ½), at most 1.

    >>> mcnemar(5, 0).item(), mcnemar(0, 0).item()
    (0.0625, 1.0)
    """
    lost, gained = np.asarray(lost), np.asarray(gained)
    return np.minimum(1.0, 2 * distributions.binom.cdf(np.minimum(lost, gained), lost + gained, 0.5))


def power(n: int, drop: float, churn: float, level: float = 0.05) -> float:
    """The chance that McNemar's test at this level rejects, if accuracy falls by ``drop`` while a share ``churn`` of items changes for no reason.

    An item is lost with probability drop + churn/2, gained with churn/2. Summed exactly over how many items change and how many of those are lost.

    Args:
        n: items.
        drop: fall of accuracy, 0 for the test's own level.
        churn: share of items that change either way alike, as between two models of the same quality.
    """
    if n < 1 or not 0 <= drop <= 1 or not 0 <= churn <= 1 or drop + churn > 1:
        raise ValueError(f"expected n ≥ 1 and shares with drop + churn ≤ 1, got n={n}, drop={drop}, churn={churn}")
    if drop + churn == 0:
        return 0.0
    changes = distributions.binom(n, drop + churn)
    total = 0.0
    for m in range(int(changes.ppf(1e-9)), int(changes.isf(1e-9)) + 1):
        lost = np.arange(m + 1)
        rejected = mcnemar(lost, m - lost) <= level
        total += changes.pmf(m) * distributions.binom.pmf(lost[rejected], m, (drop + churn / 2) / (drop + churn)).sum()
    return float(total)


def detectable_drop(n: int, churn: float, wanted_power: float = 0.8, level: float = 0.05) -> float:
    """The smallest fall of accuracy, to a tenth of a point, that is found with the wanted power; nan if none is."""
    for drop in np.arange(0.001, 1 - churn, 0.001):
        if power(n, float(drop), churn, level) >= wanted_power:
            return float(drop)
    return float("nan")


def _checked(correct: ArrayLike) -> np.ndarray:
    values = np.asarray(correct, dtype=float).ravel()
    if not np.isin(values, (0.0, 1.0)).all():
        raise ValueError(f"expected an item to be right or wrong (1 or 0), got {values[~np.isin(values, (0.0, 1.0))][:3]}")
    return values.astype(bool)
