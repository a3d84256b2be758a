"""One key over many texts: predictions against simulation, and the library's stream against the
experiment's matrices, on a tiny model.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch
from datasets import Dataset
from scipy.stats import binomtest, norm

from gaussmark_lib import joint
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PAIRS = tiny_models.random_ids(RNG, *[4] * 8), tiny_models.random_ids(RNG, *[20] * 8)


def alike(n: int, cosine: float) -> np.ndarray:
    return np.full((n, n), cosine) + (1 - cosine) * np.eye(n)


@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.8])
def test_the_predicted_spread_is_the_simulated_one(cosine):
    K = alike(30, cosine)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(30), K, size=20_000)
    measured = production.false_alarms(psi).std()
    assert production.predicted_spread(K) == pytest.approx(measured, rel=0.05)


def test_the_experiment_and_the_library_have_the_same_innovations():
    units, norms = production.directions(LM, PAIRS, WM)
    psi = production.over_keys(LM, units, WM, range(3), at_a_time=2)
    r, residual = production.innovations(psi, joint.law.inner(units, units))
    table = joint.sequence(LM.model, *PAIRS, WM, [Key.from_seed(i) for i in range(3)])
    np.testing.assert_allclose(r.T.ravel(), table["innovation"], atol=1e-4)
    np.testing.assert_allclose(residual, table["residual"].to_numpy()[::3], atol=1e-5)
    promised = WM.sigma * norms * residual
    np.testing.assert_allclose(
        production.evidence(r, promised).T.ravel(), table["log_e"], atol=1e-3
    )


def test_a_text_twice_says_nothing_the_second_time():
    K = alike(3, 0.5)[[0, 1, 1, 2]][:, [0, 1, 1, 2]]
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(3), alike(3, 0.5), size=5)[
        :, [0, 1, 1, 2]
    ]
    r, residual = production.innovations(psi, K)
    assert r.shape == (5, 3)
    assert residual[2] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(
        r, np.linalg.solve(np.linalg.cholesky(alike(3, 0.5)), psi[:, [0, 1, 3]].T).T
    )


def test_an_audit_of_dependent_texts():
    K = alike(40, 0.7)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(40), K, size=3000)
    found = production.audited(psi, K)
    assert found["sd"] > 3 * found["sd binomial"]
    assert found["sd r"] == pytest.approx(found["sd binomial"], rel=0.1)
    assert found["mean cosine"] == pytest.approx(0.7)
    assert found["one factor"] == pytest.approx((1 + 39 * 0.7) / 40)
    assert found["max r"] < found["max ψ"]
    assert (found["n"], found["keys"]) == (40, 3000)


def test_fisher_fails_with_one_key_and_the_joint_law_does_not():
    K = alike(20, 0.7)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(20), K, size=3000)
    rates = production.any_alarm(psi, K).set_index("method")
    assert rates.loc["Fisher", "low"] > 0.05
    assert rates.loc["joint law", "value"] == pytest.approx(0.05, abs=0.015)
    assert rates.loc["Bonferroni", "high"] < 0.05
    least = norm.sf(psi.max(1))
    assert rates.loc["Šidák", "value"] == pytest.approx((1 - (1 - least) ** 20 <= 0.05).mean())


def test_new_directions_are_orthonormal_and_carry_the_innovations():
    units, _ = production.directions(LM, PAIRS, WM)
    units = torch.cat([units, units[2:3]])  # a text twice
    K = joint.law.inner(units, units)
    new = production.new_directions(units, K)
    np.testing.assert_allclose(joint.law.inner(new, new), np.eye(8), atol=1e-5)
    psi = production.over_keys(LM, units, WM, range(3))
    r = production.over_keys(LM, new, WM, range(3))
    np.testing.assert_allclose(r, production.innovations(psi, K)[0], atol=1e-4)


def test_independent_pairs_are_a_key_and_a_text_each():
    units = {"a": production.directions(LM, PAIRS, WM)[0]}
    units["b"] = units["a"][:3]
    found = production.independent_pairs(LM, units, WM, range(10), at_a_time=4)
    psi = {kind: production.over_keys(LM, rows, WM, range(10)) for kind, rows in units.items()}
    for kind, rows in units.items():
        turn = np.arange(10), np.arange(10) % len(rows)
        np.testing.assert_allclose(found[kind]["ψ"], psi[kind][turn], atol=1e-4)
        r, _ = production.innovations(psi[kind], joint.law.inner(rows, rows))
        np.testing.assert_allclose(found[kind]["innovation"], r[turn], atol=1e-4)


def test_levels_of_all_kinds_have_one_error():
    rng = np.random.default_rng(0)
    right = production.realised({"a": {"ψ": rng.standard_normal(4000)}})
    assert right["holds"].all()
    wrong = production.realised(
        {"a": {"ψ": rng.standard_normal(4000) + 0.5}, "b": {"ψ": rng.standard_normal(4000)}}
    )
    assert wrong.groupby("kind")["holds"].all().to_dict() == {"a": False, "b": True}
    assert (
        wrong["high"].iloc[0] - wrong["low"].iloc[0]
        > right["high"].iloc[0] - right["low"].iloc[0]
        > 0
    )


def test_beyond_the_binomial():
    rng = np.random.default_rng(0)
    q95, many = production.beyond_binomial(rng.binomial(150, 0.05, 1000) / 150, 150)
    assert q95.value <= 1
    assert many.value <= 0.01 + 3 * np.sqrt(0.01 / 1000)
    alarms = rng.binomial(150, rng.beta(1, 19, 1000)) / 150
    q95, many = production.beyond_binomial(alarms, 150)
    assert q95.low > 1, "in texts"
    assert many.low > 0.03
    wider = production.beyond_binomial(alarms, 150, confidence=0.999)
    assert all(
        wide.low < one.low < one.high < wide.high
        for wide, one in zip(wider, (q95, many), strict=True)
    )


def test_pieces_of_one_file_come_after_those_of_all_files(monkeypatch):
    pieces = {
        "text": [f"piece {i} of a file that is long enough" for i in range(6)],
        "source": list("aaabcb"),
    }
    monkeypatch.setattr(
        production.texts, "load", lambda kind, **settings: Dataset.from_dict(pieces)
    )
    prompts, _ = production.human(LM, "source", 6, n_prompt=7, n_tokens=3)
    assert prompts == [LM.encode(pieces["text"][i])[:7] for i in (0, 3, 4, 1, 5, 2)]


def test_a_quantile_lies_in_its_interval_as_often_as_is_said():
    assert production.quantile(np.arange(1001.0), 0.95).value == 950
    estimates = [
        production.quantile(row, 0.5) for row in np.random.default_rng(0).random((2000, 20))
    ]
    for missed in (
        sum(one.low > 0.5 for one in estimates),
        sum(one.high < 0.5 for one in estimates),
    ):
        assert missed / 2000 <= 0.025 + 3 * np.sqrt(0.025 / 2000)
    few = production.quantile(np.arange(5.0), 0.99)
    assert (few.low, few.high) == (3, 4)


def test_the_interval_of_a_spread_holds_where_a_few_keys_are_extreme():
    rates = np.random.default_rng(0).beta(0.5, 9.5, (400, 1000))  # kurtosis about 9
    spreads, sd = [production.spread(row) for row in rates], np.sqrt(0.05 * 0.95 / 11)
    assert np.mean([one.low <= sd <= one.high for one in spreads]) >= 0.95 - 0.01 - 3 * np.sqrt(
        0.05 / 400
    )
    assert spreads[0].value == pytest.approx(rates[0].std())
    normal = production.spread(np.random.default_rng(0).normal(size=100_000))
    assert normal.high / normal.value - 1 == pytest.approx(1.96 / np.sqrt(2 * 100_000), rel=0.02)
    assert np.isnan(production.spread(np.full(9, 0.05)).low)


def test_the_worst_key_is_judged_on_texts_that_did_not_choose_it():
    psi = np.random.default_rng(0).standard_normal((500, 24))
    kind, rate = production.worst_key({"chance": psi})
    assert (kind, rate.n) == ("chance", 12)
    assert rate.value < production.false_alarms(psi).max()
    psi[3], psi[4, 12:] = np.where(np.arange(24) < 18, 9.0, -9.0), 9.0
    kind, rate = production.worst_key({"quiet": psi[5:6] - 9, "loud": psi})
    assert (kind, rate.value, rate.n) == (
        "loud",
        0.5,
        12,
    ), "key 3: all of its first half, and half of its second"


def test_peeking_with_the_exact_deviation_and_without():
    K = alike(30, 0.5)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(30), K, size=4000)
    tau = norm.isf(0.05)
    exact = [
        any(row[:i].sum() / np.sqrt(K[:i, :i].sum()) >= tau for i in range(1, 31)) for row in psi
    ]
    found, independent = production.peeked(psi, K), production.peeked(psi)
    assert (found.value, found.n) == (np.mean(exact), 4000)
    assert independent.value == np.mean(
        [any(row[:i].sum() / np.sqrt(i) >= tau for i in range(1, 31)) for row in psi]
    )
    assert 0.05 < found.low < found.high < independent.low


def test_the_threshold_that_all_keys_share_has_the_level():
    K = alike(3, 0.5)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(3), K, size=400_000)
    for seed in range(4):
        joint_law = production.any_alarm(psi, K, seed=seed).set_index("method").loc["joint law"]
        assert joint_law["value"] == pytest.approx(
            0.05, abs=3.3 * np.sqrt(0.05 * 0.95 * (1 / 400_000 + 1 / 99_999))
        )


def test_the_worst_kind_was_chosen_by_its_rate():
    rows = pd.DataFrame(
        {"kind": list("abcdefg"), "method": "Fisher", "value": [0.05] * 6 + [0.10], "n": 200}
    )
    worst = production.worst_kind(
        pd.concat([rows, rows.assign(method="other", value=1.0)], ignore_index=True), "Fisher"
    )
    low, high = binomtest(20, 200).proportion_ci(1 - 0.05 / 7)
    assert (worst.value, worst.n) == (0.10, 200)
    assert (worst.low, worst.high) == pytest.approx((low, high))


def test_kinds_without_text_are_refused(tmp_path):
    file = tmp_path / "few.jsonl"
    file.write_text('{"text": "one text that is long enough for the tokens"}\n')
    with pytest.raises(CorpusError, match="at least 4 texts"):
        production.human(LM, str(file), 9, n_prompt=4, n_tokens=10)


def test_pieces_of_files_do_not_overlap():
    prompts, responses = production.human(LM, "tables", 6, n_prompt=4, n_tokens=30)
    assert {len(ids) for ids in responses} == {30}
    assert len({tuple(p + r) for p, r in zip(prompts, responses, strict=True)}) == 6
