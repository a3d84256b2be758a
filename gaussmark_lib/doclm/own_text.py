"""A corpus out of the reader's own folder, of the same shape as ``docs.load``: paragraphs with
their source and their split.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from gaussmark_lib import docs, texts
from gaussmark_lib.errors import CorpusError

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz")


def load(folder: str | Path) -> pd.DataFrame:
    """The paragraphs of every ``.txt``, ``.md`` and ``.jsonl`` file below a folder as columns
    ``source``, ``text``, ``split``.

    ``source`` is the file, and of a ``.jsonl`` file also the line (``mine.jsonl/12``), since each
    is a text of its own.

    Paragraphs are cut at blank lines, each is kept once, and ``docs.split_of`` (a hash of its text)
    holds out 5% of them. A line of a ``.jsonl`` file is an object with the field ``text``. Hidden
    files and folders are left out.

    Raises:
        CorpusError: no such folder, a file that is not UTF-8 text, or too little text for both
            splits.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise CorpusError(
            f"expected a folder with files ending in {', '.join(SUFFIXES)}, got {str(folder)!r},"
            " which is none"
        )
    rows = [
        row for path in _files(root) for row in _paragraphs(path, path.relative_to(root).as_posix())
    ]
    corpus = pd.DataFrame(rows, columns=["source", "text"]).drop_duplicates(
        "text", ignore_index=True
    )
    corpus["split"] = [docs.split_of(paragraph) for paragraph in corpus["text"]]
    if corpus["split"].nunique() < 2:
        raise CorpusError(
            f"{folder}: expected paragraphs in both splits (about 5% of them are held out), got"
            f" {len(corpus)} paragraphs in files ending in {', '.join(SUFFIXES)}; add text"
        )
    return corpus


def _files(root: Path) -> list[Path]:
    found = []
    for place, folders, names in os.walk(root):
        folders[:] = (name for name in folders if not name.startswith("."))
        found += [
            Path(place, name)
            for name in names
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(found)


def _paragraphs(path: Path, name: str) -> Iterator[tuple[str, str]]:
    if path.name.lower().endswith(SUFFIXES[2:]):
        whole = {
            f"{name}/{number}": text for number, text in enumerate(texts.load(path)["text"], 1)
        }
    else:
        try:
            whole = {name: path.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"cannot read {path}: {error}; expected UTF-8 text") from None
    for source, text in whole.items():
        yield from ((source, part.strip("\n")) for part in text.split("\n\n") if part.strip())
