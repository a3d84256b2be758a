"""Numbers as text: how results are rounded and written wherever they are printed."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FEWEST_OF_INTERVAL = 6  # the range of 6 values covers the median with 1 − 2/2⁶ ≥ 0.95


def number(value: float, decimals: int | None = None) -> str:
    """Format a number with this many decimals, by default with three significant digits.

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
    """Format a share in percent.

    >>> percent(0.0512)
    '5.1%'
    """
    return f"{share:.{decimals}%}"


def outcome(finding: Mapping[str, Any]) -> str:
    """The outcome of a recorded finding; whether it excludes the law; whether it is no test.

    >>> outcome({"outcome": "held", "law": 1.0, "excludes_law": True})
    'held, but differs from 1'
    >>> outcome({"outcome": "not held", "law": 1.0, "excludes_law": True})
    'not held, and differs from 1'
    """
    words = finding["outcome"]
    if finding.get("excludes_law"):
        words += f", {'but' if words == 'held' else 'and'} differs from {finding['law']:g}"
    return f"{words} (no test)" if finding.get("no_test") else words


def estimate(given: Mapping[str, Any], *, as_percent: bool = False) -> tuple[str, str]:
    """Return the value of a recorded estimate as text, and its interval and n.

    The number of decimals follows from the width of the interval: two of its digits are shown.

    >>> estimate({"value": 0.05104, "low": 0.04162, "high": 0.06185, "n": 1920}, as_percent=True)
    ('5.1%', '(4.2% to 6.2%), n = 1,920')
    >>> estimate({"value": -1.2345, "low": None, "high": None, "n": 4})
    ('−1.23', '(n = 4, too few for an interval)')
    >>> estimate({"value": 6.0, "low": 2.5, "high": None, "n": 21})  # JSON has no infinity
    ('6.00', '(2.50 or more), n = 21')
    """
    n = [f"n = {given['n']:,}"] if given.get("n") is not None else []
    if given["value"] is None:
        return "none", ", ".join(["(no number)", *n])
    factor = 100 if as_percent else 1
    value = given["value"] * factor
    if given["low"] is None or given["high"] is None:
        shown = _shown(value, None, as_percent)
        if given["low"] is not None:
            least = _shown(given["low"] * factor, None, as_percent)
            return shown, ", ".join([f"({least} or more)", *n])
        if n and given["n"] < FEWEST_OF_INTERVAL:
            return shown, f"({n[0]}, too few for an interval)"
        return shown, ", ".join(["(no interval)", *n])
    low = given["low"] * factor
    high = given["high"] * factor
    decimals = _decimals(value, high - low, as_percent)
    interval = f"({_shown(low, decimals, as_percent)} to {_shown(high, decimals, as_percent)})"
    return _shown(value, decimals, as_percent), ", ".join([interval, *n])


def _decimals(value: float, width: float, as_percent: bool) -> int | None:
    """Decimals that show two digits of an interval's width; None for three digits of the value."""
    if not width > 0:  # zero or NaN
        return None
    decimals = 1 - math.floor(math.log10(width))
    if abs(value) < 10 and not as_percent:
        decimals = max(decimals, 1)  # 3.2, not 3
    if decimals > 6:  # too long to read
        return None
    return max(0, decimals)


def _shown(value: float, decimals: int | None, as_percent: bool) -> str:
    unit = "%" if as_percent else ""
    return number(value, decimals) + unit


def lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value as text) for each number or list in nested results.

    An estimate with its interval is a single value.
    """
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        text = f"{of(value['value'])} ({of(value['low'])} to {of(value['high'])})"
        for key, item in value.items():
            if key not in ("value", "low", "high"):
                text += f", {key.replace('_', ' ')} = {of(item)}"
        yield name, text
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from lines(item, f"{name} · {key}" if name else key)
    elif isinstance(value, list) and len(value) > 8:
        yield name, f"{len(value)} values"
    else:
        yield name, of(value)


def of(value: Any) -> str:
    """Format a value: four digits, a comma between thousands, a dash for None."""
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
    """Return advice on a misspelt name: the similar names, or all names and where they are."""
    names = list(known)
    similar = difflib.get_close_matches(str(name), names, n=3)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    place = f" in {where}" if where else ""
    return f"there are {', '.join(names) or 'none'}{place}"
