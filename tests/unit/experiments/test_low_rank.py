"""Rank reduction measured: norms of all ranks at once against projecting for each, the linear law
at equal price, and what a misplaced P does.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy import stats as distributions

from gaussmark_lib import divergence, generate, gradients, likelihood, perturb, score, stats
from gaussmark_lib.experiments import compared, low_rank, written_and_scored
from gaussmark_lib.perturb import Key, Watermark

WEIGHTS = [
    ("llama", "model.layers.1.mlp.down_proj.weight"),
    ("llama", "model.layers.0.mlp.gate_proj.weight"),
    ("gpt2", tiny_models.WEIGHTS["gpt2"][1]),
]
LM = tiny_lm.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 2, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 9, 10)
MANY = tiny_models.random_ids(np.random.default_rng(2), *[4] * 24)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize(("architecture", "weight"), WEIGHTS)
def test_the_norms_of_all_ranks_are_those_of_projecting_for_each(architecture, weight, side):
    model = tiny_models.build(architecture)
    table = low_rank.gradient_norms(
        model, PROMPTS, RESPONSES, weight, [0, 3, 20], side=side, lengths=[5, 9]
    )
    assert len(table) == 3 * 2 * 3
    for k, rows in table.groupby("rank_dropped"):
        wm = Watermark(weight, 0.1, k, side)
        expected = {
            (g.text, g.n_tokens): g.norm
            for g in gradients.gradients(model, PROMPTS, RESPONSES, wm, lengths=[5, 9])
        }
        found = rows.set_index(["text", "n_tokens"])
        for where, norm in expected.items():
            assert found["grad_norm"][where] == pytest.approx(norm, rel=1e-4)
            whole = table[table["rank_dropped"] == 0].set_index(["text", "n_tokens"])["grad_norm"][
                where
            ]
            assert found["share"][where] == pytest.approx(1 - (norm / whole) ** 2, abs=1e-4)


def test_all_directions_of_the_smaller_side_hold_all_of_the_gradient():
    model, weight = tiny_models.build(), WEIGHTS[0][1]
    d = min(perturb.Watermark(weight, 1.0).on(model).linear.shape)
    table = low_rank.gradient_norms(model, PROMPTS, RESPONSES, weight, range(d + 1))
    assert table.loc[table["rank_dropped"] == d, "share"].to_numpy() == pytest.approx(1)
    assert (table.groupby("text")["share"].diff().dropna() >= -1e-12).all()


@pytest.mark.parametrize(
    ("shape", "side", "k"),
    [
        ((96, 256), "left", 12),
        ((96, 256), "right", 32),
        ((16, 256), "right", 16),
        ((4, 4), "left", 1),
    ],
)
def test_a_gradient_that_is_spread_evenly_favours_no_direction_of_either_side(shape, side, k):
    """Each of d directions holds 1/d of it: the top eighth of 256 right directions are 32, though
    the weight has 96.
    """
    d = dict(zip(("left", "right"), shape, strict=True))[side]
    shares = [(rank, rank / d * off) for rank in range(min(shape) + 1) for off in (0.9, 1.1)]
    norms = pd.DataFrame(shares, columns=["rank_dropped", "share"])
    assert low_rank.top(shape, side) == (k, d)
    assert low_rank.favoured(norms, shape, side).value == pytest.approx(1)


@pytest.mark.slow
def test_at_equal_price_all_ranks_cost_the_same_and_at_equal_sigma_they_do_not():
    """A small σ, so that the second order is all there is; a mean over keys, since the law is."""
    weight, keys = WEIGHTS[0][1], [Key.from_seed(i) for i in range(60)]
    plain = generate.sample(LM.model, MANY, 20, seed=9)
    norms = low_rank.gradient_norms(LM.model, MANY, plain, weight, [0, 8, 20])
    vanilla = Watermark(weight, 0.01)

    def cost(wm):
        return np.array(
            [divergence.per_text(LM.model, MANY, plain, wm, key).mean() for key in keys]
        )

    base = cost(vanilla)
    assert base.mean() == pytest.approx(
        0.5 * vanilla.sigma**2 * (norms.loc[norms["rank_dropped"] == 0, "grad_norm"] ** 2).mean(),
        rel=0.25,
    )
    for k in (8, 20):
        equal = low_rank.equal_price(vanilla, norms, k)
        assert equal.sigma > vanilla.sigma
        assert equal.rank_dropped == k
        ratio = stats.mean(cost(equal) / base.mean(), confidence=0.999)
        assert ratio.low < 1.12
        assert ratio.high > 0.88
        assert cost(Watermark(weight, vanilla.sigma, k)).mean() < 0.9 * base.mean()


def test_sigma_of_equal_price_is_the_ratio_of_the_root_mean_squares():
    norms = pd.DataFrame({"rank_dropped": [0, 0, 5, 5], "grad_norm": [6.0, 8.0, 3.0, 4.0]})
    found = low_rank.equal_price(Watermark("w", 0.1), norms, 5, "both")
    assert (found.sigma, found.rank_dropped, found.side) == (pytest.approx(0.2), 5, "both")
    assert low_rank.equal_price(Watermark("w", 0.1), norms, 0).sigma == pytest.approx(0.1)


def test_measured_texts_are_scored_for_their_own_key_and_for_the_next():
    weight, keys = WEIGHTS[0][1], [Key.from_seed(i) for i in range(3)]
    wms = [Watermark(weight, 0.2), Watermark(weight, 0.2, 8), Watermark(weight, 0.2, 8, "both")]
    table = low_rank.measured(LM, PROMPTS, wms, keys, [6, 20], seed=3)
    assert len(table) == 3 * 3 * 3 * 2
    assert not table.duplicated(["scheme", "key_id", "prompt", "n_tokens"]).any()
    for wm in wms:
        for j, key in enumerate(keys):
            own = low_rank.scheme(wm, key).generate(LM.model, PROMPTS, 20, seed=3 + j)
            for column, tested in (("psi", key), ("wrong_psi", keys[(j + 1) % 3])):
                expected = score.score(LM.model, PROMPTS, own, wm, [tested], lengths=[6, 20])[
                    "psi"
                ].to_numpy()
                rows = table[
                    (table["scheme"] == low_rank.name(wm)) & (table["key_id"] == key.key_id)
                ].sort_values(["prompt", "n_tokens"])
                assert rows[column].to_numpy() == pytest.approx(expected, abs=1e-3)
    assert list(table["scheme"].unique()) == ["GaussMark", "k = 8", "k = 8, both"]


def test_prediction_and_measurement_meet_in_one_row():
    cells = [(k, key, prompt) for k in (0, 4) for key in (0, 1) for prompt in (0, 1)]
    table = pd.DataFrame(cells, columns=["rank_dropped", "key_id", "prompt"]).assign(
        n_tokens=10, sigma=0.5, wrong_psi=[2.0] + [0.0] * 7
    )
    table["psi"] = [1.0, 2, 3, 4, 1, 1, 1, 1]
    norms = pd.DataFrame(
        {"rank_dropped": [0, 0, 4, 4], "n_tokens": 10, "grad_norm": [4.0, 6, 2, 2]}
    )
    found = low_rank.against_prediction(table, norms, 0.05).set_index("rank_dropped")
    assert list(found["predicted_psi"]) == [2.5, 1.0]
    assert list(found["psi"]) == [2.5, 1.0]
    assert found["predicted_power"][0] == pytest.approx(stats.predicted_power([4, 6], 0.5, 0.05))
    assert list(found["tpr"]) == [0.75, 0.0]
    assert list(found["false"]) == [0.25, 0.0]
    assert list(found["n"]) == [4, 4]


def test_a_misplaced_projection_is_what_the_docstring_says():
    weight, k = WEIGHTS[0][1], 16
    wm = Watermark(weight, 0.15, k)
    keys = [[Key.from_seed(1_000 * i + j) for j in range(200)] for i in range(3)]
    table = low_rank.misuses(LM.model, PROMPTS, RESPONSES, wm, keys)
    assert len(table) == 3 * 200 * 3
    share = low_rank.gradient_norms(LM.model, PROMPTS, RESPONSES, weight, [k]).set_index("text")[
        "share"
    ]
    by_text = table.pivot(index=["text", "key_id"], columns="statistic", values="psi")
    right, divided, forgotten = (by_text[name] for name in low_rank.STATISTICS)
    for psi in (right, forgotten):
        assert distributions.kstest(psi, "norm").pvalue > 1e-3
    ratio = np.sqrt(1 - share[by_text.index.get_level_values("text")].to_numpy())
    np.testing.assert_allclose(divided, right * ratio, rtol=1e-4, atol=1e-6)
    assert distributions.kstest(divided, "norm").pvalue < 1e-3, (
        "the level of the wrong denominator is not the nominal one"
    )
    scored = score.score(LM.model, PROMPTS, RESPONSES, wm, keys[1][:5]).query("text == 1")
    assert scored["psi"].to_numpy() == pytest.approx(
        right.loc[1].reindex(scored["key_id"]).to_numpy(), abs=1e-4
    )
    vanilla = score.score(LM.model, PROMPTS, RESPONSES, Watermark(weight, 0.15), keys[1][:5]).query(
        "text == 1"
    )
    assert vanilla["psi"].to_numpy() == pytest.approx(
        forgotten.loc[1].reindex(vanilla["key_id"]).to_numpy(), abs=1e-4
    )


def test_prices_and_their_ratio_are_paired_over_prompts_and_keys():
    weight = WEIGHTS[0][1]
    keyed = written_and_scored.rekeyed(
        [low_rank.scheme(Watermark(weight, 0.1)), low_rank.scheme(Watermark(weight, 0.2, 4))], 2
    )
    texts = [scheme.generate(LM.model, PROMPTS, 8) for scheme in keyed]
    table = written_and_scored.prices(LM, keyed, PROMPTS, texts)
    assert len(table) == 4 * 3
    one = keyed[3]
    expected = divergence.per_text(LM.model, PROMPTS, texts[3], one.wm, one.key) / 8
    assert table[(table["scheme"] == "k = 4") & (table["key_id"] == one.key.key_id)][
        "price"
    ].to_numpy() == pytest.approx(expected)
    means = table.groupby("scheme")["price"].mean()
    [ratio] = compared.ratios(table, "price", "GaussMark").to_dict("records")
    assert ratio["value"] == pytest.approx(means["k = 4"] / means["GaussMark"])
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    [difference] = compared.differences(table, "price", "GaussMark").to_dict("records")
    assert difference["value"] == pytest.approx(means["k = 4"] - means["GaussMark"])
    assert difference["scheme"] == "k = 4"


def test_under_corruption_the_difference_is_of_the_texts_own_key():
    rows = [
        ("GaussMark", key, "none", 0.0, kind, prompt, p, 1.0)
        for key in (0, 1)
        for prompt in (0, 1)
        for kind, p in (("own key", 0.01), ("plain text", 0.5))
    ]
    rows += [
        ("k = 4", key, "none", 0.0, kind, prompt, p, 3.0)
        for key in (0, 1)
        for prompt in (0, 1)
        for kind, p in (("own key", 0.2), ("plain text", 0.01))
    ]
    table = pd.DataFrame(
        rows,
        columns=[
            "scheme",
            "key_id",
            "corruption",
            "fraction",
            "kind",
            "prompt",
            "p_value",
            "statistic",
        ],
    )
    found = low_rank.under_corruption(table, "GaussMark", 0.05).set_index("figure")
    assert found["value"]["TPR"] == -1.0
    assert found["value"]["statistic"] == 2.0
    assert found["mean"]["TPR"] == 0.0


def test_the_cost_on_human_text_is_the_mean_over_both_signs_and_stands_beside_the_law():
    weight, keys = WEIGHTS[0][1], [Key.from_seed(i) for i in range(2)]
    wms = [Watermark(weight, 0.1), Watermark(weight, 0.2, 4)]
    table = low_rank.human_cost(LM, PROMPTS, RESPONSES, wms, keys)
    assert len(table) == 2 * 2 * 3
    base = likelihood.cross_entropy(LM.model, RESPONSES, prompts=PROMPTS)
    with perturb.watermarked(LM.model, wms[1], keys[1]):
        plus = likelihood.cross_entropy(LM.model, RESPONSES, prompts=PROMPTS)
    linear = wms[1].on(LM.model).linear
    theta = linear.parameter.data.clone()
    linear.parameter.data -= linear.oriented(perturb.noise(LM.model, wms[1], keys[1]))
    minus = likelihood.cross_entropy(LM.model, RESPONSES, prompts=PROMPTS)
    linear.parameter.data = theta
    rows = table[(table["scheme"] == "k = 4") & (table["key_id"] == keys[1].key_id)].sort_values(
        "prompt"
    )
    assert rows["delta"].to_numpy() == pytest.approx((plus + minus) / 2 - base, rel=1e-3, abs=1e-6)
    norms = pd.DataFrame({"rank_dropped": [0, 0, 4, 4], "grad_norm": [1.0, 7.0, 2.0, 2.0]})
    curve = low_rank.cost_curve(table, norms, 10).set_index("scheme")
    assert curve["delta"]["k = 4"] == pytest.approx(
        table.loc[table["scheme"] == "k = 4", "delta"].mean()
    )
    assert list(curve["law"]) == pytest.approx([0.5 * 0.01 * 25 / 10, 0.5 * 0.04 * 4 / 10])


def test_the_median_p_of_each_scheme_and_sigma():
    cells = [
        ("k = 4", 4, sigma, key, prompt)
        for sigma in (0.1, 0.2)
        for key in (0, 1)
        for prompt in (0, 1)
    ]
    table = pd.DataFrame(cells, columns=["scheme", "rank_dropped", "sigma", "key_id", "prompt"])
    table["log10_p"] = [-1.0, -2, -3, -4, -5, -5, -5, -5]
    found = low_rank.over_sigma(table).set_index("sigma")
    assert found["value"].tolist() == pytest.approx([10**-2.5, 1e-5])
    assert found.loc[0.2, ["low", "high", "n"]].tolist() == pytest.approx(
        [np.nan, np.nan, 4], nan_ok=True
    )  # four that agree bound nothing
