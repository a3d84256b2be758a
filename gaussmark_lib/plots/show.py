"""Text shown to people in a notebook: escaped, side by side, and readable in light and dark
themes.
"""

from collections.abc import Mapping
from html import escape

from IPython.display import HTML, Markdown


def side_by_side(texts: Mapping[str, str]) -> HTML:
    """One column per text, under its heading."""
    return cards({escape(heading): escape(text) for heading, text in texts.items()})


def cards(columns: Mapping[str, str]) -> HTML:
    """HTML under its headings, side by side; wraps below one another on a narrow screen."""
    cells = "".join(
        '<figure style="flex:1 1 18em;margin:0;padding:.6em .9em;border:1px solid'
        ' rgba(128,128,128,.45);border-radius:6px"><figcaption'
        f' style="font-weight:600;margin-bottom:.4em">{heading}</figcaption><div'
        f' style="white-space:pre-wrap;line-height:1.5">{body}</div></figure>'
        for heading, body in columns.items()
    )
    return HTML(f'<div style="display:flex;flex-wrap:wrap;gap:1em">{cells}</div>')


def sentence(text: str) -> Markdown:
    """A sentence whose numbers were computed, set as prose."""
    return Markdown(text)
