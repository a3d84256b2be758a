"""Human texts from packages: speeches and news, document by document.

    pilot       whole documents in the order of a hash of their name, until ``N_PILOT`` passages are
                reached: what σ is solved on and ranges are discussed on, the same for every seed
    heldout     all other documents, in an order that the seed decides: what a measurement uses

The two never share a document, so a confirmation never sees a text of the pilot, and another seed
means other documents as well as other keys. Passages of one document resemble each other: their
``source`` names it, to cluster by.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

from gaussmark_lib.engine import packages
from gaussmark_lib.engine.corpus import joined
from gaussmark_lib.errors import InvalidTextError

N_PILOT = 60
FIRST_YEAR = 1960  # of the speeches: earlier ones were mostly sent, not spoken
MIN_WORDS = 81  # of a news story
PASSAGE = 2000  # characters, about 350 words: how passages are counted for the pilot
SPLITS = ("pilot", "heldout")


def rows(kind: str, split: str, min_chars: int, seed: int) -> Iterator[dict]:
    """Rows ``text, source`` of a kind: a passage of each document, then a second of each, and so
    on, so that the first n come from as many documents as there are.

    InvalidTextError: another split, or a package that is not installed.
    """
    if split not in SPLITS:
        raise InvalidTextError(f"{kind}: expected the split 'pilot' or 'heldout', got {split!r}")
    known = documents(kind)
    pilot = pilot_names(known)
    names = pilot if split == "pilot" else _remaining(known, pilot, seed)
    of_documents = [joined(known[name], name, min_chars) for name in names]
    by_turns = chain.from_iterable(zip_longest(*of_documents))
    return (row for row in by_turns if row is not None)


def documents(kind: str) -> dict[str, list[str]]:
    """The paragraphs of each document of a kind, by the document's name."""
    path = packages.text_path(packages.TEXTS[kind])
    return _speeches(path) if kind == "speeches" else _news(path)


def pilot_names(known: dict[str, list[str]]) -> list[str]:
    """The documents that are reserved for the pilot."""
    names = []
    n_passages = 0
    for name in sorted(known, key=_hash):
        if n_passages >= N_PILOT:
            break
        names.append(name)
        n_passages += max(1, len(list(joined(known[name], name, PASSAGE))))
    return names


def _remaining(known: dict[str, list[str]], pilot: list[str], seed: int) -> list[str]:
    others = known.keys() - set(pilot)
    return sorted(others, key=lambda name: _hash(f"{seed} {name}"))


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _speeches(folder: Path) -> dict[str, list[str]]:
    paths = (path for path in sorted(folder.glob("*.txt")) if int(path.stem[:4]) >= FIRST_YEAR)
    return {path.stem: _paragraphs(path.read_text(encoding="utf-8")) for path in paths}


def _news(path: Path) -> dict[str, list[str]]:
    stories = path.read_text(encoding="latin-1").splitlines()
    return {
        f"{path.name}:{number}": [story]
        for number, story in enumerate(stories, 1)
        if len(story.split()) >= MIN_WORDS
    }


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]
