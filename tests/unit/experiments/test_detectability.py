"""Detection against length: the aggregates against loops over pairs, single tokens alone."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import norm

from gaussmark_experiments import detectability
from gaussmark_lib import generate, gradients, likelihood, perturb, score, stats
from gaussmark_lib.workbench.pairs import OWN, PLAIN, WRONG, Pairs

WM = perturb.Watermark(tiny_lm.WEIGHT, 0.4)
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 7, 5, 6)
PAIRS = Pairs(PROMPTS, [perturb.Key.from_seed(i) for i in range(4)])


@pytest.fixture(scope="module")
def table():
    """Six pairs at two lengths; the last pair's marked text is too short for the second."""
    rng = np.random.default_rng(1)
    rows = [
        {
            "text": pair + 6 * (kind == PLAIN),
            "prompt": pair,
            "n_tokens": n,
            "kind": kind,
            "psi": rng.normal(2.0 * (kind == OWN)),
            "grad_norm": (5 + pair) * n**0.5,
        }
        for pair in range(6)
        for n in (10, 40)
        for kind in (OWN, WRONG, PLAIN)
        if (pair, n, kind) != (5, 40, OWN)
    ]
    return pd.DataFrame(rows)


def test_power_and_its_prediction_against_loops(table):
    measured = detectability.detection_rates(table, 0.04).set_index(["n_tokens", "level", "kind"])
    for n in (10, 40):
        for level in (0.05, 0.01):
            for kind in (OWN, WRONG, PLAIN):
                rows = table[(table["n_tokens"] == n) & (table["kind"] == kind)]
                hits = [psi >= norm.isf(level) for psi in rows["psi"]]
                row = measured.loc[(n, f"level {level}", kind)]
                assert row["value"] == pytest.approx(np.mean(hits))
                assert row["n"] == len(hits)
            promised = [norm.cdf(0.04 * (5 + i) * n**0.5 - norm.isf(level)) for i in range(6)]
            row = measured.loc[(n, f"level {level}", "predicted")]
            assert row["value"] == pytest.approx(np.mean(promised))


def test_the_gap_to_the_prediction_against_a_loop(table):
    gaps = []
    for pair in range(6):
        rows = table[table["prompt"] == pair].set_index(["n_tokens", "kind"])
        of_pair = [
            (rows.loc[(n, OWN), "psi"] >= norm.isf(0.05))
            - norm.cdf(0.04 * rows.loc[(n, PLAIN), "grad_norm"] - norm.isf(0.05))
            for n in (10, 40)
            if (n, OWN) in rows.index
        ]
        gaps.append(np.mean(of_pair))
    gap = detectability.power_gap(table, 0.04)
    assert gap.row() == pytest.approx(stats.interval(gaps).row())
    assert gap.n == 6


def test_the_area_is_the_share_of_ordered_texts(table):
    psi = table[table["n_tokens"] == 40].pivot(index="prompt", columns="kind", values="psi")
    psi = psi.dropna()
    expected = np.mean([a > b for a in psi[OWN] for b in psi[PLAIN]])
    assert detectability.auc(psi) == pytest.approx(expected)


def test_the_power_at_a_predicted_psi_is_that_of_the_nearest_length(table):
    # mean ‖G‖ of plain texts: 7.5 · √10 = 23.7 and 7.5 · √40 = 47.4
    for predicted, n in ((0.9, 10), (1.8, 40)):
        own = table[(table["kind"] == OWN) & (table["n_tokens"] == n)]["psi"]
        power = detectability.power_at(table, 0.04, predicted)
        assert power.value == pytest.approx((own >= norm.isf(0.05)).mean())
        assert power.n == len(own)
    own, plain = detectability.psi_of_shortest(table)
    shortest = table[table["n_tokens"] == 10]
    assert own.tolist() == shortest[shortest["kind"] == OWN]["psi"].tolist()
    assert plain.tolist() == shortest[shortest["kind"] == PLAIN]["psi"].tolist()


def test_a_text_whose_p_value_rises_is_counted():
    columns = {"text": [0, 0, 1, 1, 2, 3, 3], "n_tokens": [10, 20, 10, 20, 10, 10, 20]}
    columns["kind"] = [OWN] * 5 + [PLAIN] * 2
    columns["p_value"] = [0.2, 0.1, 0.2, 0.3, 0.5, 0.1, 0.9]
    table = pd.DataFrame(columns)
    assert detectability.rises(table) == 0.5
    said = detectability.fall_in_words(table)
    assert "is 0.2 at 10 tokens and 0.2 at 20 tokens" in said
    assert said.endswith("rises in 50% of all cases.")


def test_long_texts_are_compared_with_short_ones_cautiously():
    rows = [
        (80, detectability.KEPT, 0.95, 0.9, 1.0, 7),
        (20, detectability.KEPT, 0.7, 0.6, 0.85, 7),
        (20, detectability.FULFILLED, 0.1, 0.0, 0.2, 7),
    ]
    columns = ["n_tokens", "ratio", "value", "low", "high", "n"]
    ratios = pd.DataFrame(rows, columns=columns)
    expected = stats.Estimate(0.25, 0.05, 0.4, 7)
    found = detectability.long_less_short(ratios)
    assert found.row() == pytest.approx(expected.row())


def test_a_figure_has_a_panel_for_each_run(table):
    table = table.assign(p_value=norm.sf(table["psi"]))
    every = pd.concat([table.assign(run="doclm"), table.assign(run="this run", psi=9.0)])
    titles = ["doclm, n = 6 pairs", "this run, n = 6 pairs"]
    for draw in (detectability.draw_p, detectability.draw_roc, detectability.draw_norms):
        figure = draw(every, "")
        assert [axes.get_title("left") or axes.get_title() for axes in figure.axes] == titles
    rates = detectability.detection_rates(table, 0.04)
    figure = detectability.draw_power(rates.assign(run="doclm"), "")
    [axes] = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {*labels} == {OWN, "predicted", PLAIN, "level 0.05"}


def test_single_tokens_are_scored_after_all_that_is_before_them(lm):
    responses = generate.sample(lm.model, PROMPTS[:2], 9, seed=1)
    tokens = detectability.token_gradients(lm, PROMPTS[:2], responses, WM.weight, every=4)
    places = [[i, t] for i in range(2) for t in (0, 4, 8)]
    assert tokens[["text", "position"]].to_numpy().tolist() == places
    entropies = likelihood.entropies(lm.model, PROMPTS[:2], responses)
    for row in tokens.itertuples():
        i, t = row.text, row.position
        before, token = [PROMPTS[i] + responses[i][:t]], [[responses[i][t]]]
        [alone] = gradients.gradients(lm.model, before, token, WM)
        assert row.grad_norm == pytest.approx(alone.norm, rel=1e-4)
        assert row.entropy == pytest.approx(entropies[i][t])


def test_each_temperature_has_the_same_pairs_and_random_numbers(lm):
    table = detectability.by_temperature(lm, PAIRS, WM, [0.2, 1.0], 15, seed=3)
    assert table.groupby("temperature").size().tolist() == [4, 4]
    with perturb.watermarked(lm.model, WM, PAIRS.keys[1]):
        cold = generate.sample(lm.model, PROMPTS, 15, temperature=0.2, seed=3)[1]
    alone = score.score(lm.model, PROMPTS[1:2], [cold], WM, PAIRS.keys[1:2])["psi"].item()
    row = table[(table["temperature"] == 0.2) & (table["text"] == 1)]
    assert row["psi"].item() == pytest.approx(alone, rel=1e-3)
    assert row["key_id"].item() == PAIRS.keys[1].key_id
    psi = table.set_index(["temperature", "text"])["psi"]
    expected = (psi.loc[1.0] - psi.loc[0.2]).mean()
    assert detectability.gain(table).value == pytest.approx(expected)


def test_psi_over_its_prediction_and_what_is_left_without_the_prompt(table):
    pairs = table[~((table["prompt"] == 5) & (table["n_tokens"] == 40))]
    own, plain = (
        pairs[pairs["kind"] == kind].groupby("prompt").mean(True) for kind in (OWN, PLAIN)
    )
    expected = own["psi"].mean() / (0.04 * plain["grad_norm"]).mean()
    ratio = detectability.over_prediction(table, 0.04)
    assert (ratio.value, ratio.n) == (pytest.approx(expected), 6)
    assert ratio.low < expected < ratio.high

    blind = table[table["kind"] != WRONG].assign(
        psi=table["psi"] * np.where(table.prompt % 2, 0.5, 1)
    )
    left = detectability.share_kept(blind, table)
    psi = table[table["kind"] == OWN].groupby("prompt")["psi"].mean()
    halved = np.where(psi.index % 2, psi / 2, psi)
    assert left.value == pytest.approx(halved.mean() / psi.mean())
    rows = detectability.by_length(table, blind, 0.04)
    assert rows["n_tokens"].tolist() == [10, 10, 40, 40]
    assert rows["n"].tolist() == [6, 6, 5, 5]


def test_an_unknown_prompt_is_what_the_model_says_stands_for_it(lm):
    plain, marked = (generate.sample(lm.model, PROMPTS, 9, seed=seed) for seed in (1, 2))
    table = detectability.without_prompts(lm, PAIRS, marked, plain, WM, lengths=[4, 9])
    assert table.groupby(["kind", "n_tokens"]).size().tolist() == [4] * 4
    for kind, texts in {OWN: marked, PLAIN: plain}.items():
        slow = score.score(lm.model, [lm.unknown_prompt()], [texts[2]], WM, [PAIRS.keys[2]])
        row = table[(table["kind"] == kind) & (table["prompt"] == 2) & (table["n_tokens"] == 9)]
        assert row["psi"].item() == pytest.approx(slow["psi"].item(), abs=1e-3)


def test_the_spread_of_norms_is_a_mean_over_prompts():
    norms = pd.DataFrame({"prompt": [1, 1, 1, 2, 2], "grad_norm": [2.0, 8.0, 4.0, 5.0, 10.0]})
    spread = detectability.spread_of_norms(norms)
    assert (spread.value, spread.n) == (3.0, 2)
