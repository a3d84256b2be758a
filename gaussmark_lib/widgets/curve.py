"""p against tokens as an inline SVG. It is drawn many times while a text is written, where a figure of matplotlib takes a second each time; and its
words have the page's colour, in light and dark themes.
"""

from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd

from gaussmark_lib.plots.playground import GROUPS

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 600, 300, 52, 16, 12, 44  # of the picture, and its margins
FONT = 13  # px in a picture of WIDTH; it is shown at least LEAST wide, where they are 11
LEAST = 510
LOWEST = -4.0  # log10 p, where the axis ends at least
DASHES = ("", "7 3", "2 3", "7 3 2 3")  # of the groups, so that colour is not needed


def curve(points: pd.DataFrame, n_tokens: int, psi: float, level: float) -> str:
    """log10 p of the beginnings of the first plain and watermarked text, for both keys; with no points, an empty picture of the same size.

    Args:
        points: the ``curve`` of a draft or a comparison.
        n_tokens, psi: of the question. The axes are made for them, so that they stand still while the lines grow.
    """
    low = min(LOWEST, np.floor(mpl_log10_sf(psi + 1.5)), np.floor(points["log10_p"].min()) if len(points) else 0)

    def x(n: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * n / n_tokens:.1f}"

    def y(log10_p: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * log10_p / low:.1f}"

    step = -int(np.ceil(-low / 6))
    parts = [_line(x(0), y(tick), x(n_tokens), y(tick), 0.2) + _text(LEFT - 8, y(tick), _power(tick), "end") for tick in range(0, int(low) - 1, step)]
    parts += [_text(x(n), HEIGHT - BOTTOM + 18, f"{n:.0f}", "middle") for n in _round_numbers(n_tokens)]
    parts += [_text(x(n_tokens / 2), HEIGHT - 8, "tokens of the text so far", "middle"), _text(LEFT - 8, TOP + 14, "p", "end", "italic")]
    parts += [_line(x(0), y(np.log10(level)), x(n_tokens), y(np.log10(level)), 0.8, "4 3")]
    parts += [_text(x(n_tokens), float(y(np.log10(level))) + 15, f"detected below: level {level}", "end")]
    said = []
    for row, (group, (colour, _)) in enumerate(reversed(GROUPS.items())):
        of_group = points[(points["kind"] == group[0]) & (points["key"] == group[1])]
        look = f'stroke="{mpl.colors.to_hex(colour)}" fill="{mpl.colors.to_hex(colour)}"'
        dash, level_of_name = DASHES[len(GROUPS) - 1 - row], HEIGHT - BOTTOM - 14 - 18 * row
        dots = [(x(n), y(p)) for n, p in zip(of_group["n_tokens"], of_group["log10_p"], strict=True)]
        parts.append(f'<g {look}>{_path([(x(0), y(0))] * bool(dots) + dots, dash)}{"".join(map(_dot, dots))}')
        parts.append(f'{_path([(LEFT + 10, level_of_name), (LEFT + 44, level_of_name)], dash)}</g>{_text(LEFT + 52, level_of_name, ", ".join(group))}')
        if dots:
            said.insert(0, f"{', '.join(group)}: p = {10 ** of_group['log10_p'].iloc[-1]:.2g} at {of_group['n_tokens'].iloc[-1]} tokens")
    name = escape("p against tokens. " + ("; ".join(said) if said else "Nothing is scored yet"))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" style="width:100%;max-width:{WIDTH}px;min-width:{LEAST}px"'
    return f'<svg role="img" aria-label="{name}" {size} font-size="{FONT}">{"".join(parts)}</svg>'
