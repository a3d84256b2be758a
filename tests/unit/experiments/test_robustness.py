"""Notebook 06 on a tiny model: tables against scoring one text at a time, the split into signal and
norm, one key over many texts, and the level after every edit.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_experiments import robustness
from gaussmark_lib import corrupt, generate, score
from gaussmark_lib.beyond.schemes import GaussMark, SynthID, TokenKeys
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import rewrite  # noqa: F401 - registers edits that need a model
from gaussmark_lib.workbench.pairs import Pairs

LM = tiny_lm.build()
KEYS = [Key.from_seed(40 + i) for i in range(6)]
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.15)
SCHEMES = {"GaussMark": GaussMark(WM, KEYS[0]), "KGW-2": KGW(2.0, KEYS[0])}
PAIRS = Pairs(tiny_models.random_ids(np.random.default_rng(0), *[5] * 6), KEYS)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), *[20] * 6)
CHANGES = corrupt.named(LM)


@pytest.fixture(scope="module")
def texts():
    return {
        name: scheme.generate(LM.model, PAIRS.prompts, 30, keys=KEYS, seed=1)
        for name, scheme in SCHEMES.items()
    }


@pytest.fixture(scope="module")
def table(texts):
    chosen = {name: CHANGES[name] for name in ("substitute at random", "no prompt")}
    return robustness.edited(LM, SCHEMES, PAIRS, texts, chosen, [0.5, 1.0], seed=2)


def test_each_text_is_written_and_tested_under_its_pairs_key(texts, table):
    assert len(table) == 2 * (1 + 2 * 2) * 6
    own = table[(table["scheme"] == "GaussMark") & (table["edit"] == "no prompt")]
    for i, key in enumerate(KEYS):
        expected = score.score(LM.model, [[]], [texts["GaussMark"][i]], WM, [key]).loc[0]
        [found] = own[(own["pair"] == i) & (own["fraction"] == 1.0)].itertuples()
        assert found.psi == pytest.approx(expected["psi"], abs=2e-4)
        assert found.signal == pytest.approx(expected["psi"] * expected["grad_norm"], abs=0.02)
        of_key = KGW(2.0, key).generate(LM.model, PAIRS.prompts, 30, seed=1)
        assert of_key[i] == texts["KGW-2"][i]
    _, edited = CHANGES["substitute at random"](PAIRS.prompts, texts["KGW-2"], 0.5, 2)
    rows = table.query("scheme == 'KGW-2' and edit == 'substitute at random' and fraction == 0.5")
    expected = [
        KGW(2.0, key).score(LM.model, [[]], [y])["p_value"][0]
        for y, key in zip(edited, KEYS, strict=True)
    ]
    assert rows["p_value"].tolist() == expected


def test_tests_of_one_text_share_its_pass_and_give_what_each_gives_alone(texts, monkeypatch):
    """Also where only some noises are held at a time, and at several lengths."""
    sharper = GaussMark(WM, KEYS[0], robustness.SHARPER, edited=0.1)
    tried = {"GaussMark": SCHEMES["GaussMark"], robustness.SHARPER: sharper}
    both = robustness.edited(
        LM, tried, PAIRS, dict.fromkeys(tried, texts["GaussMark"]), {}, [], seed=2
    )
    monkeypatch.setattr(robustness, "HELD", 1)  # 4 noises at a time
    owner = [5, 0, 3, 1, 4, 2]
    x = [PAIRS.prompts[i] for i in owner]
    y = [texts["GaussMark"][i] for i in owner]
    tables = robustness.under_own_keys(LM, [*tried.values()], KEYS, x, y, owner, lengths=[7, 30])
    for (name, scheme), table in zip(tried.items(), tables, strict=True):
        alone = scheme.score(LM.model, PAIRS.prompts, texts["GaussMark"], KEYS)
        of_all = both[both["scheme"] == name]
        np.testing.assert_allclose(of_all["psi"], alone["statistic"], atol=2e-4)
        np.testing.assert_allclose(of_all["norm"], alone["grad_norm"], rtol=1e-4)
        own = [KEYS[i] for i in owner]
        for n in (7, 30):
            firsts = [ids[:n] for ids in y]
            expected = scheme.score(LM.model, x, firsts, own)
            found = table[table["n_tokens"] == n]
            for column in ("statistic", "p_value", "log10_p"):
                np.testing.assert_allclose(found[column], expected[column], rtol=1e-3, atol=2e-4)


def test_schemes_that_write_at_once_write_what_each_writes_alone():
    """Over several batches, which cut through the schemes; at temperature 0 SynthID is plain."""
    tried = {
        "SynthID": SynthID(KEYS[0], depth=4),
        "GaussMark": SCHEMES["GaussMark"],
        robustness.SHARPER: GaussMark(WM, KEYS[0], robustness.SHARPER, edited=0.1),
        "stronger": GaussMark(replace(WM, sigma=0.3), KEYS[0]),
        "KGW-2": SCHEMES["KGW-2"],
        "token keys": TokenKeys(replace(WM, weight="model.layers.2.mlp.down_proj.weight"), KEYS[0]),
    }
    for temperature in (0, 0.8):
        options = {"seed": 3, "temperature": temperature}
        written = robustness.texts_by_scheme(LM, tried, PAIRS, 10, batch_size=4, **options)
        assert list(written) == list(tried)
        for name, scheme in tried.items():
            alone = scheme.generate(LM.model, PAIRS.prompts, 10, keys=KEYS, **options)
            same = np.mean([a == b for a, b in zip(alone, written[name], strict=True)])
            assert same >= 5 / 6, f"{name}: all but for rounding"
        plain = generate.sample(LM.model, PAIRS.prompts, 10, **options)
        assert (written["SynthID"] == plain) == (temperature == 0)


def test_signal_norm_and_psi_are_ratios_of_means():
    rows = [
        {"edit": edit, "fraction": fraction, "pair": i, "psi": psi, "norm": norm}
        for edit, fraction, psi, norm in (("unedited", 0.0, 4.0, 1.0), ("delete", 0.5, 1.0, 2.0))
        for i in range(4)
    ]
    table = pd.DataFrame(rows)
    parts = robustness.parts(table.assign(signal=table["psi"] * table["norm"]))
    found = parts.set_index(["edit", "fraction", "part"])["value"]
    for part, share in {"psi": 0.25, "norm": 2.0, "signal": 0.5}.items():
        assert found["delete", 0.5, robustness.PARTS[part]] == pytest.approx(share)
        assert found["delete", 0.0, robustness.PARTS[part]] == 1
    assert found["predicted", 0.5, robustness.PARTS["norm"]] == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("lost", "added", "surprise"),
    [(0.5, 0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 1.0, 5.0), (0.3, 0.3, 2.0)],
)
def test_the_toy_follows_the_law_without_contexts(lost, added, surprise):
    """Signal 1 − lost, squared norm 1 − lost + added · surprise; the vectors are nearly orthogonal,
    to √(n/dimension).
    """
    expected = (1 - lost) / np.sqrt(1 - lost + added * surprise)
    assert robustness.toy(lost, added, surprise) == pytest.approx(expected, abs=0.04)


@pytest.mark.usefixtures("no_table_of_selfhash")
def test_false_alarms_are_counted_over_fresh_keys():
    """Against scoring one text under one key at a time."""
    chosen = {name: CHANGES[name] for name in ("no prompt", "delete at random")}
    found = robustness.false_alarms(
        LM, SCHEMES, PAIRS.prompts, RESPONSES, chosen, 0.3, keys_per_text=8, seed=0
    )
    assert len(found) == 2 * 2 * 2
    for row in found[found["level"] == 0.05].itertuples():
        x, y = CHANGES[row.edit](PAIRS.prompts, RESPONSES, 0.3, 0)
        alarms = []
        for i in range(6):
            for j in range(8):
                key = Key.from_seed(500_000 + 8 * i + j)
                scheme = GaussMark(WM, key) if row.scheme == "GaussMark" else KGW(2.0, key)
                alarms.append(scheme.score(LM.model, [x[i]], [y[i]])["p_value"][0] <= 0.05)
        assert (row.value, row.n) == (pytest.approx(np.mean(alarms)), 48)


def test_a_quotation_lands_unchanged_in_every_gap_of_its_host():
    found = set()
    for seed in range(60):
        _, [out] = robustness.quoted([list(range(9))])([[5]], [[50, 51]], 0.6, seed)
        at = out.index(50)
        assert (out[at : at + 2], out[:at] + out[at + 2 :]) == ([50, 51], [0, 1, 2])
        found.add(at)
    assert found == {0, 1, 2, 3}


def made_up_table():
    """ψ of six pairs by two tests: an edit leaves 1 of 4, and the sharper test brings back 1."""
    versions = [
        ("GaussMark", "unedited", 0.0, 4.0),
        ("GaussMark", "substitute", 0.3, 1.0),
        ("GaussMark", "delete", 0.3, 3.0),
        ("GaussMark", "insert", 0.3, 2.0),
        ("GaussMark", "quoted", 0.3, 2.0),
        (robustness.SHARPER, "unedited", 0.0, 4.0),
        (robustness.SHARPER, "substitute", 0.3, 2.0),
    ]
    table = pd.DataFrame(versions, columns=["scheme", "edit", "fraction", "psi"])
    table = table.merge(pd.DataFrame({"pair": range(6)}), how="cross")
    return table.assign(psi=table["psi"] + table["pair"])


def test_an_edit_is_compared_with_the_worst_and_the_best_of_the_others():
    psi = robustness.psi_after(made_up_table(), 0.3)
    others = ["delete", "insert"]
    assert robustness.less_worst(psi, "substitute", others).value == pytest.approx(1.0)
    assert robustness.less_worst(psi, "insert", ["delete"]).value == pytest.approx(1.0)
    means = robustness.mean_psi(made_up_table().assign(run="doclm"), 0.3)
    assert means.loc["doclm", "unedited"] == 6.5
    assert list(means.columns)[:2] == ["unedited", "substitute"]


def test_what_the_sharper_test_brings_back_is_a_share_of_the_loss():
    assert robustness.recovered(made_up_table(), "substitute", 0.3).value == pytest.approx(1 / 3)
    with pytest.raises(KeyError):
        robustness.recovered(made_up_table(), "no such edit", 0.3)
    assert robustness.quoted_in_words(made_up_table(), 0.36) == "no quotations at this strength"
    assert "leaves 69% of the mean ψ (n = 6)" in robustness.quoted_in_words(made_up_table(), 0.3)
