"""One key over many texts: predictions against simulation, and the library's stream against the experiment's matrices, on a tiny model."""

import json

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import norm

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
    np.testing.assert_allclose(production.evidence(r, promised).T.ravel(), table["log_e"], atol=1e-3)


def test_a_text_twice_says_nothing_the_second_time():
    K = alike(3, 0.5)[[0, 1, 1, 2]][:, [0, 1, 1, 2]]
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(3), alike(3, 0.5), size=5)[:, [0, 1, 1, 2]]
    r, residual = production.innovations(psi, K)
    assert r.shape == (5, 3)
    assert residual[2] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(r, np.linalg.solve(np.linalg.cholesky(alike(3, 0.5)), psi[:, [0, 1, 3]].T).T)


def test_an_audit_of_dependent_texts():
    K = alike(40, 0.7)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(40), K, size=3000)
    found = production.audited(psi, K)
    assert found["sd"] > 3 * found["sd binomial"]
    assert found["sd r"] == pytest.approx(found["sd binomial"], rel=0.1)
    assert found["mean cosine"] == pytest.approx(0.7)
    assert found["one factor"] == pytest.approx((1 + 39 * 0.7) / 40)
    assert found["max r"] < found["max ψ"]


def test_fisher_fails_with_one_key_and_the_joint_law_does_not():
    K = alike(20, 0.7)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(20), K, size=3000)
    rates = production.any_alarm(psi, K).set_index("method")
    assert rates.loc["Fisher", "low"] > 0.05
    assert rates.loc["joint law", "value"] == pytest.approx(0.05, abs=0.015)
    assert rates.loc["Bonferroni", "high"] < 0.05
    least = norm.sf(psi.max(1))
    assert rates.loc["Šidák", "value"] == pytest.approx((1 - (1 - least) ** 20 <= 0.05).mean())


def test_asking_raises_psi_and_leaves_the_rest_to_chance():
    found = pd.DataFrame(production.forged(LM, PAIRS[0][i], PAIRS[1][i], WM, Key.from_seed(i), n_steps=5, seed=i) for i in range(6))
    assert (found["queries"] == 40).all()
    assert found["psi"].mean() > 1.5
    assert abs(found["innovation"].mean()) < 3.3 / np.sqrt(6)


def test_marked_texts_stand_where_they_are_said_to():
    keys = [Key.from_seed(i) for i in range(2)]
    rows = production.mixed_streams(LM, PAIRS[0], PAIRS, WM, keys, 20, every=3, seed=1)
    assert rows[rows["marked"]]["place"].tolist() == [2, 5, 2, 5]
    plain = production.over_keys(LM, production.directions(LM, PAIRS, WM)[0], WM, [0])
    own = rows[rows["key_id"] == keys[0].key_id]
    np.testing.assert_allclose(own["psi"][~own["marked"]], plain[0][~own["marked"].to_numpy()], atol=1e-4)


def test_the_card_is_data_and_a_page():
    audit = pd.DataFrame({"docs": {"mean": 0.05, "max ψ": 0.2}}).T
    card = production.card(WM, "0ddf4f8e", audit, {20: np.array([10.0, 12.0])})
    assert json.loads(json.dumps(card)) == card
    page = production.card_html(card)
    assert all(word in page for word in ("0ddf4f8e", "docs", "0.200", WM.weight))


def test_kinds_without_text_are_refused(tmp_path):
    file = tmp_path / "few.jsonl"
    file.write_text('{"text": "one text that is long enough for the tokens"}\n')
    with pytest.raises(CorpusError, match="at least 4 texts"):
        production.human(LM, str(file), 9, n_prompt=4, n_tokens=10)


def test_pieces_of_files_do_not_overlap():
    prompts, responses = production.human(LM, "tables", 6, n_prompt=4, n_tokens=30)
    assert {len(ids) for ids in responses} == {30}
    assert len({tuple(p + r) for p, r in zip(prompts, responses, strict=True)}) == 6
