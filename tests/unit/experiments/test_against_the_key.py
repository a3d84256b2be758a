"""What is learnt against sums by hand, and rules, shares and one key's rates on made-up numbers."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import norm

from gaussmark_experiments import against_the_key as key
from gaussmark_lib import perturb, score
from gaussmark_lib.beyond import channel
from gaussmark_lib.beyond.attacks import askers, learning
from gaussmark_lib.beyond.joint import public
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench.pairs import Pairs, marked_and_plain

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PROMPTS, TEXTS = (tiny_models.random_ids(RNG, *[n] * 8) for n in (4, 20))
KEYS = [Key.from_seed(i) for i in range(4)]
HELD = Pairs(PROMPTS[:4], [Key.from_seed(10 + i) for i in range(4)])


def test_what_is_learnt_is_the_sum_of_gradients_and_the_law_knows_no_victim():
    learnt, sums = key.taught(LM, WM, KEYS[:2], PROMPTS, HELD, [3, 8], 12, 0)
    assert learnt[["key", "n"]].to_numpy().tolist() == [[0, 3], [0, 8], [1, 3], [1, 8]]
    for _, row in learnt.iterrows():
        xi = perturb.noise(LM.model, WM, KEYS[int(row["key"])])
        total = sums[int(row["key"])][row["n"]]
        assert row[key.MEASURED] == pytest.approx(learning.cosine(total, xi))
        assert row[key.LAW] == pytest.approx(learning.law(*row[["n", "psi", "d", "kappa"]]))
    n = float(f"{learning.texts_needed(0.5, learnt['psi'][0], learnt['d'][0]):.2g}")
    assert key.texts_needed(learnt)["cosine 0.5, if κ = 1"][0] == f"{n:,.0f} texts"
    again, _ = key.taught(LM, WM, KEYS[2:], PROMPTS, HELD, [3], 12, 0)
    assert again.loc[0, ["kappa", "psi"]].tolist() == learnt.loc[0, ["kappa", "psi"]].tolist()
    marked, _ = marked_and_plain(LM, HELD, WM, 12)
    found = score.score(LM.model, HELD.prompts, marked, WM, HELD.keys, paired=True)
    size = np.sqrt((found["grad_norm"] ** 2).mean())
    assert learnt["psi"][0] == pytest.approx((found["psi"] * found["grad_norm"]).mean() / size)
    drawn = key.drawn_on(learnt).set_index(["what", "texts"])["value"]
    assert drawn[key.MEASURED, 8] == pytest.approx(learnt[key.MEASURED][1::2].mean())
    assert drawn[key.LAW, 10_000] == pytest.approx(learnt["kappa"][0] ** -0.5, rel=0.01)


def test_text_of_a_given_noise_beside_the_keys_own():
    xi = perturb.noise(LM.model, WM, KEYS[0])
    own = key.attacked(LM, PROMPTS, WM, xi, KEYS[:2], 12, 1)
    texts, nats = learning.sample_with_noise(LM.model, PROMPTS, WM, xi, 12, seed=1)
    psi = score.score(LM.model, PROMPTS, texts, WM, KEYS[:2])["psi"].to_numpy().reshape(8, 2)
    np.testing.assert_allclose(own[["psi", "wrong"]], psi, atol=1e-4)
    np.testing.assert_allclose(own["nats"], nats, atol=1e-3)
    weights = channel.weights(LM.model, 0.1)
    sharper = score.score(LM.model, PROMPTS, texts, WM, KEYS[:1], token_weights=weights)["psi"]
    np.testing.assert_allclose(own["sharper"], sharper, atol=1e-4)
    less = key.attacked(LM, PROMPTS, WM, 0.5 * xi, KEYS[:2], 12, 1)
    both = pd.concat([own.assign(what=key.OWN, n=0), less.assign(what=key.FORGED, n=5)])
    table = key.shares(both, key.FORGED, {"ψ": "psi", "price": "nats"})
    assert table[["texts", "of", "n"]].to_numpy().tolist() == [[5, "ψ", 8], [5, "price", 8]]
    of_psi, of_price = table["value"]
    assert of_psi == pytest.approx(less["psi"].mean() / own["psi"].mean())
    assert 0 < of_price < of_psi < 1


def test_each_rule_on_psi_that_is_given():
    texts, level = [list(range(20)), [*range(19), 5], list(range(40, 60))], 0.05
    psi = np.array([[2.1, 0.0, 1.7], [2.5, 0.0, 0.0], [0.0, 0.0, 1.7], [0.0, 2.3, 2.5]])
    table = key.verdicts(texts, psi, level).set_index("rule")
    assert table.loc[key.INHERITED, "last"].tolist() == [True, True, True, True]
    assert table.loc[key.ALONE, "last"].tolist() == [True, False, True, True]
    assert table.loc[key.PUBLIC, "last"].tolist() == [False, False, False, True]
    assert table.loc[key.PUBLIC, "any"].tolist() == [False, True, False, True]
    washed = key.verdicts(texts, psi, level, np.all).set_index("rule")
    assert not washed.loc[key.INHERITED, "last"].any()
    first = (norm.sf(psi[:, -1]) <= public.level_of(1, level)).tolist()
    assert first == table.loc[key.ALONE, "first"].tolist() == [False, False, False, True]


def test_a_climber_gains_by_numbers():
    given = [[i] for i in range(1, 41)], [1, 40], 20
    table = key.climbs(LM, HELD, TEXTS[:4], WM, 6, 0.05, 0, given)
    by_answers = table.groupby("answers")["psi"].mean()
    assert by_answers["ψ"] > by_answers["none, 40 marked"] > by_answers["none"] + 0.3
    psi = table[table["answers"] == "ψ"]["psi"]
    before = score.score(LM.model, HELD.prompts, TEXTS[:4], WM, HELD.keys, paired=True)["psi"]
    assert (psi.to_numpy() > before + 0.3).all()
    once = table[table["answers"] != "yes or no"]  # a first question about the last text
    yes = norm.sf(once["psi"]) <= public.level_of(1, 0.05)
    assert once["accused"].tolist() == yes.tolist()
    assert any(yes), "otherwise this tests nothing"
    control = table[table["answers"] == "none"]
    assert (psi.to_numpy() > control["psi"].to_numpy()).all()
    assert not control["accused"].any()


def test_a_keys_rate_follows_from_the_cosines_alone():
    """Of texts with unequal cosines, where one factor for all would be wrong, against a simulation
    of keys and further texts.
    """
    own, n = np.tile([0.9, 0.3], 60), 60
    K = np.outer(own, own) + np.diag(1 - own**2)
    table, k = key.by_key(K[:n, :n], [f"file {i % 40}" for i in range(n)], [1e-2, 1e-3])
    np.testing.assert_allclose(k, askers.loadings(K[:n, :n]))
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(2 * n), K, 40_000)
    z0 = askers.common(psi[:, :n], K[:n, :n])
    near = psi[abs(z0 - 2) < 0.05][:, n:]
    [row] = table[(table["z0"] == 2) & (table["level"] == "0.01")].to_dict("records")
    assert row["value"] == pytest.approx((near >= norm.isf(0.01)).mean(), rel=0.1)
    assert row["low"] < row["value"] < row["high"]
    assert row["n"] == 40
    over_keys = (table["value"] * norm.pdf(table["z0"])).groupby(table["level"]).sum()
    assert over_keys["0.01"] == pytest.approx(0.01, rel=0.15)


def test_an_unrelated_key_gets_a_caution_only_if_its_interval_excludes_0():
    caution = key.noted(Estimate(0.4, 0.1, 0.8, 8), 1)
    assert caution.startswith(" The second interval excludes 0.")
    assert "a single unrelated key:" in caution
    assert "only 2 unrelated keys:" in key.noted(Estimate(-1, -2, -0.1, 8), 2)
    for low, high in ((-0.1, 0.8), (float("nan"), float("nan"))):
        assert key.noted(Estimate(0.4, low, high, 8), 1) == ""


def test_registered_letters_keep_the_level_of_a_first_query():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 4_000, (4, 48)).tolist()
    psi = 4 + rng.standard_normal(300)
    table = key.of_letters(texts, psi, 40, 0.05, seed=1)
    of_rule = {rule: rows.set_index("letter") for rule, rows in table.groupby("rule")}
    unregistered, registered = of_rule[key.UNREGISTERED], of_rule[key.REGISTERED]
    first = public.level_of(1, 0.05)
    assert (registered["level"] == first).all()
    expected = [public.level_of(int(place), 0.05) for place in unregistered.index]
    assert unregistered["level"].tolist() == expected, "all letters are one neighbourhood"
    for rows in of_rule.values():
        for row in rows.itertuples():
            assert row.value == (norm.sf(psi) <= row.level).mean()
    assert registered.loc[40, "value"] > unregistered.loc[40, "value"] + 0.2
    assert key.last_letters(table)[key.REGISTERED]["level"] == first


def test_letters_share_a_fifth_of_their_runs():
    texts = np.random.default_rng(0).integers(0, 4_000, (4, 48)).tolist()
    written, template = key.letters(texts, 5, 48, seed=0)
    first, second, common = (set(public.runs(text)) for text in (*written[:2], template))
    assert first & second == common
    assert len(common) == 10 == np.ceil(46 / 5)
