"""The map against its cells done one at a time, and its summaries against the definitions."""

import numpy as np
import pandas as pd
import pytest
import tiny_models

from gaussmark_experiments import layer_sigma_sweep
from gaussmark_lib import generate, gradients, likelihood, perturb, score, stats
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import pairs

WEIGHTS = ["model.layers.0.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"]
SIGMAS = [0.1, 0.5]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 7, 5)
PAIRS = pairs.Pairs(PROMPTS, [Key.from_seed(i) for i in range(3)])
PASSAGES = tiny_models.random_ids(np.random.default_rng(1), 30, 12, 25, 40)


@pytest.fixture(scope="module")
def written(lm):
    return layer_sigma_sweep.measured(lm, PAIRS, WEIGHTS, SIGMAS, n_tokens=16, seed=9)


def test_a_cells_texts_are_those_of_its_watermark_and_key(lm, written):
    assert len(written) == 2 * 2 * 3
    for row in written.itertuples():
        wm, key = Watermark(row.weight, row.sigma), PAIRS.keys[row.prompt]
        stream = row.prompt + 3 * SIGMAS.index(row.sigma)  # of random numbers
        with perturb.watermarked(lm.model, wm, key):
            many = generate.sample(lm.model, [PROMPTS[row.prompt]] * 6, 16, seed=9)
        alone = score.score(lm.model, [PROMPTS[row.prompt]], [many[stream]], wm, [key])
        for column in ("psi", "grad_norm", "log_lik"):
            expected = alone[column].item()
            assert getattr(row, column) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_prediction_is_sigma_times_the_mean_norm_of_plain_text(lm):
    norms = layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16, seed=4)
    plain = generate.sample(lm.model, PROMPTS, 16, seed=4)
    for row in layer_sigma_sweep.predicted(norms, SIGMAS).itertuples():
        alone = gradients.norms(lm.model, PROMPTS, plain, [row.weight])["grad_norm"]
        assert row.predicted_psi == pytest.approx(row.sigma * alone.mean(), rel=1e-4)


def test_a_cell_has_its_mean_and_its_share(written):
    cells = written[["weight", "sigma"]].drop_duplicates().assign(predicted_psi=1.0)
    for row in layer_sigma_sweep.detected(cells, written, 0.05).itertuples():
        psi = written.query("weight == @row.weight and sigma == @row.sigma")["psi"]
        assert row.psi == pytest.approx(psi.mean())
        assert row.tpr == pytest.approx((psi >= 1.6448536).mean())
        assert row.psi_low < row.psi < row.psi_high


def test_the_ratio_is_a_mean_over_cells_clustered_by_pair(written):
    cells = (
        written[["weight", "sigma"]].drop_duplicates().assign(predicted_psi=[1.0, 3.0, 2.0, 9.0])
    )
    rows = written.merge(cells, on=["weight", "sigma"]).query("predicted_psi < 4")
    by_pair = (rows["psi"] / rows["predicted_psi"]).groupby(rows["prompt"]).mean()
    ratio = layer_sigma_sweep.ratio(written, cells)
    assert ratio.row() == pytest.approx(stats.interval(by_pair).row())
    assert layer_sigma_sweep.ratio(written, cells, 100, 200).n == 0


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
    cost = pd.DataFrame({"weight": "a", "sigma": 1.0, "base": 2.0, "watermarked": 2.0 + change})
    [cell] = layer_sigma_sweep.priced(cost, margin=0.03).itertuples()
    assert cell.outcome == outcome
    assert cell.delta == pytest.approx(middle, abs=1e-9)


def test_a_sigma_is_solved_and_tried_on_each_weights_texts(lm):
    norms = layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16, seed=4)
    how = {"n_tokens": 16, "seed": 5}
    solved = layer_sigma_sweep.solved(lm, PAIRS, norms, WEIGHTS[1:], 0.8, 0.05, **how)
    of_one = norms.loc[norms["weight"] == WEIGHTS[1], "grad_norm"]
    sigma = stats.sigma_for_power(of_one, 0.8, 0.05)
    there = layer_sigma_sweep.measured(lm, PAIRS, WEIGHTS[1:], [sigma], **how)
    assert solved["sigma"].item() == pytest.approx(sigma)
    assert solved["value"].item() == stats.tpr(there["psi"], 0.05).value


def test_far_out_the_fall_is_from_the_smallest_sigma_to_the_largest(lm):
    norms = layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16, seed=4)
    args = (lm, PAIRS, norms, WEIGHTS[1:], [2.0, 20.0], 0.05)
    far, falls = layer_sigma_sweep.far_out(*args, n_tokens=16, seed=5)
    assert (np.diff(far["sigma"]) > 0).all()
    assert falls[WEIGHTS[1]].value == pytest.approx(far["psi"].iloc[1] - far["psi"].iloc[0])
