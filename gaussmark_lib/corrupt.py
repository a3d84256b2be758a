"""What may happen to a text between model and detector (paper, App. "robustness"), by name:

    corrupt.named(lm, ["delete at random"])["delete at random"](prompts, responses, 0.3, seed)

A corruption takes prompts and responses, a strength from 0 to 1 and a seed. It returns new lists:
the prompts as the detector believes them to be, and the responses that it tests. Strength 0 changes
nothing. Of T tokens a fraction f is ⌊f·T⌉ tokens, at places drawn *without* replacement: with
replacement, "50%" would touch 39% of the text. Those that need a model are in
``workbench.rewrite``, which registers them when it is imported. To add one, which the registry's
tests and the level tests of every scheme then run over:

    @corrupt.register("reverse")
    def reverse(lm, prompts, responses, fraction, seed):
        return prompts, [ids[::-1] if fraction else ids for ids in responses]
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from gaussmark_lib import tokens
from gaussmark_lib.engine.registry import Registry
from gaussmark_lib.errors import InvalidModelError, InvalidTextError, is_number, require_int, shown
from gaussmark_lib.models import LM
from gaussmark_lib.tokens import Texts

Ids = list[int]
Rng = torch.Generator
Pairs = tuple[list[Ids], list[Ids]]  # prompts as the detector believes them, responses
Change = Callable[[Texts, Texts, float, int], Pairs]  # (prompts, responses, fraction, seed)
Corruption = Callable[[LM, list[Ids], list[Ids], float, int], Pairs]

corruptions = Registry("corruption", InvalidTextError)
register = corruptions.register


def named(lm: LM, names: Sequence[str] | None = None) -> dict[str, Change]:
    """The corruptions of these names, or all of them; InvalidTextError for an unknown one.

    Edits ``at random`` change the response, with tokens from the vocabulary (``own tokens``: from
    the text). Edits ``at the start`` change prompt and response as one text, for a detector that
    does not know where the prompt ends.
    """
    if not isinstance(lm, LM):
        raise InvalidModelError(f"lm: expected an LM, as models.load gives it, got {shown(lm)}")
    return {name: partial(_changed, f, lm) for name, f in corruptions.chosen(names).items()}


def _changed(
    corruption: Corruption, lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int
) -> Pairs:
    """The door: a corruption gets lists of its own, of checked ids."""
    count(1, fraction)
    require_int(seed, "seed", least=0)
    reader = tokens.Reader(lm.model)
    prompts = reader.texts(prompts, "prompt")
    responses = reader.texts(responses, "response")
    if not len(prompts) == len(responses) > 0:
        got = f"{len(prompts)} prompts and {len(responses)} responses"
        raise InvalidTextError(f"expected one prompt per response, got {got}")
    if not all(responses):
        raise InvalidTextError("expected responses of at least one token, got an empty one")
    return corruption(lm, prompts, responses, fraction, seed)


def generator(seed: int, text: int = 0) -> Rng:
    """The random numbers of one text, a function of (seed, text) alone."""
    state = np.random.SeedSequence([seed, text]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def count(n_tokens: int, fraction: float) -> int:
    """⌊f·T⌉: how many of T tokens a fraction is. InvalidTextError for a fraction outside [0, 1].

    >>> count(40, 0.3)
    12
    """
    if not is_number(fraction) or not 0 <= fraction <= 1:
        raise InvalidTextError(f"fraction: expected a number from 0 to 1, got {shown(fraction)}")
    return round(fraction * n_tokens)


# ---- edits of one text, with new tokens from a pool, ``at`` "random" places or the "start"


def insert(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int], at: str = "random") -> Ids:
    """⌊f·T⌉ more tokens from the pool, each in another gap, or all before the text."""
    n = count(len(ids), fraction)
    added = _drawn(n, pool, rng)
    gaps = [0] * n if at == "start" else torch.randperm(len(ids) + 1, generator=rng)[:n].tolist()
    return np.insert(ids, sorted(gaps), added).tolist()


def delete(ids: Ids, fraction: float, rng: Rng, _: Sequence[int] = (), at: str = "random") -> Ids:
    """The text without ⌊f·T⌉ of its tokens, or without its first ones."""
    gone = _places(len(ids), fraction, rng, at)
    if len(gone) == len(ids):
        expected = "expected at least one to stay; choose a smaller fraction"
        raise InvalidTextError(f"fraction = {fraction} removes all {len(ids)} tokens: {expected}")
    return np.delete(ids, gone).tolist()


def substitute(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int], at: str = "random") -> Ids:
    """⌊f·T⌉ of the tokens, or the first ones, each replaced by *another* token from the pool."""
    changed, places = list(ids), _places(len(ids), fraction, rng, at)
    if places and len(only := set(pool)) < 2 and only & {ids[place] for place in places}:
        expected = "expected a pool with at least one token other than the one it replaces"
        raise InvalidTextError(f"{expected}, got only {sorted(only)}")
    while places:  # again for those that drew the token they have
        for place, token in zip(places, _drawn(len(places), pool, rng), strict=True):
            changed[place] = token
        places = [place for place in places if changed[place] == ids[place]]
    return changed


def truncate(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int] = ()) -> Ids:
    """The text without its last ⌊f·T⌉ tokens."""
    return delete(ids[::-1], fraction, rng, at="start")[::-1]


def _places(n_tokens: int, fraction: float, rng: Rng, at: str) -> list[int]:
    n = count(n_tokens, fraction)
    order = torch.randperm(n_tokens, generator=rng).tolist() if at == "random" else range(n_tokens)
    return list(order[:n])


def _drawn(n: int, pool: Sequence[int], rng: Rng) -> list[int]:
    return [pool[i] for i in torch.randint(len(pool), (n,), generator=rng).tolist()]


# ---- edits as corruptions


def _of_responses(edit: Callable, *, own_tokens: bool = False, **at: str) -> Corruption:
    """An edit of each response: new tokens come from the vocabulary or from the response itself."""

    def corruption(lm, prompts, responses, fraction, seed):
        vocabulary = range(tokens.config(lm.model).vocab_size)
        return prompts, [
            edit(ids, fraction, generator(seed, i), ids if own_tokens else vocabulary, **at)
            for i, ids in enumerate(responses)
        ]

    return corruption


def _of_texts(edit: Callable) -> Corruption:
    """An edit of prompt and response as one text, cut where as many tokens follow as before."""
    of_responses = _of_responses(edit, at="start")

    def corruption(lm, prompts, responses, fraction, seed):
        texts = [x + y for x, y in zip(prompts, responses, strict=True)]
        _, texts = of_responses(lm, prompts, texts, fraction, seed)
        starts = [max(0, len(ids) - len(y)) for ids, y in zip(texts, responses, strict=True)]
        both = list(zip(texts, starts, strict=True))
        return [ids[:start] for ids, start in both], [ids[start:] for ids, start in both]

    return corruption


register("delete at random")(_of_responses(delete))
for _edit in (insert, substitute):
    register(f"{_edit.__name__} at random")(_of_responses(_edit))
    register(f"{_edit.__name__} own tokens")(_of_responses(_edit, own_tokens=True))
    register(f"{_edit.__name__} at the start")(_of_texts(_edit))
register("delete at the start")(_of_texts(delete))
register("truncate")(_of_responses(truncate))


@register("no prompt")
def _no_prompt(lm, prompts, responses, fraction, seed):
    return [[] for _ in prompts] if fraction else prompts, responses


@register("wrong prompt")
def _wrong_prompt(lm, prompts, responses, fraction, seed):
    """Each text's prompt exchanged for the next text's."""
    if fraction and len(prompts) < 2:
        raise InvalidTextError(f"a wrong prompt: expected at least 2 texts, got {len(prompts)}")
    return [*prompts[1:], prompts[0]] if fraction else prompts, responses


@register("retokenise")
def _retokenised(lm, prompts, responses, fraction, seed):
    return prompts, [retokenise(lm, ids) if fraction else ids for ids in responses]


def retokenise(lm: LM, ids: Ids) -> Ids:
    """The ids of the text that these ids spell, as a detector sees them that was given text."""
    if not (again := lm.encode(lm.decode(ids))):
        raise InvalidTextError("expected ids that spell a text, got an empty one")
    return again
