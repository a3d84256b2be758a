"""Text in the output of a notebook: escaped, side by side, readable in light and dark themes."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown
from PIL import Image


def side_by_side(texts: Mapping[str, str]) -> HTML:
    """Return texts in columns, each under its heading."""
    return cards({escape(heading): escape(text) for heading, text in texts.items()})


def cards(columns: Mapping[str, str]) -> HTML:
    """Return pieces of HTML side by side, each under its heading; they wrap on a narrow screen."""
    cells = "".join(
        '<figure style="flex:1 1 18em;margin:0;padding:.6em .9em;border:1px solid'
        ' rgba(128,128,128,.45);border-radius:6px"><figcaption'
        f' style="font-weight:600;margin-bottom:.4em">{heading}</figcaption><div'
        f' style="white-space:pre-wrap;line-height:1.5">{body}</div></figure>'
        for heading, body in columns.items()
    )
    return HTML(f'<div style="display:flex;flex-wrap:wrap;gap:1em">{cells}</div>')


class Picture(NamedTuple):
    """A saved figure for a page: its data as a URL, its description, and its size in pixels."""

    source: str
    alt: str
    width: int
    height: int


def saved(path: Path, colours: int | None = None) -> Picture:
    """Return a figure of ``record.save_figure``, so that a page needs no other file.

    Args:
        colours: how many to keep; few make it smaller. None keeps all.
    """
    stored = BytesIO()
    with Image.open(path) as image:
        pixels = image.convert("RGB")
        if colours:
            pixels = pixels.quantize(colours).convert("RGB")
        # With lossless=True, quality is the effort of the compression.
        pixels.save(stored, "WEBP", lossless=True, method=2, quality=20)
        alt = " ".join(image.text.get("Description", "").split())
        data = b64encode(stored.getvalue()).decode()
        return Picture(f"data:image/webp;base64,{data}", alt, *image.size)


def sentence(text: str) -> Markdown:
    """Return a sentence with computed numbers, formatted like prose."""
    return Markdown(text)


def pieces(table: pd.DataFrame, decode: Callable[[list[int]], str]) -> pd.DataFrame:
    """Join tokens of the table of ``evidence.per_token`` into pieces of whole characters.

    Args:
        decode: the tokenizer's function from ids to text.

    Returns:
        One row per piece: ``text``; ``evidence`` and ``log_p``, sums; ``n_tokens``. All texts
        joined are the whole text.

    >>> table = pd.DataFrame({"token_id": [104, 195, 169], "evidence": [0.5, 0.25, 0.25]})
    >>> joined = pieces(table.assign(log_p=-1.0), lambda ids: bytes(ids).decode(errors="replace"))
    >>> joined[["text", "evidence", "n_tokens"]].values.tolist()
    [['h', 0.5, 1], ['é', 0.5, 2]]
    """
    ids = table["token_id"].tolist()
    texts = []
    starts = []
    previous = 0  # start of the latest piece
    start = 0  # of the next piece
    for end in range(1, len(ids) + 1):
        # Decoded together with the latest piece, because some tokenizers drop a leading space.
        text_before = decode(ids[previous:start])
        text = decode(ids[previous:end])
        is_whole = not text.endswith("\ufffd")  # not in the middle of a character
        if is_whole or end == len(ids):
            texts.append(text[len(text_before) :])
            starts.append(start)
            previous = start
            start = end
    return pd.DataFrame(
        {
            "text": texts,
            "evidence": np.add.reduceat(table["evidence"].to_numpy(), starts),
            "log_p": np.add.reduceat(table["log_p"].to_numpy(), starts),
            "n_tokens": np.diff([*starts, len(ids)]),
        }
    )
