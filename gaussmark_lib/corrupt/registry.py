"""Every corruption by name, as experiments use them: ``corrupt.named(lm, ["delete at random"])["delete at random"](prompts, responses, 0.3, seed)``.

A corruption takes prompts and responses, a strength from 0 to 1 and a seed, and returns new prompts and responses: what a detector then
believes the prompts to be, and what it tests. Strength 0 changes nothing. Adding one is a function here:

    @register("reverse")
    def reverse(lm, prompts, responses, fraction, seed):
        return copied(prompts), [list(reversed(ids)) if fraction else list(ids) for ids in responses]
"""

from collections.abc import Callable, Sequence
from functools import partial

from gaussmark_lib.corrupt import by_model, edits
from gaussmark_lib.errors import CorruptionError
from gaussmark_lib.models import LM
from gaussmark_lib.tokens import Texts

Pairs = tuple[list[list[int]], list[list[int]]]  # prompts as the detector believes them, responses
Change = Callable[[Texts, Texts, float, int], Pairs]  # (prompts, responses, fraction, seed)

_corruptions: dict[str, Callable[[LM, Texts, Texts, float, int], Pairs]] = {}


def register(name: str) -> Callable:
    """Registers a function (lm, prompts, responses, fraction, seed) → (prompts, responses) under a name."""

    def kept(corruption):
        if _corruptions.setdefault(name, corruption) is not corruption:
            raise CorruptionError(f"two corruptions are called {name!r}; give one of them another name")
        return corruption

    return kept


def named(lm: LM, names: Sequence[str] | None = None) -> dict[str, Change]:
    """The corruptions of these names, or all of them.

    Edits ``at random`` are of the response, with tokens from the vocabulary (``own tokens``: from the text). Edits ``at the start`` are of
    prompt and response in one piece, for a detector that knows neither where one ends nor what the other was. A corruption that has no
    strength is done in full at every fraction above 0.

    Raises:
        CorruptionError: a name that no corruption has.
    """
    if unknown := [name for name in names or () if name not in _corruptions]:
        raise CorruptionError(f"no corruption is called {unknown[0]!r}: expected some of {', '.join(_corruptions)}")
    return {name: partial(_corruptions[name], lm) for name in (_corruptions if names is None else names)}


def copied(texts: Texts) -> list[list[int]]:
    return [list(ids) for ids in texts]


def _each(prompts: Texts, responses: Texts, seed: int, edit: edits.Corruption) -> Pairs:
    """An edit of every response."""
    return copied(prompts), edits.each(edit, responses, seed)


def _each_whole(prompts: Texts, responses: Texts, seed: int, edit: edits.Corruption) -> Pairs:
    """An edit of every prompt and response in one piece."""
    pairs = [edits.of_whole(x, y, edit, edits.generator(seed, i)) for i, (x, y) in enumerate(zip(prompts, responses, strict=True))]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _vocabulary(lm: LM) -> range:
    return range(lm.model.config.vocab_size)


@register("delete at random")
def delete_at_random(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return _each(prompts, responses, seed, lambda ids, rng: edits.delete(ids, fraction, rng))


for _name, _edit in {"insert": edits.insert, "substitute": edits.substitute}.items():

    @register(f"{_name} at random")
    def _at_random(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int, edit=_edit) -> Pairs:
        return _each(prompts, responses, seed, lambda ids, rng: edit(ids, fraction, rng, _vocabulary(lm)))

    @register(f"{_name} own tokens")
    def _own_tokens(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int, edit=_edit) -> Pairs:
        return _each(prompts, responses, seed, lambda ids, rng: edit(ids, fraction, rng, ids))

    @register(f"{_name} at the start")
    def _at_the_start(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int, edit=_edit) -> Pairs:
        return _each_whole(prompts, responses, seed, lambda ids, rng: edit(ids, fraction, rng, _vocabulary(lm), at="start"))


@register("delete at the start")
def delete_at_the_start(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return _each_whole(prompts, responses, seed, lambda ids, rng: edits.delete(ids, fraction, rng, at="start"))


@register("truncate")
def truncate(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    """Without the last tokens of each response."""
    return _each(prompts, responses, seed, lambda ids, rng: edits.truncate(ids, len(ids) - edits.count(len(ids), fraction)))


@register("resample spans")
def resample_spans(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return copied(prompts), by_model.resample(lm.model, prompts, responses, fraction, seed=seed)


def _all_or_nothing(fraction: float, prompts: Texts, responses: Texts, change: Callable[[list, list], Pairs]) -> Pairs:
    """A corruption that has no strength: at 0 it is not done."""
    edits.count(1, fraction)  # refuses what is no fraction
    pairs = copied(prompts), copied(responses)
    return change(*pairs) if fraction else pairs


@register("no prompt")
def no_prompt(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return _all_or_nothing(fraction, prompts, responses, lambda x, y: ([[] for _ in x], y))


@register("wrong prompt")
def wrong_prompt(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return _all_or_nothing(fraction, prompts, responses, lambda x, y: (edits.wrong_prompts(x), y))


@register("retokenise")
def retokenise(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return _all_or_nothing(fraction, prompts, responses, lambda x, y: (x, [edits.retokenise(lm, ids) for ids in y]))


def translation(lm: LM, there: by_model.Translator, back: by_model.Translator) -> Change:
    """Translation there and back as a corruption; it needs two models, and so is not registered."""

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        return _all_or_nothing(fraction, prompts, responses, lambda x, y: (x, [by_model.round_trip(lm, ids, there, back) for ids in y]))

    return change


def spliced(hosts: Texts) -> Change:
    """Each response put whole into another text, one host a response; the given fraction of the result is the host's.

    The hosts are not known to the registry, and so this corruption is not registered.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        edits.count(1, fraction)
        out = []
        for i, (response, host) in enumerate(zip(responses, hosts, strict=True)):
            n = round(len(response) * fraction / (1 - fraction)) if fraction < 1 else len(host) + 1
            around = edits.truncate(host, n) if n else []
            out.append(edits.splice(response, around, edits.generator(seed, i)))
        return copied(prompts), out

    return change
