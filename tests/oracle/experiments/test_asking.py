"""An asker's gain, against the library's stream, on a tiny model."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch
from scipy.stats import kstest

from gaussmark_lib import joint
from gaussmark_lib.experiments import asking
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
D = LM.model.get_parameter(WM.weight).numel()
RNG = np.random.default_rng(0)
PAIRS = tiny_models.random_ids(RNG, *[4] * 8), tiny_models.random_ids(RNG, *[20] * 8)


def test_asking_raises_psi_and_leaves_the_rest_to_chance():
    found = asking.attacks(LM, PAIRS, WM, 8, 0, n_steps=5)
    assert (found["queries"] == 40).all()
    assert found["psi"].mean() > 1.5
    assert abs(found["innovation"].mean()) < 3.3 / np.sqrt(8)
    climbs = np.stack(found["climb"])
    assert climbs.shape == (8, 5)
    assert climbs[:, -1].mean() > climbs[:, 0].mean()


def test_the_innovation_is_that_of_the_librarys_stream(monkeypatch):
    asked, plain = [], asking.production.directions

    def kept(lm, pairs, wm, **settings):
        asked.extend(pairs[1])
        return plain(lm, pairs, wm, **settings)

    monkeypatch.setattr(asking.production, "directions", kept)
    found = asking.forged(
        LM, PAIRS[0][0], PAIRS[1][0], WM, Key.from_seed(3), n_steps=3, n_tried=4, n_edits=2, seed=1
    )
    table = joint.sequence(LM.model, [PAIRS[0][0]] * 13, asked, WM, [Key.from_seed(3)])
    assert len(set(map(tuple, asked[:-1])) & {tuple(asked[-1])}) == 0, "the last text is new"
    assert abs(table["psi"].iloc[-1] - found["psi"]) < 1e-3
    assert abs(table["innovation"].iloc[-1] - found["innovation"]) < 1e-2
    assert sum(a != b for a, b in zip(asked[0], PAIRS[1][0], strict=True)) == 2


def test_the_last_text_was_not_asked_about_though_there_are_few(monkeypatch):
    asked = []
    monkeypatch.setattr(
        asking.production,
        "directions",
        lambda lm, pairs, wm: asked.append(pairs[1]) or (torch.randn(len(pairs[1]), D), None),
    )
    for seed in range(12):
        asked.clear()
        asking.forged(LM, [5], [6, 7, 8], WM, Key.from_seed(seed), n_steps=2, n_tried=4, seed=seed)
        *before, [last] = asked
        assert not any(last in texts for texts in before)


@pytest.mark.slow
def test_rounded_answers_help_less():
    exact, rounded = (
        asking.attacks(LM, PAIRS, WM, 16, 0, n_steps=6, digits=digits)["psi"].mean()
        for digits in (None, -1)
    )
    assert rounded < exact


def test_shopping_for_an_alarm():
    rates = asking.shopped(
        LM, PAIRS[0][0], PAIRS[1][0], WM, range(200), n=10, level=0.05
    ).set_index("method")
    assert (
        rates.loc["innovation", "value"]
        > rates.loc["ψ", "value"]
        > rates.loc["verdict of the first", "value"]
    )
    assert (
        rates.loc["verdict of the first", "low"]
        <= 0.05
        <= rates.loc["verdict of the first", "high"]
    )


def test_a_mean_of_what_is_known():
    assert asking.mean(pd.Series([1.0, np.nan, 3.0])).value == 2
    assert np.isnan(asking.mean(pd.Series([1.0, np.nan])).value)


def test_the_distance_from_a_normal_has_an_interval():
    rng = np.random.default_rng(0)
    few, p = asking.distance(pd.Series([0.1, np.nan, -0.3, 0.4]))
    assert p > 0.05
    assert few.n == 3
    assert few.high > 0.75, "three texts show nothing"
    many, _ = asking.distance(pd.Series(rng.normal(size=4000)))
    assert many.value == pytest.approx(
        kstest(np.random.default_rng(0).normal(size=4000), "norm").statistic
    )
    assert many.high < 0.05
    shifted = [asking.distance(pd.Series(row))[0] for row in rng.normal(0.5, 1, (300, 100))]
    true = 2 * 0.5987063256829237 - 1  # sup |Φ(x) − Φ(x − ½)| = 2Φ(¼) − 1
    assert np.mean([one.low <= true <= one.high for one in shifted]) >= 0.95 - 3 * np.sqrt(
        0.05 / 300
    )
    assert np.isnan(asking.distance(pd.Series([np.nan]))[0].value)
