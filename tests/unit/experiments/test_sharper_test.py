"""Directions against their cosines, the p-value of a ranked likelihood ratio against a plain rank,
and noise spread over matrices, on a tiny model.
"""

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from scipy.special import logsumexp
from scipy.stats import binom

from gaussmark_experiments import sharper_test
from gaussmark_lib import corrupt, divergence, generate, gradients, likelihood, perturb, score
from gaussmark_lib.beyond import channel, largest
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench.pairs import OWN, WRONG, Pairs

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PROMPTS, TEXTS = (tiny_models.random_ids(RNG, *[n] * 6) for n in (4, 20))
PAIRS = Pairs(PROMPTS, [Key.from_seed(i) for i in range(6)])


def test_psi_along_a_direction_is_the_noises_part_in_it():
    named = sharper_test.directions(LM, WM, PROMPTS, TEXTS, seed=0)
    table = sharper_test.along(LM, PAIRS, TEXTS, WM, named)
    assert table.groupby(["direction", "kind"]).size().eq(6).all()
    paper = table[table["direction"] == sharper_test.PAPER]
    asked = LM.model, PROMPTS, TEXTS, WM
    for kind, keys in ((OWN, PAIRS.keys), (WRONG, PAIRS.keys[1:] + PAIRS.keys[:1])):
        expected = score.score(*asked, keys, paired=True)["psi"]
        found = paper[paper["kind"] == kind].set_index("pair")["psi"].sort_index()
        np.testing.assert_allclose(found, expected, atol=1e-5)
    [one] = gradients.gradients(LM.model, PROMPTS[:1], TEXTS[:1], WM)
    xi, sign = perturb.noise(LM.model, WM, PAIRS.keys[0]), one.G.sign()
    row = table[(table["direction"] == sharper_test.SIGN) & (table["pair"] == 0)].iloc[0]
    assert row["psi"] == pytest.approx(float((xi * sign).sum() / sign.norm()) / 0.3, abs=1e-4)
    cosine = float(one.G.abs().sum() / sign.norm() / one.G.norm())
    assert row["cosine"] == pytest.approx(cosine, rel=1e-4)
    assert row["forecast"] == pytest.approx(cosine * 0.3 * float(one.G.norm()), rel=1e-4)
    assert paper["cosine"].to_numpy() == pytest.approx(1, abs=1e-5)


def test_each_edited_text_is_tested_with_its_own_and_the_next_pairs_key():
    changes = corrupt.named(LM, ["delete at random"])
    table = sharper_test.after_edits(LM, PAIRS, TEXTS, WM, changes, [0.3, 0.5], 0.2, seed=1)
    edit = sharper_test.named_edit("delete at random", 0.3)
    assert {*table["edit"]} == {sharper_test.UNEDITED, edit, "delete at random, 50%"}
    x, y = changes["delete at random"](PROMPTS, TEXTS, 0.3, 1)
    for kind, keys in ((OWN, PAIRS.keys), (WRONG, PAIRS.keys[1:] + PAIRS.keys[:1])):
        for test, shares in zip(sharper_test.TESTS, ([0.0], [0.2], [0.0, 0.2]), strict=True):
            weights = [channel.weights(LM.model, share) for share in shares]
            each = gradients.gradients(LM.model, x, y, WM, token_weights=weights)
            expected = largest.score(each, WM.on(LM.model), keys, paired=True)
            for column in ("psi", "p_value"):
                found = sharper_test.wide(table, edit, column, kind)[test]
                np.testing.assert_allclose(found, expected[column], rtol=1e-3, atol=1e-4)
    cleaned = channel.cleaned(LM.model, x, y, 0.2)
    sharper = {"paired": True, "token_weights": channel.weights(LM.model, 0.2)}
    expected = score.score(LM.model, x, cleaned, WM, PAIRS.keys, **sharper)["psi"]
    found = sharper_test.wide(table, edit, "psi")[sharper_test.CLEANED]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    both, paper = sharper_test.BOTH, sharper_test.PAPERS
    gain = sharper_test.power_gain(table, sharper_test.UNEDITED, both, paper, level=0.5)
    hits = sharper_test.wide(table, sharper_test.UNEDITED, "p_value") <= 0.5
    assert gain.value == pytest.approx((hits[both] * 1 - hits[paper] * 1).mean())


def test_the_rivals_leak_what_the_law_says():
    table = sharper_test.rivals(LM, PAIRS, WM, 24, n_leaked=40).set_index("mark")
    matrix, rival = table.loc["a matrix"], table.loc[sharper_test.BIASES]
    assert matrix["d"] == WM.on(LM.model).d
    assert rival["d"] == LM.model.config.vocab_size
    asked = LM.model, PROMPTS
    marks = [(WM, key) for key in PAIRS.keys]
    texts = generate.sample(*asked, 24, marks=marks, seed=0)
    found = score.score(*asked, texts, WM, PAIRS.keys, paired=True)["psi"].mean()
    assert matrix["psi"] == pytest.approx(found, abs=1e-4)
    assert abs(rival["cosine"] - rival["law"]) < 0.2
    assert 0.1 < matrix["cosine"] < matrix["law"]  # six prompts show the same few directions
    assert 0.4 < rival["psi²/(2 nats)"] < 2.5


def test_no_distribution_of_the_same_mean_slope_is_nearer():
    """By a search over distributions for the nearest one that has the mark's mean slope."""
    wm, pairs = Watermark(tiny_lm.WEIGHT, 0.2), PAIRS.first(1)
    asked = LM.model, pairs.prompts, [TEXTS[0][:1]]
    table = sharper_test.spared(LM, pairs, asked[2], wm)
    [nats] = divergence.per_text(*asked, marks=[(wm, pairs.keys[0])])
    assert table["nats"][0] == pytest.approx(nats, rel=1e-4)
    ids, xi = torch.tensor([PROMPTS[0]]), perturb.noise(LM.model, wm, pairs.keys[0])

    def log_p(scale):
        with torch.no_grad(), perturb.moved(wm.on(LM.model), [scale * xi]):
            return LM.model(input_ids=ids).logits[0, -1].double().log_softmax(-1).numpy()

    q, slope = log_p(1.0), (log_p(0.1) - log_p(-0.1)) / 0.2
    with torch.no_grad():
        p = LM.model(input_ids=ids).logits[0, -1].double().log_softmax(-1).numpy()
    tilted = [np.exp(p + s * slope - logsumexp(p + s * slope)) for s in np.linspace(0, 3, 3001)]
    nearest = min(tilted, key=lambda t: abs(t @ slope - np.exp(q) @ slope))
    least = float(nearest @ (np.log(nearest) - p))
    assert least - 1e-4 < nats  # it is the nearest
    assert 0 < nats - least < table["most"][0] * 1.01 + 1e-4
    assert table["most"][0] < 0.7 * nats


def test_each_matrix_adds_the_same_to_the_predicted_psi():
    weights = sharper_test.nearest(LM.model, tiny_lm.WEIGHT, 4)
    assert weights[0] == tiny_lm.WEIGHT
    wms = sharper_test.spread(LM, weights, PAIRS, TEXTS, psi=3.0)
    assert [len(wm.weights) for wm in wms.values()] == [*wms]
    norms = gradients.norms(LM.model, PROMPTS, TEXTS, weights)
    median = norms.groupby("weight")["grad_norm"].median()
    for m, wm in wms.items():
        shares = [(s * median[w]) ** 2 for s, w in zip(wm.sigmas, wm.weights, strict=True)]
        assert shares == pytest.approx([9.0 / m] * m, rel=1e-5)
    table = sharper_test.spread_out(LM, wms, PAIRS, TEXTS, n_tokens=12)
    assert table.groupby("matrices").size().eq(6).all()
    assert (table["own"] > 0).all()
    m, wm = max(wms.items())
    with perturb.watermarked(LM.model, wm, PAIRS.keys[2]):
        marked = likelihood.cross_entropy(LM.model, TEXTS[2:3], prompts=PROMPTS[2:3])
    plain = likelihood.cross_entropy(LM.model, TEXTS[2:3], prompts=PROMPTS[2:3])
    row = table[(table["matrices"] == m) & (table["pair"] == 2)].iloc[0]
    assert row["human"] == pytest.approx(float(20 * (marked - plain)[0]), rel=1e-3)


def test_without_a_tilt_the_ratios_p_value_is_its_rank():
    asked = LM, PROMPTS[0], TEXTS[0], WM, PAIRS.keys[0]
    found = sharper_test.likelihood_ratio(*asked, n_keys=9, tilt=0.0, seed=1)
    base = likelihood.cross_entropy(LM.model, TEXTS[:1], prompts=PROMPTS[:1])[0] * -20
    with perturb.watermarked(LM.model, WM, PAIRS.keys[0]):
        marked = likelihood.cross_entropy(LM.model, TEXTS[:1], prompts=PROMPTS[:1])[0] * -20
    assert found["ratio"] == pytest.approx(marked - base, abs=1e-4)
    assert found["psi"] == pytest.approx(
        score.score(LM.model, PROMPTS[:1], TEXTS[:1], WM, PAIRS.keys[:1])["psi"][0], abs=1e-4
    )
    placed, draw, ratios = WM.on(LM.model), np.random.default_rng([1, 17]), []
    for _ in range(9):
        z = torch.from_numpy(draw.standard_normal(placed.d, np.float32))
        with perturb.moved(placed, [(0.3 * z).reshape(placed.linear.shape)]):
            nats = likelihood.cross_entropy(LM.model, TEXTS[:1], prompts=PROMPTS[:1])
        ratios.append(-20 * nats[0] - base)
    assert found["p_value"] == pytest.approx((1 + np.sum(np.array(ratios) >= found["ratio"])) / 10)


@pytest.mark.parametrize("tilt", [0.0, 1.5])
def test_a_ranked_ratio_keeps_the_level(tilt):
    asked = LM, PROMPTS[0], TEXTS[0][:6], WM
    n = 100
    p = [
        sharper_test.likelihood_ratio(*asked, Key.from_seed(i), n_keys=10, tilt=tilt, seed=i)
        for i in range(n)
    ]
    for level in (0.1, 0.3):
        hits = sum(one["p_value"] <= level for one in p)
        assert binom.sf(hits - 1, n, level) > 1e-3, (level, hits)
    below_half = sum(one["p_value"] <= 0.5 for one in p)
    assert below_half > n / 10, "an empty test keeps every level"
