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
from scipy.stats import kstest, norm

from gaussmark_experiments import level_check
from gaussmark_lib import generate, stats, texts
from gaussmark_lib.perturb import Key, Watermark, noise
from gaussmark_lib.score import score

WM = Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.4)


@pytest.fixture
def cut():
    rng = np.random.default_rng(1)
    return rng.integers(97, size=(12, 5)).tolist(), rng.integers(97, size=(12, 20)).tolist()


def test_over_fresh_keys_psi_is_that_of_score_and_p_is_uniform(lm, cut):
    table = level_check.fresh_keys(lm, cut, WM, 150, first_seed=7)
    for text in (0, 5, 11):
        keys = [Key.from_seed(7 + 150 * text + i) for i in range(3)]
        one = score(lm.model, [cut[0][text]], [cut[1][text]], WM, keys)
        rows = table[table["text"] == text].head(3)
        np.testing.assert_allclose(rows["psi"], one["psi"], rtol=0, atol=2e-5)
        np.testing.assert_allclose(rows["p_value"], norm.sf(rows["psi"]))
    assert table["psi"].nunique() == len(table) == 12 * 150, "no key meets two texts"
    assert kstest(table["p_value"], "uniform").pvalue > 0.001
    assert kstest(1.1 * table["psi"], "norm").pvalue < 0.05, "10% too wide would be seen"


def test_fixed_keys_score_as_score_does_and_the_cosine_is_the_mean_over_all_pairs(lm, cut):
    keys = [Key.from_seed(i) for i in range(6)]
    psi, cosine = level_check.fixed_keys(lm, cut, WM, keys)
    table = score(lm.model, *cut, WM, keys)
    np.testing.assert_allclose(psi.ravel(), table["psi"], rtol=1e-4, atol=1e-5)
    units = []
    for prompt, text in zip(*cut, strict=True):
        weight = lm.model.get_parameter(WM.weight).requires_grad_()
        ids = torch.tensor([prompt + text])
        log_p = lm.model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, 4:, 0]
        (gradient,) = torch.autograd.grad(log_p.sum(), weight)
        units.append((gradient / gradient.norm()).flatten())
    slow = np.mean([float(units[i] @ units[j]) for i in range(12) for j in range(12) if i != j])
    assert cosine == pytest.approx(slow, abs=1e-6)


@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.9])
def test_the_predicted_spread_is_that_of_simulated_keys(cosine):
    """Rates of 4,000 keys over 30 texts of one cosine."""
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((4000, 1)), rng.standard_normal((4000, 30))
    psi = np.sqrt(cosine) * common + np.sqrt(1 - cosine) * own
    rates = (psi >= stats.threshold(0.05)).mean(axis=1)
    assert rates.std() == pytest.approx(level_check.predicted_spread(cosine, 30, 0.05), rel=0.06)


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
    ids = torch.tensor([cut[0][3] + cut[1][3]])
    log_p = moved(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, 4:, 0].sum()
    gradient = torch.autograd.grad(log_p, weight)[0]
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
    above = (moved[6:] >= moved[:6].max()).mean()
    assert share.loc[empirical, "human text: alarms at 5%"] == above
    assert values.groupby(["way", "kind"]).size()[empirical].to_dict() == {"human": 6, "marked": 12}
    figure = level_check.draw_published(ways, "")
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(set(rows)) == 4
    assert rows[-1] == "the same, threshold from human texts"
    assert figure.axes[1].get_title() == "watermarked text: detected at level .1%"


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
    assert not level_check.levels(table, (0.05,), confidence=0.9)["holds"].any()


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


def test_the_spread_of_rates_stands_beside_its_prediction():
    rates = pd.DataFrame({"kind": ["a"] * 4, "value": [0.0, 0.0, 0.1, 0.3]})
    table, drawn = level_check.spreads(rates, {"a": 0.4}, 20, 0.05, seed=0)
    row = table.loc["a"]
    assert (row["mean"], row["largest"]) == (pytest.approx(0.1), 0.3)
    assert row["predicted"] == level_check.predicted_spread(0.4, 20, 0.05)
    assert row["binomial"] == pytest.approx((0.05 * 0.95 / 20) ** 0.5, rel=1e-3)
    expected = [np.std([0, 0, 0.1, 0.3]), row["predicted"], row["binomial"]]
    assert drawn["value"].tolist() == pytest.approx(expected)
