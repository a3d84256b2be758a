"""Every corruption by name, as experiments use them:

    corrupt.named(lm, ["delete at random"])["delete at random"](prompts, responses, 0.3, seed)

A corruption takes prompts and responses, a strength from 0 to 1 and a seed. It returns new lists:
the prompts as the detector believes them to be, and the responses that it tests. Strength 0 changes
nothing; a strength outside [0, 1] is refused. To add one, add a function to this file:

    @register("reverse the end")
    def reverse_the_end(lm, prompts, responses, fraction, seed):
        cut = [len(ids) - edits.count(len(ids), fraction) for ids in responses] return
        copied(prompts), [[*ids[:n], *reversed(ids[n:])] for ids, n in zip(responses, cut,
        strict=True)]

The registry's tests and the level tests of every scheme (tests/oracle/test_levels.py) then run over
it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from gaussmark_lib import tokens
from gaussmark_lib.corrupt import by_model, edits
from gaussmark_lib.errors import CorruptionError
from gaussmark_lib.models import LM
from gaussmark_lib.tokens import Texts

Pairs = tuple[list[list[int]], list[list[int]]]  # prompts as the detector believes them, responses
Change = Callable[[Texts, Texts, float, int], Pairs]  # (prompts, responses, fraction, seed)
Corruption = Callable[[LM, Texts, Texts, float, int], Pairs]  # the same, with the model before it

ALL_OR_NOTHING = (
    "no prompt",
    "wrong prompt",
    "retokenise",
)  # done in full at every fraction above 0

_corruptions: dict[str, Corruption] = {}


def register(name: str) -> Callable[[Corruption], Corruption]:
    """Registers a function (lm, prompts, responses, fraction, seed) → (prompts, responses) under a
    name that no other has (CorruptionError).
    """

    def kept(corruption: Corruption) -> Corruption:
        if _corruptions.setdefault(name, corruption) is not corruption:
            raise CorruptionError(
                f"two corruptions are called {name!r}; give one of them another name"
            )
        return corruption

    return kept


def named(lm: LM, names: Sequence[str] | None = None) -> dict[str, Change]:
    """The corruptions of these names, or all of them.

    Edits ``at random`` change the response, with tokens from the vocabulary (``own tokens``: from
    the text). Edits ``at the start`` change prompt and response as one text, for a detector that
    does not know where the prompt ends. Raises CorruptionError for an unknown name.
    """
    tokens.check_lm(lm)
    names = (
        None
        if names is None
        else tokens.listed(
            names, f"names: expected some of {', '.join(_corruptions)}", CorruptionError
        )
    )
    if unknown := [name for name in names or () if name not in _corruptions]:
        raise CorruptionError(
            f"no corruption is called {unknown[0]!r}: expected some of {', '.join(_corruptions)}"
        )
    return {
        name: partial(_corruptions[name], lm) for name in (_corruptions if names is None else names)
    }


def copied(texts: Texts) -> list[list[int]]:
    return [
        tokens.whole_numbers(ids, "text")
        for ids in tokens.listed(texts, "expected a list of texts, each a list of token ids")
    ]


def _of_responses(
    edit: Callable, lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int
) -> Pairs:
    """An edit (lm, ids, fraction, random numbers) → ids of each response."""
    return copied(prompts), edits.each(
        lambda ids, rng: edit(lm, ids, fraction, rng), responses, seed
    )


def _of_whole_texts(
    edit: Callable, lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int
) -> Pairs:
    """An edit of each prompt with its response, as one text."""
    texts = enumerate(zip(*tokens.as_many(prompts, responses), strict=True))
    changed = [
        edits.of_whole(
            x, y, lambda ids, rng: edit(lm, ids, fraction, rng), edits.generator(seed, i)
        )
        for i, (x, y) in texts
    ]
    return [x for x, _ in changed], [y for _, y in changed]


def _all_or_nothing(
    change: Callable, lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int
) -> Pairs:
    """A change (lm, prompts, responses) → (prompts, responses) without a strength: it is done in
    full at every fraction above 0.
    """
    edits.count(1, fraction)  # refuses a number outside [0, 1]
    pairs = copied(prompts), copied(responses)
    return change(lm, *pairs) if fraction else pairs


def _vocabulary(lm: LM) -> range:
    return range(tokens.config(lm.model).vocab_size)


def _register(how: Callable, name: str, what: Callable) -> None:
    register(name)(partial(how, what))


_register(_of_responses, "delete at random", lambda lm, ids, f, rng: edits.delete(ids, f, rng))
for _name, _edit in {"insert": edits.insert, "substitute": edits.substitute}.items():
    _register(
        _of_responses,
        f"{_name} at random",
        lambda lm, ids, f, rng, edit=_edit: edit(ids, f, rng, _vocabulary(lm)),
    )
    _register(
        _of_responses,
        f"{_name} own tokens",
        lambda lm, ids, f, rng, edit=_edit: edit(ids, f, rng, ids),
    )
    _register(
        _of_whole_texts,
        f"{_name} at the start",
        lambda lm, ids, f, rng, edit=_edit: edit(ids, f, rng, _vocabulary(lm), at="start"),
    )
_register(
    _of_whole_texts,
    "delete at the start",
    lambda lm, ids, f, rng: edits.delete(ids, f, rng, at="start"),
)
_register(
    _of_responses,
    "truncate",
    lambda lm, ids, f, rng: edits.truncate(ids, len(ids) - edits.count(len(ids), f)),
)  # loses its end


@register("resample spans")
def resample_spans(lm: LM, prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
    return copied(prompts), by_model.resample(lm.model, prompts, responses, fraction, seed=seed)


_register(_all_or_nothing, "no prompt", lambda lm, x, y: ([[] for _ in x], y))
_register(_all_or_nothing, "wrong prompt", lambda lm, x, y: (edits.wrong_prompts(x), y))
_register(
    _all_or_nothing, "retokenise", lambda lm, x, y: (x, [edits.retokenise(lm, ids) for ids in y])
)


def translation(lm: LM, there: by_model.Translator, back: by_model.Translator) -> Change:
    """Translation there and back as a corruption. It is not registered, since it needs two more
    models.
    """
    return partial(
        _all_or_nothing,
        lambda lm, x, y: (x, [by_model.round_trip(lm, ids, there, back) for ids in y]),
        lm,
    )


def spliced(hosts: Texts) -> Change:
    """Each response put whole into a host text of its own; the given fraction of the result is the
    host's. Not registered: it needs hosts.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        edits.count(1, fraction)  # refuses a number outside [0, 1]
        if len(hosts) != len(responses):
            raise CorruptionError(
                f"expected one host a response, got {len(hosts)} hosts and {len(responses)}"
                " responses"
            )
        out = []
        for i, (response, host) in enumerate(zip(responses, hosts, strict=True)):
            n = round(len(response) * fraction / (1 - fraction)) if fraction < 1 else len(host) + 1
            around = edits.truncate(host, n) if n else []
            out.append(edits.splice(response, around, edits.generator(seed, i)))
        return copied(prompts), out

    return change
