"""In words: results, one line each, with four digits; and what an error says about a name that is
not known.
"""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any


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
