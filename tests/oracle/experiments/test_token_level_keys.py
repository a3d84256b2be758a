"""Token-level keys beside one key: each number of the tables against scoring that text alone, and
the level against its closed form.
"""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import corrupt, score, stats
from gaussmark_lib.experiments import robustness, token_level_keys
from gaussmark_lib.experiments.written_and_scored import OWN
from gaussmark_lib.experiments.written_and_scored import PLAIN as PLAIN_TEXT
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.schemes import GaussMark
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.token_level import quantile_test

LM = tiny_lm.build()
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.3)
KEYS = [Key.from_seed(i) for i in range(2)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 4)
PLAIN = tiny_models.random_ids(np.random.default_rng(1), *[20] * 4)
CHANGES = corrupt.named(LM)
WANTED = [("unchanged", 0.0), ("substitute at random", 0.4), ("delete at random", 0.2)]
CELLS = {
    (name, f): partial(CHANGES[name if f else "no prompt"], fraction=f, seed=3)
    for name, f in WANTED
}


@pytest.fixture(scope="module")
def written():
    one = [GaussMark(WM, key).generate(LM.model, PROMPTS, 20, seed=j) for j, key in enumerate(KEYS)]
    return one, [
        token_keys.sample(LM.model, PROMPTS, 20, WM, key, seed=j) for j, key in enumerate(KEYS)
    ]


@pytest.fixture(scope="module")
def measured(written):
    return token_level_keys.measure(LM, PROMPTS, *written, PLAIN, WM, KEYS, CELLS, alpha_0=0.4)


def test_every_row_is_that_of_the_text_alone(measured, written):
    table, gammas = measured
    assert len(table) == 3 * 2 * 2 * 3 * 4
    assert not table.duplicated(
        ["scheme", "key_id", "corruption", "fraction", "kind", "prompt"]
    ).any()
    assert len(gammas) == 2 * 2 * 4 * (20 + 20 + 16)
    for cell, change in CELLS.items():
        for j, key in enumerate(KEYS):
            for kind, texts in ((OWN, None), (PLAIN_TEXT, PLAIN)):
                rows = table[
                    (table["corruption"] == cell[0])
                    & (table["key_id"] == key.key_id)
                    & (table["kind"] == kind)
                ].sort_values("prompt")
                one = score.score(LM.model, *change(PROMPTS, texts or written[0][j]), WM, [key])
                own = token_keys.per_token(
                    LM.model, *change(PROMPTS, texts or written[1][j]), WM, key
                )
                each = token_keys.from_gammas(own, 0.4)
                expected = {
                    token_level_keys.ONE: one["p_value"],
                    token_level_keys.HITS: each["p_hits"],
                    token_level_keys.SUM: each["p_psi"],
                }
                for scheme, p in expected.items():
                    found = rows[rows["scheme"] == scheme]
                    assert found["p_value"].to_numpy() == pytest.approx(p.to_numpy(), rel=1e-3)
                    assert np.log10(found["p_value"].to_numpy(float)) == pytest.approx(
                        found["log10_p"].to_numpy(float)
                    )
    summary = robustness.by_fraction(table, n_resamples=10)
    assert set(summary["scheme"]) == {
        token_level_keys.ONE,
        token_level_keys.HITS,
        token_level_keys.SUM,
    }


def test_at_each_length_the_beginnings_are_tested(measured, written):
    _, gammas = measured
    unchanged = gammas[gammas["corruption"] == "unchanged"]
    table = token_level_keys.by_length(
        LM, PROMPTS, written[0], WM, KEYS, unchanged, [5, 20], level=0.2, alpha_0=0.4
    ).set_index(["scheme", "n_tokens"])
    for n in (5, 20):
        cut = [[text[:n] for text in texts] for texts in written[1]]
        scored = [
            token_keys.from_gammas(token_keys.per_token(LM.model, PROMPTS, texts, WM, key), 0.4)
            for texts, key in zip(cut, KEYS, strict=True)
        ]
        assert table["value"][token_level_keys.HITS, n] == np.mean(
            [found["p_hits"] <= 0.2 for found in scored]
        )
        assert table["value"][token_level_keys.SUM, n] == np.mean(
            [found["p_psi"] <= 0.2 for found in scored]
        )
        one = [
            score.score(LM.model, PROMPTS, [y[:n] for y in texts], WM, [key])["p_value"]
            for texts, key in zip(written[0], KEYS, strict=True)
        ]
        assert table["value"][token_level_keys.ONE, n] == np.mean([p <= 0.2 for p in one])


def test_alpha_and_quantile_are_arithmetic_on_the_gammas(measured):
    _, gammas = measured
    own = gammas[(gammas["corruption"] == "unchanged") & (gammas["kind"] == OWN)]
    matrix = own.pivot(index=["key_id", "prompt"], columns="position", values="gamma").to_numpy()
    by_alpha = token_level_keys.by_alpha(own, [0.1, 0.5], 0.05)
    for row in by_alpha.itertuples():
        assert row.value == np.mean(
            [quantile_test.detected(gamma, row.quantile, row.alpha_0) for gamma in matrix]
        )
    by_quantile = token_level_keys.by_quantile(own, [0.3, 0.45, 0.6], 0.5)
    for row in by_quantile.itertuples():
        assert row.value == np.mean(
            [quantile_test.detected(gamma, row.quantile, 0.5) for gamma in matrix]
        )
        assert row.exact == quantile_test.exact_level(20, row.quantile, 0.5)
    assert list(by_quantile["bound"].isna()) == [False, False, True]


def test_the_level_is_exact_simulated_and_measured_alike():
    rng = np.random.default_rng(4)
    cells = pd.MultiIndex.from_product(
        [range(20), range(20), range(30)], names=["key_id", "prompt", "position"]
    )
    gammas = pd.DataFrame({"gamma": rng.standard_normal(len(cells))}, index=cells).reset_index()
    table = token_level_keys.levels(gammas, [10, 30], 0.6, 0.3, seed=1)
    for row in table.itertuples():
        assert row.exact == quantile_test.exact_level(row.n_tokens, 0.6, 0.3)
        assert row.simulated_low <= row.exact <= row.simulated_high
        assert row.exact <= row.bound
        assert row.measured == pytest.approx(row.exact, abs=4 * (row.exact / 400) ** 0.5)
    leaning = token_level_keys.levels(gammas.assign(gamma=gammas["gamma"] + 0.5), [30], 0.6, 0.3)
    assert leaning["measured"][0] > 2 * leaning["exact"][0], "it can see a level that is not kept"


def test_kept_tokens_are_the_same_tokens_at_the_same_places():
    rows = [("a", 0.0, "own key", 0, 0, k, k, 1.0) for k in range(4)] + [
        ("b", 0.5, "own key", 0, 0, k, k if k < 2 else 9, 0.5) for k in range(4)
    ]
    rows += [
        (*row[:3], key, prompt, *row[5:])
        for row in rows
        for key, prompt in ((0, 1), (1, 0), (1, 1))
    ]
    gammas = pd.DataFrame(rows, columns=[*token_level_keys.TEXT, "position", "token_id", "gamma"])
    found = token_level_keys.kept_tokens(gammas, ("a", 0.0), ("b", 0.5)).set_index("version")
    assert found["value"]["before"] == 1.0
    assert found["value"]["after"] == 0.5
    assert list(found["share"]) == [0.5, 0.5]
    assert token_level_keys.kept_ratio(gammas, ("a", 0.0), ("b", 0.5), n_resamples=9).value == 0.5
    by_position = token_level_keys.by_position(gammas, 2)
    assert list(by_position["position"]) == [1.0, 3.0, 1.0, 3.0]
    assert list(by_position["value"]) == [1.0, 1.0, 0.5, 0.5]


def test_the_mean_of_a_few_gammas_is_known_no_better_than_their_number_allows():
    """Two prompts × three keys of eleven N(0, 1): 66 of them, whose mean is known to ±1.96/√66.
    Over many such samples the interval covers 0.
    """
    cells = pd.MultiIndex.from_product(
        [range(3), range(2), range(11)], names=["key_id", "prompt", "position"]
    )
    rng = np.random.default_rng(0)
    found = [
        token_level_keys.behind(
            pd.DataFrame({"gamma": rng.standard_normal(66)}, index=cells).reset_index(), 0
        )
        for _ in range(100)
    ]
    assert min(one.high - one.low for one in found) >= 2 * 1.959 / 66**0.5
    assert sum(one.low <= 0 <= one.high for one in found) >= 89, (
        "95 of 100 are expected; fewer than 89 have probability 0.004"
    )
    uneven = pd.DataFrame({"key_id": 0, "prompt": [0, 1], "gamma": [0.3, 0.3], "n_gammas": [1, 4]})
    assert token_level_keys.mean_gamma(uneven).high == pytest.approx(0.3 + 1.959964 * 1.25**0.5 / 2)


def test_a_wrong_key_and_plain_text_are_not_detected(measured):
    table, _ = measured
    plain = table[(table["kind"] == PLAIN_TEXT)]
    for _, rows in plain.groupby("scheme"):
        assert stats.rate(rows["p_value"] <= 0.05, confidence=0.999).low <= 0.05


def test_a_change_may_be_of_the_first_texts_only(written):
    cells = {
        ("unchanged", 0.0): CELLS["unchanged", 0.0],
        ("some", 0.4): token_level_keys.first(2, CELLS["substitute at random", 0.4]),
    }
    table, gammas = token_level_keys.measure(LM, PROMPTS, *written, PLAIN, WM, KEYS, cells)
    assert table.groupby("corruption")["prompt"].unique().map(list).to_dict() == {
        "unchanged": [0, 1, 2, 3],
        "some": [0, 1],
    }
    x, y = cells["some", 0.4](PROMPTS, written[1][1])
    expected = token_keys.per_token(LM.model, x, y, WM, KEYS[1])["gamma"].to_numpy()
    rows = gammas[
        (gammas["corruption"] == "some")
        & (gammas["key_id"] == KEYS[1].key_id)
        & (gammas["kind"] == OWN)
    ].sort_values(["prompt", "position"])
    assert rows["gamma"].to_numpy() == pytest.approx(expected, abs=1e-4)
