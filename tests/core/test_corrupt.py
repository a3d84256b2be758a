"""Corruptions: exactly as many tokens as asked for, where asked for, and nothing else; by name,
harmless at strength 0, and never changing their input.
"""

from itertools import pairwise

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from gaussmark_lib import corrupt
from gaussmark_lib.errors import GaussMarkError, InvalidTextError
from gaussmark_lib.workbench import rewrite  # noqa: F401 - registers edits that need a model

IDS = st.lists(st.integers(0, 96), min_size=1, max_size=40)
FRACTION, AT, SEED = st.floats(0, 1), st.sampled_from(["random", "start"]), st.integers(0, 10_000)
POOL = range(1000, 1100)  # no token of IDS
LM = tiny_lm.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 5, 7, 4)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 20, 31, 7)
CHANGES = corrupt.named(LM)


@given(ids=IDS, fraction=FRACTION, at=AT, seed=SEED)
def test_insertion_adds_exactly_the_fraction_and_keeps_the_rest_in_order(ids, fraction, at, seed):
    before = list(ids)
    out = corrupt.insert(ids, fraction, corrupt.generator(seed), POOL, at=at)
    n = round(fraction * len(ids))
    assert len(out) == len(ids) + n
    assert [token for token in out if token < 1000] == ids == before
    assert sum(token >= 1000 for token in out) == n
    if at == "start":
        assert out[n:] == ids
    else:  # a gap takes one token only
        assert not any(a >= 1000 and b >= 1000 for a, b in pairwise(out))


@given(ids=IDS, fraction=FRACTION, at=AT, seed=SEED)
def test_deletion_removes_exactly_the_fraction(ids, fraction, at, seed):
    n = round(fraction * len(ids))
    assume(n < len(ids))
    marked = [1000 * place + token for place, token in enumerate(ids)]  # no two are equal
    out = corrupt.delete(marked, fraction, corrupt.generator(seed), at=at)
    assert len(out) == len(ids) - n
    assert out == sorted(out)
    assert set(out) <= set(marked)
    if at == "start":
        assert out == marked[n:]


@given(ids=IDS, fraction=FRACTION, at=AT, seed=SEED, own=st.booleans())
def test_substitution_changes_exactly_the_fraction(ids, fraction, at, seed, own):
    before = list(ids)
    pool = ids if own else range(97)
    assume(len(set(pool)) > 1)
    out = corrupt.substitute(ids, fraction, corrupt.generator(seed), pool, at=at)
    changed = [i for i, (a, b) in enumerate(zip(ids, out, strict=True)) if a != b]
    assert len(changed) == round(fraction * len(ids))
    assert set(out) <= set(pool) | set(ids)
    assert ids == before
    if at == "start":
        assert changed == list(range(len(changed)))


def test_places_are_uniform_and_without_replacement():
    """Every place is hit as often as every other; half of the tokens is half, not the 39% of draws
    with replacement.
    """
    hits = torch.zeros(20)
    for seed in range(2000):
        out = corrupt.substitute(list(range(20)), 0.5, corrupt.generator(seed), POOL)
        changed = torch.tensor([token >= 1000 for token in out])
        assert changed.sum() == 10
        hits += changed
    # each count is Binomial(2000, ½); their sum is fixed: 19 degrees of freedom, variance 500·20/19
    assert stats.chi2.sf(float(((hits - 1000) ** 2).sum() / (500 * 20 / 19)), 19) > 1e-3
    gaps = torch.zeros(5)
    for seed in range(1000):
        out = corrupt.insert([0, 1, 2, 3], 0.25, corrupt.generator(seed), POOL)
        gaps[next(i for i, token in enumerate(out) if token >= 1000)] += 1
    assert stats.chisquare(gaps.numpy()).pvalue > 1e-3


def test_substitutes_are_uniform_over_the_other_tokens_and_leave_torchs_random_state():
    state = torch.get_rng_state()
    rngs = map(corrupt.generator, range(3000))
    drawn = [corrupt.substitute([3], 1, rng, range(6))[0] for rng in rngs]
    counts = np.bincount(drawn, minlength=6)
    assert counts[3] == 0
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fraction", [0.3, 0.8])
def test_of_prompt_and_response_the_last_tokens_are_the_response(fraction):
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        both = prompt + response
        n = round(fraction * len(both))
        [x], [y] = CHANGES["insert at the start"]([prompt], [response], fraction, 1)
        assert ((x + y)[n:], len(y)) == (both, len(response))
        [x], [y] = CHANGES["delete at the start"]([prompt], [response], fraction, 1)
        assert (x, y) == (prompt[n:], response[max(0, n - len(prompt)) :])
        [x], [y] = CHANGES["substitute at the start"]([prompt], [response], fraction, 1)
        is_changed = [a != b for a, b in zip(both, x + y, strict=True)]
        assert is_changed == [k < n for k in range(len(both))]


def test_truncation_takes_the_end():
    _, out = CHANGES["truncate"](PROMPTS, RESPONSES, 0.25, 0)
    assert out == [ids[: len(ids) - round(len(ids) / 4)] for ids in RESPONSES]


def test_the_wrong_prompt_is_the_next_texts():
    x, y = CHANGES["wrong prompt"](PROMPTS, RESPONSES, 1.0, 0)
    assert (x, y) == ([*PROMPTS[1:], PROMPTS[0]], RESPONSES)


def test_retokenising_joins_what_was_split_and_adds_no_start_token():
    ids = LM.encode("some text")
    assert corrupt.retokenise(LM, ids) == ids
    assert corrupt.retokenise(LM, [1, *ids, 2, *ids]) == ids + ids  # special tokens spell nothing
    with pytest.raises(GaussMarkError, match="an empty one"):
        corrupt.retokenise(LM, [1, 2])


# --- by name ---


@pytest.mark.parametrize("name", CHANGES)
def test_by_name(name):
    """Strength 0 changes nothing, another one the output and never the input; what comes out is the
    caller's own; what is random follows the seed.
    """
    change, before = CHANGES[name], ([list(x) for x in PROMPTS], [list(y) for y in RESPONSES])
    strengths = [(0.0, 1), (0.5, 1), (0.8, 1), (0.5, 2)]
    same, half, more, other = (change(PROMPTS, RESPONSES, f, s) for f, s in strengths)
    assert same == before != half == change(PROMPTS, RESPONSES, 0.5, 1)
    assert (more == half) == (name in ("no prompt", "wrong prompt", "retokenise"))
    if "random" in name or "own" in name or "spans" in name:
        assert other != half
        _, (one, alike) = change(PROMPTS[:1] * 2, RESPONSES[:1] * 2, 0.5, 1)
        assert one != alike, "each text has random numbers of its own"
    for part in (*same, half[1]):
        part[0].append(5)
    assert before == (PROMPTS, RESPONSES)


def test_names_choose_and_order():
    assert list(corrupt.named(LM, ["truncate", "no prompt"])) == ["truncate", "no prompt"]
    assert corrupt.named(LM, []) == {}
    expected = r"(is called 'paraphrase'|names): expected some of delete at random, insert at"
    for names in (["truncate", "paraphrase"], "truncate"):
        with pytest.raises(GaussMarkError, match=expected):
            corrupt.named(LM, names)


def test_adding_one_takes_a_function():
    corrupt.register("reverse")(lambda lm, x, y, f, seed: (x, [ids[::-1] for ids in y]))
    try:
        assert list(corrupt.named(LM)) == [*CHANGES, "reverse"]
        _, out = corrupt.named(LM, ["reverse"])["reverse"](PROMPTS, RESPONSES, 1.0, 0)
        assert out[0] == RESPONSES[0][::-1]
    finally:
        del corrupt.corruptions["reverse"]
    with pytest.raises(GaussMarkError, match="'truncate' is the name of another corruption"):
        corrupt.register("truncate")(lambda lm, x, y, f, seed: (x, y))


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("delete at random", ([[1]], [[1, 2, 3]], 1, 0), "removes all 3 tokens"),
        ("truncate", ([[1]], [[5]], 0.6, 0), "removes all 1 tokens"),
        ("substitute own tokens", ([[1]], [[1, 1]], 0.5, 0), r"than the one it replaces, .*\[1\]"),
        ("wrong prompt", ([[1]], [[5]], 1.0, 0), "expected at least 2 texts, got 1"),
        ("truncate", ([[1]], [[]], 0.5, 0), "got an empty one"),
        ("truncate", ([[1]], [[97]], 0.5, 0), "token 0: expected a whole number from 0"),
    ],
)
def test_refuses(name, texts, message):
    with pytest.raises(InvalidTextError, match=message):
        CHANGES[name](*texts)
