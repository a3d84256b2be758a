"""The map against its cells done one at a time, and its summary against the definitions."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import generate, gradients, likelihood, models, perturb, score, stats
from gaussmark_lib.experiments import layer_sigma_sweep, map_claims
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.quality.verdict import DIFFERENT, INDISTINGUISHABLE, OPEN

WEIGHTS = ["model.layers.0.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"]
SIGMAS = [0.1, 0.5]
KEYS = [Key.from_seed(i) for i in range(2)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 7, 5)
PASSAGES = tiny_models.random_ids(np.random.default_rng(1), 30, 12, 25, 40)


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture(scope="module")
def written(lm):
    return layer_sigma_sweep.measured(lm, PROMPTS, WEIGHTS, SIGMAS, KEYS, n_tokens=16, seed=9)


@pytest.fixture(scope="module")
def cost(lm):
    return layer_sigma_sweep.cost(lm, PASSAGES, WEIGHTS, SIGMAS, KEYS, batch_size=3)


def test_the_weights_of_the_mlp(lm):
    assert layer_sigma_sweep.mlp_weights(lm.model, [1]) == [
        f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")
    ]
    assert len(layer_sigma_sweep.mlp_weights(lm.model)) == 9
    assert len(layer_sigma_sweep.mlp_weights(tiny_models.build("gpt2"))) == 4
    assert layer_sigma_sweep.short("transformer.h.1.mlp.c_proj.weight") == "1.c_proj"


def test_the_rows_of_a_map_are_spread_over_the_model(lm):
    every = layer_sigma_sweep.mlp_weights(lm.model)
    assert (
        layer_sigma_sweep.some_weights(lm.model, None)
        == layer_sigma_sweep.some_weights(lm.model, 99)
        == every
    )
    assert layer_sigma_sweep.some_weights(lm.model, 3) == [every[0], every[4], every[8]]
    assert layer_sigma_sweep.some_weights(lm.model, 1) == every[:1]


def test_the_output_head_is_a_row_only_where_it_is_a_matrix_of_its_own(lm):
    assert layer_sigma_sweep.output_head(lm.model) == "lm_head.weight"
    assert layer_sigma_sweep.output_head(tiny_models.build("gpt2")) is None


def test_the_columns_are_solved_for_the_middle_row():
    norms = pd.DataFrame({"weight": list("aabbcc"), "grad_norm": [1.0, 3.0, 9.0, 11.0, 70.0, 90.0]})
    assert layer_sigma_sweep.sigmas_for(norms, [1, 4]) == [0.1, 0.4]


def test_a_cells_texts_are_those_of_its_watermark_tested_against_its_key(lm, written):
    assert len(written) == 2 * 2 * 2 * 3
    for weight in WEIGHTS:
        for number, (sigma, key) in enumerate((sigma, key) for sigma in SIGMAS for key in KEYS):
            wm = Watermark(weight, sigma)
            with perturb.watermarked(lm.model, wm, key):
                responses = generate.sample(lm.model, PROMPTS, 16, seed=9 + number)
            other = KEYS[1 - KEYS.index(key)]
            alone = score.score(lm.model, PROMPTS, responses, wm, [key, other])
            rows = written[
                (written["weight"] == weight)
                & (written["sigma"] == sigma)
                & (written["key_id"] == key.key_id)
            ].sort_values("prompt")
            own, wrong = (alone.loc[alone["key_id"] == k.key_id] for k in (key, other))
            for column in ("psi", "log10_p", "grad_norm", "log_lik"):
                np.testing.assert_allclose(rows[column], own[column], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(rows["wrong_psi"], wrong["psi"], rtol=1e-3, atol=1e-3)


def test_the_prediction_is_sigma_times_the_mean_norm_of_plain_text(lm):
    norms = layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16, seed=4)
    found = layer_sigma_sweep.predicted(norms, SIGMAS)
    plain = generate.sample(lm.model, PROMPTS, 16, seed=4)
    for _, row in found.iterrows():
        expected = gradients.norms(lm.model, PROMPTS, plain, [row["weight"]])["grad_norm"]
        assert row["predicted_psi"] == pytest.approx(row["sigma"] * expected.mean(), rel=1e-4)
        assert row["predicted_power"] == pytest.approx(
            stats.predicted_power(expected, row["sigma"], 0.05), rel=1e-3
        )
    assert len(norms) == len(PROMPTS) * len(WEIGHTS)


def test_the_cost_is_paired_by_passage(lm, cost):
    base = likelihood.cross_entropy(lm.model, PASSAGES)
    for (weight, sigma), rows in cost.groupby(["weight", "sigma"]):
        each = []
        for key in KEYS:
            with perturb.watermarked(lm.model, Watermark(weight, sigma), key):
                each.append(likelihood.cross_entropy(lm.model, PASSAGES))
        np.testing.assert_allclose(rows["base"], base, rtol=1e-5)
        np.testing.assert_allclose(rows["watermarked"], np.mean(each, axis=0), rtol=1e-5)


def test_the_summary_is_a_row_a_cell(lm, written, cost):
    predicted = layer_sigma_sweep.predicted(
        layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16), SIGMAS
    )
    cells = layer_sigma_sweep.summary(predicted, written, cost)
    assert cells[["weight", "sigma"]].to_numpy().tolist() == [
        [weight, sigma] for weight in WEIGHTS for sigma in SIGMAS
    ]
    for _, cell in cells.iterrows():
        rows = written[(written["weight"] == cell["weight"]) & (written["sigma"] == cell["sigma"])]
        assert cell["psi"] == pytest.approx(rows["psi"].mean())
        assert cell["tpr"] == pytest.approx((rows["psi"] >= stats.threshold(0.05)).mean())
        assert cell["n"] == 6
        pairs = cost[(cost["weight"] == cell["weight"]) & (cost["sigma"] == cell["sigma"])]
        assert cell["delta"] == pytest.approx((pairs["watermarked"] - pairs["base"]).mean())
        assert cell["delta_low"] <= cell["delta"] <= cell["delta_high"]
        assert cell["outcome"] in (DIFFERENT, INDISTINGUISHABLE, OPEN)


def test_equal_within_the_margin_needs_an_interval_within_it(lm, written, cost):
    predicted = layer_sigma_sweep.predicted(
        layer_sigma_sweep.norms(lm, PROMPTS, WEIGHTS, n_tokens=16), SIGMAS
    )
    same = layer_sigma_sweep.summary(predicted, written, cost.assign(watermarked=cost["base"]))
    assert (same["outcome"] == INDISTINGUISHABLE).all()
    assert (same["delta"] == 0).all()
    many = pd.concat(
        [cost.assign(passage=cost["passage"] + 4 * i) for i in range(3)]
    )  # four passages can be flipped in 16 ways only
    away, around = (
        many["base"] + shift
        for shift in (np.linspace(0.9, 1.1, len(many)), np.resize([-0.1, 0.1], len(many)))
    )
    assert (
        layer_sigma_sweep.summary(predicted, written, many.assign(watermarked=away))["outcome"]
        == DIFFERENT
    ).all()
    unsure = many.assign(watermarked=around)
    for margin, expected in (
        (0.03, OPEN),
        (0.3, INDISTINGUISHABLE),
    ):  # no test rejects: the margin alone decides
        cells = layer_sigma_sweep.summary(predicted, written, unsure, margin=margin)
        assert (cells["outcome"] == expected).all()
        assert (layer_sigma_sweep.outcomes(cells, margin=margin) == expected).all()


@pytest.mark.slow
def test_answers_are_paired_with_the_base_models():
    from gaussmark_lib import texts
    from gaussmark_lib.quality import harness, tasks

    lm = models.load()
    definitions = {
        "minimal_pairs": tasks.build(texts.load("docs", min_chars=400), 40)["minimal_pairs"]
    }
    weight, key = "model.layers.0.mlp.up_proj.weight", Key.from_seed(0)
    found = layer_sigma_sweep.answers(lm, definitions, [weight], [1e-6, 3.0], key)
    assert found["sigma"].tolist() == [1e-6, 3.0]
    assert found["difference"].iloc[0] == 0, "noise too small to change an answer changes none"
    assert found["outcome"].tolist() == [
        INDISTINGUISHABLE,
        DIFFERENT,
    ], "a destroyed model is found out"
    with perturb.watermarked(lm.model, Watermark(weight, 3.0), key):
        broken = harness.evaluate(lm, definitions)
    assert found["value"].iloc[1] == broken.of("minimal_pairs").mean()
    assert (
        found["base"].iloc[0] == harness.evaluate(lm, definitions).of("minimal_pairs").mean() > 0.8
    )


def test_agreement_is_over_the_linear_cells_only():
    cells = pd.DataFrame({"predicted_psi": [1.0, 2.0, 4.0, 10.0], "psi": [1.1, 1.8, 4.0, 0.0]})
    found = map_claims.agreement(cells)
    assert found["n"] == 3
    assert found["median_error"] == pytest.approx(0.1)
    assert found["r"] == pytest.approx(np.corrcoef([1, 2, 4], [1.1, 1.8, 4.0])[0, 1])
    assert map_claims.agreement(cells, up_to=0.5) == {"r": None, "median_error": None, "n": 0}


def test_ratios_are_means_over_the_cells_of_a_range_and_of_a_kind():
    where = [
        ("a.0.mlp.up.weight", 1.0, 2.5),
        ("a.0.mlp.up.weight", 2.0, 5.0),
        ("a.1.mlp.gate.weight", 1.0, 3.0),
        ("a.1.mlp.gate.weight", 9.0, 27.0),
    ]
    cells = pd.DataFrame(where, columns=["weight", "sigma", "predicted_psi"])
    texts = cells.merge(
        pd.DataFrame(
            {"prompt": [0, 0, 1, 1], "key_id": list("abab"), "extra": [0.1, -0.1, 0.3, -0.3]}
        ),
        how="cross",
    )
    share = np.where(texts["weight"].str.contains("gate"), 0.8, 1.0)
    texts = texts.assign(
        psi=(share + texts["extra"]) * texts["predicted_psi"], wrong_psi=[2.0, 0, 0, 0] * 4
    ).drop(columns="predicted_psi")
    assert map_claims.ratio(texts, cells, 2, 6).value == pytest.approx((1 + 1 + 0.8) / 3)
    bends = map_claims.bends(texts, cells)
    assert {kind: found.value for kind, found in bends.items()} == pytest.approx(
        {"up": 1.0, "gate": 0.8}
    )
    assert bends["up"].low < 1 < bends["up"].high
    assert bends["up"].n == 4, "prompts × keys, whatever the number of cells"
    assert np.isnan(map_claims.ratio(texts, cells, 100, 200).value)
    assert map_claims.wrong_key(texts, 0.05).value == pytest.approx(0.25)


def test_a_change_is_paired_over_prompts_and_keys(written):
    one = written[written["weight"] == WEIGHTS[0]]
    psi = one.set_index(["sigma", "prompt", "key_id"])["psi"]
    assert map_claims.change(one, 0.1, 0.5, n_resamples=20).value == pytest.approx(
        (psi.loc[0.5] - psi.loc[0.1]).mean()
    )


def test_the_cost_of_noise_is_paired_by_passage(cost):
    means = cost.groupby("sigma")["watermarked"].mean()
    assert map_claims.cost_of_noise(cost).value == pytest.approx(means[0.5] - means[0.1])


def test_the_search_bisects(lm):
    found = map_claims.search_sigma(
        lm,
        PROMPTS,
        WEIGHTS[0],
        KEYS,
        n_tokens=8,
        power=0.5,
        level=0.05,
        low=0.01,
        high=1.0,
        steps=4,
    )
    low, high = 0.01, 1.0
    for _, step in found.iterrows():
        assert step["sigma"] == pytest.approx(np.sqrt(low * high))
        low, high = (step["sigma"], high) if step["value"] < 0.5 else (low, step["sigma"])
        assert step["next"] == pytest.approx(np.sqrt(low * high))
    assert found["tokens"].tolist() == [48, 96, 144, 192]


@pytest.mark.slow
def test_on_doclm_the_prediction_holds_and_ends():
    """A row of the map where it is linear, and the corner where it is not, with intervals."""
    from gaussmark_lib.experiments import level_check

    lm = models.load()
    prompts, _ = level_check.null_texts(lm, "docs", 16, n_prompt=32, n_tokens=1)
    weight, keys = "model.layers.4.mlp.down_proj.weight", [Key.from_seed(i) for i in range(3)]
    norms = layer_sigma_sweep.norms(lm, prompts, [weight], n_tokens=100)
    sigma = stats.sigma_for_psi(norms["grad_norm"], 2.5)
    texts = layer_sigma_sweep.measured(
        lm, prompts, [weight], [sigma, 40 * sigma], keys, n_tokens=100
    )
    linear, far = (
        stats.mean(texts.loc[texts["sigma"] == s, "psi"], 0.999) for s in (sigma, 40 * sigma)
    )
    assert linear.low < 2.5 < linear.high + 0.3, "the mean of ψ is σ‖G‖, a little below it at most"
    assert linear.low > 1.5
    assert far.high < 0.2 * 40 * 2.5, (
        "with forty times the noise, most of what the line promises is gone"
    )
    wrong = stats.tpr(texts["wrong_psi"], 0.05, confidence=0.999)
    assert wrong.low <= 0.05 <= wrong.high


def test_how_often_a_weight_is_the_cheapest_is_a_loop_over_resampled_passages():
    cells = pd.DataFrame(
        {"weight": ["a", "a", "b", "c"], "sigma": [0.1, 0.2, 0.1, 0.1], "psi": [1.5, 3.0, 2.0, 9.0]}
    )
    rng = np.random.default_rng(0)
    passages = pd.DataFrame(
        [
            (w, s, i, 1.0, 1.0 + rate * psi**2 + rng.normal(0, 0.5))
            for w, s, psi, rate in [
                ("a", 0.1, 1.5, 0.3),
                ("a", 0.2, 3.0, 0.3),
                ("b", 0.1, 2.0, 0.25),
                ("c", 0.1, 9.0, 0.0),
            ]
            for i in range(10)
        ],
        columns=["weight", "sigma", "passage", "base", "watermarked"],
    )
    found, draws = (
        map_claims.cheapest(cells, passages, n_resamples=40, seed=5),
        np.random.default_rng(5).integers(10, size=(40, 10)),
    )
    rise = passages.set_index(["weight", "sigma", "passage"]).eval("watermarked - base")
    of = {
        cell: np.array([rise[cell][row].mean() for row in draws])
        for cell in [("a", 0.1), ("a", 0.2), ("b", 0.1)]
    }
    a, b = (of["a", 0.1] / 1.5**2 + of["a", 0.2] / 3.0**2) / 2, of["b", 0.1] / 2.0**2
    assert found.to_dict() == {
        "a": pytest.approx((a < b).mean()),
        "b": pytest.approx((b < a).mean()),
    }  # c's ψ is out of the range
    assert 0 < found["a"] < found["b"]
    assert map_claims.cheapest(cells.assign(psi=9.0), passages).empty
