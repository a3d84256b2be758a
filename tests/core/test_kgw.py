"""KGW as transformers has it, fairly: only the response, no pair twice, no padding, and the exact
tail.
"""

import hmac
from itertools import pairwise

import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats as distributions
from transformers import WatermarkDetector
from transformers.generation.logits_process import WatermarkLogitsProcessor

from gaussmark_lib import generate, kgw
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
SCHEME = KGW(2.0, Key.from_seed(4))
BOS = 1
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 3, 9, 5)


def greens_by_hand(scheme: KGW, response: list[int]) -> tuple[int, int]:
    """A loop over the distinct pairs, with a fresh green list each."""
    hashing_key, vocabulary = scheme.config.hashing_key, tiny_models.VOCAB
    pairs = {(before, token) for before, token in pairwise(response) if before != 0}
    greens = 0
    for before, token in pairs:
        rng = torch.Generator().manual_seed(hashing_key * before % (2**64 - 1))
        order = torch.randperm(vocabulary, generator=rng).tolist()
        greens += token in order[: int(vocabulary * scheme.green_share)]
    return greens, len(pairs)


@pytest.mark.parametrize("bias", [1.0, 2.0])
def test_counts_z_and_p_are_transformers_and_scipys(model, bias, monkeypatch):
    monkeypatch.setattr(kgw, "LISTS", 3)  # several blocks, and a rest
    scheme = KGW(bias, Key.from_seed(4))
    responses = scheme.generate(model, PROMPTS, 40, seed=1)
    table = scheme.score(model, PROMPTS, responses)
    z_test = KGW(bias, scheme.key, test="z").score(model, PROMPTS, responses)
    assert z_test["p_value"].tolist() == table["p_normal"].tolist() != table["p_value"].tolist()
    detector = WatermarkDetector(model.config, "cpu", scheme.config, ignore_repeated_ngrams=True)
    for i, row in table.iterrows():
        greens, n = greens_by_hand(scheme, responses[i])
        assert (row["n_green"], row["n_scored"], row["n_tokens"]) == (greens, n, 40)
        if 0 not in responses[i][:-1]:
            theirs = detector(torch.tensor([responses[i]]), return_dict=True)
            assert row["statistic"] == pytest.approx(theirs.z_score[0], rel=1e-6)
        z = (greens - 0.25 * n) / (n * 0.25 * 0.75) ** 0.5
        assert row["statistic"] == pytest.approx(z, rel=1e-6)
        assert row["p_normal"] == pytest.approx(distributions.norm.sf(z), rel=1e-6)
        assert 10 ** z_test["log10_p"][i] == pytest.approx(row["p_normal"], rel=1e-6)
        exact = distributions.binomtest(greens, n, 24 / 97, alternative="greater").pvalue
        assert (row["p_value"], 10 ** row["log10_p"]) == pytest.approx((exact, exact), rel=1e-9)


def test_text_is_that_of_transformers_processor_with_our_random_numbers(model):
    """Token by token: p ∝ exp(logits + δ·green), picked by the same uniform numbers as
    unwatermarked text.
    """
    responses = SCHEME.generate(model, PROMPTS, 8, seed=5)
    processor = WatermarkLogitsProcessor(
        vocab_size=tiny_models.VOCAB, device="cpu", **SCHEME.config.to_dict()
    )
    for row, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
        u = np.random.default_rng([5, row]).random(8)
        for t in range(8):
            ids = torch.tensor([prompt + response[:t]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[:, -1]
            raised = processor(ids, logits)
            assert ((raised - logits).round(decimals=3).unique() == torch.tensor([0.0, 2.0])).all()
            assert generate.pick(raised, torch.tensor([u[t]]), 1.0, 1.0).item() == response[t]
    assert responses != generate.sample(model, PROMPTS, 8, seed=5)


@pytest.mark.parametrize("vocabulary", [tiny_models.VOCAB, 49_152])
def test_rows_under_several_keys_are_transformers_processors_bit_for_bit(
    model, vocabulary, monkeypatch
):
    """Also for the vocabulary of SmolLM2, and for ids that repeat."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(4, vocabulary))).float()
    ids = torch.tensor([[1, 7], [2, 7], [3, 0], [4, vocabulary - 1]])
    keys = [Key.from_seed(i) for i in (1, 2, 3, 1)]
    monkeypatch.setattr(model.config, "vocab_size", vocabulary)
    raised = SCHEME.processor_of_rows(model, keys)(ids, logits)
    for i, key in enumerate(keys):
        theirs = WatermarkLogitsProcessor(vocabulary, "cpu", **KGW(2.0, key).config.to_dict())
        assert torch.equal(raised[i : i + 1], theirs(ids[i : i + 1], logits[i : i + 1]))
        list_of_row = theirs._get_greenlist_ids(ids[i])
        [ours] = SCHEME.green_ids(model, [(KGW(2.0, key).hashing_key, int(ids[i, -1]))])
        assert torch.equal(ours, list_of_row)


def test_the_bias_comes_after_temperature_and_top_p(model):
    """As in transformers, where a watermark is the last of the processors."""
    [text] = SCHEME.generate(model, PROMPTS[:1], 8, temperature=0.5, top_p=0.8, seed=5)
    [u] = torch.from_numpy(generate.uniform(5, [0], 8))
    processor = SCHEME.processor(model)
    for t in range(8):
        ids = torch.tensor([PROMPTS[0] + text[:t]])
        with torch.no_grad():
            p = generate.probabilities(model(input_ids=ids).logits[:, -1], 0.8, 0.5)
        assert generate.pick(processor(ids, p.log()), u[t : t + 1], 1.0, 1.0).item() == text[t]
    greedy = SCHEME.generate(model, PROMPTS[:1], 8, temperature=0)
    options = {"temperature": 0, "processor": lambda rows: processor}
    assert greedy == generate.sample(model, PROMPTS[:1], 8, **options)


def test_the_smallest_tails_do_not_underflow():
    hits = np.array([2, 900, 1000])
    found = kgw.exact_tail(hits, np.array([2, 1000, 1000]), 0.25)["log10_p"] * np.log(10)
    first = distributions.binom.logpmf(hits, [2, 1000, 1000], 0.25)
    assert found == pytest.approx(first, abs=0.1)
    assert np.isfinite(found).all()


def test_pairs_that_are_not_scored(model):
    """A repeated one, the prompt's, and that of a leading start token."""
    assert model.config.bos_token_id == BOS
    responses = [[5, 6] * 20, [5, 6, 5], [BOS, 5, 6, 5]]
    table = SCHEME.score(model, [[1], [2, 3, 4], []], responses)
    assert table["n_scored"].tolist() == [2, 2, 2]
    assert table["n_green"].nunique() == 1


def test_after_token_0_the_green_list_is_the_same_under_every_key_and_is_not_counted(model):
    """Not by our choice, and shown in notebook 08: transformers multiplies the key by the token."""
    keyed = [SCHEME.rekeyed(seed) for seed in range(8)]
    [public] = {frozenset(scheme.greens(model, 0)) for scheme in keyed}
    assert len({frozenset(scheme.greens(model, 5)) for scheme in keyed}) == 8
    green = sorted(public - {0})
    known = [token for pair in green for token in (0, pair)]  # by somebody who has no key
    p = [SCHEME.rekeyed(seed).score(model, [[]], [known])["p_value"][0] for seed in range(100)]
    assert (np.array(p) <= 0.05).mean() < 0.15
    assert SCHEME.score(model, [[]], [known])["n_scored"][0] == len(green) - 1


@pytest.mark.parametrize("response", [[], [5], [0, 5], [BOS, 5]])
def test_a_text_without_a_pair_is_named(model, response):
    with pytest.raises(InvalidTextError, match="at least 2 tokens, the first of them not 0"):
        SCHEME.score(model, [[]], [response])


def test_what_is_refused(model):
    with pytest.raises(InvalidTextError, match="keys: expected one per text, got 1 for 2 texts"):
        SCHEME.score(model, [[], []], [[1, 2], [3, 4]], keys=[SCHEME.key])
    with pytest.raises(InvalidWatermarkError, match=r"0\.001 of 97 tokens is less than one token"):
        KGW(1.0, SCHEME.key, green_share=0.001).generate(model, PROMPTS, 2)


def test_its_config_which_is_in_the_open_tells_nothing_of_the_secret():
    """The number is of 63 bits of an HMAC; a key with another last bit, which a shift would drop,
    has another number.
    """
    key, other = SCHEME.key, Key(SCHEME.key.secret[:-1] + b"\0")
    number = SCHEME.config.hashing_key
    assert KGW(2.0, other).config.hashing_key != number
    derived = hmac.digest(key.secret, b"gaussmark KGW", "sha256")
    assert number == int.from_bytes(derived[:8], "big") >> 1
    assert str(key.seed >> 65) not in str(SCHEME.config.to_dict())
