"""Streams with marked texts, against the library's stream and against simulation."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import generate_many, joint
from gaussmark_lib.experiments import marked_streams
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
PAIRS = (
    tiny_models.random_ids(np.random.default_rng(0), *[4] * 8),
    tiny_models.random_ids(np.random.default_rng(1), *[20] * 8),
)


def test_marked_texts_stand_where_they_are_said_to_and_the_library_agrees():
    keys = [Key.from_seed(i) for i in range(2)]
    rows = marked_streams.mixed(LM, PAIRS[0], PAIRS, WM, keys, 20, every=[4, 3], seed=1)
    assert rows[rows["marked"] & (rows["every"] == 3)]["place"].tolist() == [2, 5, 2, 5]
    assert rows[rows["marked"] & (rows["every"] == 4)]["place"].tolist() == [3, 7, 3, 7]
    [written] = generate_many.sample(LM.model, PAIRS[0][:2], [(WM, keys[1])], 20, seed=2)
    prompts, responses = list(PAIRS[0]), list(PAIRS[1])
    for place, prompt, text in zip((2, 5), PAIRS[0], written, strict=False):
        prompts[place], responses[place] = prompt, text
    table = joint.sequence(LM.model, prompts, responses, WM, [keys[1]])
    own = marked_streams.watched(rows[(rows["key_id"] == keys[1].key_id) & (rows["every"] == 3)])
    for name, other in (("psi", "psi"), ("innovation", "innovation"), ("log_e", "log_e")):
        np.testing.assert_allclose(own[name], table[other], atol=1e-3)
    np.testing.assert_allclose(
        own["promised"], WM.sigma * table["grad_norm"] * table["residual"], rtol=1e-4
    )
    assert (own["expected"] > 0).tolist() == own["marked"].tolist()


def test_where_every_text_is_marked_no_plain_ones_are_needed():
    rows = marked_streams.mixed(LM, PAIRS[0], 10, WM, [Key.from_seed(0)], 12, every=[1])
    assert rows["marked"].all()
    assert len(rows) == 10
    assert rows["forecast"].iloc[0] == pytest.approx(rows["expected"].iloc[0])


def test_a_repeated_text_promises_nothing():
    twice = [*PAIRS[0][:3], PAIRS[0][0]], [*PAIRS[1][:3], PAIRS[1][0]]
    rows = marked_streams.mixed(LM, PAIRS[0], twice, WM, [Key.from_seed(0)], 20, every=[3])
    assert rows["innovation"].isna().tolist() == [False, False, False, True]
    assert rows["promised"].iloc[-1] == 0


def equal_cosines(n, c, psi, rng):
    """A stream as the experiment tabulates it: n marked texts whose gradients have one cosine."""
    K = np.full((n, n), c) + (1 - c) * np.eye(n)
    L = np.linalg.cholesky(K)
    values = psi + L @ rng.standard_normal(n)
    columns = {
        "place": range(n),
        "marked": True,
        "psi": values,
        "innovation": np.linalg.solve(L, values),
        "expected": psi,
        "cosine": c,
    }
    return pd.DataFrame(columns | {"forecast": np.linalg.solve(L, np.full(n, psi))})


def test_what_is_lost_is_what_one_factor_says():
    rng, c = np.random.default_rng(0), 0.002
    rows = pd.concat([equal_cosines(150, c, 4.0, rng).assign(key_id=str(i)) for i in range(200)])
    lost = marked_streams.lost(rows)
    assert lost.low < 1 - np.mean(1 / (1 + c * np.arange(150))) < lost.high
    kept = marked_streams.kept_by_place(rows, [50, 150])
    assert kept[["first", "last"]].to_numpy().tolist() == [[1, 50], [51, 150]]
    assert kept["theory"].to_numpy() == pytest.approx(kept["one_factor"].to_numpy(), abs=0.003)
    assert (kept["value"] - kept["theory"]).abs().max() < 0.01
    assert (kept["low"] < kept["value"]).all()


def test_the_time_until_a_stream_is_found():
    rows = pd.DataFrame(
        {
            "key_id": ["a"] * 3 + ["b"] * 3,
            "every": 2,
            "place": [0, 1, 2] * 2,
            "log_e": [0, 4.0, 5.0, 0, 1.0, 2.0],
        }
    )
    assert marked_streams.found_after(rows).to_dict() == {("a", 2): 2.0, ("b", 2): np.inf}


def test_a_text_that_says_nothing_new_is_not_bet_on():
    rows = pd.DataFrame(
        {
            "key_id": "a",
            "every": 1,
            "place": [0, 1],
            "innovation": [2.0, np.nan],
            "promised": [3.0, 0.0],
        }
    )
    log_e = marked_streams.watched(rows)["log_e"]
    assert log_e.tolist() == pytest.approx(
        [production.evidence(np.array([[2.0]]), np.array([3.0]))[0, 0]] * 2
    )


def test_the_interval_of_a_standard_deviation_is_exact_for_few_values():
    rows = np.random.default_rng(0).normal(size=(600, 5))
    found = [marked_streams.deviation(row) for row in rows]
    assert 0.92 <= np.mean([one.low <= 1 <= one.high for one in found]) <= 0.98
    assert found[0].value == pytest.approx(rows[0].std(ddof=1))
    alone = marked_streams.deviation(np.array([1.0]))
    assert alone.n == 1
    assert np.isnan(alone.value)
