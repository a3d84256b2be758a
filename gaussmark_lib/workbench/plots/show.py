"""Text shown to people in a notebook: escaped, side by side, and readable in light and dark
themes.
"""

from collections.abc import Callable, Mapping
from html import escape

import numpy as np
import pandas as pd
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


def pieces(table: pd.DataFrame, decode: Callable[[list[int]], str]) -> pd.DataFrame:
    """The table of ``evidence.per_token`` by readable pieces, whose tokens only together are whole
    characters: ``text``, ``evidence`` and ``log_p`` (sums), ``n_tokens``. ``decode`` is that of the
    tokenizer; the pieces joined are the whole text.

    >>> table = pd.DataFrame({"token_id": [104, 195, 169], "evidence": [0.5, 0.25, 0.25]})
    >>> joined = pieces(table.assign(log_p=-1.0), lambda ids: bytes(ids).decode(errors="replace"))
    >>> joined[["text", "evidence", "n_tokens"]].values.tolist()
    [['h', 0.5, 1], ['é', 0.5, 2]]
    """
    ids, texts, starts = table["token_id"].tolist(), [], []
    before = start = 0  # of the last piece and of the next one
    for end in range(1, len(ids) + 1):
        # with the piece before it, since some tokenizers drop a leading space
        known, now = decode(ids[before:start]), decode(ids[before:end])
        if end == len(ids) or not now.endswith("\ufffd"):  # not in the middle of a character
            texts.append(now[len(known) :])
            starts.append(start)
            before, start = start, end
    sums = {name: np.add.reduceat(table[name].to_numpy(), starts) for name in ("evidence", "log_p")}
    return pd.DataFrame({"text": texts, **sums, "n_tokens": np.diff([*starts, len(ids)])})
