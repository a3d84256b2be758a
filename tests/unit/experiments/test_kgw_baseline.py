"""Notebook 08 on a tiny model: each table against one text, one key and one scheme at a time."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch
from scipy.stats import binomtest, norm

from gaussmark_experiments import kgw_baseline, quality, robustness
from gaussmark_experiments.kgw_baseline import CONTROL, NO_PROMPT, attained
from gaussmark_experiments.one_key_in_production import Human
from gaussmark_lib import divergence, generate, likelihood, perturb, score
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.kgw import exact_tail
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.pairs import Pairs

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
LM = tiny_lm.build()
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.3)
KEYS = [Key.from_seed(i) for i in range(4)]
PAIRS = Pairs(tiny_models.random_ids(np.random.default_rng(0), *[5] * 4), KEYS)
TRIED = kgw_baseline.contenders(WM, KEYS[0], context=3, depth=4)
TESTS = kgw_baseline.tests_of(TRIED)


@pytest.fixture(scope="module")
def written():
    return robustness.texts_by_scheme(LM, TRIED, PAIRS, 20, seed=1)


def test_beginnings_are_tested_each_under_its_own_key(written):
    table = kgw_baseline.by_length(LM, TRIED, PAIRS, written, [8, 20])
    assert len(table) == 5 * 2 * 4
    for name in ("GaussMark", "SynthID"):
        row = table.query("scheme == @name and n_tokens == 8 and text == 2")
        first = [written[name][2][:8]]
        alone = replace(TRIED[name], key=KEYS[2]).score(LM.model, PAIRS.prompts[2:3], first)
        assert row["p_value"].item() == pytest.approx(alone["p_value"].item(), rel=1e-3)


def test_a_test_without_the_prompt(written):
    table = kgw_baseline.with_and_without_prompt(LM, TRIED, PAIRS, written, [8, 20])
    assert (len(table), table["scheme"].nunique()) == (6 * 2 * 4, 6)
    alone = score.score(LM.model, [[]], [written["GaussMark"][2][:8]], WM, KEYS[2:3])
    row = table[table["scheme"] == NO_PROMPT].query("text == 2 and n_tokens == 8")
    assert row["p_value"].item() == pytest.approx(alone["p_value"].item(), rel=1e-3)


def test_the_worst_key_of_independent_texts_passes_its_point_in_one_case_of_20_at_most():
    rng, n_keys, n = np.random.default_rng(0), 12, 40
    worst = rng.binomial(n, 0.05, (20_000, n_keys)).max(1) / n
    point = kgw_baseline.worst_by_chance(n_keys, n, 0.05)
    assert (worst > point).mean() < 0.055
    assert (worst >= point).mean() > 0.05, "and no smaller one does"


def made_up(**medians) -> pd.DataFrame:
    """log₁₀ p of nine texts by scheme at 10, 20 and 40 tokens, with these medians."""
    rng = np.random.default_rng(0)
    rows = [
        {"scheme": name, "text": text, "n_tokens": n, "log10_p": center + noise}
        for name, centers in medians.items()
        for text, noise in enumerate([0.0, *rng.normal(0, 0.3, 4), *rng.normal(0, 0.3, 4)])
        for n, center in zip((10, 20, 40), centers, strict=True)
    ]
    return pd.DataFrame(rows)


def test_tokens_are_needed_until_half_of_the_texts_are_detected():
    table = made_up(a=[-1.0, -3.0, -7.0], b=[-3.0, -5.0, -7.0], c=[-0.1, -0.2, -0.3])
    for level in (1e-2, 1e-6):
        medians = table[table["scheme"] == "a"].groupby("n_tokens")["log10_p"].median()
        expected = np.interp(-np.log10(level), -medians, [10, 20, 40])
        assert kgw_baseline.tokens_needed(table, "a", level) == pytest.approx(expected)
    assert kgw_baseline.tokens_needed(table, "a", 1e-12) == 41, "not within the longest"
    assert kgw_baseline.tokens_needed(table, "b", 1e-2) == 10, "that or fewer"
    ratio = kgw_baseline.times_as_many(table, "a", "b", 1e-6)
    parts = [kgw_baseline.tokens_needed(table, name, 1e-6) for name in "ab"]
    assert ratio.value == pytest.approx(parts[0] / parts[1])
    assert (ratio.n, ratio.low <= ratio.value <= ratio.high) == (9, True)
    needed = kgw_baseline.needed_by_scheme(table, 1e-2).set_index("scheme")
    assert needed["is_limit"].to_dict() == {"a": False, "b": True, "c": True}
    assert needed["in_words"].to_dict() == {"a": "15", "b": "at most 10", "c": "more than 40"}
    assert needed.loc["a", "low"] < needed.loc["a", "value"] < needed.loc["a", "high"]
    assert (needed.loc["b", "low"], needed.loc["c", "high"]) == (0, np.inf)


def test_two_lower_limits_have_no_ratio():
    table = made_up(a=[-0.1, -0.2, -0.3], b=[-0.2, -0.3, -0.4], c=[-3.0, -5.0, -7.0])
    neither = kgw_baseline.times_as_many(table, "a", "b", 1e-2)
    assert np.isnan([neither.value, neither.low, neither.high]).all()
    assert kgw_baseline.times_as_many(table, "a", "c", 1e-2).value == 4.1


def test_costs_are_those_of_one_text_at_a_time(written):
    plain = [generate.sample(LM.model, PAIRS.prompts, 20, seed=seed) for seed in (7, 8, 9)]
    change = kgw_baseline.changes(LM, PAIRS, written, plain)
    assert list(change) == [CONTROL, *TRIED]

    def nats(text):
        return likelihood.cross_entropy(LM.model, [text], prompts=PAIRS.prompts[1:2])[0]

    base = (nats(plain[1][1]) + nats(plain[2][1])) / 2
    assert change[CONTROL][1] == pytest.approx(nats(plain[0][1]) - base, abs=1e-5)
    assert change["KGW-2"][1] == pytest.approx(nats(written["KGW-2"][1]) - base, abs=1e-5)
    kl = kgw_baseline.divergences(LM, TRIED, PAIRS.first(2), written)
    assert kl[CONTROL].tolist() == [0, 0]
    for name in ("GaussMark", "Gumbel-max"):
        scheme, own = replace(TRIED[name], key=KEYS[1]), written[name][1:2]
        alone = scheme.divergences(LM.model, PAIRS.prompts[1:2], own)[0] / 20
        assert kl[name][1] == pytest.approx(alone, rel=1e-3)


def test_a_keys_false_alarms_are_counted_over_texts():
    responses = tiny_models.random_ids(np.random.default_rng(1), *[20] * 4)
    human = {"random": Human(PAIRS.prompts, responses, ["file"] * 4)}
    table = kgw_baseline.one_key(LM, TESTS, human, KEYS[:3], level=0.4)
    assert len(table) == len(TESTS) * 3
    for name, test in TESTS.items():
        alone = replace(test, key=KEYS[1]).score(LM.model, PAIRS.prompts, responses)
        row = table[(table["scheme"] == name) & (table["key"] == 1)]
        assert row["share"].item() == (alone["p_value"] <= 0.4).mean()
    said = kgw_baseline.of_one_key(table)
    worst = table[table["scheme"] == "GaussMark"]["share"].max()
    assert f"**GaussMark** {worst:.0%} of random; " in said
    assert f"would be at most {kgw_baseline.worst_by_chance(3, 4, 0.05):.0%}" in said


def test_a_sentence_names_the_schemes_that_need_fewer_tokens():
    times = {"a": Estimate(2.0, 1.5, 3.0, 9), "b": Estimate(1.1, 0.5, 3.0, 9)}
    needed = {"GaussMark": [24.0, 99], "a": [12.0, 99], "b": [50.0, 99]}
    said = kgw_baseline.in_tokens(needed, times, [8, 40])
    assert "**GaussMark** 24; **a** 12; **b** more than 40." in said
    assert "more tokens than: a (2.0 times as many). With so few pairs" in said
    never = kgw_baseline.in_tokens(needed | {"GaussMark": [41.0, 99]}, times, [8, 40])
    assert "more tokens than: a (at least 2.0 times as many)." in never
    assert "GaussMark's number and that of b are both lower limits" in never
    at_once = kgw_baseline.in_tokens(needed | {"a": [8.0, 99]}, times, [8, 40])
    assert "a (at least 2.0 times as many)" in at_once, "the other number is an upper limit"
    no_scheme = kgw_baseline.in_tokens(needed, {"b": Estimate(1.1, 0.5, 3.0, 300)}, [8, 40])
    assert no_scheme.endswith("significantly more tokens than: no scheme.")


@pytest.mark.parametrize("name", ["GaussMark", "KGW-2"])
def test_transformers_own_search_writes_what_ours_does(name):
    scheme, before = TRIED[name], LM.model.get_parameter(WM.weight).clone()
    prompt, key = PAIRS.prompts[3], KEYS[3]
    [ours] = scheme.generate(LM.model, [prompt], 12, keys=[key], temperature=0)
    assert kgw_baseline.stock_generate(LM, scheme, prompt, key, 12) == ours
    assert len(kgw_baseline.stock_generate(LM, scheme, prompt, key, 12, beams=3)) == 12
    assert torch.equal(LM.model.get_parameter(WM.weight), before)


def test_the_attained_level_is_the_share_of_simulated_counts_that_reject():
    greens = np.random.default_rng(0).binomial(120, 0.25, size=200_000)
    exact = exact_tail(greens, np.full(len(greens), 120), 0.25)["p_value"]
    normal = norm.sf((greens - 30) / 22.5**0.5)
    for level in (0.05, 0.01, 0.001):
        for test, p in (("exact", exact), ("z", normal)):
            expected = attained(120, 0.25, level, test)
            assert binomtest(int((p <= level).sum()), len(p), expected).pvalue > 1e-3
        assert attained(120, 0.25, level) <= level
    assert attained(120, 0.25, 0.001, "z") > 0.0013, "the normal tail is too small"


def test_a_price_that_was_solved_for_is_the_rivals():
    plain = generate.sample(LM.model, PAIRS.prompts, 12, seed=3)
    wanted = kgw_baseline.prices_along(LM, TRIED["KGW-1"], PAIRS, plain)["kl"].mean()
    wm = kgw_baseline.at_equal_price(LM, WM, TRIED["KGW-1"], PAIRS, plain, "kl")
    found = kgw_baseline.prices_along(LM, replace(TRIED["GaussMark"], wm=wm), PAIRS, plain)
    assert found["kl"].mean() == pytest.approx(wanted, rel=0.1)


def next_token(prompt, text, name, key, sign, temperature):
    """The distribution at each place of a text: of the base model, and under a key at τ."""
    p, q = [], []
    for t in range(len(text)):
        ids = torch.tensor([prompt + text[:t]])
        with torch.no_grad():
            logits = LM.model(ids).logits[0, -1].double()
            p.append(logits.softmax(-1))
            if name == "GaussMark":
                xi = sign * perturb.noise(LM.model, WM, key)
                with perturb.moved(WM.on(LM.model), [xi]):
                    logits = LM.model(ids).logits[0, -1].double()
                q.append((logits / temperature).softmax(-1))
            else:
                process = replace(TRIED[name], key=key).processor(LM.model)
                q.append(process(ids, (logits / temperature)[None].float())[0].softmax(-1))
    return torch.stack(p), torch.stack(q).double()


@pytest.mark.parametrize("name", ["GaussMark", "KGW-1"])
def test_prices_along_a_plain_text_are_those_of_each_noise_by_hand(name):
    """KL(q ‖ p), and −Σ q log p less the entropy, at each place; of noise for ξ and −ξ."""
    plain = generate.sample(LM.model, PAIRS.prompts, 12, seed=3)
    table = kgw_baseline.prices_along(LM, TRIED[name], PAIRS, plain)
    kl = []
    change = []
    for sign in (1, -1):
        p, q = next_token(PAIRS.prompts[1], plain[1], name, KEYS[1], sign, 1.0)
        kl.append((q * (q.log() - p.log())).sum(-1).mean().item())
        change.append(((p - q) * p.log()).sum(-1).mean().item())
    assert table["kl"][1] == pytest.approx(np.mean(kl), rel=1e-3)
    assert table["change"][1] == pytest.approx(np.mean(change), abs=2e-5)


@pytest.mark.parametrize("name", ["GaussMark", "KGW-2"])
def test_the_distance_over_keys_is_the_mean_over_pairs_of_keys_by_hand(name):
    """Text 2 takes the keys 2, 3 and 0: differences of two keys are multiplied, never squared."""
    plain = generate.sample(LM.model, PAIRS.prompts, 6, seed=3)
    scheme = TRIED[name]
    found = kgw_baseline.distances_over_keys(LM, scheme, PAIRS, plain, [1.0, 0.8], n_keys=3)
    for temperature in (1.0, 0.8):
        differences = []
        for number in (2, 3, 0):
            both = [
                next_token(PAIRS.prompts[2], plain[2], name, KEYS[number], sign, temperature)
                for sign in (1, -1)
            ]
            p = both[0][0]
            differences.append((both[0][1] + both[1][1]) / 2 - p)
        products = [
            (differences[i] * differences[j] / p).sum().item() / (2 * 6)
            for i in range(3)
            for j in range(3)
            if i != j
        ]
        assert found[temperature][2] == pytest.approx(np.mean(products), rel=1e-3, abs=1e-6)
    table = kgw_baseline.distances(LM, TRIED, {name: 0.8}, PAIRS.first(3), plain, n_keys=9)
    assert table["text"].tolist() == [0, 1, 2], "with three keys, as there are no more"
    left = kgw_baseline.distance_left(table, name)
    assert left.value == pytest.approx(table["after"].mean() / table["before"].mean())


def test_the_chosen_temperature_cancels_the_change_of_the_next_token(monkeypatch):
    """Up to the second order, which is small for a weak watermark."""
    plain = generate.sample(LM.model, PAIRS.prompts, 12, seed=3)
    monkeypatch.setattr(kgw_baseline, "_pilot", lambda *_, **__: (PAIRS, plain))
    weak = replace(TRIED["GaussMark"], wm=replace(WM, sigma=0.1))
    tried = {"GaussMark": weak}
    chosen = kgw_baseline.cancelling_temperatures(LM, tried, "docs", 4, 5, 12)
    before = kgw_baseline.prices_along(LM, weak, PAIRS, plain)["change"].mean()
    left = []
    for prompt, text, key in zip(PAIRS.prompts, plain, KEYS, strict=True):
        inputs, _ = divergence.laid_out(LM.model, [(prompt, text)])
        logits = divergence.logits(LM.model, inputs, 12)
        [marked] = kgw_baseline._marked_logits(LM, weak, key, inputs, logits, [chosen["GaussMark"]])
        log_p = logits.log_softmax(-1)
        surprisal = [-(q.softmax(-1) * log_p).sum().item() for q in marked]
        left.append(np.mean(surprisal) - torch.special.entr(log_p.exp()).sum().item())
    assert abs(np.mean(left) / 12) < 0.15 * abs(before)


@pytest.fixture(scope="module")
def correction(written):
    """The table of texts at temperature 0.2, where text is far from plain."""
    plain = [generate.sample(LM.model, PAIRS.prompts, 20, seed=seed) for seed in (7, 8)]
    table = kgw_baseline.corrected(LM, TRIED, {"GaussMark": 0.2}, PAIRS, written, plain, seed=1)
    return plain, table


def test_corrected_texts_are_measured_against_plain_texts_at_temperature_1(correction):
    plain, table = correction
    means = table.groupby(["measure", "model"])["change"].mean()
    assert means["Δ cross-entropy over keys", "GaussMark, cooler"] < -1, "it is far below 1"
    assert means["Δ cross-entropy over keys", "plain, as GaussMark, cooler"] < -1
    options = {"keys": KEYS, "temperature": 0.2, "seed": 1}
    texts = TRIED["GaussMark"].generate(LM.model, PAIRS.prompts, 20, **options)
    nats = [
        likelihood.cross_entropy(LM.model, draw, prompts=PAIRS.prompts)
        for draw in (texts, plain[1])
    ]
    left = kgw_baseline.change_left(table, "GaussMark")
    assert left.value == pytest.approx((nats[0] - nats[1]).mean(), abs=1e-4)
    psi = TRIED["GaussMark"].score(LM.model, PAIRS.prompts, texts, KEYS)["statistic"]
    assert means["statistic", "GaussMark, cooler"] == pytest.approx(psi.mean(), rel=1e-3)
    kept = kgw_baseline.kept_statistic(table, "GaussMark")
    assert kept.value == pytest.approx(psi.mean() / means["statistic", "GaussMark"], rel=1e-3)
    n_models = table.groupby("measure")["model"].nunique().to_dict()
    assert n_models.pop("statistic") == 2, "of marked texts alone"
    assert n_models == dict.fromkeys(
        ["Δ cross-entropy over keys", "classifier", "distinct_2", "length"], 4
    )
    assert not table.duplicated(["measure", "model", "key"]).any()


def test_a_scheme_costs_as_much_as_a_temperature(written):
    """By hand for one scheme."""
    plain = [generate.sample(LM.model, PAIRS.prompts, 20, seed=seed) for seed in (7, 8)]
    change = kgw_baseline.changes(LM, PAIRS, written, plain)
    table = quality.equivalent_temperatures(LM, PAIRS.prompts, change, plain)
    assert table["scheme"].tolist() == [CONTROL, *TRIED]
    found = divergence.surprisal(LM.model, PAIRS.prompts * 2, plain[0] + plain[1])
    slope = divergence.temperature_slopes(found).mean()
    row = table.set_index("scheme").loc["KGW-2"]
    assert row["value"] == pytest.approx(1 + change["KGW-2"].mean() / slope)
    assert row["n"] == 4


def test_mean_entropies_at_a_temperature_are_those_of_its_distribution():
    texts = tiny_models.random_ids(np.random.default_rng(2), 6, 9, 9, 3)
    found = kgw_baseline.entropies(LM, PAIRS.prompts, texts, (1.0, 0.5, 0.0), batch_size=3)
    of_one = likelihood.entropies(LM.model, PAIRS.prompts, texts)
    np.testing.assert_allclose(found[0], [nats.mean() for nats in of_one], rtol=1e-4)
    assert (found[2] == 0).all()
    with torch.no_grad():
        logits = LM.model(torch.tensor([PAIRS.prompts[3] + texts[3]])).logits[0, 4:7].double()
    p = generate.probabilities(logits, 1.0, 0.5)
    assert found[1][3] == pytest.approx(torch.special.entr(p).sum(-1).mean().item(), rel=1e-4)


def cooled(ours: list[float], theirs: list[float]) -> pd.DataFrame:
    """Forty texts at the freedoms 0, 1, 2, …, of which these shares are detected."""
    rows = [
        (scheme, float(i), share, text)
        for scheme, shares in (("a", ours), ("b", theirs))
        for i, share in enumerate(shares)
        for text in range(40)
    ]
    table = pd.DataFrame(rows, columns=["scheme", "freedom", "share", "text"])
    offset = table["text"] / 100
    is_hit = table["text"] < 40 * table["share"]
    return table.assign(
        temperature=table["freedom"],
        entropy=table["freedom"] + offset,
        statistic=table["freedom"] - offset,
        p_value=np.where(is_hit, 0.001, 0.5),
    )


def test_curves_cross_where_the_difference_of_the_shares_is_0():
    table = cooled([0.5, 0.6, 0.7], [0.0, 0.5, 1.0])
    crossing = kgw_baseline.crossing(table, "a", "b", 0.01)
    assert crossing.value == pytest.approx(1.25)  # +.1 at 1, −.3 at 2
    assert (crossing.n, crossing.low <= crossing.value <= crossing.high) == (40, True)
    named = table.replace({"a": "GaussMark", "b": "SynthID"})
    assert f"**SynthID** {crossing}" in kgw_baseline.crossings_in_words(named)
    assert kgw_baseline.crossing(cooled([0.5, 0.6], [0.5, 0.9]), "a", "b", 0.01).value == 0
    assert kgw_baseline.crossing(cooled([0.5, 0.6], [0.0, 0.5]), "a", "b", 0.01).value == 1
    table = cooled([0.5], [0.0])
    assert np.isnan(kgw_baseline.ratio_of_shares(table, "a", "b", 0.01).value)
    assert kgw_baseline.ratio_of_shares(table, "b", "a", 0.01).value == 0
    assert kgw_baseline.rank_correlation(cooled([0.5, 0.6, 0.7], [0.0] * 3), "a").value > 0.7


def test_requests_are_of_three_kinds_by_turns():
    kinds, prompts = kgw_baseline.requests(LM, 120)
    assert kinds[:4] == ["code", "list", "chat", "code"]
    assert len({tuple(ids) for ids in prompts}) == 120
    assert prompts[0] == LM.prompt("Write a Python function that reverses a string.")
    with pytest.raises(InvalidTextError, match="at most 120 requests, got 121"):
        kgw_baseline.requests(LM, 121)


def test_the_table_of_temperatures_has_each_text_under_its_own_key():
    tried = {name: TRIED[name] for name in ("GaussMark", "KGW-2")}
    table = kgw_baseline.at_temperatures(LM, tried, PAIRS, 10, [0.0, 0.5], batch_size=8, seed=2)
    scheme = TRIED["KGW-2"]
    texts = scheme.generate(LM.model, PAIRS.prompts, 10, keys=KEYS, temperature=0.5, seed=2)
    expected = scheme.score(LM.model, PAIRS.prompts, texts, KEYS)["statistic"]
    rows = table.query("scheme == 'KGW-2' and temperature == 0.5")
    assert rows["statistic"].tolist() == pytest.approx(expected.tolist())
    assert table.query("temperature == 0")["freedom"].tolist() == [0] * 8
    assert (table["entropy"] > 0).all()


REFERENCE = runs.references("08_kgw_baseline")[-1]  # on doclm
TABLES = {name: REFERENCE.table(name) for name in ("lengths", "costs", "edits", "ways", "one_key")}


def test_the_first_table_says_where_gaussmark_loses_and_wins():
    found = kgw_baseline.measures(**TABLES)
    compared = {measure: kgw_baseline.outcomes(rows) for measure, rows in found.groupby("measure")}
    assert compared["detection after an edit"]["KGW-1"] == "loses to"
    assert compared["detection at temperature 0"]["SynthID"] == "wins against"
    assert compared["cost over keys"]["KGW-1"] == "loses to", "a larger cost is worse"
    assert compared["KL under one key"]["KGW-2"] == "wins against", "a smaller KL is better"
    assert "KGW-1" not in compared["KL under one key"], "σ was solved for it"
    assert compared["tokens needed"]["KGW-1"] == "does not clearly differ from"
    assert compared["false alarms of one key"] == {}, "without intervals"


def test_the_ways_of_old_and_new_records_are_the_same():
    ways = kgw_baseline.ways_of(TABLES["ways"])
    assert set(ways["way"]) == {"temperature 1", "temperature 0", "beam search"}
    assert NO_PROMPT not in set(ways["scheme"])
    few = TABLES["ways"].assign(n=9)
    assert "beam search" not in set(kgw_baseline.ways_of(few)["way"]), "too few to draw"
    assert ways[ways["way"] == "beam search"]["n"].tolist() == [10, 10]
