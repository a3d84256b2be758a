"""p against tokens as an inline SVG: drawn many times while a text is written, where a figure of
matplotlib takes a second each time. Its words have the page's colour, in light and dark themes.
"""

from collections.abc import Sequence
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd
from scipy.stats import norm

from gaussmark_lib.experiments.played import Comparison, Draft
from gaussmark_lib.plots.playground import GROUPS

WIDTH, HEIGHT = 600, 344
LEFT, RIGHT, TOP, BOTTOM = (
    52,
    WIDTH - 16,
    12,
    HEIGHT - 88,
)  # where the axes lie; below them their words, and the lines' names in two columns
FONT, LEAST = (
    13,
    510,
)  # px in a picture of WIDTH, which is shown at least LEAST wide: there, words are 11 px
DASHES = ("", "7 3", "2 3", "7 3 2 3")  # of the groups, beside their colours
LOWEST = -4.0  # log10 p, where the axis ends at the earliest
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def growth(result: Draft | Comparison, level: float) -> str:
    """The curve with its title."""
    asked = result.question
    which = (
        "texts 1, tested on their beginnings"
        if asked.n_samples > 1
        else "each text, tested on its beginnings"
    )
    picture = curve(result.curve, asked.n_tokens, asked.psi, level)
    caution = (
        '<div style="opacity:.75;font-size:90%">Each point is a test by itself; the smallest p of'
        " several is not one.</div>"
    )
    return (
        '<div style="margin-top:.8em;overflow-x:auto"><div style="font-weight:600">p against'
        f" tokens: {which}</div>{picture}{caution}</div>"
    )


def curve(points: pd.DataFrame, n_tokens: int, psi: float, level: float) -> str:
    """p of the beginnings of the first plain and watermarked text under both keys, on a log scale;
    without points, an empty picture.

    Args:
        points: the ``curve`` of a draft or a comparison.
        n_tokens, psi: of the question. The axes are made for them, so that they stand still while
            the lines grow.
    """
    low = np.floor(min(LOWEST, norm.logsf(psi + 1.5) / np.log(10), *points["log10_p"]))

    def at(n: float, log10_p: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * n / n_tokens, TOP + (BOTTOM - TOP) * log10_p / low

    lines, words = [], []
    for i, (group, (colour, _)) in enumerate(GROUPS.items()):
        of_group = points[(points["kind"] == group[0]) & (points["key"] == group[1])]
        path = [
            at(n, log10_p)
            for n, log10_p in zip(of_group["n_tokens"], of_group["log10_p"], strict=True)
        ]
        begins, named = LEFT + (RIGHT - LEFT) // 2 * (i % 2), BOTTOM + 58 + 18 * (i // 2)
        look = (
            f'stroke-dasharray="{DASHES[i]}" stroke="{mpl.colors.to_hex(colour)}" stroke-width="2"'
        )
        lines += [
            _line([at(0, 0), *path] if path else [], look),
            *(_dot(*spot, mpl.colors.to_hex(colour)) for spot in path),
        ]
        lines += [
            _line([(begins, named), (begins + 34, named)], look),
            _text(begins + 42, named + 4, ", ".join(group), "start"),
        ]
        if path:
            words.append(
                f"{', '.join(group)}: log10 p = {of_group['log10_p'].iloc[-1]:.1f} at"
                f" {of_group['n_tokens'].iloc[-1]} tokens"
            )
    name = escape("p against tokens. " + ("; ".join(words) or "Nothing is scored yet"))
    shape = (
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-size="{FONT}"'
        f' style="width:100%;max-width:{WIDTH}px;min-width:{LEAST}px"'
    )
    return (
        f'<svg role="img" aria-label="{name}"'
        f" {shape}>{''.join(_axes(at, low, n_tokens, level) + lines)}</svg>"
    )


def _axes(at, low: float, n_tokens: int, level: float) -> list[str]:
    quiet, threshold = (
        'stroke="currentColor" stroke-opacity=".2"',
        'stroke="currentColor" stroke-dasharray="4 3"',
    )
    parts = []
    for power in range(0, int(low) - 1, -int(np.ceil(-low / 6))):
        parts += [
            _line([at(0, power), at(n_tokens, power)], quiet),
            _text(LEFT - 8, at(0, power)[1] + 4, power_of_ten(power), "end"),
        ]
    for n in sorted({*range(0, n_tokens - n_tokens // 8, _round(n_tokens / 5)), n_tokens}):
        parts.append(_text(at(n, 0)[0], BOTTOM + 18, str(n), "middle"))
    _, edge = at(0, np.log10(level))
    parts += [
        _line([(LEFT, edge), (RIGHT, edge)], threshold),
        _text(RIGHT, edge + 15, f"below: detected at level {level}", "end"),
    ]
    return [
        *parts,
        _text((LEFT + RIGHT) / 2, BOTTOM + 36, "tokens of the text", "middle"),
        _text(12, TOP + 22, "p", "middle"),
    ]


def _round(step: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, … that is not above a step; at least 1."""
    return max(
        [
            1,
            *(
                unit * 10**power
                for power in range(4)
                for unit in (1, 2, 5)
                if unit * 10**power <= step
            ),
        ]
    )


def power_of_ten(exponent: int) -> str:
    return "1" if exponent == 0 else "10" + str(exponent).translate(_SUPERSCRIPT)


def _line(path: Sequence[tuple[float, float]], look: str) -> str:
    return (
        f'<polyline fill="none" {look} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in path)}"/>'
        if path
        else ""
    )


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{words}</text>'
    )
