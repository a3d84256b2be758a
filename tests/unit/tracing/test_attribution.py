"""Attribution: the user that scoring all users finds, and its p-values against simulation."""

import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats

from gaussmark_lib import perturb, score
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing import Codebook, attribution
from gaussmark_lib.errors import InvalidTextError, KeyMismatchError
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
X, Y = [[5, 6, 7], [8]], [[9, 10, 11, 12, 13, 14], [15, 16, 17, 18]]


@pytest.fixture
def book() -> tracing.Codebook:
    return tracing.Codebook(Key.from_seed(3), n_users=40, n_base=5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("rank_dropped", [0, 2])
def test_attribution_finds_the_user_that_scoring_all_finds(architecture, rank_dropped, book):
    model, wm = tiny_models.marked(architecture, torch.float32, rank_dropped)
    rng = np.random.default_rng(0)
    prompts, responses = tiny_models.random_ids(rng, 3, 1, 5), tiny_models.random_ids(rng, 9, 4, 17)
    named = tracing.attribute(model, prompts, responses, wm, book)
    keys = [book.key(user) for user in range(book.n_users)]
    every = score.score(model, prompts, responses, wm, keys)
    for row, psi in zip(named.itertuples(), every["psi"].to_numpy().reshape(3, -1), strict=True):
        ranked = np.argsort(-psi)
        assert row.user == ranked[0]
        assert row.psi == pytest.approx(psi[ranked[0]], rel=1e-4)
        assert row.runner_up == pytest.approx(psi[ranked[1]], rel=1e-4)
        assert row.p_family == pytest.approx(tracing.family_p(row.psi, 40, 5))
    assert named["n_tokens"].tolist() == [9, 4, 17]
    assert named["grad_norm"].tolist() == pytest.approx(every["grad_norm"][::40].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("psi", "n", "m"), [(2.0, 10, 2), (3.0, 50, 3), (3.5, 300, 16), (1.0, 3, 4), (-0.5, 2, 3)]
)
def test_the_family_wise_p_is_the_tail_of_the_largest_over_fresh_codebooks(psi, n, m):
    rng, draws = np.random.default_rng(0), 6000
    largest = np.empty(draws)
    for i in range(draws):
        codes = rng.standard_normal((n, m))
        largest[i] = (codes @ rng.standard_normal(m) / np.linalg.norm(codes, axis=1)).max()
    low, high = stats.binomtest(int((largest >= psi).sum()), draws).proportion_ci(0.999)
    assert low <= tracing.family_p(psi, n, m) <= high


@pytest.mark.parametrize("m", [2, 3, 8, 256, 4096])
def test_of_one_user_it_is_the_normal_tail_however_far(m):
    for psi in (-1.5, 0.5, 3.0, 8.0, 30.0):
        assert tracing.family_p(psi, 1, m) == pytest.approx(stats.norm.sf(psi), rel=1e-10, abs=0)
        bonferroni = min(1, 1000 * stats.norm.sf(psi))
        assert tracing.family_p(psi, 1000, m) <= bonferroni * (1 + 1e-9)
    if m > 8:  # with fewer base noises, users share their false alarms
        bonferroni = 1000 * stats.norm.sf(8.0)
        assert tracing.family_p(8.0, 1000, m) == pytest.approx(bonferroni, rel=1e-3, abs=0)


@pytest.mark.parametrize(("psi", "n", "m"), [(4.0, 1000, 16), (3.0, 50, 200), (6.0, 100_000, 64)])
def test_the_predicted_share_of_right_names(psi, n, m):
    rng, draws = np.random.default_rng(0), 20_000
    own, rest = psi + rng.standard_normal(draws), rng.chisquare(m - 1, draws)
    cosine = stats.beta((m - 1) / 2, (m - 1) / 2, loc=-1, scale=2)
    largest_other = cosine.ppf(rng.random(draws) ** (1 / (n - 1)))  # of n − 1 independent cosines
    right = int((own / np.sqrt(own**2 + rest) > largest_other).sum())
    low, high = stats.binomtest(right, draws).proportion_ci(0.999)
    assert low <= tracing.share_right(psi, n, m) <= high


def test_the_best_two_users_are_those_of_all_groups():
    book = tracing.Codebook(Key.from_seed(5), 700, 32)  # of 256 users a group
    inner = np.random.default_rng(0).standard_normal((60, 32))
    psi = inner @ np.stack([book.code(user) for user in range(book.n_users)]).T
    user, first, second = attribution.best(inner, book)
    assert user.tolist() == psi.argmax(1).tolist()
    best_two = np.sort(psi, axis=1)[:, -2:]
    np.testing.assert_allclose(np.stack([second, first], axis=1), best_two, rtol=1e-12)


def test_several_texts_together_are_their_summed_gradient(model, book):
    [row] = tracing.attribute(model, X, Y, WM, book, together=True).to_dict("records")
    total = tracing.summed(score.gradients(model, X, Y, WM))
    psi = score.psi([total], WM.on(model), [book.key(user) for user in range(40)])[0]
    assert (row["user"], row["n_tokens"]) == (int(np.argmax(psi)), 10)
    assert row["psi"] == pytest.approx(max(psi), rel=1e-4)
    with pytest.raises(InvalidTextError, match="together=True"):
        tracing.attribute(model, X, Y, WM, book, together=True, lengths=[2])


def test_memory_does_not_decide_the_answer(model, wm, book, monkeypatch):
    """Texts are held in batches, base noises pass a few at a time: the same table for every size of
    both.
    """
    whole = tracing.attribute(model, X * 3, Y * 3, wm, book)
    monkeypatch.setattr(attribution, "HELD", 1)
    monkeypatch.setattr(attribution, "AT_ONCE", 3)
    single = tracing.attribute(model, X * 3, Y * 3, wm, book)
    assert single[["text", "user", "n_tokens"]].equals(whole[["text", "user", "n_tokens"]])
    assert single["psi"].tolist() == pytest.approx(whole["psi"].tolist(), rel=1e-5)


def test_of_a_bound_master_key_the_users_are_bound_too(model, wm, key):
    book = Codebook(perturb.bind(model, wm, key), 10, 4)
    assert book.key(3).watermark == wm
    perturb.noise(model, wm, book.key(3))
    tracing.attribute(model, X, Y, wm, book)
    wrong = Watermark(wm.weight, 2 * wm.sigma)
    with pytest.raises(KeyMismatchError, match="sigma"):
        perturb.noise(model, wrong, book.key(3))
    with pytest.raises(KeyMismatchError, match="sigma"):
        tracing.attribute(model, X, Y, wrong, book)
