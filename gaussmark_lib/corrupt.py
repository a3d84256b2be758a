"""What may happen to a text between model and detector (paper, App. "robustness"), by name:

    corrupt.named(lm, ["delete at random"])["delete at random"](prompts, responses, 0.3, seed)

A corruption takes prompts and responses, a strength from 0 to 1 and a seed. It returns new lists:
the prompts as the detector believes them to be, and the responses that it tests. Strength 0 changes
nothing. A fraction f of T tokens is ⌊f·T⌉ tokens, the nearest whole number (:func:`count`): 10% of
37 tokens are 4. Their places are drawn *without* replacement: with replacement, "50%" would touch
39% of the text. Corruptions that need a model are in
``workbench.rewrite``, which registers them when it is imported. To add a corruption, register it.
The registry's tests and the level tests of every scheme then run over it:

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
    """Return the corruptions of these names, or all of them.

    Edits ``at random`` change the response, with tokens from the vocabulary (``own tokens``: from
    the text). Edits ``at the start`` change prompt and response as one text, for a detector that
    does not know where the prompt ends.

    Raise InvalidTextError for an unknown name.

    >>> from gaussmark_lib import models
    >>> truncated = named(models.load("doclm"), ["truncate"])["truncate"]
    >>> truncated([[1]], [[2, 3, 4, 5]], 0.5, seed=0)
    ([[1]], [[2, 3]])
    """
    if not isinstance(lm, LM):
        raise InvalidModelError(f"lm: expected an LM, as models.load gives it, got {shown(lm)}")
    chosen = corruptions.chosen(names)
    return {name: partial(_checked, corruption, lm) for name, corruption in chosen.items()}


def _checked(
    corruption: Corruption, lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int
) -> Pairs:
    """Check the arguments, and give the corruption new lists that it may change."""
    count(1, fraction)  # raises if it is not a fraction
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
    """Return the random numbers of one text, which depend on (seed, text) alone.

    >>> torch.equal(torch.rand(3, generator=generator(5)), torch.rand(3, generator=generator(5)))
    True
    """
    [state] = np.random.SeedSequence([seed, text]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))  # torch takes 63 bits


def count(n_tokens: int, fraction: float) -> int:
    """Return ⌊f·T⌉, the number of tokens that a fraction f of T tokens is.

    It is the nearest whole number; halfway between two, it is the even one (Python's ``round``). So
    10% of 37 tokens (3.7) are 4, of 4 tokens (0.4) none, and of 25 tokens (2.5) 2.

    Raise InvalidTextError if the fraction is not in [0, 1].

    >>> count(37, 0.1), count(4, 0.1), count(25, 0.1)
    (4, 0, 2)
    """
    if not is_number(fraction) or not 0 <= fraction <= 1:
        raise InvalidTextError(f"fraction: expected a number from 0 to 1, got {shown(fraction)}")
    return round(fraction * n_tokens)


# ---- edits of one text, with new tokens from a pool, ``at`` "random" places or the "start"


def insert(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int], at: str = "random") -> Ids:
    """Insert ⌊f·T⌉ tokens from the pool, each into another gap, or all of them before the text.

    >>> insert([1, 2, 3, 4], 0.5, generator(0), pool=[9], at="start")
    [9, 9, 1, 2, 3, 4]
    """
    n = count(len(ids), fraction)
    added = _drawn(n, pool, rng)
    if at == "start":
        gaps = [0 for _ in added]
    else:
        n_gaps = len(ids) + 1
        gaps = torch.randperm(n_gaps, generator=rng)[:n].tolist()
    return np.insert(ids, sorted(gaps), added).tolist()


def delete(ids: Ids, fraction: float, rng: Rng, _: Sequence[int] = (), at: str = "random") -> Ids:
    """Delete ⌊f·T⌉ of the tokens, at random or the first ones.

    >>> delete([1, 2, 3, 4], 0.5, generator(0), at="start")
    [3, 4]
    """
    places = _places(len(ids), fraction, rng, at)
    if len(places) == len(ids):
        expected = "expected at least one to stay; choose a smaller fraction"
        raise InvalidTextError(f"fraction = {fraction} removes all {len(ids)} tokens: {expected}")
    return np.delete(ids, places).tolist()


def substitute(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int], at: str = "random") -> Ids:
    """Replace ⌊f·T⌉ of the tokens, at random or the first ones, by *other* tokens of the pool.

    >>> substitute([1, 2, 3, 4], 0.5, generator(0), pool=[9], at="start")
    [9, 9, 3, 4]
    """
    places = _places(len(ids), fraction, rng, at)
    choices = set(pool)
    replaced = {ids[place] for place in places}
    if len(choices) < 2 and choices & replaced:
        expected = "expected a pool with at least one token other than the one it replaces"
        raise InvalidTextError(f"{expected}, got only {sorted(choices)}")
    changed = list(ids)
    while places:  # again at each place that drew the token which stood there
        for place, token in zip(places, _drawn(len(places), pool, rng), strict=True):
            changed[place] = token
        places = [place for place in places if changed[place] == ids[place]]
    return changed


def truncate(ids: Ids, fraction: float, rng: Rng, pool: Sequence[int] = ()) -> Ids:
    """Delete the last ⌊f·T⌉ tokens.

    >>> truncate([1, 2, 3, 4], 0.5, generator(0))
    [1, 2]
    """
    return delete(ids[::-1], fraction, rng, at="start")[::-1]


def _places(n_tokens: int, fraction: float, rng: Rng, at: str) -> list[int]:
    n = count(n_tokens, fraction)
    if at == "start":
        return list(range(n))
    order = torch.randperm(n_tokens, generator=rng).tolist()
    return order[:n]


def _drawn(n: int, pool: Sequence[int], rng: Rng) -> list[int]:
    numbers = torch.randint(len(pool), (n,), generator=rng)
    return [pool[number] for number in numbers.tolist()]


# ---- edits as corruptions


def _of_responses(edit: Callable, *, own_tokens: bool = False, **at: str) -> Corruption:
    """Return a corruption that edits each response.

    New tokens come from the vocabulary, or from the response itself.
    """

    def corruption(lm, prompts, responses, fraction, seed):
        vocabulary = range(tokens.config(lm.model).vocab_size)
        edited = []
        for i, ids in enumerate(responses):
            pool = ids if own_tokens else vocabulary
            edited.append(edit(ids, fraction, generator(seed, i), pool, **at))
        return prompts, edited

    return corruption


def _of_texts(edit: Callable) -> Corruption:
    """Return a corruption that edits prompt and response as one text.

    The detector takes as many tokens from the end as the response had.
    """
    of_responses = _of_responses(edit, at="start")

    def corruption(lm, prompts, responses, fraction, seed):
        texts = [x + y for x, y in zip(prompts, responses, strict=True)]
        _, texts = of_responses(lm, prompts, texts, fraction, seed)
        starts = [max(0, len(ids) - len(y)) for ids, y in zip(texts, responses, strict=True)]
        new_prompts = [ids[:start] for ids, start in zip(texts, starts, strict=True)]
        new_responses = [ids[start:] for ids, start in zip(texts, starts, strict=True)]
        return new_prompts, new_responses

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
    if fraction == 0:
        return prompts, responses
    return [[] for _ in prompts], responses


@register("wrong prompt")
def _wrong_prompt(lm, prompts, responses, fraction, seed):
    """Give each text the prompt of the next text."""
    if fraction == 0:
        return prompts, responses
    if len(prompts) < 2:
        raise InvalidTextError(f"a wrong prompt: expected at least 2 texts, got {len(prompts)}")
    return [*prompts[1:], prompts[0]], responses


@register("retokenise")
def _retokenised(lm, prompts, responses, fraction, seed):
    if fraction == 0:
        return prompts, responses
    return prompts, [retokenise(lm, ids) for ids in responses]


def retokenise(lm: LM, ids: Ids) -> Ids:
    """Return the ids of the text that these ids spell, as a detector that is given text sees them.

    They can be other ids than those that were sampled, because many sequences of ids spell the same
    text. Raise InvalidTextError if the ids spell an empty text.

    >>> from gaussmark_lib import models
    >>> lm = models.load("doclm")
    >>> retokenise(lm, [*lm.encode("mea"), *lm.encode("n")]) == lm.encode("mean")
    True
    """
    new_ids = lm.encode(lm.decode(ids))
    if not new_ids:
        raise InvalidTextError("expected ids that spell a text, got an empty one")
    return new_ids
