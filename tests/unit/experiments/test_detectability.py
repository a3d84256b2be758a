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
    cells = [(pair, n, kind) for pair in range(6) for n in (10, 40) for kind in (OWN, WRONG, PLAIN)]
    cells.remove((5, 40, OWN))
    table = pd.DataFrame(cells, columns=["prompt", "n_tokens", "kind"])
    rng = np.random.default_rng(1)
    table["psi"] = rng.normal(2.0 * (table["kind"] == OWN))
    table["grad_norm"] = (5 + table["prompt"]) * np.sqrt(table["n_tokens"])
    table["text"] = table["prompt"] + 6 * (table["kind"] == PLAIN)
    return table


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
    for _, rows in table.groupby("prompt"):
        psi = rows[rows["kind"] == OWN].set_index("n_tokens")["psi"]
        norms = rows[rows["kind"] == PLAIN].set_index("n_tokens")["grad_norm"]
        of_pair = [
            (psi[n] >= norm.isf(0.05)) - norm.cdf(0.04 * norms[n] - norm.isf(0.05))
            for n in psi.index
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
    assert detectability.rises(pd.DataFrame(columns)) == 0.5


def test_long_texts_are_compared_with_short_ones_cautiously():
    rows = [
        (80, detectability.KEPT, 0.95, 0.9, 1.0, 7),
        (20, detectability.KEPT, 0.7, 0.6, 0.85, 7),
        (20, detectability.FULFILLED, 0.1, 0.0, 0.2, 7),
    ]
    ratios = pd.DataFrame(rows, columns=["n_tokens", "ratio", "value", "low", "high", "n"])
    difference = detectability.long_less_short(ratios)
    assert difference.row() == pytest.approx(stats.Estimate(0.25, 0.05, 0.4, 7).row())


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
    means = pairs.groupby(["kind", "prompt"])[["psi", "grad_norm"]].mean()
    expected = means.loc[OWN, "psi"].mean() / (0.04 * means.loc[PLAIN, "grad_norm"]).mean()
    ratio = detectability.over_prediction(table, 0.04)
    assert (ratio.value, ratio.n) == (pytest.approx(expected), 6)
    assert ratio.low < expected < ratio.high

    halved = table["psi"] * np.where(table["prompt"] % 2, 0.5, 1)
    blind = table.assign(psi=halved)[table["kind"] != WRONG]
    left = detectability.share_kept(blind, table)
    psi = table[table["kind"] == OWN].groupby("prompt")["psi"].mean()
    expected = np.where(psi.index % 2, psi / 2, psi)
    assert left.value == pytest.approx(expected.mean() / psi.mean())
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
