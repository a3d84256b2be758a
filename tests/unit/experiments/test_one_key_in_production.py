"""One key and many texts: predictions against simulation, and the library's stream against the
experiment's matrices, on a tiny model.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_experiments import one_key_in_production as production
from gaussmark_experiments import whose_text
from gaussmark_lib import generate
from gaussmark_lib.beyond import joint
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import runs

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PROMPTS, RESPONSES = (tiny_models.random_ids(RNG, *[n] * 8) for n in (4, 20))
KEYS = [Key.from_seed(i) for i in range(3)]


def alike(n: int, cosine: float) -> np.ndarray:
    return np.full((n, n), cosine) + (1 - cosine) * np.eye(n)


def drawn(K: np.ndarray, n_keys: int) -> np.ndarray:
    return np.random.default_rng(0).multivariate_normal(np.zeros(len(K)), K, size=n_keys)


@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.8])
def test_the_spread_divided_by_its_prediction_is_1_and_sees_dependence_that_K_does_not_say(cosine):
    psi = drawn(alike(30, cosine), 20_000)
    spread = production.false_alarms(psi).std()
    assert production.predicted_spread(alike(30, cosine)) == pytest.approx(spread, rel=0.05)
    ratio = production.spread_ratio(psi[:4_000], alike(30, cosine))
    assert ratio.low < ratio.value < ratio.high
    assert (ratio.value, ratio.n) == (pytest.approx(1, abs=0.06), 4_000)
    wrong = production.spread_ratio(psi[:4_000], alike(30, 0.15))
    assert not wrong.low < 1 < wrong.high


def test_cosines_between_kinds_are_those_of_all_texts_at_once():
    human = production.Human(PROMPTS, RESPONSES, [])
    _, K = production.against_keys(LM, human, WM, KEYS)
    u = production.units(whose_text.gradients(LM, PROMPTS, RESPONSES, WM))
    np.testing.assert_allclose(production.cosines([u[:3], u[3:]]), K, atol=1e-12)


def test_the_records_say_what_one_key_does_to_source_code():
    table = production.one_key_on("source")
    assert table.index.tolist() == sorted(table.index, key=lambda model: model == "doclm")
    run = runs.reference("one_key_in_production")
    audit = run.table("audit").set_index("kind").loc["source"]
    row = table[table["measured by notebook"] == "12"].loc["doclm"]
    assert row["mean cosine"] == pytest.approx(audit["mean cosine"], abs=0.005)
    assert row["share flagged by the worst key"] == f"{audit['max ψ']:.0%}"
    ratio = row["spread of the keys' rates ÷ that of independent texts"]
    assert ratio == pytest.approx(audit["sd"] / audit["sd binomial"], rel=0.01)
    assert production.one_key_on("a kind without a record").empty


def test_a_writer_s_texts_are_files_of_their_own():
    size = {"prompt_tokens": 6, "n_tokens": 9}
    human = production.written(LM, LM, "docs", 5, seed=3, batch_size=2, **size)
    assert len(set(human.files)) == len(human.responses) == 5
    assert max(map(len, human.responses)) <= 9


def test_all_innovations_at_once_are_those_of_the_stream():
    twice = production.Human(PROMPTS + PROMPTS[2:3], RESPONSES + RESPONSES[2:3], [])
    psi, K = production.against_keys(LM, twice, WM, KEYS)
    r, residual = joint.law.innovations(psi, K)
    table = joint.sequence(LM.model, twice.prompts, twice.responses, WM, KEYS)
    np.testing.assert_allclose(residual, table["residual"].to_numpy()[::3], atol=1e-4)
    np.testing.assert_allclose(r.T[:8].ravel(), table["innovation"][:24], atol=1e-3)
    assert np.isnan(r[:, 8]).all(), "a text twice says nothing the second time"


def test_the_innovation_given_references_is_that_of_the_stream():
    keys = [Key.from_seed(10 + i) for i in range(3)]
    several = production.Human(PROMPTS[:7], RESPONSES[:7], list("aabbccc"))
    known, others = production.split(several, 5)
    assert (len(known.prompts), others.files) == (5, ["c", "c"])
    table = production.after_references(LM, known, others, keys, WM, 20, seed=1)
    prompts = [LM.prompt(LM.decode(ids)) for ids in others.prompts]
    written = generate.sample(LM.model, prompts, 20, marks=[(WM, key) for key in keys[:2]], seed=1)
    for i, key in enumerate(keys[:2]):
        ask = (WM, [key])
        marked = joint.sequence(LM.model, [prompts[i]], [written[i]], *ask, given=known[:2])
        for column in ("psi", "innovation", "residual"):
            assert table[column][i] == pytest.approx(marked[column][0], abs=2e-3)
        plain = [others.prompts[i]], [others.responses[i]]
        human = joint.sequence(LM.model, *plain, *ask, given=known[:2])
        assert table["usual"][i] == pytest.approx(human["residual"][0], abs=2e-3)


def test_what_is_kept_by_files_of_a_simulated_kind():
    rng, s, m = np.random.default_rng(0), 0.3, 4.0
    psi, other = m + rng.standard_normal((2, 40_000))
    table = pd.DataFrame({"psi": psi, "innovation": s * psi + np.sqrt(1 - s**2) * (other - m)})
    table = table.assign(kind="any", usual=s, file=np.arange(len(psi)) % 50, run="this run")
    less = production.share_kept(table)
    assert (less.n, less.value) == (50, pytest.approx(0, abs=0.01))
    kept = production.kept(table, "any")
    assert (kept.n, kept.value) == (50, pytest.approx(s, abs=0.01)), "files, not texts"
    assert production.kept(table, "another") is None
    drawn_shares = production.kept_by_kind(table).set_index("share")["value"]
    assert drawn_shares[production.KEPT] == kept.value
    assert drawn_shares[production.EXPECTED] == pytest.approx(s)


def two_audits() -> pd.DataFrame:
    """Of one kind with texts that are alike, and of one with independent texts."""
    matrices = {"alike": alike(40, 0.7), "independent": np.eye(40)}
    audits = [
        production.audited(drawn(K, 3000), K) | {"kind": kind} for kind, K in matrices.items()
    ]
    return pd.DataFrame(audits).assign(run="this run")


def test_innovations_spread_like_independent_texts():
    table = production.spreads_by_test(two_audits())
    spreads = table.pivot(index="kind", columns="test", values="value")
    assert spreads.loc["alike", "tested by ψ"] > 3
    assert spreads.loc["independent", "tested by ψ"] == pytest.approx(1, rel=0.1)
    np.testing.assert_allclose(spreads["tested by innovations"], 1, rtol=0.1)


def test_an_audit_of_dependent_texts():
    K = alike(40, 0.7)
    audit = production.audited(drawn(K, 3000), K)
    assert audit["sd"] > 3 * audit["sd binomial"]
    assert audit["sd r"] == pytest.approx(audit["sd binomial"], rel=0.1)
    assert audit["mean cosine"] == pytest.approx(0.7)
    assert audit["max r"] < audit["max ψ"]
    assert (audit["n"], audit["keys"]) == (40, 3000)


def test_copies_and_keys_are_counted():
    audit = pd.DataFrame({"kind": ["headers"], "n": 20.0, "sd binomial": np.sqrt(0.0475 / 5)})
    assert production.copies_in_words(audit) == "15 of the 20 texts of headers"
    rates = pd.DataFrame({"kind": "docs", "rate": [0.0, 0.0, 0.05, 0.15]})
    heights = [bar.get_height() for bar in production.per_key(rates, "").axes[0].patches]
    assert np.allclose(np.divide(heights, heights[0]), [1, 0.5, 0, 0.5])


def test_the_sum_of_squares_is_a_test_of_innovations():
    r = np.random.default_rng(0).standard_normal((100, 20))
    assert production.squares_p(np.where(r > 3, np.nan, r)) < production.squares_p(r)
    assert production.squares_p(r) > 0.01
    assert production.squares_p(1.1 * r) < 1e-5


def test_fisher_fails_with_one_key_and_the_joint_law_does_not():
    K = alike(20, 0.7)
    rates = production.any_alarm(drawn(K, 3000), K).set_index("method")
    assert rates.loc["Fisher's sum", "low"] > 0.05
    assert rates.loc["joint law", "value"] == pytest.approx(0.05, abs=0.015)
    assert rates.loc["Bonferroni", "high"] < 0.05


def test_pieces_of_tables_differ_and_too_few_texts_are_refused(tmp_path):
    human = production.human(LM, "tables", 6, prompt_tokens=4, n_tokens=30)
    assert {len(ids) for ids in human.responses} == {30}
    assert len({tuple(p + r) for p, r in zip(*human[:2], strict=True)}) == 6
    file = tmp_path / "few.jsonl"
    file.write_text('{"text": "one text that is long enough for the tokens"}\n')
    with pytest.raises(InvalidTextError, match="at least 9 texts"):
        production.human(LM, str(file), 9, prompt_tokens=4, n_tokens=10)


def test_the_seed_orders_the_files():
    for kind in ("tables", "source"):
        first, again, other = (
            production.human(LM, kind, 6, prompt_tokens=4, n_tokens=30, seed=seed).files
            for seed in (0, 0, 1)
        )
        assert first == again
        assert first != other


def test_two_texts_are_chosen_by_their_cosine_and_the_line_is_told():
    K = np.array([[1, 0.1, 0.75], [0.1, 1, 0.4], [0.75, 0.4, 1]])
    assert sorted(production.nearest_pair(K, 0.8)) == [0, 2]
    unlike = np.eye(3)
    assert production.kind_of_pairs({"docs": unlike, "licences": K, "mine": 0.5 * K}) == "licences"
    assert production.kind_of_pairs({"licences": K, "source": unlike}) == "source"
    said = production.after_a_high_one(np.array([[2.0, 1.0], [0.5, 3.0]]), 0.8)
    assert said.startswith("1 of the 2 keys have ψ₁ above 1, on average 2.00.")
    assert "on average 1.00; the line predicts 1.60." in said
