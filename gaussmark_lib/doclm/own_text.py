"""A corpus out of the reader's own folder, of the same shape as ``docs.load``: paragraphs with their source and their split."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from gaussmark_lib import docs, texts
from gaussmark_lib.errors import CorpusError

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz")


def load(folder: str | Path) -> pd.DataFrame:
    """The paragraphs of every ``.txt``, ``.md`` and ``.jsonl`` file below a folder as columns ``source`` (file), ``text``, ``split``.

    Paragraphs are cut at blank lines, each is kept once, and ``docs.split_of`` (a hash of its text) holds out 5% of them. A line of a ``.jsonl``
    file is an object with the field ``text``. Hidden files and folders are left out.

    Raises:
        CorpusError: no such folder, a file that is not UTF-8 text, or too little text for both splits.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise CorpusError(f"expected a folder with files ending in {', '.join(SUFFIXES)}, got {str(folder)!r}, which is none")
    rows = [(path.relative_to(root).as_posix(), paragraph) for path in _files(root) for paragraph in _paragraphs(path)]
    corpus = pd.DataFrame(rows, columns=["source", "text"]).drop_duplicates("text", ignore_index=True)
    corpus["split"] = [docs.split_of(paragraph) for paragraph in corpus["text"]]
    if corpus["split"].nunique() < 2:
        raise CorpusError(
            f"{folder}: expected paragraphs in both splits (about 5% of them are held out), got {len(corpus)} paragraphs"
            f" in files ending in {', '.join(SUFFIXES)}; add text"
        )
    return corpus


def _files(root: Path) -> list[Path]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name.lower().endswith(SUFFIXES))
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts))


def _paragraphs(path: Path) -> Iterator[str]:
    if ".jsonl" in path.suffixes:
        whole = texts.load(path)["text"]
    else:
        try:
            whole = [path.read_text(encoding="utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"cannot read {path}: {error}; expected UTF-8 text") from None
    for text in whole:
        yield from (part.strip("\n") for part in text.split("\n\n") if part.strip())
