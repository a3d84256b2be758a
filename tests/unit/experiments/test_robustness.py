"""Notebook 06 on a tiny model: tables against scoring one text at a time, the split into signal and
norm, one key over many texts, and the level after every edit.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models

from gaussmark_experiments import robustness
from gaussmark_lib import corrupt, score
from gaussmark_lib.beyond.schemes import GaussMark
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
    rows = table[(table["scheme"] == "KGW-2") & (table["edit"] == "substitute at random")]
    rows = rows[rows["fraction"] == 0.5]
    expected = [
        KGW(2.0, key).score(LM.model, [[]], [y])["p_value"][0]
        for y, key in zip(edited, KEYS, strict=True)
    ]
    assert rows["p_value"].tolist() == expected


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
