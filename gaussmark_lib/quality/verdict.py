"""What a comparison may say, in a sentence: worse by how much, indistinguishable, or nothing
because n is too small.

A difference that is not significant is called indistinguishable only if its whole interval lies
within a margin that was stated beforehand. Otherwise the sentence says that n is too small, and
about how many items are enough if the change stays as it is.
"""

import math
from dataclasses import astuple, dataclass

from gaussmark_lib.stats import Paired


@dataclass(frozen=True)
class Metric:
    """What a number means.

    Args:
        worse: ``"higher"``, ``"lower"``, or ``"either"`` where a difference is neither good nor
            bad.
        margin: the largest difference that does not matter; None where the value has no natural
            scale.
    """

    name: str
    unit: str
    worse: str
    margin: float | None


DIFFERENT, INDISTINGUISHABLE, OPEN = "different", "indistinguishable", "n too small"
FEWEST = 30  # items, for a claim of indistinguishability without a margin


def sentence(metric: Metric, test: Paired, level: float = 0.05) -> str:
    """The verdict on the change from the base model to another; a p-value of nan stands for no
    test.

    >>> from gaussmark_lib.stats import Estimate
    >>> accuracy = Metric("accuracy", "", "lower", 0.05)
    >>> sentence(accuracy, Paired(Estimate(-0.12, -0.15, -0.09, 300), 1e-6, 0))
    'worse by 0.12 (95% interval −0.15 to −0.09, n = 300, p = 1e-06)'
    >>> sentence(accuracy, Paired(Estimate(0.0, -0.2, 0.2, 20), 1.0, 0))[-20:]
    '; about 320 would do'
    """
    (value, low, high, n), p_value = astuple(test.change), test.p_value
    if math.isnan(p_value) or n < 2:
        return f"no claim: {n} usable items, at least 2 are needed"
    if test.n_equal == n:
        return f"equal on every one of {n} items"
    unit = f" {metric.unit}" if metric.unit else ""
    interval = f"{low:+.2g} to {high:+.2g}".replace("-", "−")
    if p_value < level:
        p = f"n = {n}, p = {p_value:.1g}"
        if math.isnan(low):
            return f"told apart ({p})"
        return (
            f"{_direction(metric, value)} by {abs(value):.3g}{unit} (95% interval {interval}, {p})"
        )
    if metric.margin is None:
        return (
            f"not told apart at n = {n} (p = {p_value:.2g})"
            if n >= FEWEST
            else f"n = {n} is too small for a claim: expected at least {FEWEST}"
        )
    if -metric.margin <= low and high <= metric.margin:
        return (
            f"indistinguishable at this n = {n}: the interval {interval}{unit} lies within"
            f" ±{metric.margin:g}"
        )
    if math.isnan(low):
        return (
            f"n = {n} is too small for a claim: all items changed alike, which leaves no interval"
        )
    left = (
        metric.margin - abs(value)
        # the half-width at which the interval lies within the margin, if the change stays where it
        # is
    )
    more = f", and the change itself, {value:+.2g}, lies beyond it".replace("-", "−")
    if left > 0:
        more = (
            f"; about {max(n + 1, math.ceil(round(n * ((high - low) / 2 / left) ** 2, 6))):,}"
            " would do"
        )
    return (
        f"n = {n} is too small for a claim: the interval {interval}{unit} reaches beyond"
        f" ±{metric.margin:g}{more}"
    )


def outcome(metric: Metric, test: Paired, level: float = 0.05) -> str:
    """The verdict in one word: ``DIFFERENT``, ``INDISTINGUISHABLE`` (equal within the margin, as
    far as the interval tells), or ``OPEN``.

    >>> from gaussmark_lib.stats import Estimate
    >>> outcome(Metric("accuracy", "", "lower", 0.05), Paired(Estimate(0.0, -0.2, 0.2, 20), 1.0, 0))
    'n too small'
    """
    change, margin = test.change, metric.margin
    if math.isnan(test.p_value) or change.n < 2:
        return OPEN
    if test.n_equal < change.n and test.p_value < level:
        return DIFFERENT
    within = margin is not None and -margin <= change.low and change.high <= margin
    return INDISTINGUISHABLE if within or test.n_equal == change.n else OPEN


def _direction(metric: Metric, difference: float) -> str:
    if metric.worse == "either":
        return "higher" if difference > 0 else "lower"
    return "worse" if (difference > 0) == (metric.worse == "higher") else "better"
