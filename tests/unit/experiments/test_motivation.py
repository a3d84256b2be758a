"""Likelihood ratio, strength and price of pairs: each number against the steps done by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import motivation
from gaussmark_lib import divergence, generate, likelihood, perturb, score
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.pairs import OWN, PLAIN, Pairs

LM = replace(tiny_lm.build(), model=tiny_models.build("llama", torch.float64))
MODEL = LM.model
WMS = [perturb.Watermark(tiny_lm.WEIGHT, s) for s in (0.02, 0.1)]
PAIRS = Pairs(
    tiny_models.random_ids(np.random.default_rng(3), 4, 6, 5),
    [perturb.Key.from_seed(k) for k in (1, 2, 3)],
)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return motivation.measured(LM, PAIRS, WMS, 12, seed=7, top_p=0.9)[0]


@pytest.mark.parametrize("sigma", [0.02, 0.1])
@pytest.mark.parametrize("i", [0, 2])
def test_each_number_of_a_text_by_hand(table, sigma, i):
    wm, (prompts, keys) = perturb.Watermark(tiny_lm.WEIGHT, sigma), PAIRS
    marks = [(wm, key) for wm in WMS for key in keys] + [None] * 3
    texts = generate.sample(MODEL, prompts * 3, 12, marks=marks, seed=7, top_p=0.9)
    xi = perturb.noise(MODEL, wm, keys[i])
    cases = {OWN: texts[i + 3 * [one.sigma for one in WMS].index(sigma)]}
    if sigma == 0.1:
        cases[PLAIN] = texts[6 + i]
    for kind, text in cases.items():
        is_text = (table["kind"] == kind) & (table["sigma"] == sigma) & (table["prompt"] == i)
        [row] = table[is_text].to_dict("records")
        [g] = score.gradients(MODEL, [prompts[i]], [text], wm)
        inner = (xi * g.G).sum().item()
        assert row["psi"] == pytest.approx(inner / (sigma * g.norm), abs=1e-6)
        assert row["first_order"] == pytest.approx(inner - sigma**2 * g.norm**2 / 2, abs=1e-6)
        with perturb.watermarked(MODEL, wm, keys[i]):
            [entropy] = likelihood.cross_entropy(MODEL, [text], prompts=[prompts[i]])
        assert row["log_ratio"] == pytest.approx(-entropy * 12 - g.log_lik, abs=1e-6)
        if kind == OWN:
            marks = [(wm, keys[i])]
            [price] = divergence.per_text(MODEL, [prompts[i]], [text], marks=marks)
            assert row["price"] == pytest.approx(price, abs=1e-9)


def test_strength_and_price_are_means_over_pairs_beside_their_prediction(table):
    law = motivation.strength_and_price(table, typical_norm=30.0)
    own = table[(table["kind"] == OWN) & (table["sigma"] == 0.1)]
    by_point = law[law["sigma"] == 0.1].set_index(["quantity", "curve"])["value"]
    assert by_point[motivation.STRENGTH, OWN] == pytest.approx(own["psi"].mean())
    assert by_point[motivation.PRICE, OWN] == pytest.approx(own["price"].mean())
    assert by_point[motivation.STRENGTH, "predicted"] == pytest.approx(3.0)
    assert by_point[motivation.PRICE, "predicted"] == pytest.approx(4.5)
    ratio = motivation.over_prediction(law, 0.1, motivation.PRICE)
    assert ratio.value == pytest.approx(own["price"].mean() / 4.5)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.n == 3


def test_the_growth_is_that_from_half_of_the_largest_sigma():
    rows = [
        {"prompt": i, "sigma": sigma, "price": price * (1 + i / 10), "psi": sigma}
        for i in range(4)
        for sigma, price in ((0.1, 1.0), (0.2, 3.0), (0.4, 12.0))
    ]
    table = pd.DataFrame(rows).assign(kind=OWN)
    assert motivation.growth(table, "price").value == pytest.approx(4)
    assert motivation.growth(table, "psi").value == pytest.approx(2)
    assert set(motivation.at_middle(table)["sigma"]) == {0.2}
    alone = motivation.growth(table[table["sigma"] == 0.4], "price")
    assert (np.isnan(alone.value), alone.n) == (True, 4)


def test_the_laws_of_the_records_stand_beside_this_run(table):
    law = motivation.strength_and_price(table, 10.0)
    of_runs = motivation.laws(law)
    assert {"doclm", "this run", "predicted"} <= set(of_runs["run"])
    here = of_runs[of_runs["run"] == "this run"]
    assert here["value"].tolist() == law.loc[law["curve"] == "own key", "value"].tolist()
    assert of_runs.loc[of_runs["run"] == "predicted", ["low", "high"]].isna().all(axis=None)
    compared = motivation.compared(table, 12_345).loc["this run"]
    assert set(compared["entries d"]) == {"12,345"}
    far = pd.DataFrame({"first_order": [*range(400), 900.0]}).assign(log_ratio=0.0, kind=PLAIN)
    axes = motivation.draw_log_ratio(far.assign(run=""), "").axes[0]
    assert "1 of 401" in axes.get_title("left") + axes.get_title("center")  # by the style in use
    recorded = motivation.recorded_growth(runs.reference("motivation"))
    assert recorded.low < recorded.value < recorded.high
    assert motivation.recorded_efficiency(runs.reference("motivation")).n == 300


def test_plain_texts_are_measured_at_the_middle_strength_alone(table):
    assert table[table["kind"] == PLAIN]["sigma"].unique().tolist() == [0.1]
    priced = table.dropna(subset="price")
    assert priced.groupby("sigma").size().to_dict() == {0.02: 3, 0.1: 3}
    assert (priced["kind"] == OWN).all()


def test_texts_of_other_lengths_have_the_numbers_that_they_have_alone():
    """More texts than fit into one pass, under noises of their own."""
    lengths = [9, 3, 7, 12, 5, 4, 6, 8, 11, 2]
    texts = tiny_models.random_ids(np.random.default_rng(5), *lengths)
    prompts = [PAIRS.prompts[i % 3] for i in range(10)]
    marks = [(WMS[1], PAIRS.keys[i % 3]) for i in range(10)]
    assert len(texts) > motivation.AT_ONCE
    log_p, price = motivation.under_noise(LM, prompts, texts, marks)
    for i in (0, 1, 9):
        wm, key = marks[i]
        with perturb.watermarked(MODEL, wm, key):
            [entropy] = likelihood.cross_entropy(MODEL, [texts[i]], prompts=[prompts[i]])
        assert log_p[i] == pytest.approx(-entropy * lengths[i], abs=1e-6)
        [alone] = divergence.per_text(MODEL, [prompts[i]], [texts[i]], marks=[(wm, key)])
        assert price[i] == pytest.approx(alone, abs=1e-9)


def simulated(d: int, efficiency: float, sigmas: list[float]) -> pd.DataFrame:
    """Marked texts with a known mean of ψ ÷ √(2 · price), and rows of no price beside them."""
    rng = np.random.default_rng(d)
    price = np.repeat([2.0, 4.5], 200)
    psi = efficiency * np.sqrt(2 * price) + 0.05 * rng.standard_normal(400)
    columns = {"psi": psi, "price": price, "prompt": [*range(200)] * 2, "n_tokens": 50}
    own = pd.DataFrame(columns | {"sigma": np.repeat(sigmas, 200), "kind": OWN})
    return pd.concat([own, own.assign(kind=PLAIN, psi=99.0, price=np.nan)], ignore_index=True)


def test_the_exchange_rate_and_its_slope_over_the_sizes_of_matrices():
    wide = simulated(100_000, 0.9, [0.05, 0.08])
    tables = {1_000: simulated(1_000, 1.0, [0.1, 0.2]), 100_000: wide}
    rates = motivation.exchange(tables)
    assert rates["d"].tolist() == [1_000, 1_000, 100_000, 100_000]
    assert rates["price"].tolist() == pytest.approx([0.04, 0.09] * 2)
    assert rates["value"].tolist() == pytest.approx([1.0, 1.0, 0.9, 0.9], abs=0.01)
    assert (rates["n"] == 200).all()
    slope = motivation.slope(tables)
    assert slope.value == pytest.approx(-0.05, abs=0.004)
    assert slope.low < slope.value < slope.high < 0
    assert slope.n == 400


def test_the_widths_over_keys_are_measured_and_compared_with_theory():
    rng = np.random.default_rng(0)
    psi = np.concatenate([rng.standard_normal(400), 1.5 * rng.standard_normal(400)])
    table = pd.DataFrame({"text": np.repeat(["standard", "too wide"], 400), "psi": psi})
    table = table.assign(inner=0.1 * 20 * psi, grad_norm=20.0)
    widths = motivation.widths(table, 0.1)
    assert widths["text"].tolist() == ["standard", "too wide"]
    assert widths["inner_theory"].tolist() == pytest.approx([2.0, 2.0])
    assert widths["inner"].tolist() == pytest.approx(2 * widths["value"], rel=0.01)
    standard, too_wide = widths.itertuples()
    assert standard.low < 1 < standard.high
    assert 1.3 < too_wide.low < 1.5 < too_wide.high
    assert "1 of the 2 intervals contains 1" in motivation.widths_in_words(widths)


def test_a_record_that_is_not_there_is_named():
    with pytest.raises(GaussMarkError, match="got 'motivation_of_nothing'"):
        motivation.by_size(pd.DataFrame(), 10, ["motivation_of_nothing"])
