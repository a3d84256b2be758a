"""The game and the picture of 00: what they show is what score and evidence say."""

import numpy as np
import pytest
import tiny_lm
from scipy.stats import norm

from gaussmark_experiments import first_watermark as first
from gaussmark_lib import perturb, score
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


def test_the_recorded_texts_have_the_recorded_psi(embedded):
    table = first.same_everywhere(embedded)
    assert (table["here"] - table["recorded"]).abs().max() < 1e-3
    means = table.groupby("kind")["here"].mean()
    assert means["watermarked"] > 2 > abs(means["plain"])


@pytest.fixture(scope="module")
def embedded():
    from gaussmark_lib import models

    return models.load("doclm")
