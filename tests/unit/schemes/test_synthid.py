"""SynthID as a scheme: found by its key, not by another, and its level by the exact binomial."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from gaussmark_lib import generate
from gaussmark_lib.beyond.schemes import SynthID, synthid
from gaussmark_lib.perturb import Key

SCHEME = SynthID(Key.from_seed(3), depth=8)
PROMPTS = [[3, 4, 5]] * 20


def test_its_own_text_is_found_and_nothing_else(model):
    text = SCHEME.generate(model, PROMPTS, 30, seed=1)
    marked, wrong = (scheme.score(model, PROMPTS, text) for scheme in (SCHEME, SCHEME.rekeyed(8)))
    plain = SCHEME.score(model, PROMPTS, generate.sample(model, PROMPTS, 30, seed=1))
    assert (marked["p_value"] < 0.01).mean() > 0.5
    assert marked["n_bits"].max() == 26 * 8
    for table in (wrong, plain):
        totals = table[["ones", "n_bits"]].sum()
        assert stats.binomtest(int(totals["ones"]), int(totals["n_bits"]), 0.5).pvalue > 1e-3


def test_p_is_the_exact_tail_and_repetition_counts_once(model):
    response = np.random.default_rng(0).integers(97, size=25).tolist()
    once, repeated = (SCHEME.score(model, [[]], [ids]) for ids in (response, [7] * 25))
    expected = stats.binom.sf(once["ones"][0] - 1, once["n_bits"][0], 0.5)
    assert once["p_value"][0] == pytest.approx(expected)
    assert repeated["n_bits"][0] == SCHEME.depth  # one context


def place_of(numbers: list[int]) -> int:
    """The hash, in Python's integers: the last 20 of 64 bits."""
    state = 1
    for number in numbers:
        state = ((state + number) * 6364136223846793005 + 1) % 2**64
    return state % 2**20


def places_by_hand(scheme: SynthID, model, response: list[int]) -> dict[int, tuple[int, int]]:
    """The place in the table of each bit that counts, its round and the bit: each context at its
    first time.
    """
    processor, found, seen = scheme.processor(model), {}, set()
    for t in range(4, len(response)):
        if tuple(response[t - 4 : t]) in seen:
            continue
        seen.add(tuple(response[t - 4 : t]))
        for number, key in enumerate(processor.keys.tolist()):
            place = place_of([*response[t - 4 : t + 1], key])
            found.setdefault(place, (number, int(processor.sampling_table[place])))
    return found


def test_bits_in_one_place_are_one_bit(model):
    """In a text of repeated contexts, and in one with five tokens that share a hash with five
    others, which anybody can find without the key.
    """
    rng, by_hash = np.random.default_rng(2), {}
    other = gram = [0] * 5
    while other[:4] == gram[:4]:
        gram = rng.integers(97, size=5).tolist()
        other = by_hash.setdefault(place_of(gram), gram)
    repeated = rng.integers(97, size=1100).tolist() * 2
    for response in (repeated, [1, 2, 3, 4, 5, 1, 2, 3, 4, 6], other + gram):
        places = places_by_hand(SCHEME, model, response)
        table = SCHEME.score(model, [[]], [response])
        rounds, bits = np.array([*places.values()]).T
        assert (table["n_bits"][0], table["ones"][0]) == (len(places), bits.sum())
        weighted = SynthID(SCHEME.key, depth=8, weighted=True)
        share = np.average(bits, weights=np.array(weighted.weights)[rounds])
        assert weighted.score(model, [[]], [response])["statistic"][0] == pytest.approx(share)
    assert len(places) == (6 - 1) * SCHEME.depth


def test_over_keys_a_text_has_the_distribution_that_is_sampled_from(model):
    """Temperature and top-p come first, as in transformers: whatever they leave is what the
    tournament keeps, over keys.
    """
    prompt, sampling = [3, 4, 5], {"top_p": 0.5, "temperature": 2.0}
    p = generate.probabilities(model(torch.tensor([prompt])).logits[:, -1].detach() * 3, **sampling)
    with torch.no_grad():
        model.lm_head.weight.mul_(3)  # far from uniform
    p = (p / p.sum()).numpy()[0]
    texts = []
    for seed in range(400):
        of_key = SynthID(Key.from_seed(seed), depth=8)
        texts.append(of_key.generate(model, [prompt] * 4, 1, seed=seed, **sampling))
    drawn = np.array(texts)[..., 0]
    assert (p[drawn] > 0).all(), "nothing outside the nucleus"
    assert (p == 0).any()
    for token in np.argsort(-p)[:3]:
        share = (drawn == token).mean(1)  # of a key, whose four texts are alike
        assert abs(share.mean() - p[token]) < 4 * max(share.std(), 0.02) / 20


@pytest.mark.parametrize("n", [[0, 4], [0, 3, 2], [0, 2, 0, 5]])
def test_the_weighted_tail_is_the_sum_over_all_outcomes(n):
    weights = np.repeat(np.arange(len(n)), n)
    sums = np.array([weights @ bits for bits in itertools.product([0, 1], repeat=sum(n))])
    for total in range(weights.sum() + 1):
        exact = np.log10((sums >= total).mean())
        assert synthid.weighted_tail(total, np.array(n)) == pytest.approx(exact, abs=1e-9)


def test_a_far_tail_keeps_its_digits():
    for total in (500, 900, 999, 1_000):
        exact = stats.binom.logsf(total - 1, 1_000, 0.5) / np.log(10)
        assert synthid.weighted_tail(total, np.array([0, 1_000])) == pytest.approx(exact, rel=1e-6)


def test_rows_under_several_keys_are_transformers_processors(model):
    """Step by step, with a context that repeats in one row alone."""
    rng = np.random.default_rng(0)
    keys = [Key.from_seed(seed) for seed in range(3)]
    processors = [SynthID(key, depth=6).processor(model) for key in keys]
    of_rows = SynthID(keys[0], depth=6).processor_of_rows(model, keys)
    ids = torch.from_numpy(rng.integers(97, size=(3, 2)))
    n_unchanged = 0
    for _ in range(12):
        logits = torch.from_numpy(rng.normal(size=(3, 97))).float()
        marked = of_rows(ids, logits)
        for i, theirs in enumerate(processors):
            expected = theirs(ids[i : i + 1], logits[i : i + 1])
            torch.testing.assert_close(marked[i : i + 1], expected, rtol=1e-5, atol=1e-5)
            n_unchanged += torch.equal(marked[i], logits[i])
        tokens = torch.tensor([[5], *rng.integers(97, size=(2, 1)).tolist()])
        ids = torch.cat([ids, tokens], dim=1)
    assert n_unchanged == 7, "row 0 after four tokens 5 for the second time"
