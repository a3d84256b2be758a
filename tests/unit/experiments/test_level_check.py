"""The level experiments against the slow obvious way, on a tiny random model whose level must be
exact as any model's.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch
from scipy.stats import norm

from gaussmark_experiments import level_check
from gaussmark_lib import generate, stats, texts
from gaussmark_lib.perturb import Key, Watermark, noise
from gaussmark_lib.score import score

WM = Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.4)


@pytest.fixture
def cut():
    rng = np.random.default_rng(1)
    return rng.integers(97, size=(12, 5)).tolist(), rng.integers(97, size=(12, 20)).tolist()


def test_trap_is_right_at_theta_wrong_at_theta_plus_xi_and_leaves_the_model_alone(lm, cut):
    keys = [Key.from_seed(i) for i in range(12)]
    before = {name: p.clone() for name, p in lm.model.state_dict().items()}
    table = level_check.trap(lm, cut, WM, keys).pivot(index="text", columns="at", values="psi")
    assert all(torch.equal(p, before[name]) for name, p in lm.model.state_dict().items())
    right = score(lm.model, *cut, WM, keys, paired=True)["psi"]
    np.testing.assert_allclose(table["θ"], right)

    moved = tiny_models.build()
    weight = moved.get_parameter(WM.weight)
    xi = noise(lm.model, WM, keys[3])
    weight.data += xi
    log_p = tiny_models.log_p(moved, cut[0][3], cut[1][3]).sum()
    [gradient] = torch.autograd.grad(log_p, weight)
    slow = float((xi * gradient).sum() / (WM.sigma * gradient.norm()))
    assert table.loc[3, "θ + ξ"] == pytest.approx(slow, rel=1e-4)


def test_the_published_ways_count_what_each_threshold_lets_through(lm, cut):
    keys, marked = [Key.from_seed(i) for i in range(12)], (cut[0], [t[::-1] for t in cut[1]])
    ways, values = level_check.published(lm, cut, marked, WM, keys)
    share = ways.pivot(index="way", columns="measure", values="value")
    psi = score(lm.model, *marked, WM, keys, paired=True)["psi"]
    hits = (psi >= norm.isf(0.001)).mean()
    assert share.loc["θ, N(0, 1)", "marked text: detected at .1%"] == hits
    without = score(lm.model, [[]] * 12, cut[1], WM, keys, paired=True)["psi"]
    alarms = (without >= norm.isf(0.05)).mean()
    assert share.loc["θ, no prompt, N(0, 1)", "human text: alarms at 5%"] == alarms
    moved = level_check.trap(lm, cut, WM, keys).query("at == 'θ + ξ'")["psi"].to_numpy()
    [empirical] = [way for way in share.index if "6 human texts" in way]
    in_words = level_check.means_and_threshold(values)
    assert in_words.endswith("from 6 human texts (level .1% becomes 14.3%).")
    above = (moved[6:] >= moved[:6].max()).mean()
    assert share.loc[empirical, "human text: alarms at 5%"] == above
    assert values.groupby(["way", "kind"]).size()[empirical].to_dict() == {"human": 6, "marked": 12}
    at_moved = level_check.detected_at_moved(ways)
    of_marked = level_check.trap(lm, marked, WM, keys).query("at == 'θ + ξ'")["psi"]
    assert (at_moved.value, at_moved.n) == ((of_marked >= norm.isf(0.001)).mean(), 12)
    recorded = level_check.recorded_ways()
    assert set(recorded["measure"]) == set(ways["measure"]), "the figure draws them together"


def test_alarms_are_counted_by_kind_and_over_all():
    table = pd.DataFrame({"kind": list("aabb"), "p_value": [0.04, 0.5, 0.005, 0.03]})
    levels = level_check.levels(table, (0.05, 0.01))
    assert levels["kind"].tolist() == ["a", "a", "b", "b", "all", "all"]
    assert levels["level"].tolist() == ["at level 5%", "at level 1%"] * 3
    assert levels["value"].tolist() == [0.5, 0.0, 1.0, 0.5, 0.75, 0.25]


def test_an_exact_interval_holds_its_level_or_does_not():
    p = np.ones(24_000)
    p[:1_290] = 0.04  # 5.4%: two standard deviations too many
    p[:24] = 0.0009
    table = pd.DataFrame({"kind": "a", "p_value": p})
    wide = level_check.levels(table, (0.05, 0.001), confidence=0.99).query("kind == 'all'")
    low, high = stats.share(p <= 0.05, confidence=0.99).low, 0.05
    assert wide["holds"].tolist() == [low <= high, True]
    narrow = level_check.levels(table, (0.05,), confidence=0.9)
    assert not narrow["holds"].any()
    # that of all kinds is not counted
    assert level_check.misses(narrow) == "intervals that miss their level: 1 of 1"


def test_kinds_and_a_writer_whose_text_is_read_by_its_characters(lm, monkeypatch):
    writer = replace(tiny_lm.build(), name="another")
    assert list(level_check.kinds(["speeches", "news"], writer))[2] == "another"
    size = {"prompt_tokens": 6, "n_tokens": 10}
    cut = level_check.null_texts(lm, "another", 3, text="docs", writer=writer, seed=2, **size)
    beginnings = texts.human(writer, "docs", 3, 6, seed=2)
    opened = [writer.prompt(writer.decode(ids)) for ids in beginnings]
    written = generate.sample(writer.model, opened, 10, seed=2)
    assert cut[0] == [lm.encode(writer.decode(ids)) for ids in beginnings]
    assert cut[1] == [lm.encode(writer.decode(ids))[:10] for ids in written]

    assert level_check.load_writer(None) is None
    monkeypatch.setattr(level_check.packages, "is_installed", lambda entry: False)
    assert level_check.load_writer("gemma-3-270m") is None, "it is left out"


def test_uniformity_is_tested_for_each_kind_and_for_all():
    uniform = np.linspace(0.001, 0.999, 400)
    table = pd.DataFrame({"kind": np.repeat(["a", "b"], 400), "p_value": [*uniform, *uniform**2]})
    tests = level_check.uniformity(table)
    assert list(tests.index) == ["all", "a", "b"]
    assert tests["a"] > 0.99 > 0.001 > tests["b"]
    said = level_check.smallest_of_kinds(table)
    assert f"the 2 tests (one per kind) is {tests['b']:.2g} (b)" in said


def test_the_area_is_the_share_of_pairs_in_the_right_order():
    table = pd.DataFrame({"way": np.repeat(["θ, N(0, 1)", "θ + ξ, N(0, 1)"], 4)})
    table["kind"] = ["human", "human", "marked", "marked"] * 2
    table["psi"] = [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 0.5, 3.0]
    said = level_check.areas(table)
    assert said.endswith("1.000 with the gradient at θ and 0.750 with the gradient at θ + ξ")
