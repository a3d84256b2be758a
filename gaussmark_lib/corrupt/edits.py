"""Corruptions of a text token by token (paper, App. "robustness"): token ids in, new ids out; the
input stays as it was.

A fraction f of T tokens is ⌊f·T⌉ tokens, at places drawn *without* replacement: with replacement,
"50%" would touch 39% of the text.

==============================  =====================================================================
paper                           here
==============================  =====================================================================
random insertions               ``insert``: at ⌊f·T⌉ of the T + 1 gaps, or all of them as a prefix
random deletions                ``delete``
random substitutions            ``substitute``: each chosen token becomes *another* one
tokens from the vocabulary      ``pool=range(vocabulary)``; ``pool=ids`` takes them from the text itself
ignorance of the prompt         ``of_whole`` (edits at the start of prompt and response), ``wrong_prompts``
only a part is used             ``truncate``, ``splice``
==============================  =====================================================================
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gaussmark_lib import checks, models, tokens
from gaussmark_lib.errors import CorruptionError, InvalidTextError
from gaussmark_lib.tokens import Ids, Texts

Edit = Callable[[Ids, torch.Generator], list[int]]


def generator(seed: int, text: int = 0) -> torch.Generator:
    """The random numbers of one text, a function of (seed, text) alone: no text depends on those
    beside it.
    """
    seed, text = (
        checks.whole(seed, "seed", CorruptionError, least=0),
        checks.whole(text, "text", CorruptionError, least=0),
    )
    state = np.random.SeedSequence([seed, text]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def each(edit: Edit, texts: Texts, seed: int = 0) -> list[list[int]]:
    """The edit of each text, under its own :func:`generator`."""
    texts = tokens.listed(texts, "expected a list of texts, each a list of token ids")
    return [edit(ids, generator(seed, i)) for i, ids in enumerate(texts)]


def count(n_tokens: int, fraction: float) -> int:
    """⌊f·T⌉: how many of T tokens a fraction is. Raises CorruptionError for a fraction outside [0,
    1].

    >>> count(40, 0.3)
    12
    """
    if not checks.is_number(fraction) or not 0 <= fraction <= 1:
        raise CorruptionError(
            f"fraction: expected a number from 0 to 1, got {checks.shown(fraction)}"
        )
    checks.whole(n_tokens, "n_tokens", CorruptionError, least=0)
    return round(fraction * n_tokens)


def insert(
    ids: Ids, fraction: float, rng: torch.Generator, pool: Sequence[int], *, at: str = "random"
) -> list[int]:
    """The text with ⌊f·T⌉ more tokens from the pool, each in another gap (``at="random"``), or all
    before the text (``at="start"``).
    """
    ids, pool = _checked(ids), _pool(pool)
    n = count(len(ids), fraction)
    added = _drawn(n, pool, rng)
    gaps = (
        [0] * n
        if _at_start(at)
        else torch.randperm(len(ids) + 1, generator=rng)[:n].sort().values.tolist()
    )
    return np.insert(ids, gaps, added).tolist()


def delete(ids: Ids, fraction: float, rng: torch.Generator, *, at: str = "random") -> list[int]:
    """The text without ⌊f·T⌉ of its tokens, or without its first ones. Raises CorruptionError if
    nothing would be left.
    """
    ids = _checked(ids)
    gone = _places(len(ids), fraction, rng, at)
    if len(gone) == len(ids):
        raise CorruptionError(
            f"fraction = {fraction} removes all {len(ids)} tokens: expected at least one to stay;"
            " choose a smaller fraction"
        )
    return np.delete(ids, gone).tolist()


def substitute(
    ids: Ids, fraction: float, rng: torch.Generator, pool: Sequence[int], *, at: str = "random"
) -> list[int]:
    """The text with ⌊f·T⌉ of its tokens, or its first ones, each replaced by a different token from
    the pool.

    Raises CorruptionError if the pool has no token that differs from the one to be replaced.
    """
    ids, pool = _checked(ids), _pool(pool)
    changed = list(ids)
    places = _places(len(ids), fraction, rng, at)
    if places and len(only := set(pool)) < 2 and only & {ids[place] for place in places}:
        raise CorruptionError(
            "expected a pool with at least one token other than the one it replaces, got only"
            f" {sorted(only)}"
        )
    while places:  # again for those that drew the token they have
        for place, token in zip(places, _drawn(len(places), pool, rng), strict=True):
            changed[place] = token
        places = [place for place in places if changed[place] == ids[place]]
    return changed


def of_whole(
    prompt: Ids, response: Ids, edit: Edit, rng: torch.Generator
) -> tuple[list[int], list[int]]:
    """Prompt and response after a corruption of both in one piece, for a detector that knows
    neither well.

    An edit at the start is the paper's ignorance of the prompt. The last T tokens are the new
    response, T being the length of the old one; a deletion beyond the prompt shortens it.
    """
    prompt, response = _checked(prompt, at_least=0), _checked(response)
    whole = edit(prompt + response, rng)
    cut = max(0, len(whole) - len(response))
    return whole[:cut], whole[cut:]


def wrong_prompts(prompts: Texts) -> list[list[int]]:
    """Each text's prompt exchanged for the next text's. Raises CorruptionError if there are fewer
    than two.
    """
    prompts = tokens.listed(
        prompts, "expected a list of at least 2 prompts, each a list of token ids"
    )
    if len(prompts) < 2:
        raise CorruptionError(
            f"a wrong prompt is another text's: expected at least 2 texts, got {len(prompts)}"
        )
    return [list(prompt) for prompt in (*prompts[1:], prompts[0])]


def truncate(ids: Ids, n_tokens: int, *, skip: int = 0) -> list[int]:
    """``n_tokens`` of the text, after the first ``skip``. Raises CorruptionError if the text has
    fewer.
    """
    ids = _checked(ids)
    n_tokens, skip = (
        checks.whole(n_tokens, "n_tokens", CorruptionError),
        checks.whole(skip, "skip", CorruptionError, least=0),
    )
    if n_tokens < 1 or skip < 0 or skip + n_tokens > len(ids):
        raise CorruptionError(
            f"expected a passage of at least 1 token within the text's {len(ids)}, got {n_tokens}"
            f" tokens after the first {skip}"
        )
    return ids[skip : skip + n_tokens]


def splice(passage: Ids, host: Ids, rng: torch.Generator) -> list[int]:
    """The host text with the passage put in whole, in one of its gaps: a watermarked quotation
    inside human text.
    """
    passage, host = _checked(passage), _checked(host, at_least=0)
    at = int(torch.randint(len(host) + 1, (1,), generator=rng))
    return host[:at] + passage + host[at:]


def retokenise(lm: models.LM, ids: Ids) -> list[int]:
    """The ids of the text that these ids spell, without a start token: what a detector sees that
    was given text.

    Raises CorruptionError if the ids spell nothing, for example special tokens only.
    """
    tokens.check_lm(lm)
    text = lm.decode(tokens.checked(lm.model, _checked(ids), "ids"))
    if not text or not (again := lm.encode(text)):
        raise CorruptionError(
            "expected ids that spell a text, got an empty one; nothing is left to score"
        )
    return again


def _checked(ids: Ids, at_least: int = 1) -> list[int]:
    ids = tokens.whole_numbers(ids, "ids")
    if len(ids) < at_least:
        raise InvalidTextError("expected a text of at least one token to corrupt, got an empty one")
    return ids


def _pool(pool: Ids) -> Sequence[int]:
    """The tokens to draw from; a range stays one, since a vocabulary is long."""
    return pool if isinstance(pool, range) else tokens.whole_numbers(pool, "pool")


def _at_start(at: str) -> bool:
    return checks.chosen(at, "at", ("random", "start"), CorruptionError) == "start"


def _places(n_tokens: int, fraction: float, rng: torch.Generator, at: str) -> list[int]:
    n = count(n_tokens, fraction)
    return list(range(n)) if _at_start(at) else torch.randperm(n_tokens, generator=rng)[:n].tolist()


def _drawn(n: int, pool: Sequence[int], rng: torch.Generator) -> list[int]:
    if n and len(pool) == 0:
        raise CorruptionError("expected a pool of at least one token to draw from, got none")
    return [pool[i] for i in torch.randint(max(1, len(pool)), (n,), generator=rng).tolist()]
