"""Numbers in words: how results are rounded and written, wherever they are printed."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FEWEST_OF_INTERVAL = 6  # values whose range holds the median with 95%: 1 − 2/2⁶ ≥ 0.95


def number(value: float, decimals: int | None = None) -> str:
    """With so many decimals, or with three digits.

    >>> number(-12345.6), number(3.21e-9), number(0.5, 1)
    ('−12,346', '3.21 × 10^−9', '0.5')
    """
    size = abs(value)
    if decimals is None:
        if isinstance(value, int) or size == 0:
            return f"{value:,}".replace("-", "−")
        if not 1e-4 <= size < 1e7:
            digits, power = f"{value:.2e}".split("e")
            return f"{digits} × 10^{int(power)}".replace("-", "−")
        decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:z,.{decimals}f}".replace("-", "−")  # z: no minus before zero


def percent(share: float, decimals: int = 1) -> str:
    """
    >>> percent(0.0512)
    '5.1%'
    """
    return f"{share:.{decimals}%}"


def outcome(finding: Mapping[str, Any]) -> str:
    """The outcome of a recorded finding, and whether its interval excludes the law.

    >>> outcome({"outcome": "held", "law": 1.0, "excludes_law": True})
    'held, but differs from 1'
    >>> outcome({"outcome": "not held", "law": 1.0, "excludes_law": True})
    'not held, and differs from 1'
    """
    if not finding.get("excludes_law"):
        return finding["outcome"]
    joint = "but" if finding["outcome"] == "held" else "and"
    return f"{finding['outcome']}, {joint} differs from {finding['law']:g}"


def estimate(given: Mapping[str, Any], *, as_percent: bool = False) -> tuple[str, str]:
    """The value of a recorded estimate, and its interval and n, with as many decimals as the
    interval's width has use for: two of its digits.

    >>> estimate({"value": 0.05104, "low": 0.04162, "high": 0.06185, "n": 1920}, as_percent=True)
    ('5.1%', '(4.2% to 6.2%), n = 1,920')
    >>> estimate({"value": -1.2345, "low": None, "high": None, "n": 4})
    ('−1.23', '(n = 4, too few for an interval)')
    """
    factor = 100 if as_percent else 1
    value, low, high = (
        given[name] and given[name] * factor for name in ("value", "low", "high")
    )  # None stays None
    n = [f"n = {given['n']:,}"] if given.get("n") is not None else []
    if value is None:
        return "none", ", ".join(["(no number)", *n])
    decimals = None
    if low is not None and high is not None and (width := high - low) > 0:
        decimals = max(1 - math.floor(math.log10(width)), int(abs(value) < 10 and not as_percent))
        decimals = max(0, decimals) if decimals <= 6 else None

    def shown(part: float) -> str:
        return number(part, decimals) + "%" * as_percent

    if low is not None and high is not None:
        return shown(value), ", ".join([f"({shown(low)} to {shown(high)})", *n])
    if n and given["n"] < FEWEST_OF_INTERVAL:
        return shown(value), f"({n[0]}, too few for an interval)"
    return shown(value), ", ".join(["(no interval)", *n])


def lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(name, value in words) of each number, or list, in nested results; an estimate with its
    interval is one.
    """
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        rest = "".join(
            f", {key.replace('_', ' ')} = {of(item)}"
            for key, item in value.items()
            if key not in ("value", "low", "high")
        )
        yield name, f"{of(value['value'])} ({of(value['low'])} to {of(value['high'])}){rest}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from lines(item, f"{name} · {key}" if name else key)
    elif isinstance(value, list) and len(value) > 8:
        yield name, f"{len(value)} values"
    else:
        yield name, of(value)


def of(value: Any) -> str:
    """One value as a reader wants it: four digits, thousands apart, a dash for what does
    not exist.
    """
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(map(of, value))
    return str(value)


def nearest(name: str, known: Iterable[str], where: object = "") -> str:
    """The known names that are near a misspelt one, or all of them, and where they are."""
    names = list(known)
    if near := difflib.get_close_matches(str(name), names, n=3):
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(names) or 'none'}" + (f" in {where}" if where else "")
