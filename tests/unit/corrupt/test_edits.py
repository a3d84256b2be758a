"""Token edits: exactly as many as asked for, where asked for, and nothing else."""

from itertools import pairwise

import pytest
import tiny_lm
import tiny_models
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from gaussmark_lib import corrupt, generate, perturb, score
from gaussmark_lib.errors import CorruptionError, InvalidTextError
from gaussmark_lib.perturb import Key, Watermark

IDS = st.lists(st.integers(0, 96), min_size=1, max_size=40)
FRACTION = st.floats(0, 1)
AT = st.sampled_from(["random", "start"])
SEED = st.integers(0, 10_000)
POOL = range(1000, 1100)  # no token of IDS


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


@given(ids=IDS, at=AT, seed=SEED)
def test_a_fraction_of_0_is_the_identity(ids, at, seed):
    for changed in (
        corrupt.insert(ids, 0, corrupt.generator(seed), POOL, at=at),
        corrupt.delete(ids, 0, corrupt.generator(seed), at=at),
        corrupt.substitute(ids, 0.0, corrupt.generator(seed), POOL, at=at),
    ):
        assert changed == ids
        assert changed is not ids


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


def test_each_text_has_randomness_of_its_own():
    def edit(ids, rng):
        return corrupt.insert(ids, 0.5, rng, POOL)

    texts = [list(range(30))] * 4
    out = corrupt.each(edit, texts, seed=1)
    assert out == corrupt.each(edit, texts, seed=1)
    assert out[:2] == corrupt.each(edit, texts[:2], seed=1)  # whatever stands beside them
    assert len({tuple(row) for row in [*out, *corrupt.each(edit, texts, seed=2)]}) == 8


def test_torchs_random_state_is_neither_used_nor_moved():
    state = torch.get_rng_state()
    corrupt.substitute(list(range(30)), 0.5, corrupt.generator(0), POOL)
    assert torch.equal(torch.get_rng_state(), state)


@given(prompt=IDS, response=IDS, fraction=FRACTION, seed=SEED)
def test_of_the_whole_the_last_tokens_are_the_response(prompt, response, fraction, seed):
    n = round(fraction * (len(prompt) + len(response)))
    x, y = corrupt.of_whole(
        prompt,
        response,
        lambda ids, rng: corrupt.insert(ids, fraction, rng, POOL, at="start"),
        corrupt.generator(seed),
    )
    assert (x[n:], y) == (prompt, response)
    x, y = corrupt.of_whole(
        prompt,
        response,
        lambda ids, rng: corrupt.substitute(ids, fraction, rng, POOL, at="start"),
        corrupt.generator(seed),
    )
    assert [token if token < 1000 else None for token in x + y] == [None] * n + (prompt + response)[
        n:
    ]
    assert len(y) == len(response)
    assume(n < len(prompt) + len(response))
    x, y = corrupt.of_whole(
        prompt,
        response,
        lambda ids, rng: corrupt.delete(ids, fraction, rng, at="start"),
        corrupt.generator(seed),
    )
    assert (x, y) == (prompt[n:], response[max(0, n - len(prompt)) :])


def test_deleting_a_prefix_is_scoring_the_suffix_without_a_prompt(model, wm, key):
    prompt, response = list(range(3, 13)), list(range(20, 50))
    x, y = corrupt.of_whole(
        prompt,
        response,
        lambda ids, rng: corrupt.delete(ids, 0.5, rng, at="start"),
        corrupt.generator(0),
    )
    got = score.score(model, [x], [y], wm, [key])
    expected = score.score(model, [[]], [response[10:]], wm, [key])
    assert got.equals(expected)
    other = score.score(model, [[]], [response[9:]], wm, [key])
    assert not got.equals(other)


def test_truncating_and_splicing():
    ids = list(range(10))
    assert corrupt.truncate(ids, 3) == [0, 1, 2]
    assert corrupt.truncate(ids, 3, skip=7) == [7, 8, 9]
    found = set()
    for seed in range(60):
        out = corrupt.splice([50, 51], [0, 1, 2], corrupt.generator(seed))
        at = out.index(50)
        assert out[at : at + 2] == [50, 51]
        assert out[:at] + out[at + 2 :] == [0, 1, 2]
        found.add(at)
    assert found == {0, 1, 2, 3}
    assert corrupt.splice([5], [], corrupt.generator(0)) == [5]


def test_without_a_prompt_an_edit_at_the_start_is_one_of_the_response():
    rng = corrupt.generator(0)
    assert corrupt.of_whole(
        [], [5, 6, 7], lambda ids, rng: corrupt.delete(ids, 1 / 3, rng, at="start"), rng
    ) == ([], [6, 7])


def test_wrong_prompts_are_the_other_texts():
    prompts = [[1], [2], [3]]
    assert corrupt.wrong_prompts(prompts) == [[2], [3], [1]]
    with pytest.raises(CorruptionError, match="expected at least 2 texts, got 1"):
        corrupt.wrong_prompts([[1]])


def test_retokenising_joins_what_was_split_and_adds_no_start_token():
    lm = tiny_lm.build()
    ids = lm.encode("some text")
    assert corrupt.retokenise(lm, ids) == ids
    assert corrupt.retokenise(lm, [1, *ids, 2, *ids]) == ids + ids  # special tokens spell nothing
    with pytest.raises(CorruptionError, match="an empty one"):
        corrupt.retokenise(lm, [1, 2])


def test_on_the_embedded_model_most_texts_survive_retokenisation_and_some_ids_change():
    from gaussmark_lib import models

    lm = models.load()
    ids = lm.encode("Returns the mean of the array elements along the given axis.")
    assert corrupt.retokenise(lm, ids) == ids
    letters = [token for letter in "mean" for token in lm.encode(letter)]
    assert len(corrupt.retokenise(lm, letters)) < len(letters)


@pytest.mark.parametrize("fraction", [-0.01, 1.01, float("nan"), float("inf"), True])
@pytest.mark.parametrize("edit", ["insert", "delete", "substitute"])
def test_a_fraction_outside_0_to_1_is_refused(edit, fraction):
    arguments = () if edit == "delete" else (POOL,)
    with pytest.raises(CorruptionError, match="expected a number from 0 to 1"):
        getattr(corrupt, edit)([1, 2, 3], fraction, corrupt.generator(0), *arguments)


def test_what_cannot_be_done_is_said():
    rng = corrupt.generator(0)
    with pytest.raises(CorruptionError, match="removes all 3 tokens"):
        corrupt.delete([1, 2, 3], 1, rng)
    with pytest.raises(CorruptionError, match="removes all 1 tokens"):
        corrupt.delete([1], 0.6, rng)
    with pytest.raises(CorruptionError, match=r"other than the one it replaces, got only \[1\]"):
        corrupt.substitute([1, 1], 0.5, rng, [1, 1])
    assert corrupt.substitute([1, 1], 1, rng, [2]) == [2, 2]
    with pytest.raises(CorruptionError, match="a pool of at least one token"):
        corrupt.insert([1, 2], 0.5, rng, [])
    with pytest.raises(CorruptionError, match="at: expected 'random' or 'start', got 'end'"):
        corrupt.insert([1, 2], 0.5, rng, POOL, at="end")
    with pytest.raises(CorruptionError, match="within the text's 3, got 4"):
        corrupt.truncate([1, 2, 3], 4)
    with pytest.raises(InvalidTextError, match="got an empty one"):
        corrupt.insert([], 0.5, rng, POOL)


@pytest.mark.usefixtures("wrong_types")
def test_text_instead_of_ids():
    with pytest.raises(InvalidTextError, match="expected token ids, got text"):
        corrupt.delete("abc", 0.5, corrupt.generator(0))


def test_tensors_are_taken_as_they_are():
    ids = torch.tensor([5, 6, 7])
    assert corrupt.delete(ids, 0.34, corrupt.generator(0), at="start") == [6, 7]
    assert ids.tolist() == [5, 6, 7]


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
        edited = corrupt.each(
            lambda ids, rng, f=fraction: corrupt.substitute(ids, f, rng, range(97)), responses
        )
        means.append(score.score(model, prompts, edited, wm, [key])["psi"].mean())
    assert means[0] > means[1] + 0.5 > means[2] + 1.0, means
    assert abs(means[2]) < 1
