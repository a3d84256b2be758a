"""The joint test of several texts against the sum of gradients, one text's autograd after
another; windows of a long text, which are tested as one; and one text in several versions, against
its formula and over keys.
"""

from itertools import chain

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import binom, norm

from gaussmark_lib import gradients, perturb, score, stats
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(4)]
RNG = np.random.default_rng(0)
X, Y = tiny_models.random_ids(RNG, 3, 1, 6), tiny_models.random_ids(RNG, 8, 12, 5)


@pytest.mark.parametrize("rank_dropped", [0, 3])
def test_it_is_the_test_of_the_summed_gradient(model, wm, rank_dropped):
    wm = Watermark(wm.weight, wm.sigma, rank_dropped)
    table = tracing.author(model, X, Y, wm, KEYS)
    total = sum(one.G.double() for one in gradients.gradients(model, X, Y, wm))
    alone = score.score(model, X, Y, wm, KEYS)
    for key, row in zip(KEYS, table.itertuples(), strict=True):
        xi = perturb.noise(model, wm, key).double()
        psi = ((xi * total).sum() / (wm.sigma * total.norm())).item()
        assert row.psi == pytest.approx(psi, rel=1e-4)
        of_key = alone[alone["key_id"] == key.key_id]
        by_parts = (of_key["psi"] * of_key["grad_norm"]).sum() / row.grad_norm
        assert row.psi == pytest.approx(by_parts, rel=1e-4), "each text's ψ by its norm"
        assert row.p_value == pytest.approx(norm.sf(row.psi))
        assert (row.key_id, row.n_texts, row.n_tokens) == (key.key_id, 3, 25)
        assert row.log_lik == pytest.approx(of_key["log_lik"].sum())


def test_it_is_the_test_of_the_summed_gradient_of_several_weights(model, wm):
    of_two = Watermark([wm.weight, wm.weight.replace("down", "up")], [wm.sigma, 2 * wm.sigma])
    table = tracing.author(model, X, Y, of_two, KEYS)
    alone = score.score(model, X, Y, of_two, KEYS)
    sums = (alone["psi"] * alone["grad_norm"]).groupby(alone["key_id"], sort=False).sum()
    np.testing.assert_allclose(table["psi"] * table["grad_norm"], sums, rtol=1e-4)
    of_texts = [one.matrices for one in gradients.gradients(model, X, Y, of_two)]
    lengths = [sum(Gs).norm().item() for Gs in zip(*of_texts, strict=True)]
    assert table["grad_norm"][0] == pytest.approx(np.hypot(lengths[0], 2 * lengths[1]), rel=1e-5)


def test_the_sum_leaves_its_gradients_and_names_what_is_none():
    texts = [TextGradient(i, [torch.full((2, 2), 1.0 + i)], [1.0], 0.0, -1.0, 3) for i in range(2)]
    total = tracing.summed(texts)
    assert (total.G.flatten().tolist(), total.log_lik, total.n_tokens) == ([3.0] * 4, -2.0, 6)
    assert texts[0].G.flatten().tolist() == [1.0] * 4
    with pytest.raises(DegenerateScoreError, match="text 2"):
        tracing.summed([*texts, TextGradient(2, [torch.zeros(2, 2)], [1.0], 0.0, -1.0, 3)])
    with pytest.raises(InvalidTextError, match="at least one text"):
        tracing.summed([])


@pytest.mark.parametrize("prompt_tokens", [0, 40, 63])
@pytest.mark.parametrize("n", [1, 24, 200])
def test_each_token_once_and_every_window_fits(model, prompt_tokens: int, n: int):
    prompt, response = list(range(3, 3 + prompt_tokens)), [3 + i % 90 for i in range(n)]
    prompts, responses = windows(model, prompt, response)
    assert list(chain(*responses)) == response
    assert all(prompts)
    assert all(responses)
    assert all(len(x) + len(y) <= 64 for x, y in zip(prompts, responses, strict=True))
    assert (len(responses) == 1) == (max(prompt_tokens, 1) + n <= 64)
    everything, at = prompts[0] + response, len(prompts[0])
    for x, y in zip(prompts, responses, strict=True):
        assert everything[at - len(x) : at] == x, "what stands before it"
        at += len(y)
    assert all(len(x) == 64 // 4 for x in prompts[1:])


# --- versions of one text ---

VERSIONS = [(X[:1], [y]) for y in tiny_models.random_ids(RNG, 20, 12)]


@pytest.mark.parametrize("rank_dropped", [0, 3])
def test_p_is_that_of_the_largest_under_the_joint_law(model, wm, rank_dropped):
    wm = Watermark(wm.weight, wm.sigma, rank_dropped)
    found = tracing.any_version(model, VERSIONS, wm, KEYS)
    alone = [score.score(model, *version, wm, KEYS) for version in VERSIONS]
    psi = np.array([table["psi"] for table in alone])
    G, H = (next(gradients.gradients(model, *version, wm)).G.double() for version in VERSIONS)
    cosine = ((G * H).sum() / (G.norm() * H.norm())).item()
    log_p = stats.log_p_of_max(psi.max(axis=0), [[1, cosine], [cosine, 1]])
    assert found["p_value"].to_numpy() == pytest.approx(np.exp(log_p), rel=1e-3)
    assert found["psi"].to_numpy() == pytest.approx(norm.isf(np.exp(log_p)), abs=1e-3)
    assert np.array(found["psi_of_each"].tolist()) == pytest.approx(psi.T, abs=1e-4)
    for name in ("grad_norm", "log_lik", "n_tokens"):
        assert found[name].to_numpy() == pytest.approx(alone[0][name].to_numpy(), rel=1e-5)


def test_the_same_version_twice_is_one(model, wm):
    [row, *_] = tracing.any_version(model, VERSIONS[:1] * 2, wm, KEYS)["psi"]
    [alone, *_] = score.score(model, *VERSIONS[0], wm, KEYS)["psi"]
    assert row == pytest.approx(alone, abs=1e-2)


def test_the_level_is_exact_over_fresh_keys_and_that_of_the_larger_alone_is_not(model, wm):
    """Over 4,000 keys, by the exact 99% interval."""
    n = 4_000
    keys = [Key.from_seed(10_000 + i) for i in range(n)]
    found = tracing.any_version(model, VERSIONS, wm, keys)
    low, high = binom.ppf([0.005, 0.995], n, 0.05)
    assert low <= (found["p_value"] <= 0.05).sum() <= high
    larger = np.array(found["psi_of_each"].tolist()).max(axis=1)
    assert (norm.sf(larger) <= 0.05).sum() > high


def test_a_version_without_a_gradient_is_refused(model, wm):
    model.lm_head.weight.data.zero_()
    with pytest.raises(DegenerateScoreError, match="non-zero gradient"):
        tracing.any_version(model, VERSIONS, wm, KEYS)
