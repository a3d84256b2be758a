"""A corpus out of the reader's own folder, of the same shape as ``docs.load``: paragraphs with
their source and their split.
"""

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
    is a text of its own. Paragraphs are cut at blank lines, each is kept once, and
    ``docs.split_of`` (a hash of its text) holds out 5% of them. Hidden files are left out.

    Raises:
        CorpusError: no such folder, a file that is not UTF-8 text, or too little text for both
            splits.
    """
    root, kinds = Path(folder).expanduser(), f"files ending in {', '.join(SUFFIXES)}"
    if not root.is_dir():
        raise CorpusError(f"expected a folder with {kinds}, got {str(folder)!r}, which is none")
    corpus = pd.DataFrame(_paragraphs(root), columns=["source", "text"])
    corpus = corpus.drop_duplicates("text", ignore_index=True)
    corpus["split"] = [docs.split_of(paragraph) for paragraph in corpus["text"]]
    if corpus["split"].nunique() < 2:
        raise CorpusError(
            f"{folder}: expected paragraphs in both splits (about 5% of them are held out), got"
            f" {len(corpus)} paragraphs in {kinds}; add text"
        )
    return corpus


def _paragraphs(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not path.name.lower().endswith(SUFFIXES) or "/." in f"/{name}":
            continue
        try:
            if path.name.lower().endswith((".jsonl", ".jsonl.gz")):
                lines = enumerate(texts.load(path)["text"], 1)
                sources = {f"{name}/{line}": text for line, text in lines}
            else:
                sources = {name: path.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"cannot read {path}: {error}; expected UTF-8 text") from None
        for source, text in sources.items():
            yield from ((source, part.strip("\n")) for part in text.split("\n\n") if part.strip())
