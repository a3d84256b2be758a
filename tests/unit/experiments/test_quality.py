"""Notebook 05 on a tiny model: each measure against a slow loop over items and keys, and the price
against its law.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_experiments import quality
from gaussmark_lib import likelihood, perturb, stats
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench.quality import compare, judge

LM = tiny_lm.build()
WM = Watermark(tiny_lm.WEIGHT, 0.3)
KEYS = [Key.from_seed(i) for i in range(3)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 36)
N_TOKENS, SEED = 12, 3


@pytest.fixture(scope="module")
def marks():
    return quality.contenders(
        LM, WM, KEYS[0], PROMPTS, N_TOKENS, rank_dropped=2, psi=2.0, strong_psi=9.0
    )


@pytest.fixture(scope="module")
def written(marks):
    return quality.references_and_texts(LM, marks, KEYS, PROMPTS, N_TOKENS, n_base=3, seed=SEED)


def test_a_passage_is_read_under_its_own_key_and_under_the_base_model(marks):
    passages = tiny_models.random_ids(np.random.default_rng(1), *[9] * 7)
    base, changes = quality.likelihoods(LM, marks, KEYS, passages, batch_size=4)
    assert set(changes["model"]) == {"GaussMark", "rank-reduced", "strong mark"}
    slow = {}
    for i, passage in enumerate(passages):
        [before] = likelihood.cross_entropy(LM.model, [passage])
        with perturb.watermarked(LM.model, WM, KEYS[i % 3]):
            [after] = likelihood.cross_entropy(LM.model, [passage])
        slow.setdefault(i % 3, []).append(after - before)
        assert base[i] == pytest.approx(before, rel=1e-5)
    mine = changes[changes["model"] == "GaussMark"].groupby("key")["change"].apply(list)
    for key, expected in slow.items():
        np.testing.assert_allclose(mine[key], expected, atol=1e-5)


def test_every_contender_writes_under_each_key_and_the_draws_differ(marks, written):
    references, texts = written
    assert list(texts) == [compare.CONTROL, *marks]
    draws = [*references, texts[compare.CONTROL]]
    assert len({str(draw) for draw in draws}) == 3
    assert all(len(own) == 36 and {len(ids) for ids in own} == {N_TOKENS} for own in texts.values())
    # random numbers: three draws, then GaussMark's keys in their order
    second = replace(marks["GaussMark"], key=KEYS[1])
    expected = second.generate(LM.model, PROMPTS[1::3], N_TOKENS, seed=10_000 * SEED + 4)
    assert texts["GaussMark"][1::3] == expected


def test_text_measures_are_differences_from_the_references(written):
    references, texts = written
    varied = quality.varied(LM, references, texts, 3)
    rows = varied[(varied["measure"] == "distinct_2") & (varied["model"] == "KGW-2")]
    distinct = [
        [len({*pairwise(y)}) / (N_TOKENS - 1) for y in draw]
        for draw in (texts["KGW-2"], *references)
    ]
    np.testing.assert_allclose(rows["change"], distinct[0] - np.mean(distinct[1:], axis=0))
    assert rows["key"].tolist() == [i % 3 for i in range(36)]
    told = quality.told_apart(LM, PROMPTS, references, texts, 3)
    assert set(told["change"]) <= {-0.5, -0.25, 0, 0.25, 0.5}, "two references"
    assert len(told[told["model"] == "GaussMark"]) == 18, "half of each key's pairs"


class Longest:
    name = "the more letters e, the better"

    def ask(self, questions, *, progress=False):
        counts = [(q.first.count("e"), q.second.count("e")) for q in questions]
        return [judge.Answer((1 + np.sign(a - b)) / 2) for a, b in counts]


def test_the_judge_meets_each_reference_in_both_orders(written):
    references, texts = written
    judged, table = quality.judged(LM, PROMPTS[:9], references, texts, 3, Longest())
    assert len(table) == 6 * 2 * 9
    rows = judged[judged["model"] == compare.CONTROL]
    assert len(rows) == 9
    own, (one, two) = texts[compare.CONTROL], references
    letters = [[LM.decode(draw[0]).count("e") for draw in (own, other)] for other in (one, two)]
    ends = {LM.tokenizer.eos_token_id}
    if not ends & {*own[0], *one[0], *two[0]}:
        wins = np.mean([(1 + np.sign(a - b)) / 2 for a, b in letters])
        assert rows["change"].iloc[0] == pytest.approx(wins - 0.5)


def test_the_price_is_free_of_the_part_that_is_linear_in_the_noise():
    key, prompt, text = KEYS[0], PROMPTS[0], PROMPTS[1] + PROMPTS[2]
    small, xi = Watermark(WM.weight, 1e-3), perturb.noise(LM.model, WM, key)

    def change(scale):
        [before] = likelihood.cross_entropy(LM.model, [text], prompts=[prompt])
        with perturb.moved(WM.on(LM.model), [scale * xi]):
            [after] = likelihood.cross_entropy(LM.model, [text], prompts=[prompt])
        return after - before

    [found] = quality.even_change(LM, prompt, [text], WM, key)
    assert found == pytest.approx((change(1.0) + change(-1.0)) / 2, abs=1e-6)
    [tiny] = quality.even_change(LM, prompt, [text], small, key)
    assert abs(tiny) < 0.02 * abs(change(1e-3 / WM.sigma)), "quadratic in σ"


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_a_rate_is_the_price_over_the_laws(factor):
    rng = np.random.default_rng(0)
    norm = rng.normal(30, 6, size=400)  # σ = 0.1
    psi = 0.1 * norm + rng.normal(size=400)
    change = factor * (0.1 * norm) ** 2 / 200 + rng.normal(0, 0.01, size=400)
    columns = {"psi": psi, "grad_norm": norm, "change": change}
    [row] = quality.rates(pd.DataFrame(columns).assign(weight="w", text="own"), 100).itertuples()
    assert row.value == pytest.approx(change.mean() / stats.predicted_price(psi.mean(), 100))
    assert row.law == pytest.approx(1 + (norm.std() / norm.mean()) ** 2)
    assert row.low < factor * row.law < row.high


def test_the_changed_answers_of_gaussmark_are_counted_with_the_power_to_see_a_loss():
    change = [-1.0, 1.0, 0.0, 0.0, 0.0]
    ours = compare.changes("spelling", "GaussMark", 0, np.array(change))
    others = compare.changes("spelling", "strong mark", 0, np.array([-1.0] * 5))
    base = {"spelling": pd.Series([1.0, 0.0, 1.0, 1.0, 1.0])}
    [row] = quality.churn(pd.concat([ours, others]), base, 0.05).itertuples(index=False)
    assert (row.task, row.base, row.lost, row.gained, row.items) == ("spelling", 0.8, 1, 1, 5)
    assert row[-1] == compare.mcnemar_power(5, 0.05, 0.5)


def test_rates_are_told_from_the_smallest_to_the_largest():
    values = {"own": [0.9, 1.2], "human": [0.5, 1.3]}
    rows = [
        {"weight": i, "text": text, "value": value, "law": 1.0 + i / 10}
        for text, of_text in values.items()
        for i, value in enumerate(of_text)
    ]
    said = quality.rates_in_words(pd.DataFrame(rows))
    assert "**0.90** to **1.20** times the predicted one on the model's own text" in said
    assert "1 + cv² = 1.00 to 1.10" in said
    assert said.endswith("the lower one for 1 of 2 weights.")
