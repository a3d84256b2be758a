"""Human texts, document by document: which documents are reserved for the pilot, and in which order
the others come.

    pilot       whole documents in the order of a hash of their name, until they have ``N_PILOT``
                texts: what σ is solved on and ranges are discussed on, the same for every seed
    heldout     all other documents, in an order that the seed decides: what a measurement uses
    train       of documentation: what the embedded model was trained on, in the seed's order

Pilot and held-out texts never share a document, nor a paragraph of ``SAME`` characters (packages
repeat each other's licences). So a confirmation never sees a text of the pilot, and another seed
means other documents as well as other keys. Texts of one document resemble each other: their
``source`` names it, to cluster by. The order depends on names alone, not on how large a file is.

============== ===================================================== =======================
kind           a document                                            a text of the pilot has
============== ===================================================== =======================
``"docs"``     held-out prose of a file, or of small files in a row  1,000 characters
``"licences"`` a licence file                                        1,000 characters
``"source"``   a Python file                                         1,000 characters
``"speeches"`` an address                                            2,000 characters
``"news"``     a story                                               it is one text
a file         one of its texts                                      it is one text
============== ===================================================== =======================
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

from gaussmark_lib.engine import corpus, packages, text_files
from gaussmark_lib.engine.corpus import Documents, joined
from gaussmark_lib.errors import InvalidTextError

N_PILOT = 60
LEAST_OF_FILE = 4 * N_PILOT  # texts of a user's file that reserves a pilot
FIRST_YEAR = 1960  # of the speeches: earlier ones were mostly sent, not spoken
MIN_WORDS = 81  # of a news story
PASSAGES = {"speeches": 2000, "news": 2000}  # characters of a text of the pilot
PASSAGE = 1000  # of one of another kind
SAME = 80  # characters of a paragraph that pilot and held-out texts do not share
SPLITS = ("pilot", "heldout")


def rows(kind: str, split: str, min_chars: int, seed: int) -> Iterator[dict]:
    """Rows ``text, source`` of a kind: a passage of each document, then a second of each, and so
    on, so that the first n come from as many documents as there are. No text comes twice.

    InvalidTextError: another split, or a package that is not installed.
    """
    splits = ("train", *SPLITS) if kind == "docs" else SPLITS
    require_split(kind, split, splits)
    known = documents(kind, split)
    if split == "train":
        chosen = {name: known[name] for name in in_order(known, seed)}
    else:
        chosen = _of_split(known, pilot_names(kind, known), split, seed)
    by_document = [joined(texts, name, min_chars) for name, texts in chosen.items()]
    by_turns = chain.from_iterable(zip_longest(*by_document))
    return _without_repetitions(row for row in by_turns if row is not None)


def of_file(path: str | Path, split: str, seed: int) -> list[dict]:
    """Rows ``text, source`` of a user's file. A file of at least ``LEAST_OF_FILE`` texts reserves
    the ``N_PILOT`` of them with the smallest hashes, and the seed orders the others. A smaller file
    reserves none: both splits are all of its texts, in its order, whatever the seed.
    """
    require_split(Path(path).name, split, SPLITS)
    known = list(text_files.rows(path))
    if len(known) < LEAST_OF_FILE:
        return known
    by_text = {row["text"]: row for row in known}
    pilot = sorted(by_text, key=_hash)[:N_PILOT]
    if split == "pilot":
        return [by_text[text] for text in pilot]
    return [by_text[text] for text in in_order(by_text.keys() - set(pilot), seed)]


def require_split(kind: str, split: str, splits: tuple[str, ...]) -> None:
    """Raise InvalidTextError for a split that a kind does not have."""
    if split not in splits:
        *others, last = map(repr, splits)
        raise InvalidTextError(
            f"{kind}: expected the split {', '.join(others)} or {last}, got {split!r}"
        )


def documents(kind: str, split: str = "heldout") -> Documents:
    """The paragraphs of each document of a kind, by the document's name; of documentation, those
    that the embedded model was trained on, or those that it was not.
    """
    if kind == "docs":
        return corpus.documentation("train" if split == "train" else "heldout")
    if kind in packages.TEXTS:
        path = packages.text_path(packages.TEXTS[kind])
        return _speeches(path) if kind == "speeches" else _news(path)
    return corpus.licences() if kind == "licences" else corpus.source()


def pilot_names(kind: str, known: Documents) -> list[str]:
    """The documents of a kind that are reserved for the pilot."""
    names = []
    n_passages = 0
    passage = PASSAGES.get(kind, PASSAGE)
    for name in sorted(known, key=_hash):
        if n_passages >= N_PILOT:
            break
        names.append(name)
        n_passages += max(1, len(list(joined(known[name], name, passage))))
    return names


def in_order(names: Iterable[str], seed: int) -> list[str]:
    """Names in the order that a seed decides."""
    return sorted(names, key=lambda name: _hash(f"{seed} {name}"))


def _of_split(known: Documents, pilot: list[str], split: str, seed: int) -> Documents:
    if split == "pilot":
        return {name: known[name] for name in pilot}
    reserved = {text for name in pilot for text in known[name] if len(text) >= SAME}
    return {
        name: [text for text in known[name] if text not in reserved]
        for name in in_order(known.keys() - set(pilot), seed)
    }


def _without_repetitions(rows: Iterable[dict]) -> Iterator[dict]:
    seen = set()
    for row in rows:
        if row["text"] not in seen:
            seen.add(row["text"])
            yield row


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _speeches(folder: Path) -> Documents:
    paths = (path for path in sorted(folder.glob("*.txt")) if int(path.stem[:4]) >= FIRST_YEAR)
    return {path.stem: _paragraphs(path.read_text(encoding="utf-8")) for path in paths}


def _news(path: Path) -> Documents:
    stories = path.read_text(encoding="latin-1").splitlines()
    return {
        f"{path.name}:{number}": [story]
        for number, story in enumerate(stories, 1)
        if len(story.split()) >= MIN_WORDS
    }


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]
