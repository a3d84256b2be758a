"""A corpus of the reader's own folder, in the shape of ``corpus.load``."""

from pathlib import Path

import pandas as pd

from gaussmark_lib import texts
from gaussmark_lib.engine import corpus as installed
from gaussmark_lib.errors import CorpusError

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz")


def load(folder: str | Path) -> pd.DataFrame:
    """The paragraphs of every text file below a folder: columns ``source``, ``text``, ``split``.

    ``source`` is the file, and for a ``.jsonl`` file also the line (``mine.jsonl/12``), since each
    line is a text of its own. Paragraphs are cut at blank lines and kept once; a hash of its text
    holds out 5% of them (``corpus.split_of``). Hidden files are left out.
    """
    root = Path(folder).expanduser()
    rows = [
        (source, paragraph.strip("\n"))
        for path in sorted(root.rglob("*"))
        for source, text in _texts(path, path.relative_to(root).as_posix())
        for paragraph in text.split("\n\n")
        if paragraph.strip()
    ]
    corpus = pd.DataFrame(rows, columns=["source", "text"]).drop_duplicates("text")
    corpus = corpus.assign(split=corpus["text"].map(installed.split_of)).reset_index(drop=True)
    if corpus["split"].nunique() < 2:
        raise CorpusError(
            f"{folder}: expected a folder with files ending in {', '.join(SUFFIXES)} and with"
            f" paragraphs in both splits (5% are held out), got {len(corpus)} paragraphs; add text"
        )
    return corpus


def _texts(path: Path, name: str) -> list[tuple[str, str]]:
    if not name.lower().endswith(SUFFIXES) or "/." in f"/{name}":
        return []
    if ".jsonl" in path.name.lower():
        return [(f"{name}/{i}", text) for i, text in enumerate(texts.load(path)["text"], 1)]
    try:
        return [(name, path.read_text(encoding="utf-8"))]
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"cannot read {path}: {error}; expected UTF-8 text") from None
