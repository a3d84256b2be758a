"""Text shown to people in a notebook: escaped, side by side, and readable in light and dark
themes.
"""

from collections.abc import Mapping
from html import escape

from IPython.display import HTML, Markdown


def side_by_side(columns: Mapping[str, str]) -> HTML:
    """One column a text, under its heading; wraps below one another on a narrow screen."""
    cells = "".join(
        '<figure style="flex:1 1 18em;margin:0;padding:.6em .9em;border:1px solid'
        ' rgba(128,128,128,.45);border-radius:6px"><figcaption'
        f' style="font-weight:600;margin-bottom:.4em">{escape(heading)}</figcaption><div'
        f' style="white-space:pre-wrap;line-height:1.5">{escape(text)}</div></figure>'
        for heading, text in columns.items()
    )
    return HTML(f'<div style="display:flex;flex-wrap:wrap;gap:1em">{cells}</div>')


def sentence(text: str) -> Markdown:
    """A sentence whose numbers were computed, set as prose."""
    return Markdown(text)
