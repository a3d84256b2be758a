"""How long prompts and texts can be on a model of short context, or with a file of short lines:
what is wanted, or the most that there is.
"""

from gaussmark_lib import models, texts, tokens
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.tokens import Texts


def available(lm: models.LM, text: str, n: int, n_tokens: int) -> int:
    """The length, at most ``n_tokens``, that n texts of a file have, in this model's tokens. Texts
    of a kind that has a name are as long as one asks.

    Raises:
        CorpusError: fewer than n texts.
    """
    longest = min(n_tokens, tokens.context(lm.model) or n_tokens)
    if text in texts.KINDS:
        return longest
    lengths = sorted((len(lm.encode(row)) for row in texts.load(text)["text"]), reverse=True)
    if len(lengths) < n:
        raise CorpusError(f"{text}: expected {n} texts, found {len(lengths)}; ask for fewer")
    return min(longest, lengths[n - 1])


def room(lm: models.LM, prompts: Texts, n_tokens: int) -> int:
    """``n_tokens``, or as many as the model's context has room for after the longest of these
    prompts.
    """
    longest = tokens.context(lm.model)
    return n_tokens if longest is None else min(n_tokens, max(1, longest - max(map(len, prompts))))


def said(wanted: int, got: int) -> str:
    """What to print where fewer tokens were taken than asked for; nothing otherwise.

    >>> said(400, 224)
    ' (400 were asked for: this model or this text has room for no more)'
    >>> said(100, 100)
    ''
    """
    return (
        f" ({wanted} were asked for: this model or this text has room for no more)"
        if got < wanted
        else ""
    )
