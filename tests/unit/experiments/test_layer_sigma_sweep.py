"""The map against its cells done one at a time, and its summaries against the definitions."""

import numpy as np
import pandas as pd
import pytest
import tiny_models

from gaussmark_experiments import layer_sigma_sweep
from gaussmark_lib import divergence, generate, gradients, likelihood, perturb, score, stats
from gaussmark_lib.models import default_weight, watermarkable
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.weights import block
from gaussmark_lib.workbench import pairs
from gaussmark_lib.workbench.runs import Run

WEIGHTS = ["model.layers.0.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"]
SIGMAS = [0.1, 0.5]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 7, 5)
PAIRS = pairs.Pairs(PROMPTS, [Key.from_seed(i) for i in range(3)])
PASSAGES = tiny_models.random_ids(np.random.default_rng(1), 30, 12, 25, 40)

CELLS = pd.DataFrame(
    {"weight": np.repeat(WEIGHTS, 2), "sigma": SIGMAS * 2, "predicted_psi": [1.0, 3.0, 2.0, 9.0]}
)


@pytest.fixture(scope="module")
def both(lm):
    return layer_sigma_sweep.measured(lm, PAIRS, CELLS, n_tokens=16, seed=9)


@pytest.fixture(scope="module")
def written(lm, both):
    texts, table = both
    return table.assign(price=layer_sigma_sweep.own_prices(lm, PAIRS, table, texts))


def test_a_cells_texts_are_those_of_its_watermark_and_key(lm, both):
    texts, written = both
    assert len(written) == 2 * 2 * 3
    assert written["text"].tolist() == list(range(12))
    for row in written.itertuples():
        wm, key = Watermark(row.weight, row.sigma), PAIRS.keys[row.prompt]
        stream = row.prompt + 3 * SIGMAS.index(row.sigma)  # of random numbers
        with perturb.watermarked(lm.model, wm, key):
            many = generate.sample(lm.model, [PROMPTS[row.prompt]] * 6, 16, seed=9)
        assert texts[row.text] == many[stream]
        alone = score.score(lm.model, [PROMPTS[row.prompt]], [many[stream]], wm, [key])
        for column in ("psi", "grad_norm", "log_lik"):
            expected = alone[column].item()
            assert getattr(row, column) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_texts_price_is_the_divergence_under_its_watermark_and_key(lm, both, written):
    texts, _ = both
    for row in written.itertuples():
        marks = [(Watermark(row.weight, row.sigma), PAIRS.keys[row.prompt])]
        prompt = [PROMPTS[row.prompt]]
        [alone] = divergence.per_text(lm.model, prompt, [texts[row.text]], marks=marks)
        assert row.price == pytest.approx(alone, rel=1e-3, abs=1e-6)
    prices = layer_sigma_sweep.prices(written, 16)
    first = written.query("weight == @WEIGHTS[0] and sigma == 0.1")["price"]
    assert prices["price"].iloc[0] == pytest.approx(first.mean() / 16)
    assert prices["price_low"].iloc[0] < prices["price"].iloc[0] < prices["price_high"].iloc[0]


def test_at_equal_psi_every_weight_has_the_wanted_prediction():
    norms = pd.DataFrame({"weight": np.repeat(WEIGHTS, 2), "grad_norm": [8.0, 12.0, 30.0, 50.0]})
    cells = layer_sigma_sweep.at_equal_psi(norms, [2.0, 4.0])
    assert cells["sigma"].tolist() == [0.2, 0.4, 0.05, 0.1]
    np.testing.assert_allclose(cells["predicted_psi"], [2, 4, 2, 4])


@pytest.fixture(scope="module")
def norms(lm):
    return layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16, seed=4)


def test_the_prediction_is_sigma_times_the_mean_norm_of_plain_text(lm, norms):
    plain = generate.sample(lm.model, PROMPTS, 16, seed=4)
    for row in layer_sigma_sweep.predicted(norms, SIGMAS).itertuples():
        alone = gradients.norms(lm.model, PROMPTS, plain, [row.weight])["grad_norm"]
        assert row.predicted_psi == pytest.approx(row.sigma * alone.mean(), rel=1e-4)


def test_a_cell_has_its_mean_and_its_share(written):
    for row in layer_sigma_sweep.detected(CELLS, written, 0.05).itertuples():
        psi = written.query("weight == @row.weight and sigma == @row.sigma")["psi"]
        assert row.psi == pytest.approx(psi.mean())
        assert row.tpr == pytest.approx((psi >= 1.6448536).mean())
        assert row.psi_low < row.psi < row.psi_high


def test_a_ratio_is_a_mean_over_cells_clustered_by_pair(written):
    rows = written.merge(CELLS, on=["weight", "sigma"]).query("predicted_psi < 4")
    by_pair = (rows["psi"] / rows["predicted_psi"]).groupby(rows["prompt"]).mean()
    ratio = layer_sigma_sweep.ratio(written, CELLS)
    assert ratio.row() == pytest.approx(stats.interval(by_pair).row())
    by_pair = (2 * rows["price"] / rows["predicted_psi"] ** 2).groupby(rows["prompt"]).mean()
    ratio = layer_sigma_sweep.price_ratio(written, CELLS)
    assert ratio.row() == pytest.approx(stats.interval(by_pair).row())
    assert layer_sigma_sweep.ratio(written, CELLS, 100, 200).n == 0


def test_the_cost_is_paired_by_passage_each_under_its_own_key(lm):
    cells = pd.DataFrame({"weight": WEIGHTS, "sigma": SIGMAS})
    cost = layer_sigma_sweep.cost(lm, PASSAGES, cells, PAIRS)
    assert len(cost) == 2 * len(PASSAGES)
    base = likelihood.cross_entropy(lm.model, PASSAGES)
    for row in cost.itertuples():
        wm, key = Watermark(row.weight, row.sigma), PAIRS.keys[row.passage % 3]
        with perturb.watermarked(lm.model, wm, key):
            [alone] = likelihood.cross_entropy(lm.model, [PASSAGES[row.passage]])
        assert row.base == pytest.approx(base[row.passage], rel=1e-5)
        assert row.watermarked == pytest.approx(alone, rel=1e-5)


def test_without_its_linear_part_the_cost_of_opposite_noises_is_their_mean(lm):
    """To second order, what θ + ξ costs differs from the mean by the linear part alone."""
    sigma = 0.001
    cells = pd.DataFrame({"weight": WEIGHTS[:1], "sigma": [sigma]})
    cost = layer_sigma_sweep.cost(lm, PASSAGES, cells, PAIRS)
    placed = Watermark(WEIGHTS[0], sigma).on(lm.model)
    change = layer_sigma_sweep.changes(cost)
    for i, passage in enumerate(PASSAGES):
        xi = perturb.noise(lm.model, placed, PAIRS.keys[i % 3])
        with perturb.moved(placed, [-xi]):
            [opposite] = likelihood.cross_entropy(lm.model, [passage])
        mean = (cost["watermarked"][i] + opposite) / 2 - cost["base"][i]
        assert abs(cost["linear"][i]) > 20 * abs(change[i] - mean)


@pytest.mark.parametrize(
    ("middle", "spread", "outcome"),
    [
        (1.0, 0.1, layer_sigma_sweep.DIFFERENT),
        (0.0, 0.01, layer_sigma_sweep.EQUAL),
        (0.0, 1.0, layer_sigma_sweep.OPEN),
        (0.02, 0.001, layer_sigma_sweep.DIFFERENT),
    ],
)
def test_equal_within_the_margin_needs_an_interval_within_it(middle, spread, outcome):
    change = middle + np.resize([-spread, spread], 30)
    cost = pd.DataFrame({"weight": "a", "sigma": 1.0, "base": 2.0, "watermarked": 2.5 + change})
    cost["linear"] = 0.5
    [cell] = layer_sigma_sweep.priced(cost, margin=0.03).itertuples()
    assert cell.outcome == outcome
    assert cell.delta == pytest.approx(middle, abs=1e-9)


def test_a_sigma_is_solved_and_tried_on_each_weights_texts(lm, norms):
    how = {"n_tokens": 16, "seed": 5}
    solved = layer_sigma_sweep.solved(lm, PAIRS, norms, WEIGHTS[1:], 0.8, 0.05, **how)
    of_one = norms.loc[norms["weight"] == WEIGHTS[1], "grad_norm"]
    sigma = stats.sigma_for_power(of_one, 0.8, 0.05)
    cell = pd.DataFrame({"weight": WEIGHTS[1:], "sigma": [sigma]})
    _, there = layer_sigma_sweep.measured(lm, PAIRS, cell, **how)
    assert solved["sigma"].item() == pytest.approx(sigma)
    assert solved["value"].item() == stats.tpr(there["psi"], 0.05).value


def test_far_out_the_fall_is_from_the_smallest_sigma_to_the_largest(lm, norms):
    args = (lm, PAIRS, norms, WEIGHTS[1:], [2.0, 20.0], 0.05)
    far, falls = layer_sigma_sweep.far_out(*args, n_tokens=16, seed=5)
    assert (np.diff(far["sigma"]) > 0).all()
    assert falls[WEIGHTS[1]].value == pytest.approx(far["psi"].iloc[1] - far["psi"].iloc[0])


def _simulated(efficiencies: list[float], n: int) -> tuple:
    """ψ of n pairs with these efficiencies, at a predicted ψ of 4 and prices of the law."""
    mean = np.repeat(4 * np.sqrt(efficiencies), n)
    names = np.repeat([f"w{i}" for i in range(len(efficiencies))], n)
    written = pd.DataFrame({"weight": names, "sigma": 1.0, "price": 8.0})
    written["prompt"] = [*range(n)] * len(efficiencies)
    written["psi"] = mean + np.random.default_rng(0).normal(size=len(mean))
    cells = written[["weight", "sigma"]].drop_duplicates().assign(predicted_psi=4.0)
    return written, cells


def test_the_efficiency_of_a_carrier_has_no_bias():
    rng = np.random.default_rng(0)
    psi = 1.0 + rng.normal(size=(4000, 5, 1))  # pairs are few
    values = [
        layer_sigma_sweep.efficiency(np.stack([rows, np.full_like(rows, 0.5)], -1)) for rows in psi
    ]
    assert np.mean(values) == pytest.approx(1.0, abs=0.06)


def test_the_spread_between_carriers_is_found_without_the_noise():
    even = layer_sigma_sweep.spread(*_simulated([1.0] * 12, 24))
    assert even.low == 0
    assert even.high < 0.25
    uneven = layer_sigma_sweep.spread(*_simulated([0.5, 1.0, 1.5] * 4, 24))
    assert 0.1 < uneven.low < np.std([0.5, 1.0, 1.5] * 4, ddof=1) < uneven.high
    assert (even.n, uneven.n) == (12, 12)
    assert np.isnan(layer_sigma_sweep.spread(*_simulated([1.0], 24)).low)


def test_the_interval_of_the_spread_covers():
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.05, 0.2, 10)
    for true in (0.0, 0.15):
        values = 1 + rng.normal(size=(400, 10)) * np.hypot(true, errors)
        estimates = [layer_sigma_sweep.between(row, errors) for row in values]
        covered = np.mean([one.low <= true <= one.high for one in estimates])
        assert 0.92 < covered <= 1
        assert np.mean([one.value for one in estimates]) == pytest.approx(true, abs=0.05)


def test_human_text_is_compared_at_one_predicted_psi():
    cells = pd.DataFrame({"weight": [*"aabb"], "sigma": [1.0, 2.0] * 2})
    cells["predicted_psi"] = [4.4, 8.8, 2.0, 4.0]
    cost = cells.merge(pd.DataFrame({"passage": range(30)}), how="cross")
    law = cost["predicted_psi"] ** 2 / 200
    times = cost["weight"].map({"a": 0.5, "b": 1.5})
    cost = cost.drop(columns="predicted_psi").assign(base=2.0, linear=0.25)
    cost["watermarked"] = 2.25 + law * times
    ratios = layer_sigma_sweep.human_ratios(cost, cells, 100)
    np.testing.assert_allclose(ratios[["a", "b"]], [[0.5, 1.5]] * 30)
    assert layer_sigma_sweep.largest_over_smallest(ratios.to_numpy()) == pytest.approx(3)
    assert layer_sigma_sweep.largest_over_smallest(np.array([[1.0, -1.0]])) == 100


def test_each_carrier_has_both_quantities():
    written, cells = _simulated([1.0, 1.0], 24)
    cost = written[["weight", "sigma"]].assign(
        passage=written["prompt"], base=2.0, watermarked=2.04, linear=0.0
    )
    table = layer_sigma_sweep.carriers(written, cells, cost, 200)
    of_human = table[table["quantity"] == layer_sigma_sweep.HUMAN]
    np.testing.assert_allclose(of_human["value"], 1.0)
    of_own = table[table["quantity"] == layer_sigma_sweep.EFFICIENCY]
    assert of_own["weight"].tolist() == of_human["weight"].tolist() == ["w0", "w1"]
    assert of_own["low"].lt(1.1).all()
    assert of_own["high"].gt(0.9).all()


def test_a_cross_tells_the_layer_from_the_kind(lm):
    every = layer_sigma_sweep.cross(lm.model)
    same_kind, same_block = layer_sigma_sweep.arms(every)
    kind = layer_sigma_sweep.matrix_kind
    names = watermarkable(lm.model)
    wanted = [name for name in names if kind(name) == kind(default_weight(lm.model))]
    assert same_kind == wanted
    [shared] = {*same_kind} & {*same_block}
    blocks = {block(name) for name in same_block}
    assert blocks == {block(shared)} == {block(wanted[len(wanted) // 2])}
    assert {*map(kind, same_block)} == {kind(name) for name in names if block(name)}
    for n in (1, 2, 3, 4, 5):
        few = layer_sigma_sweep.cross(lm.model, n)
        assert len(few) == n
        assert shared in few
        assert {*few} <= {*every}
    assert [".mlp." in name for name in few[-2:]] == [True, True], "the MLP's kinds come first"
    assert len(layer_sigma_sweep.crossed(pd.DataFrame({"weight": few}))) == 5
    confounded = pd.DataFrame({"weight": ["0.a.weight", "1.b.weight", "2.c.weight"]})
    assert layer_sigma_sweep.crossed(confounded).empty


def test_norms_are_relative_to_the_middle_of_the_cross():
    names = ["0.down.weight", "1.down.weight", "1.up.weight"]
    norms = pd.DataFrame(
        {"text": [0, 1] * 3, "weight": np.repeat(names, 2), "grad_norm": [1, 3, 3, 5, 6, 6]}
    )
    table = layer_sigma_sweep.relative_norms(norms).set_index(["arm", "weight"])["value"]
    assert table["one kind", "0.down.weight"] == pytest.approx(0.5)
    assert table["one kind", "1.down.weight"] == table["one block", "1.down.weight"] == 1.0
    assert table["one block", "1.up.weight"] == pytest.approx(1.5)


def test_cells_beyond_the_linear_ones_are_told_apart(written, tmp_path):
    far = layer_sigma_sweep.beyond_linear(written, CELLS)
    rows = written.query("weight == @WEIGHTS[1] and sigma == 0.5")
    assert far.value == pytest.approx((rows["psi"] / 9.0).mean())
    run = Run(tmp_path, "an id", {}, {}, {})
    written.to_parquet(tmp_path / "texts.parquet")
    CELLS.to_parquet(tmp_path / "cells.parquet")
    assert layer_sigma_sweep.recorded_beyond_linear(run) == far
    CELLS[:3].to_parquet(tmp_path / "cells.parquet")
    assert layer_sigma_sweep.recorded_beyond_linear(run) is None


def test_the_law_of_a_human_price_is_that_of_its_cell():
    priced = CELLS[["weight", "sigma"]].assign(delta=0.1, delta_low=0.05, delta_high=0.2)
    params = {"n_tokens": 50, "margin": 0.03}
    prices = layer_sigma_sweep.human_prices(priced, CELLS.assign(psi=1.0), params)
    assert prices["law"].tolist() == pytest.approx([0.01, 0.09, 0.04, 0.81])


def test_rows_of_one_noise_stand_together():
    rows = layer_sigma_sweep.rows_of(CELLS, 3)
    noises = list(zip(rows["weight"], rows["prompt"], strict=True))
    assert len(noises) == 12
    assert noises == [noise for noise in dict.fromkeys(noises) for _ in SIGMAS]
