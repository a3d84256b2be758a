"""Notebook 05 on a tiny model: each measure against a slow loop over items and keys, and the price
against its law.
"""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import quality
from gaussmark_experiments.measures import benchmarks, compare, judge
from gaussmark_lib import generate, likelihood, perturb, stats
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import begin, runs
from gaussmark_lib.workbench.pairs import Pairs

LM = tiny_lm.build()
WM = Watermark(tiny_lm.WEIGHT, 0.3)
OTHER = "model.layers.0.mlp.up_proj.weight"
KEYS = [Key.from_seed(i) for i in range(3)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 36)
N_TOKENS, SEED = 12, 3


@pytest.fixture(scope="module")
def pilot():
    prompts = PROMPTS[:8]
    return quality.Pilot(prompts, generate.sample(LM.model, prompts, N_TOKENS))


@pytest.fixture(scope="module")
def marks(pilot):
    return quality.contenders(LM, WM, KEYS[0], pilot, rank_dropped=2, psi=2.0, strong_psi=9.0)


def test_every_strength_is_solved_on_the_pilot(pilot, marks):
    strong = begin.solved(LM, pilot.prompts, N_TOKENS, WM, 9.0)
    assert marks["strong mark"].wm.sigma == pytest.approx(strong.sigma)
    [other] = quality.on_other_weights(LM, [OTHER], KEYS[0], pilot, 2.0).values()
    expected = begin.solved(LM, pilot.prompts, N_TOKENS, Watermark(OTHER, 1.0), 2.0)
    assert (other.name, other.wm) == (f"GaussMark, {OTHER}", expected)


@pytest.fixture(scope="module")
def written(marks):
    options = {"n_base": 3, "seed": SEED, "temperatures": [0.5]}
    return quality.references_and_texts(LM, marks, KEYS, PROMPTS, N_TOKENS, **options)


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
    assert list(texts) == [compare.CONTROL, "base, temperature 0.5", *marks]
    assert len({str(draw) for draw in [*references, texts[compare.CONTROL]]}) == 3
    assert all(len(own) == 36 and {len(ids) for ids in own} == {N_TOKENS} for own in texts.values())
    # random numbers: three draws, then the temperature, then GaussMark with a key per row
    cooler = generate.sample(LM.model, PROMPTS, N_TOKENS, seed=10_000 * SEED + 3, temperature=0.5)
    assert texts["base, temperature 0.5"] == cooler
    by_row = [(WM, KEYS[i % 3]) for i in range(36)]
    expected = generate.sample(LM.model, PROMPTS, N_TOKENS, marks=by_row, seed=10_000 * SEED + 4)
    assert texts["GaussMark"] == expected


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
    assert len(table) == 7 * 2 * 9
    rows = judged[judged["model"] == compare.CONTROL]
    assert len(rows) == 9
    own, (one, two) = texts[compare.CONTROL], references
    letters = [[LM.decode(draw[0]).count("e") for draw in (own, other)] for other in (one, two)]
    ends = {LM.tokenizer.eos_token_id}
    if not ends & {*own[0], *one[0], *two[0]}:
        wins = np.mean([(1 + np.sign(a - b)) / 2 for a, b in letters])
        assert rows["change"].iloc[0] == pytest.approx(wins - 0.5)


def test_a_win_rate_is_compared_prompt_by_prompt():
    keys = np.arange(40) % 4
    models = ["GaussMark", "base, temperature 1.1"]
    rates = np.random.default_rng(0).random((2, 40))
    rows = [
        compare.changes("win rate", model, keys, change).assign(item=np.arange(40))
        for model, change in zip(models, rates, strict=True)
    ]
    judged = pd.concat(rows).sample(frac=1, random_state=0)
    difference = quality.win_rate_difference(judged, *models)
    expected = stats.interval(rates[0] - rates[1], cluster=keys)
    assert (difference.value, difference.low) == pytest.approx((expected.value, expected.low))
    assert quality.win_rate_findings(judged, []) == []


def test_the_price_is_free_of_the_part_that_is_linear_in_the_noise():
    key, prompt, text = KEYS[0], PROMPTS[0], PROMPTS[1] + PROMPTS[2]
    small, xi = Watermark(WM.weight, 1e-3), perturb.noise(LM.model, WM, key)
    pair = Pairs([prompt], [key])

    def change(scale):
        [before] = likelihood.cross_entropy(LM.model, [text], prompts=[prompt])
        with perturb.moved(WM.on(LM.model), [scale * xi]):
            [after] = likelihood.cross_entropy(LM.model, [text], prompts=[prompt])
        return after - before

    [found] = quality.even_changes(LM, pair, {"own": [text]}, WM)["own"]
    assert found == pytest.approx((change(1.0) + change(-1.0)) / 2, abs=1e-6)
    [tiny] = quality.even_changes(LM, pair, {"own": [text]}, small)["own"]
    assert abs(tiny) < 0.02 * abs(change(1e-3 / WM.sigma)), "quadratic in σ"


def test_texts_that_share_a_key_have_the_prices_that_each_has_alone():
    pairs = Pairs(PROMPTS[:4], [KEYS[0], KEYS[1], KEYS[0], KEYS[1]])
    texts = {"own": PROMPTS[4:8], "human": [ids[:3] for ids in PROMPTS[8:12]]}
    together = quality.even_changes(LM, pairs, texts, WM)
    for kind, responses in texts.items():
        for i, response in enumerate(responses):
            alone = Pairs([pairs.prompts[i]], [pairs.keys[i]])
            [expected] = quality.even_changes(LM, alone, {"x": [response]}, WM)["x"]
            assert together[kind][i] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_a_rate_is_the_price_over_the_laws(factor):
    rng = np.random.default_rng(0)
    norm = rng.normal(30, 6, size=400)  # σ = 0.1
    psi = 0.1 * norm + rng.normal(size=400)
    change = factor * (0.1 * norm) ** 2 / 200 + rng.normal(0, 0.01, size=400)
    columns = {"psi": psi, "grad_norm": norm, "change": change}
    labels = {"weight": "w", "text": "own", "document": [str(i) for i in range(400)]}
    [row] = quality.rates(pd.DataFrame(columns).assign(**labels), 100).itertuples()
    assert row.value == pytest.approx(change.mean() / stats.predicted_price(psi.mean(), 100))
    assert row.law == pytest.approx(1 + (norm.std() / norm.mean()) ** 2)
    assert row.low < factor * row.law < row.high


def test_the_changed_answers_of_gaussmark_are_counted_with_the_power_to_see_a_loss():
    change = [-1.0, 1.0, 0.0, 0.0, 0.0]
    ours = compare.changes("spelling", "GaussMark", 0, np.array(change)).assign(item=range(5))
    again = ours.assign(key=1, change=-1.0)  # the same items under another key
    others = compare.changes("spelling", "strong mark", 0, np.array([-1.0] * 5))
    base = {"spelling": pd.Series([1.0, 0.0, 1.0, 1.0, 1.0])}
    [row] = quality.churn(pd.concat([ours, again, others]), base, 0.05).itertuples(index=False)
    assert (row.task, row.base, row.lost, row.gained, row.items) == ("spelling", 0.8, 1, 1, 5)
    assert row[-1] == compare.mcnemar_power(5, 0.05, 0.5)


def test_the_table_of_costs_has_every_measure_beside_the_strong_mark():
    rng = np.random.default_rng(0)
    keys = np.arange(80) % 8
    changes = pd.concat(
        compare.changes(measure, model, keys, mean + rng.normal(0, 0.05, size=80))
        for measure, means in (("cross-entropy", (0.1, 0.9)), ("spelling", (-0.1, 0.0)))
        for model, mean in zip((compare.GAUSSMARK, compare.STRONG), means, strict=True)
    )
    price, spelling = quality.cost_table(changes).to_dict("records")
    assert price["mean of"].endswith("human text (nats per token)")
    assert spelling["mean of"] == "change of accuracy in spelling"
    ours = changes[(changes["measure"] == "cross-entropy") & (changes["model"] == "GaussMark")]
    expected = compare.mean_change(ours)
    assert (price["GaussMark"], price["low"], price["n"]) == (expected.value, expected.low, 80)
    assert price["strong mark"] == pytest.approx(0.9, abs=0.02)
    assert [row["sees the strong mark"] for row in (price, spelling)] == ["yes", "no: blind"]


BASE = {"easy": pd.Series([1.0, 1.0, 1.0, 0.0]), "hard": pd.Series([1.0, 0.0, 0.0, 0.0])}
GUESSING = {"easy": 0.5, "hard": 0.25}


def test_a_benchmark_near_chance_is_blind():
    assert quality.can_lose(BASE, GUESSING) == ["easy"]
    table = quality.above_chance(BASE, GUESSING)
    assert table["blind"].tolist() == [False, True]
    assert table["items"].tolist() == [4, 4]


def test_points_of_accuracy_are_over_the_benchmarks_that_can_lose_some():
    def rows(task, model, lost):
        change = np.repeat([-1.0, 0.0], [lost, 100 - lost])
        return [
            compare.changes(task, model, key, change).assign(item=range(100)) for key in range(8)
        ]

    answered = pd.concat(
        rows("easy", "GaussMark", 2)
        + rows("easy", "GaussMark, another weight", 4)
        + rows("easy", "strong mark", 20)
        + rows("easy", "rank-reduced", 50)
        + rows("hard", "GaussMark", 90)
    )
    gain, loss = quality.accuracy_findings(answered, BASE, GUESSING)
    assert gain.estimate.value == pytest.approx(-3.0)
    assert loss.estimate.value == pytest.approx(20.0)
    assert (gain.estimate.n, loss.estimate.n) == (100, 100)
    assert loss.estimate.low > 10
    assert loss.outcome == "held"
    assert quality.accuracy_findings(answered, {"hard": BASE["hard"]}, GUESSING) == []


def test_each_key_answers_all_items_of_a_benchmark(marks, tmp_path):
    questions = [
        {"goal": f"{i}", "sol1": "abc"[i % 3], "sol2": "dd", "label": i % 2} for i in range(9)
    ]
    lines = "\n".join(map(json.dumps, questions))
    (tmp_path / "piqa.jsonl").write_text(lines)
    asked = benchmarks.prepare(LM, ["piqa"], tasks_data=tmp_path)
    base, answered = quality.answers_of(LM, marks, KEYS, asked, quality.chance(asked))
    assert quality.chance(asked) == {"piqa": 0.5}
    ours = answered[answered["model"] == "GaussMark"]
    assert ours.groupby("key")["item"].apply(list).tolist() == [list(range(9))] * 3
    with perturb.watermarked(LM.model, WM, KEYS[2]):
        marked = benchmarks.evaluate(asked)["piqa"]
    of_last = ours[ours["key"] == 2].set_index("item")["change"]
    np.testing.assert_array_equal(of_last, marked - base["piqa"])
    dealt = quality.answers_of(LM, marks, KEYS, asked)[1]
    assert len(dealt[dealt["model"] == "GaussMark"]) == 9


def test_instructions_are_drawn_by_the_seed(tmp_path):
    lines = [json.dumps({"prompt": f"say {i}", "reference": "no"}) for i in range(20)]
    (tmp_path / "wishes.jsonl").write_text("\n".join(lines))
    first = quality.instructions(tmp_path, "wishes.jsonl", 5, seed=0)
    assert first == quality.instructions(tmp_path, "wishes.jsonl", 20, seed=0)[:5]
    assert first != quality.instructions(tmp_path, "wishes.jsonl", 5, seed=1)
    with pytest.raises(ParameterError, match=r"at least 21 in .*wishes\.jsonl, got 20"):
        quality.instructions(tmp_path, "wishes.jsonl", 21, seed=0)
    with pytest.raises(ParameterError, match=r"expected .*missing"):
        quality.instructions(tmp_path, "missing", 5, seed=0)


def of_items(measures, n=40, models=("GaussMark", "strong mark")) -> pd.DataFrame:
    """Changes of n items by some measures, far from 0 for the strong mark."""
    rng = np.random.default_rng(0)
    parts = [
        compare.changes(measure, model, np.arange(n) % 8, rng.normal(-i, 0.1, n))
        for measure in measures
        for i, model in enumerate(models)
    ]
    return pd.concat(parts, ignore_index=True)


def test_the_records_with_more_items_than_this_run_stand_beside_it():
    few = quality.with_references(of_items(["distinct_2"]), ["distinct_2"])
    assert sorted(few["run"].unique()) == ["SmolLM2", "doclm", "this run"]
    many = quality.with_references(of_items(["distinct_2"], n=300), ["distinct_2"])
    assert list(many["run"].unique()) == ["doclm", "this run"], "SmolLM2 has no more than 300"
    assert set(many["measure"]) == {"distinct_2"}, "and not the record's other measures"


def test_a_record_with_too_few_items_does_not_speak():
    of_record = quality.under_strong(of_items(["distinct_2"], n=300), "distinct_2")
    smollm2, doclm = runs.references(quality.JUDGED)
    assert of_record(smollm2) is None
    assert of_record(doclm).value == pytest.approx(0.0382, abs=1e-4)


def test_a_temperature_costs_the_mean_divergence_over_the_places():
    passages = tiny_models.random_ids(np.random.default_rng(1), *[9] * 5)
    table = quality.temperature_prices(LM, passages, [1.0, 1.3], batch_size=2)
    assert table["value"][0] == pytest.approx(0, abs=1e-6), "the model itself"
    slow = []
    for ids in passages:
        with torch.no_grad():
            logits = LM.model(torch.tensor([ids])).logits[0, :-1].double()
        p = logits.softmax(-1)
        q = (logits / 1.3).softmax(-1)
        kl = (q * (q / p).log()).sum(-1).mean()
        change = (p * p.log() - q * p.log()).sum(-1).mean()
        slow.append([kl.item(), change.item()])
    expected = np.mean(slow, axis=0)
    assert table.loc[1, ["value", "change"]].tolist() == pytest.approx(expected, rel=1e-3)
    assert table["n"].tolist() == [5, 5]
