"""Results in words: one line each, with four digits."""

from collections.abc import Iterator
from typing import Any


def lines(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(name, value in words) of each number, or list, in nested results; an estimate with its interval is one."""
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        rest = "".join(f", {key.replace('_', ' ')} = {of(item)}" for key, item in value.items() if key not in ("value", "low", "high"))
        yield name, f"{of(value['value'])} ({of(value['low'])} to {of(value['high'])}){rest}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from lines(item, f"{name} · {key}" if name else key)
    elif isinstance(value, list) and len(value) > 8:
        yield name, f"{len(value)} values"
    else:
        yield name, of(value)


def of(value: Any) -> str:
    """One value as a reader wants it: four digits, thousands apart, a dash for what does not exist."""
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
