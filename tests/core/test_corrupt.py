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

from gaussmark_lib import corrupt, generate, perturb, score
from gaussmark_lib.errors import GaussMarkError, InvalidTextError
from gaussmark_lib.perturb import Key, Watermark

IDS = st.lists(st.integers(0, 96), min_size=1, max_size=40)
FRACTION, AT, SEED = st.floats(0, 1), st.sampled_from(["random", "start"]), st.integers(0, 10_000)
POOL = range(1000, 1100)  # no token of IDS
LM = tiny_lm.build()
STRENGTHS = [(0.0, 1), (0.5, 1), (0.8, 1), (0.5, 2)]
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
    places = [
        1000 * place + token for place, token in enumerate(ids)
    ]  # each token with its place, so that equal tokens can be told apart
    marked = list(places)
    out = corrupt.delete(marked, fraction, corrupt.generator(seed), at=at)
    assert len(out) == len(ids) - n
    assert out == sorted(out)
    assert set(out) <= set(marked)
    assert marked == places
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
    # each count is Binomial(2000, ½); their sum is fixed, so 19 degrees of freedom at variance
    # 500·20/19
    statistic = float(((hits - 1000) ** 2).sum() / (500 * 20 / 19))
    assert stats.chi2.sf(statistic, 19) > 1e-3
    gaps = torch.zeros(5)
    for seed in range(1000):
        out = corrupt.insert([0, 1, 2, 3], 0.25, corrupt.generator(seed), POOL)
        gaps[next(i for i, token in enumerate(out) if token >= 1000)] += 1
    assert stats.chisquare(gaps.numpy()).pvalue > 1e-3


def test_substitutes_are_uniform_over_the_other_tokens():
    drawn = [
        corrupt.substitute([3], 1, corrupt.generator(seed), range(6))[0] for seed in range(3000)
    ]
    counts = torch.bincount(torch.tensor(drawn), minlength=6)
    assert counts[3] == 0
    assert stats.chisquare(counts[counts > 0].numpy()).pvalue > 1e-3


def test_torchs_random_state_is_neither_used_nor_moved():
    state = torch.get_rng_state()
    corrupt.substitute(list(range(30)), 0.5, corrupt.generator(0), POOL)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fraction", [0.3, 0.8])
def test_of_prompt_and_response_the_last_tokens_are_the_response(fraction):
    for x, y, both in zip(
        *CHANGES["insert at the start"](PROMPTS, RESPONSES, fraction, 1),
        [x + y for x, y in zip(PROMPTS, RESPONSES, strict=True)],
        strict=True,
    ):
        assert (x + y)[round(fraction * len(both)) :] == both
        assert len(y) in map(len, RESPONSES)
    x, y = CHANGES["delete at the start"](PROMPTS, RESPONSES, fraction, 1)
    for i, (before, after) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        n = round(fraction * len(before + after))
        assert (x[i], y[i]) == (before[n:], after[max(0, n - len(before)) :])
    x, y = CHANGES["substitute at the start"](PROMPTS, RESPONSES, fraction, 1)
    for i, (before, after) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        differ = [a != b for a, b in zip(before + after, x[i] + y[i], strict=True)]
        assert differ == [k < round(fraction * len(differ)) for k in range(len(differ))]


def test_deleting_a_prefix_is_scoring_the_suffix_without_a_prompt(model, wm, key):
    prompt, response = list(range(3, 13)), list(range(20, 50))
    x, y = CHANGES["delete at the start"]([prompt], [response], 0.5, 0)
    got = score.score(model, x, y, wm, [key])
    assert got.equals(score.score(model, [[]], [response[10:]], wm, [key]))
    assert not got.equals(score.score(model, [[]], [response[9:]], wm, [key]))


def test_truncation_takes_the_end():
    _, out = CHANGES["truncate"](PROMPTS, RESPONSES, 0.25, 0)
    assert out == [ids[: len(ids) - round(len(ids) / 4)] for ids in RESPONSES]


def test_a_passage_lands_in_every_gap_of_its_host():
    found = set()
    for seed in range(60):
        out = corrupt.splice([50, 51], [0, 1, 2], corrupt.generator(seed))
        at = out.index(50)
        assert (out[at : at + 2], out[:at] + out[at + 2 :]) == ([50, 51], [0, 1, 2])
        found.add(at)
    assert found == {0, 1, 2, 3}
    _, [quoted] = corrupt.spliced([list(range(30))])([[5]], [[50] * 6], 0.4, 0)
    assert sorted(quoted) == [0, 1, 2, 3, *[50] * 6]
    with pytest.raises(GaussMarkError, match="a host of at least 54 tokens for response 0, got 3"):
        corrupt.spliced([[1, 2, 3]])([[5]], [[50] * 6], 0.9, 0)


def test_retokenising_joins_what_was_split_and_adds_no_start_token():
    ids = LM.encode("some text")
    assert corrupt.retokenise(LM, ids) == ids
    assert corrupt.retokenise(LM, [1, *ids, 2, *ids]) == ids + ids  # special tokens spell nothing
    with pytest.raises(GaussMarkError, match="an empty one"):
        corrupt.retokenise(LM, [1, 2])


def test_a_watermark_fades_as_more_is_substituted():
    """On texts that lean towards a key, ψ falls with the fraction, to nothing at 1: the corruption
    does what it is for.
    """
    model, prompts = tiny_models.build("llama", seed=3), [[3, 4, 5]] * 60
    wm, key = Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.15), Key.from_seed(77)
    with perturb.watermarked(model, wm, key):
        responses = generate.sample(model, prompts, 50, seed=1)
    means = []
    for fraction in (0.0, 0.5, 1.0):
        _, edited = CHANGES["substitute at random"](prompts, responses, fraction, 0)
        means.append(score.score(model, prompts, edited, wm, [key])["psi"].mean())
    assert means[0] > means[1] + 0.5 > means[2] + 1.0, means
    assert abs(means[2]) < 1


# --- resampling by the model ---


def test_texts_that_fit_alone_fit_together(model):
    """A long prompt with a short text, beside a short prompt with a long one: neither may be as
    long as both longest ones.
    """
    context = model.config.max_position_embeddings
    prompts = tiny_models.random_ids(np.random.default_rng(3), context - 10, 10, 10)
    texts = tiny_models.random_ids(np.random.default_rng(4), 10, context - 20, 10)
    together = corrupt.resample(model, prompts, texts, 0.5, seed=1)
    assert list(map(len, together)) == list(map(len, texts))
    assert together[0] == corrupt.resample(model, prompts[:1], texts[:1], 0.5, seed=1)[0]
    with pytest.raises(InvalidTextError, match="text 1: expected at most"):
        corrupt.resample(model, [[], prompts[0]], [[5], texts[0] + [5]], 0.5)


def test_its_random_numbers_wrote_no_text():
    own = generate.uniform(3 + corrupt._FRESH, [0], 5)
    assert not (generate.uniform(3, range(300), 5) == own).all(-1).any()


@given(
    n=st.integers(1, 60),
    fraction=st.floats(0, 1),
    span=st.integers(1, 12),
    seed=st.integers(0, 999),
)
def test_spans_cover_exactly_the_fraction(n, fraction, span, seed):
    places = corrupt.spans(n, fraction, span, corrupt.generator(seed))
    assert len(places) == round(fraction * n)
    assert set(places) <= set(range(n))
    touched = {place // span for place in places}
    assert (
        len(touched) <= -(-len(places) // span) + 1
    )  # whole spans, but for one that is cut and the short one at the end


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_what_is_not_redrawn_is_kept(model, fraction):
    before = [list(row) for row in RESPONSES]
    out = corrupt.resample(model, PROMPTS, RESPONSES, fraction, span=4, seed=3)
    assert before == RESPONSES
    assert [len(row) for row in out] == [len(row) for row in RESPONSES]
    for i, (old, new) in enumerate(zip(RESPONSES, out, strict=True)):
        places = corrupt.spans(len(old), fraction, 4, corrupt.generator(3, i))
        assert [token for place, token in enumerate(new) if place not in places] == [
            token for place, token in enumerate(old) if place not in places
        ]
    assert (out == RESPONSES) == (fraction == 0)


def test_what_is_redrawn_is_the_models_given_all_before_it(model):
    """Token by token from the model's own probabilities over the rewritten text so far."""
    seed = 5
    out = corrupt.resample(model, PROMPTS, RESPONSES, 0.5, span=3, seed=seed)
    for row, (prompt, old, new) in enumerate(zip(PROMPTS, RESPONSES, out, strict=True)):
        luck = generate.uniform(seed + corrupt._FRESH, [row], 31)[0]
        for k in corrupt.spans(len(old), 0.5, 3, corrupt.generator(seed, row)):
            with torch.no_grad():
                p = (
                    model(input_ids=torch.tensor([prompt + new[:k]]))
                    .logits[0, -1]
                    .double()
                    .softmax(-1)
                    .cumsum(-1)
                )
            assert p[new[k]] > luck[k] - 1e-5
            assert new[k] == 0 or p[new[k] - 1] < luck[k] + 1e-5


def test_redrawn_tokens_are_independent_of_the_luck_that_wrote_the_text(model):
    prompts = [[3, 4]] * 200
    text = generate.sample(model, prompts, 1, seed=0)
    again = corrupt.resample(model, prompts, text, 1.0, seed=0)
    with torch.no_grad():
        p = model(input_ids=torch.tensor([[3, 4]])).logits[0, -1].double().softmax(-1)
    same = sum(a == b for a, b in zip(text, again, strict=True))
    assert stats.binomtest(same, 200, float((p**2).sum())).pvalue > 1e-3


def test_a_text_does_not_depend_on_those_beside_it(model):
    whole = corrupt.resample(model, PROMPTS, RESPONSES, 0.5, seed=1)
    assert corrupt.resample(model, PROMPTS[:1], RESPONSES[:1], 0.5, seed=1) == whole[:1]
    many = corrupt.resample(model, PROMPTS * 30, RESPONSES * 30, 0.5, seed=1)  # two batches
    assert many[:3] == whole


# --- by name ---


@pytest.mark.parametrize("name", CHANGES)
def test_by_name(name):
    """Strength 0 changes nothing, another one the output and never the input; what comes out is the
    caller's own; what is random follows the seed.
    """
    change, before = CHANGES[name], ([list(x) for x in PROMPTS], [list(y) for y in RESPONSES])
    same, half, more, other = (change(PROMPTS, RESPONSES, f, s) for f, s in STRENGTHS)
    assert same == before != half == change(PROMPTS, RESPONSES, 0.5, 1)
    same[0][0].append(5)
    same[1][0].append(5)
    half[1][0].append(5)
    assert before == (PROMPTS, RESPONSES)
    assert (more[0] == change(PROMPTS, RESPONSES, 0.5, 1)[0] and more == half) <= (
        name in corrupt.ALL_OR_NOTHING
    )
    if "random" in name or "own" in name or "spans" in name:
        assert other != change(PROMPTS, RESPONSES, 0.5, 1)
    with pytest.raises(GaussMarkError, match="fraction: expected a number from 0 to 1, got"):
        change(PROMPTS, RESPONSES, 1.1, 1)


def test_names_choose_and_order():
    assert list(corrupt.named(LM, ["truncate", "no prompt"])) == ["truncate", "no prompt"]
    assert corrupt.named(LM, []) == {}
    expected = r"(is called 'paraphrase'|names): expected some of delete at random, insert at"
    for names in (["truncate", "paraphrase"], "truncate"):
        with pytest.raises(GaussMarkError, match=expected):
            corrupt.named(LM, names)


def test_adding_one_takes_a_function(monkeypatch):
    monkeypatch.setattr(corrupt, "_corruptions", dict(corrupt._corruptions))
    corrupt.register("reverse")(lambda lm, x, y, f, seed: (x, [ids[::-1] for ids in y]))
    assert list(corrupt.named(LM)) == [*CHANGES, "reverse"]
    _, out = corrupt.named(LM, ["reverse"])["reverse"](PROMPTS, RESPONSES, 1.0, 0)
    assert out[0] == RESPONSES[0][::-1]
    with pytest.raises(GaussMarkError, match="two corruptions are called 'truncate'"):
        corrupt.register("truncate")(lambda lm, x, y, f, seed: (x, y))


def test_what_cannot_be_done_is_said():
    rng, at_random = corrupt.generator(0), CHANGES["delete at random"]
    with pytest.raises(GaussMarkError, match="removes all 3 tokens"):
        corrupt.delete([1, 2, 3], 1, rng)
    with pytest.raises(GaussMarkError, match="removes all 1 tokens"):
        CHANGES["truncate"]([[1]], [[5]], 0.6, 0)
    with pytest.raises(GaussMarkError, match=r"other than the one it replaces, got only \[1\]"):
        corrupt.substitute([1, 1], 0.5, rng, [1, 1])
    assert corrupt.substitute([1, 1], 1, rng, [2]) == [2, 2]
    with pytest.raises(GaussMarkError, match="expected at least 2 texts, got 1"):
        CHANGES["wrong prompt"]([[1]], [[5]], 1.0, 0)
    with pytest.raises(InvalidTextError, match="got an empty one"):
        at_random([[1]], [[]], 0.5, 0)
    with pytest.raises(InvalidTextError, match="response 0: expected token ids from 0"):
        at_random([[1]], [[97]], 0.5, 0)
    with pytest.raises(GaussMarkError, match="seed: expected a whole number ≥ 0, got -1"):
        at_random([[1]], [[5, 6]], 0.5, -1)
