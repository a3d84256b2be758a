"""The game and the picture of 00: what they show is what score and evidence say."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
from scipy.stats import norm

from gaussmark_experiments import first_watermark as first
from gaussmark_lib import perturb, score, stats
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.pairs import Pairs

LM = tiny_lm.build()
WM = perturb.Watermark(tiny_lm.WEIGHT, 0.3)
KEYS = [perturb.Key.from_seed(i) for i in range(40)]
PROMPTS = [LM.encode(text) for text in tiny_lm.PROMPTS]


@pytest.fixture(scope="module")
def game() -> first.Game:
    return first.play(LM, PROMPTS, WM, KEYS[0], 24, seed=3)


def test_the_reveal_says_the_p_value_of_each_text_and_who_wrote_it(game):
    html = first.revealed(LM, game, WM, KEYS[0]).data
    psi = score.score(LM.model, game.prompts, game.texts, WM, KEYS[:1])["psi"]
    for letter, value, marked in zip(first.LETTERS, psi, game.is_marked, strict=True):
        written = "with" if marked else "without"
        assert f"{letter}: p = {norm.sf(value):.2g} (ψ = {value:.2f}); written {written}" in html
    assert "<script" not in html


def test_the_cloud_is_psi_and_a_standard_normal_number_across(game):
    cloud = first.cloud(LM, game, WM, KEYS)
    i = game.is_marked.index(True)
    psi = score.score(LM.model, [game.prompts[i]], [game.texts[i]], WM, KEYS)["psi"]
    np.testing.assert_allclose(cloud["along"], psi, atol=1e-5)
    assert abs(cloud["across"].mean()) < 4 / 40**0.5
    assert 0.6 < cloud["across"].std() < 1.4


def test_growth_ends_at_psi_of_the_text(game):
    growth, i = first.growth(LM, game, WM, KEYS[:3]), game.is_marked.index(True)
    psi = score.score(LM.model, [game.prompts[i]], [game.texts[i]], WM, KEYS[:3])["psi"]
    last = growth[growth["n_tokens"] == 24]
    np.testing.assert_allclose(last["psi"], psi, atol=1e-5)
    assert growth["n_tokens"].is_monotonic_increasing


def test_turning_sigma_measures_each_strength_beside_its_prediction():
    pairs = Pairs(PROMPTS, KEYS[:4])
    table = first.turned(LM, pairs, WM.weight, [10.0, 20.0, 40.0], [1.0, 4.0], 12, seed=2)
    measured = table[table["curve"] == first.MEASURED]
    assert list(measured["sigma"]) == pytest.approx([0.05, 0.2])
    assert list(measured["n"]) == [4, 4]
    assert (measured["low"] < measured["value"]).all()
    assert list(table.loc[table["curve"] == first.PREDICTED, "value"]) == [1.0, 4.0]


def test_the_largest_sigma_is_compared_with_its_prediction():
    rows = [(1.0, first.MEASURED, 1.2, 1.0, 1.4, 9), (8.0, first.MEASURED, 6.0, 4.0, 8.0, 9)]
    rows += [(8.0, first.PREDICTED, 8.0, None, None, None)]
    columns = ["predicted", "curve", "value", "low", "high", "n"]
    ratio = first.at_largest(pd.DataFrame(rows, columns=columns))
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == (0.75, 0.5, 1.0, 9)


def test_the_shares_of_the_records_stand_above_those_of_this_run():
    of_run = stats.Estimate(0.5, 0.25, 0.75, 8)
    rates = dict.fromkeys(("own key", "wrong key", "plain"), of_run)
    assert first.misses_in_words(rates, 0.01).endswith("; this run, wrong key; this run, plain.")
    table = first.shares(rates, 0.01, 40)
    *recorded, here = table.index
    assert recorded
    assert all(name.endswith("(reference)") for name in recorded)
    assert here == "this run"
    assert table.loc[here].tolist() == ["0.01", "40", *["50% (25% to 75%), n = 8"] * 3]
    doclm = runs.reference("first_watermark")
    share = first.recorded_share(doclm)
    assert table.loc["doclm (reference)", "own key"].startswith(f"{100 * share.value:.1f}%")
    assert first.recorded_at_largest(doclm) is None, "the record has no table of the sweep"


def test_the_recorded_texts_have_the_recorded_psi(embedded):
    table = first.same_everywhere(embedded)
    assert (table["here"] - table["recorded"]).abs().max() < 1e-3
    means = table.groupby("kind")["here"].mean()
    assert means["watermarked"] > 2 > abs(means["plain"])


@pytest.fixture(scope="module")
def embedded():
    from gaussmark_lib import models

    return models.load("doclm")
