"""What notebook 09 reads from tables of Γ_k: against loops over single texts, and closed forms."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
from scipy.stats import binom, norm

from gaussmark_experiments import token_level_keys as experiment
from gaussmark_experiments.token_level_keys import HITS, ONE, SHIFTED, UNEDITED
from gaussmark_lib import generate, score
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench.pairs import OWN, PLAIN, Pairs

LM = tiny_lm.build()
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.3)
PAIRS = Pairs([[5, 6, 7], [8, 9]], [Key.from_seed(0), Key.from_seed(1)])
PLAINS = generate.sample(LM.model, PAIRS.prompts, 20, seed=7)


@pytest.fixture(scope="module")
def measured():
    one_key = generate.sample(
        LM.model, PAIRS.prompts, 20, marks=[(WM, key) for key in PAIRS.keys], seed=1
    )
    token_level = token_keys.sample(LM.model, PAIRS.prompts, 20, WM, PAIRS.keys, seed=1)
    edits = experiment.changes(LM, ["substitute at random"], [0.4], seed=3)
    table, gammas = experiment.measure(
        LM.model, PAIRS, WM, one_key, token_level, PLAINS, edits, alpha_0=0.4
    )
    return table, gammas, edits, one_key, token_level


def test_every_cell_is_that_text_tested_alone(measured):
    table, gammas, edits, one_key, token_level = measured
    assert list(edits) == [UNEDITED, "substitute at random, 0.4", SHIFTED]
    assert len(table) == (3 + 1) * 3 * 2  # versions and plain texts, tests, texts
    for (change, kind, scheme, text), rows in table.groupby(["change", "kind", "scheme", "text"]):
        texts = {PLAIN: PLAINS, OWN: one_key if scheme == ONE else token_level}[kind]
        x, y = (part[text : text + 1] for part in edits[change](PAIRS.prompts, texts))
        if scheme == ONE:
            alone = score.score(LM.model, x, y, WM, PAIRS.keys[text : text + 1])
        else:
            of_text = token_keys.per_token(LM.model, x, y, WM, PAIRS.keys[text : text + 1])
            test = "hits" if scheme == HITS else "sum"
            alone = token_keys.from_gammas(of_text, test, 0.4)
        assert rows["p_value"].item() == pytest.approx(alone["p_value"].item(), rel=1e-3)
    assert len(gammas[gammas["change"] == SHIFTED]) == 2 * 19


def test_the_first_tokens_of_a_table_are_the_shorter_texts(measured):
    _, gammas, _, one_key, token_level = measured
    own = gammas[(gammas["change"] == UNEDITED) & (gammas["kind"] == OWN)]
    once = score.score(
        LM.model, PAIRS.prompts, one_key, WM, PAIRS.keys, lengths=[8, 20], paired=True
    )
    found = experiment.by_length(once, own, [8, 20], level=0.3, alpha_0=0.4)
    short = [ids[:8] for ids in token_level]
    alone = experiment.tests(
        token_keys.per_token(LM.model, PAIRS.prompts, short, WM, PAIRS.keys), 0.4
    )
    at_8 = found[found["n_tokens"] == 8].set_index("scheme")["value"]
    for scheme, rows in alone.groupby("scheme"):
        assert at_8[scheme] == (rows["p_value"] <= 0.3).mean()


def made_up(lean: float, n: int = 300, k: int = 60, seed: int = 0) -> pd.DataFrame:
    """Γ_k of n texts whose tokens lean by as much, ‖G_k‖ being 1."""
    gamma = np.random.default_rng(seed).standard_normal((n, k)) + lean
    text, position = np.indices((n, k))
    columns = {"text": text, "position": position, "gamma": gamma}
    table = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    return table.assign(grad_norm=1.0, token_id=position.ravel(), change=UNEDITED)


def test_levels_and_power_are_those_of_binomials():
    levels = experiment.levels(made_up(0), [20, 60], 0.4, 0.5).set_index(["what", "n_tokens"])
    for n in (20, 60):
        exact = binom.sf(n - 0.4 * n, n, 0.5)
        assert levels.loc[("exact", n), "value"] == pytest.approx(exact)
        assert levels.loc[("proved bound", n), "value"] == pytest.approx(np.exp(-2 * n * 0.01))
        row = levels.loc[("measured", n)]
        assert row["low"] <= exact <= row["high"]
    by_alpha = experiment.by_alpha(made_up(0.3), [0.1, 0.5], 0.05)
    detected = by_alpha[by_alpha["what"] == "share detected"].set_index("alpha_0")
    for alpha_0, row in detected.iterrows():
        hit = norm.sf(norm.isf(alpha_0) - 0.3)
        power = binom.sf(binom.isf(0.05, 60, alpha_0), 60, hit)
        assert row["value"] == pytest.approx(power, abs=4 * (power * (1 - power) / 300) ** 0.5)


def test_what_the_proposition_covers_in_words():
    covered = experiment.proposition_in_words(0.7, 0.5, 0.05, 48)
    # λ' in the middle of [0.3, 0.5]: log(20) / (2 · 0.1²) = 149.8
    assert "covers texts with at most 20.0% corrupted tokens" in covered
    assert "guarantees level 0.05 from **150 tokens** on" in covered
    assert covered.endswith("With 48 tokens, the exact level of the best test is 0.030.")
    assert "guarantees nothing" in experiment.proposition_in_words(0.45, 0.5, 0.05, 48)


def test_the_interval_of_a_paired_difference_covers_it_and_exists_where_all_agree():
    rng, truth = np.random.default_rng(0), 0.15 - 0.05
    covered = []
    for _ in range(400):
        # only ours, only theirs, both, none
        cell = rng.choice(4, size=60, p=[0.15, 0.05, 0.3, 0.5])
        p_values = {"a": np.isin(cell, (0, 2)), "b": np.isin(cell, (1, 2))}
        table = pd.concat(
            pd.DataFrame({"scheme": name, "text": range(60), "p_value": 1.0 - hit})
            for name, hit in p_values.items()
        )
        estimate = experiment.difference(table, "a", "b", 0.5)
        assert estimate.value == pytest.approx(((cell == 0).sum() - (cell == 1).sum()) / 60)
        covered.append(estimate.low <= truth <= estimate.high)
    assert np.mean(covered) > 0.92
    agree = pd.DataFrame({"scheme": [*"aabb"], "text": [0, 1] * 2, "p_value": 0.0})
    alike = experiment.difference(agree, "a", "b", 0.5)
    assert alike.value == 0
    assert -1 < alike.low < 0 < alike.high < 1
