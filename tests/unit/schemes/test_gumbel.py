"""Gumbel-max as a scheme: the numbers against a plain loop, the model's distribution over keys, its
level by the exact Gamma tail.
"""

import hashlib
import hmac

import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats

from gaussmark_lib import generate
from gaussmark_lib.beyond.schemes import GumbelMax, gumbel
from gaussmark_lib.perturb import Key

KEY = Key.from_seed(3)
SCHEME = GumbelMax(KEY, context=2)
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 3, 9, 5, 1)


def numbers(key: Key, before: list[int], n: int) -> np.ndarray:
    """r_v as the module's docstring says, one raw output of Philox at a time."""
    message = b"".join(token.to_bytes(8, "little") for token in before)
    drawn = hmac.new(key.derived("Gumbel-max"), message, hashlib.sha256).digest()
    bits = np.random.Philox(key=int.from_bytes(drawn[:16], "big"))
    return np.array([((int(bits.random_raw()) >> 12) + 0.5) / 2**52 for _ in range(n)])


@torch.no_grad()
def written(model, prompt, n_tokens, seed, row, top_p=1.0, temperature=1.0) -> list[int]:
    """The obvious loop: argmax r^(1/p) after a new context, else what the sampler would take."""
    u, response, seen = generate.uniform(seed, [row], n_tokens)[0], [], set()
    for t in range(n_tokens):
        logits = model(torch.tensor([prompt + response])).logits[0, -1]
        before = [0, 0, *prompt, *response][-2:]  # a prompt of one token is padded
        p = generate.probabilities(logits[None], top_p, temperature)[0].numpy()
        with np.errstate(divide="ignore", over="ignore"):
            best = int(np.argmax(np.log(numbers(KEY, before, len(p))) / p))
        if tuple(before) in seen:
            best = int(generate.pick(logits[None], torch.tensor([u[t]]), top_p, temperature))
        seen.add(tuple(before))
        response.append(best)
    return response


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.7, "temperature": 1.3}])
def test_it_writes_what_the_obvious_loop_writes(model, sampling):
    prompts = enumerate(PROMPTS)
    expected = [written(model, prompt, 20, 1, row, **sampling) for row, prompt in prompts]
    assert SCHEME.generate(model, PROMPTS, 20, seed=1, **sampling) == expected
    assert SCHEME.generate(model, PROMPTS[:1], 20, seed=1, **sampling) == expected[:1]


def test_a_single_number_is_that_of_the_whole_vocabulary():
    whole = SCHEME.uniforms([5, 6], 97)
    assert whole.tolist() == numbers(KEY, [5, 6], 97).tolist()
    assert [SCHEME.uniforms([5, 6], 1, v)[0] for v in range(97)] == whole.tolist()
    assert not set(whole) & set(SCHEME.uniforms([6, 5], 97))
    assert not set(whole) & set(SCHEME.rekeyed(8).uniforms([5, 6], 97))


@torch.no_grad()
def test_over_keys_a_text_has_the_models_distribution(model):
    """The first token over 1,200 keys, by a χ² test; and pairs of tokens after a repeated context,
    where r is not used again.
    """
    n, logits = 1_200, torch.tensor([[2.0, 1.0, 0.5, 0.0]])
    p = logits.double().softmax(-1)[0].numpy()
    pairs = np.zeros((4, 4))
    for seed in range(n):
        process, ids = GumbelMax(Key.from_seed(seed), context=1).processor(model), [[9]]
        luck = np.random.default_rng(seed).random(2)
        pair = []
        for t in range(2):
            u = torch.tensor([luck[t]])
            pair.append(generate.pick(process(torch.tensor(ids), logits), u, 1.0, 1.0).item())
            ids = [[*ids[0], 9]]  # the same context again, whatever was chosen
        pairs[tuple(pair)] += 1
    assert stats.chisquare(pairs.sum(1), p * n).pvalue > 1e-4
    assert stats.chisquare(pairs.ravel(), (np.outer(p, p) * n).ravel()).pvalue > 1e-4


def test_the_score_is_the_sum_over_distinct_contexts(model):
    ids = [1, 2, 3, 1, 2, 9, 4, 1, 2, 8]  # of (1, 2), only the first counts
    table = SCHEME.score(model, [[]], [ids])
    first = {(1, 2): 3, (2, 3): 1, (3, 1): 2, (2, 9): 4, (9, 4): 1, (4, 1): 2}
    r = [numbers(KEY, [*before], 97)[token] for before, token in first.items()]
    total = -np.log(1 - np.array(r)).sum()
    assert table["statistic"][0] == pytest.approx(total)
    assert table["n_scored"][0] == 6
    assert table["p_value"][0] == pytest.approx(stats.gamma(6).sf(total))


def test_the_tail_does_not_underflow():
    found = gumbel.exact_tail(np.array([10.0, 3_000.0]), np.array([12, 12]))
    assert found["p_value"].tolist() == [pytest.approx(stats.gamma.sf(10, 12)), 0.0]
    assert 10 ** found["log10_p"][0] == pytest.approx(found["p_value"][0], rel=1e-12)
    leading = (-3_000 + 11 * np.log(3_000) - np.log(np.arange(1, 12)).sum()) / np.log(10)
    assert leading < found["log10_p"][1] < leading + 0.01


@pytest.mark.parametrize("once", [True, False])
def test_the_level_over_keys_needs_each_context_once(model, once):
    """A text that repeats a passage: what counts every token takes the same r for new evidence."""
    passage = np.random.default_rng(1).integers(97, size=12).tolist()
    keys = [Key.from_seed(seed) for seed in range(400)]
    table = GumbelMax(KEY, context=2, once=once).score(model, [[]] * 400, [passage * 4] * 400, keys)
    assert GumbelMax(KEY, once=once).exact == once
    assert (stats.kstest(table["p_value"], "uniform").pvalue > 1e-3) == once
    assert once or (table["p_value"] <= 0.01).mean() > 0.05
