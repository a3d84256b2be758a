"""Directions against their cosines, the p-value of a ranked likelihood ratio against a plain rank,
and noise spread over matrices, on a tiny model.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
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
from gaussmark_lib.workbench import begin
from gaussmark_lib.workbench.pairs import OWN, WRONG, Pairs
from gaussmark_lib.workbench.runs import Run

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


def test_the_share_that_tuning_could_save_grows_with_the_square_of_sigma():
    pairs = PAIRS.first(3)
    weak, half = (
        sharper_test.spared(LM, pairs, TEXTS[:3], Watermark(tiny_lm.WEIGHT, sigma))
        for sigma in (0.02, 0.01)
    )
    growth = sharper_test.growth(weak, half)
    by_hand = weak["most"].sum() / weak["nats"].sum() / half["most"].sum() * half["nats"].sum()
    assert growth.value == pytest.approx(by_hand)
    assert growth.value == pytest.approx(4, rel=0.15)
    run = Run(Path("."), "an id", {}, {"growth": growth.row()}, {})
    assert sharper_test.recorded_growth(run) == growth
    assert sharper_test.recorded_growth(replace(run, results={})) is None


def test_each_matrix_adds_the_same_to_the_predicted_psi():
    weights = sharper_test.nearest(LM.model, tiny_lm.WEIGHT, 4)
    assert weights[0] == tiny_lm.WEIGHT
    pilot = tiny_models.random_ids(np.random.default_rng(1), *[4] * 9)
    wms = sharper_test.spread(LM, weights, pilot, 20, 3.0, temperature=0.9)
    assert [len(wm.weights) for wm in wms.values()] == [*wms]
    pilot = pilot[: begin.N_TEXTS]  # as many texts as σ is solved on elsewhere
    plain = generate.sample(LM.model, pilot, 20, temperature=0.9)
    norms = gradients.norms(LM.model, pilot, plain, weights)
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


def test_one_matrix_and_several_are_compared_pair_by_pair():
    table = pd.DataFrame(
        {"matrices": [1, 1, 3, 3], "pair": [0, 1] * 2, "psi": [2.0, 3.0, 4.0, 2.0]}
    )
    table = table.assign(forecast=4.0, own=2.0, human=[1.0, 3.0, 2.0, 4.0])
    assert sharper_test.nearer(table).value == pytest.approx((0.5 - 0.25) / 2)
    assert sharper_test.damage(table).value == pytest.approx(6 / 4)
    assert sharper_test.by_matrices(table, "psi", "forecast") == {"1": 0.625, "3": 0.75}
    told = sharper_test.told(table).set_index(["what", "matrices"])["value"]
    assert told["ψ divided by σ‖G‖", "noise in several matrices"] == pytest.approx(6 / 8)
    assert told["price: human / own text", "noise in one matrix"] == pytest.approx(4 / 4)


def test_what_a_direction_keeps_is_a_share_of_the_papers_psi():
    rows = [
        ("G, the paper's", 0, OWN, 4.0, 1.0, 5.0),
        ("G, the paper's", 1, OWN, 2.0, 1.0, 3.0),
        ("the sign of G", 0, OWN, 1.0, 0.5, 3.0),
        ("the sign of G", 1, OWN, 2.0, 0.5, 3.0),
        ("a random one", 0, OWN, 0.0, 0.0, 0.0),  # as an older record calls it
        ("a random one", 1, OWN, 1.5, 0.0, 0.8),
        ("the sign of G", 0, WRONG, 9.0, 0.5, 0.0),
    ]
    columns = ["direction", "pair", "kind", "psi", "cosine", "forecast"]
    table = pd.DataFrame(rows, columns=columns)
    kept = sharper_test.kept(table).set_index("direction")["value"]
    assert kept.to_dict() == {sharper_test.SIGN: 0.5, sharper_test.RANDOM: 0.25}
    law = sharper_test.kept_by_the_law(table).set_index("direction")["value"]
    assert law.to_dict() == pytest.approx({sharper_test.SIGN: 0.75, "a random one": 0.1})


def test_edits_are_told_with_the_factor_and_the_share_detected():
    edit = sharper_test.named_edit("delete at random", 0.3)
    psi_of = {sharper_test.PAPERS: 2.0, sharper_test.SHARPER: 3.0, sharper_test.BOTH: 2.5}
    psi_of[sharper_test.CLEANED] = 4.0
    rows = [
        {"test": test, "edit": name, "pair": i, "kind": kind, "psi": psi + i, "p_value": p}
        for name in (sharper_test.UNEDITED, edit, "delete at random, 10%")
        for test, psi in psi_of.items()
        for kind, p in ((OWN, 0.001), (WRONG, 0.5))
        for i in range(4)
    ]
    after = pd.DataFrame(rows)
    gains = sharper_test.gains(after).set_index(["edit", "test"])["value"]
    assert gains[edit, sharper_test.CLEANED] == pytest.approx(5.5 / 3.5)

    detected = sharper_test.detected(after, 0.01)
    params = {"edits": ["delete at random"], "fractions": [0.3, 0.1]}
    shown = sharper_test.first_fraction(detected, params)
    assert {*shown["edit"]} == {sharper_test.UNEDITED, edit}
    assert {*shown["test"]} == {*sharper_test.TESTS}
    assert (shown["value"] == 1.0).all()
    control = detected[detected["test"] == f"{sharper_test.BOTH}, a wrong key"]
    assert (control["value"] == 0.0).all()


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
