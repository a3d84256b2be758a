"""Prefixes of one generation against each step done alone, and the aggregates against loops."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import spearmanr

from gaussmark_lib import generate, gradients, likelihood, perturb, score, stats
from gaussmark_lib.errors import StatisticsError
from gaussmark_lib.experiments import claims, detectability
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.4)
KEYS = [Key.from_seed(i) for i in range(3)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 7, 5, 6)
LENGTHS = [3, 10, 20]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture(scope="module")
def measured(lm):
    return detectability.measure(lm, PROMPTS, WM, KEYS, LENGTHS, seed=5)


def test_texts_are_plain_text_and_each_keys(lm, measured):
    _, responses = measured
    assert responses[0] == generate.sample(lm.model, PROMPTS, 20, seed=5)
    for i, key in enumerate(KEYS):
        with perturb.watermarked(lm.model, WM, key):
            assert responses[1 + i] == generate.sample(lm.model, PROMPTS, 20, seed=6 + i)


def test_kinds_say_by_which_key_a_text_was_written(lm, measured):
    table, responses = measured
    assert table["kind"].value_counts().to_dict() == {
        "wrong key": 4 * 3 * 2 * 3,
        "own key": 4 * 3 * 3,
        "plain text": 4 * 3 * 3,
    }
    for i, key in enumerate(KEYS):
        own = table[
            (table["kind"] == "own key")
            & (table["key_id"] == key.key_id)
            & (table["n_tokens"] == 10)
        ]
        alone = score.score(lm.model, PROMPTS, [y[:10] for y in responses[1 + i]], WM, [key])
        np.testing.assert_allclose(
            own.sort_values("prompt")["psi"], alone["psi"], rtol=1e-4, atol=1e-4
        )
        assert (own["written"] == key.key_id).all()


def test_by_length_against_loops(measured):
    table, _ = measured
    found = detectability.by_length(table, n_resamples=50).set_index(["n_tokens", "figure"])
    for n in LENGTHS:
        rows = table[table["n_tokens"] == n]
        own, plain = (rows.loc[rows["kind"] == kind, "psi"] for kind in ("own key", "plain text"))
        assert found.loc[(n, "median p"), "value"] == pytest.approx(
            rows.loc[rows["kind"] == "own key", "p_value"].median()
        )
        assert found.loc[(n, "TPR at 0.05"), "value"] == pytest.approx(
            np.mean([psi >= 1.6448536 for psi in own])
        )
        assert found.loc[(n, "false positives at 0.01"), "value"] == pytest.approx(
            np.mean([psi >= 2.3263479 for psi in plain])
        )
        pairs = [(a > b) + 0.5 * (a == b) for a in own for b in plain]
        assert found.loc[(n, "AUC"), "value"] == pytest.approx(np.mean(pairs))
        assert ((found["low"] <= found["value"]) & (found["value"] <= found["high"])).all()
    assert (found["n"] == 4 * 3).all()


def test_the_prediction_reads_plain_text_only(lm, measured):
    table, responses = measured
    found = detectability.predicted(table, 0.4).set_index("n_tokens")
    norms = gradients.norms(lm.model, PROMPTS, responses[0], [WM.weight], lengths=LENGTHS)
    for n, rows in norms.groupby("n_tokens"):
        assert found.loc[n, "psi"] == pytest.approx(0.4 * rows["grad_norm"].mean(), rel=1e-4)
        assert found.loc[n, "TPR at 0.01"] == pytest.approx(
            stats.predicted_power(rows["grad_norm"], 0.4, 0.01), rel=1e-3
        )
        assert found.loc[n, "n"] == 4
    altered = table.assign(grad_norm=table["grad_norm"].where(table["kind"] == "plain text", 1e6))
    pd.testing.assert_frame_equal(
        detectability.predicted(altered, 0.4).set_index("n_tokens"), found
    )


def test_the_error_is_prediction_less_measurement(measured):
    table, _ = measured
    found = detectability.against_prediction(
        detectability.by_length(table, n_resamples=20), detectability.predicted(table, 0.4)
    )
    assert len(found) == 2 * len(LENGTHS)
    np.testing.assert_allclose(found["error"], found["predicted"] - found["value"])


def test_single_tokens_are_scored_after_all_that_is_before_them(lm):
    responses = generate.sample(lm.model, PROMPTS[:2], 9, seed=1)
    found = detectability.token_gradients(lm, PROMPTS[:2], responses, WM.weight, every=4)
    assert found[["text", "position"]].to_numpy().tolist() == [
        [i, t] for i in range(2) for t in (0, 4, 8)
    ]
    entropies = likelihood.entropies(lm.model, PROMPTS[:2], responses)
    for _, row in found.iterrows():
        i, t = int(row["text"]), int(row["position"])
        [alone] = gradients.gradients(
            lm.model, [PROMPTS[i] + responses[i][:t]], [[responses[i][t]]], WM
        )
        assert row["grad_norm"] == pytest.approx(alone.norm, rel=1e-4)
        assert row["entropy"] == pytest.approx(entropies[i][t])


def test_less_freedom_less_entropy(lm):
    found = detectability.by_temperature(lm, PROMPTS, WM, KEYS[:2], [0.2, 1.0], 15)
    assert found.groupby("temperature").size().tolist() == [8, 8]
    with perturb.watermarked(lm.model, WM, KEYS[1]):
        cold = generate.sample(lm.model, PROMPTS, 15, temperature=0.2, seed=1)
    alone = score.score(lm.model, PROMPTS, cold, WM, KEYS[1:2])["psi"]
    of_key = found[(found["temperature"] == 0.2) & (found["key_id"] == KEYS[1].key_id)]
    np.testing.assert_allclose(of_key["psi"], alone, rtol=1e-4, atol=1e-4)
    psi = found.set_index(["temperature", "prompt", "key_id"])["psi"]
    assert detectability.gain(found, n_resamples=20).value == pytest.approx(
        (psi.loc[1.0] - psi.loc[0.2]).mean()
    )


def test_rates_and_the_gap_to_the_prediction_against_loops(measured):
    table, _ = measured
    own = table[table["kind"] == "own key"]
    hits = {
        n: np.mean(own.loc[own["n_tokens"] == n, "psi"] >= stats.threshold(0.05)) for n in LENGTHS
    }
    assert detectability.rise(table, n_resamples=20).value == pytest.approx(hits[20] - hits[3])
    wrong = table[(table["kind"] == "wrong key") & (table["n_tokens"] == 10)]["psi"]
    assert detectability.alarms(table, "wrong key", 10, n_resamples=20).value == pytest.approx(
        np.mean(wrong >= stats.threshold(0.05))
    )
    promise = detectability.predicted(table, 0.4).set_index("n_tokens")["TPR at 0.05"]
    gap = detectability.power_gap(table, 0.4, n_resamples=20)
    assert gap.value == pytest.approx(np.mean([hits[n] - promise[n] for n in LENGTHS]))
    assert gap.n == 12


def test_texts_that_end_early_leave_their_prompt_out_of_longer_lengths():
    rows = [
        {
            "text": text,
            "prompt": text % 3,
            "n_tokens": n,
            "key_id": key,
            "kind": "own key",
            "psi": 1.0,
        }
        for text, length in enumerate([9, 9, 2, 9, 5, 9])
        for n in (2, 5, 9)
        if n <= length
        for key in "ab"
    ]
    kept = detectability.complete(pd.DataFrame(rows), 2)
    assert {n: sorted(part["prompt"].unique()) for n, part in kept.groupby("n_tokens")} == {
        2: [0, 1, 2],
        5: [0, 1],
    }
    with pytest.raises(StatisticsError, match="two or more prompts whose texts all have 2 tokens"):
        detectability.complete(pd.DataFrame(rows), 3)


def test_the_exponent_of_a_power_law_is_found():
    rows = [
        {"text": text, "n_tokens": n, "kind": "plain text", "grad_norm": (2 + text) * n**0.5}
        for text in range(4)
        for n in (10, 40, 90)
    ]
    assert detectability.exponent(pd.DataFrame(rows)).value == pytest.approx(0.5)


def test_the_keys_own_scatter_is_in_its_interval():
    """Two-way random effects with a known ratio of standard deviations: 95% intervals hold it, and
    without key effects they reach 0.
    """
    rng = np.random.default_rng(0)
    for ratio in (0.0, 0.5):
        inside = 0
        for _ in range(150):
            psi = (
                rng.standard_normal((15, 5))
                + ratio * rng.standard_normal((1, 5))
                + 0.7 * rng.standard_normal((15, 1))
            )
            found = detectability.between_keys(psi)
            inside += found.low <= ratio <= found.high
        assert inside >= 133  # 95% of 150 is 142.5, sd 2.7
        assert found.n == 5
    assert detectability.between_keys(
        rng.standard_normal((400, 30)) + 3 * rng.standard_normal((1, 30))
    ).value == pytest.approx(3, rel=0.4)


def test_a_rank_correlation_resamples_groups_and_not_rows():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((8, 1, 2)) @ [[1, 0], [0, 1]]
    rows = np.repeat(shared, 40, axis=1) + 0.1 * rng.standard_normal((8, 40, 2))
    table = pd.DataFrame(rows.reshape(-1, 2), columns=["a", "b"]).assign(
        group=np.repeat(range(8), 40)
    )
    found = detectability.rank_correlation(table, "a", "b", "group", n_resamples=200)
    assert found.value == pytest.approx(spearmanr(table["a"], table["b"]).statistic)
    assert found.high - found.low > 0.5, "eight groups, not 320 rows"
    assert found.n == 8
    assert np.isnan(
        detectability.rank_correlation(table.assign(b=1.0), "a", "b", "group", n_resamples=5).value
    )


def test_two_keys_name_no_n_that_would_decide():
    few, many = (
        claims.verdict("a ratio", stats.Estimate(0.05, 0.0, 20.0, n), most=0.5) for n in (2, 9)
    )
    assert few.needed
    assert many.needed
    assert detectability.of_keys(few).needed is None
    assert detectability.of_keys(many) == many
    said = (
        "Too little data: a ratio is 0.05 (0 to 20), n = 2; expected at most 0.5. So few keys do"
        " not tell how many would decide."
    )
    assert detectability.keys_said(detectability.of_keys(few)) == said
    assert detectability.keys_said(many) == str(many)


def test_an_entropy_that_does_not_vary():
    assert not detectability.varies(pd.Series([6.50, 6.51, 6.50]))
    assert detectability.varies(pd.Series([2.0, 2.4, 3.1]))
    assert not detectability.varies(pd.Series([2.0])), "one text says nothing"
