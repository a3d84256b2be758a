"""Human texts, document by document: which documents are reserved for the pilot, and the order of
the other documents.

    pilot       whole documents in the order of a hash of their name, until they have ``N_PILOT``
                texts: σ is solved and ranges are chosen on them; the same for every seed
    heldout     all other documents, in an order that the seed decides: a measurement uses them
    train       only for documentation: the embedded model's training text, in the seed's order

Pilot and held-out texts never share a document, nor a paragraph of ``SAME`` characters (packages
repeat each other's licences). So a confirmation never sees a text of the pilot. Another
seed means another order of the documents. It means other documents only where fewer texts are asked
for than there are documents: 100 prompts from speeches use all 72 speeches outside the pilot,
whatever the seed. Texts of one document resemble each other: their ``source`` names the document,
to cluster by. The order depends on names alone, not on file sizes.

============== ===================================================== =======================
kind           a document                                            a text of the pilot has
============== ===================================================== =======================
``"docs"``     held-out prose of a file, or of small files in a row  1,000 characters
``"licences"`` a licence file                                        1,000 characters
``"source"``   a Python file                                         1,000 characters
``"speeches"`` an address                                            2,000 characters
``"news"``     a story                                               the document is one text
a file         one of its texts                                      the document is one text
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
LEAST_OF_FILE = 4 * N_PILOT  # a user's file with fewer texts reserves no pilot
FIRST_YEAR = 1960  # of the speeches: earlier speeches were mostly sent, not spoken
MIN_WORDS = 81  # of a news story
PASSAGES = {"speeches": 2000, "news": 2000}  # characters of a text of the pilot
PASSAGE = 1000  # the same for all other kinds
SAME = 80  # characters of a paragraph that pilot and held-out texts do not share
SPLITS = ("pilot", "heldout")


def rows(kind: str, split: str, min_chars: int, seed: int) -> Iterator[dict]:
    """Yield rows ``text, source`` of a kind: the first passage of each document, then the second of
    each, and so on. So the first n rows come from as many documents as possible. No text comes
    twice.

    InvalidTextError for another split, or for a package that is not installed.
    """
    splits = ("train", *SPLITS) if kind == "docs" else SPLITS
    require_split(kind, split, splits)
    all_documents = documents(kind, split)
    if split == "train":
        chosen = {name: all_documents[name] for name in in_order(all_documents, seed)}
    else:
        reserved_names = pilot_names(kind, all_documents)
        chosen = _of_split(all_documents, reserved_names, split, seed)
    passages = [joined(paragraphs, name, min_chars) for name, paragraphs in chosen.items()]
    # documents take turns; a document without a further passage yields None
    by_turns = chain.from_iterable(zip_longest(*passages))
    return _without_repetitions(row for row in by_turns if row is not None)


def of_file(path: str | Path, split: str, seed: int) -> list[dict]:
    """Return rows ``text, source`` of a user's file. A file of at least ``LEAST_OF_FILE`` texts
    reserves the ``N_PILOT`` texts with the smallest hashes, and the seed orders the other texts. A
    smaller file reserves none: both splits are all of its texts, in its order, whatever the seed.
    """
    require_split(Path(path).name, split, SPLITS)
    rows_of_file = list(text_files.rows(path))
    if len(rows_of_file) < LEAST_OF_FILE:
        return rows_of_file
    by_text = {row["text"]: row for row in rows_of_file}
    pilot = sorted(by_text, key=_hash)[:N_PILOT]
    if split == "pilot":
        return [by_text[text] for text in pilot]
    heldout = by_text.keys() - set(pilot)
    return [by_text[text] for text in in_order(heldout, seed)]


def require_split(kind: str, split: str, splits: tuple[str, ...]) -> None:
    """Raise InvalidTextError for a split that a kind does not have."""
    if split not in splits:
        *first_splits, last_split = (repr(name) for name in splits)
        expected = f"{', '.join(first_splits)} or {last_split}"
        raise InvalidTextError(f"{kind}: expected the split {expected}, got {split!r}")


def documents(kind: str, split: str = "heldout") -> Documents:
    """Return the paragraphs of each document of a kind, by the document's name. For documentation,
    ``split`` selects the embedded model's training text or the held-out text.
    """
    if kind == "docs":
        return corpus.documentation("train" if split == "train" else "heldout")
    if kind == "licences":
        return corpus.licences()
    if kind == "source":
        return corpus.source()
    path = packages.text_path(packages.TEXTS[kind])
    return _speeches(path) if kind == "speeches" else _news(path)


def pilot_names(kind: str, known: Documents) -> list[str]:
    """Return the names of the documents that are reserved for the pilot."""
    names = []
    n_passages = 0
    passage = PASSAGES.get(kind, PASSAGE)
    for name in sorted(known, key=_hash):
        if n_passages >= N_PILOT:
            break
        names.append(name)
        passages = list(joined(known[name], name, passage))
        n_passages += max(1, len(passages))
    return names


def in_order(names: Iterable[str], seed: int) -> list[str]:
    """Sort names in the order that a seed decides."""
    return sorted(names, key=lambda name: _hash(f"{seed} {name}"))


def _of_split(all_documents: Documents, pilot: list[str], split: str, seed: int) -> Documents:
    if split == "pilot":
        return {name: all_documents[name] for name in pilot}
    reserved = set()  # paragraphs of the pilot that are long enough to be repeated text
    for name in pilot:
        reserved.update(text for text in all_documents[name] if len(text) >= SAME)
    heldout = all_documents.keys() - set(pilot)
    chosen = {}
    for name in in_order(heldout, seed):
        chosen[name] = [text for text in all_documents[name] if text not in reserved]
    return chosen


def _without_repetitions(rows: Iterable[dict]) -> Iterator[dict]:
    seen = set()
    for row in rows:
        if row["text"] not in seen:
            seen.add(row["text"])
            yield row


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _speeches(folder: Path) -> Documents:
    speeches = {}
    for path in sorted(folder.glob("*.txt")):
        year = int(path.stem[:4])
        if year >= FIRST_YEAR:
            speeches[path.stem] = _paragraphs(path.read_text(encoding="utf-8"))
    return speeches


def _news(path: Path) -> Documents:
    stories = path.read_text(encoding="latin-1").splitlines()
    return {
        f"{path.name}:{number}": [story]
        for number, story in enumerate(stories, start=1)
        if len(story.split()) >= MIN_WORDS
    }


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]
