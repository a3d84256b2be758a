"""A rival's protocol against the slow obvious way, on a tiny random model."""

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch

from gaussmark_experiments import taken_apart
from gaussmark_experiments.taken_apart import AT_MOVED, AT_THETA, KNOWN, MARKED, RATIO, UNKNOWN
from gaussmark_lib import files
from gaussmark_lib.perturb import Key, Watermark, noise
from gaussmark_lib.score import score
from gaussmark_lib.workbench import runs, words

WM = Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.4)
KEYS = [Key.from_seed(i) for i in range(3)]


@pytest.fixture
def texts():
    rng = np.random.default_rng(1)
    return rng.integers(97, size=(4, 5)).tolist(), rng.integers(97, size=(4, 12)).tolist()


def log_p_and_gradient(model, prompt, text):
    """log p(y | x) and its gradient in the marked weight, by autograd over one full pass."""
    total = tiny_models.log_p(model, prompt, text).sum()
    return total.item(), torch.autograd.grad(total, model.get_parameter(WM.weight))[0]


def test_each_statistic_is_what_its_formula_says(lm, texts):
    table = taken_apart.of_texts(lm, WM, KEYS, *texts)
    right = score(lm.model, *texts, WM, KEYS)["psi"].to_numpy().reshape(4, 3)
    weight = lm.model.get_parameter(WM.weight)
    for row in table.itertuples():
        prompt, text = texts[0][row.text], texts[1][row.text]
        xi = noise(lm.model, WM, KEYS[row.key])
        base, _ = log_p_and_gradient(lm.model, prompt, text)
        theta = weight.data.clone()
        weight.data += xi
        moved, gradient = log_p_and_gradient(lm.model, prompt, text)
        weight.data = theta
        statistic = dict(zip(taken_apart.STATISTICS, row[3:], strict=True))
        assert statistic[AT_THETA] == pytest.approx(right[row.text, row.key], abs=1e-4)
        assert statistic[RATIO] == pytest.approx(moved - base, abs=1e-3)
        psi = float((xi * gradient).sum() / (WM.sigma * gradient.norm()))
        assert statistic[AT_MOVED] == pytest.approx(psi, abs=1e-3)


def test_each_key_tests_its_own_texts_and_every_human_text_with_and_without_the_prompt(lm, texts):
    marked = [([prompt], [text]) for prompt, text in zip(*texts, strict=True)][:3]
    table = taken_apart.measured(lm, WM, KEYS, marked, {"speeches": texts, "news": texts})
    counts = table.groupby(["kind", "prompt"]).size()
    assert counts[MARKED, KNOWN] == counts[MARKED, UNKNOWN] == 3
    assert counts["speeches", KNOWN] == counts["news", UNKNOWN] == 12
    with pytest.raises(taken_apart.ParameterError, match="another kind of text"):
        taken_apart.measured(lm, WM, KEYS, marked, {"speeches": texts})
    own = table[(table["kind"] == MARKED) & (table["prompt"] == KNOWN)].set_index("key")
    right = score(lm.model, texts[0][:3], texts[1][:3], WM, KEYS, paired=True)["psi"]
    np.testing.assert_allclose(own.loc[[0, 1, 2], AT_THETA], right, atol=1e-4)


@pytest.fixture
def scores():
    """Human texts of two kinds, and watermarked texts, as the second order says (s = 3)."""
    rng = np.random.default_rng(0)
    parts = []
    for kind, z in ((MARKED, 3.0), ("speeches", 0.0), ("source", 0.0)):
        psi = z + rng.standard_normal(400)
        columns = {AT_THETA: psi, AT_MOVED: psi - 3, RATIO: 3 * psi - 4.5}
        rows = pd.DataFrame({"kind": kind, "key": np.repeat(range(20), 20), **columns})
        parts += [rows.assign(prompt=prompt, text=range(400)) for prompt in (KNOWN, UNKNOWN)]
    return pd.concat(parts, ignore_index=True)


def test_as_many_human_texts_lie_above_a_threshold_as_its_level_allows(scores):
    human = scores[(scores["kind"] == "speeches") & (scores["prompt"] == KNOWN)]
    for level, above in ((0.05, 19), (0.01, 3), (1 / 401, 0)):
        threshold = taken_apart.thresholds(scores, "speeches", level).loc[KNOWN, RATIO]
        assert (human[RATIO] > threshold).sum() == above
    assert np.isnan(taken_apart.thresholds(scores, "speeches", 0.002)).all(axis=None)


def test_statistics_that_are_one_up_to_shift_and_scale_detect_the_same_texts(scores):
    hits = taken_apart.detected(scores, "speeches", [0.05, 0.001])
    empirical = hits[(hits["threshold"] == taken_apart.EMPIRICAL) & (hits["level"] == 0.05)]
    by_test = empirical.groupby("statistic")["hit"].apply(list)
    assert by_test[AT_MOVED] == by_test[RATIO] == by_test[AT_THETA]
    assert "speeches" not in set(empirical["kind"])  # it set the threshold
    assert set(hits[hits["level"] == 0.001]["threshold"]) == {taken_apart.EXACT}  # 400 are too few
    new, old = (UNKNOWN, RATIO, taken_apart.EMPIRICAL), (UNKNOWN, AT_MOVED, taken_apart.EMPIRICAL)
    assert taken_apart.gain(scores, "speeches", 0.05, new, old).value == 0
    new, old = (KNOWN, AT_THETA, taken_apart.EXACT), (KNOWN, AT_MOVED, taken_apart.EXACT)
    assert taken_apart.gain(scores, "speeches", 0.05, new, old).low > 0.5  # the trap
    apart = taken_apart.apart(scores, "speeches").groupby("prompt")["value"]
    assert (apart.max() - apart.min()).max() == pytest.approx(0, abs=1e-9)


def test_each_step_is_a_difference_of_two_rates_and_two_steps_make_the_whole(scores):
    worse = scores.copy()
    worse.loc[worse["kind"] == MARKED, AT_MOVED] -= 1  # a gradient at θ + ξ that detects less
    steps = taken_apart.steps(worse, "speeches", 0.05)
    value = steps.set_index("step")["value"]
    rates = taken_apart.rates(taken_apart.detected(worse, "speeches", [0.05]))
    own = rates[rates["kind"] == MARKED].set_index(["prompt", "test"])["value"].loc[UNKNOWN]
    theta, moved = (own[f"{name}, {taken_apart.EMPIRICAL}"] for name in (AT_THETA, AT_MOVED))
    gradient = theta - moved
    of_both = value[[taken_apart.TO_THETA, taken_apart.TO_BOTH]]
    assert of_both.tolist() == pytest.approx([gradient, gradient])
    assert steps["low"][0] < gradient < steps["high"][0]
    assert gradient > 0.1
    # here the ratio is a straight-line function of ψ at θ, and the prompt changes nothing
    assert value[[taken_apart.TO_RATIO, taken_apart.TO_KNOWN]].tolist() == [0, 0]
    assert "ratio instead of ψ at θ **0.000 (no interval)**" in taken_apart.steps_in_words(steps)


def test_the_exact_test_keeps_its_level_and_a_broken_one_is_seen(scores):
    exact = taken_apart.detected(scores, "speeches", [0.05])
    exact = exact[(exact["threshold"] == taken_apart.EXACT) & (exact["kind"] == "speeches")]
    right = exact[exact["statistic"] == AT_THETA]
    assert taken_apart.keeps_level(right, 0.05)
    assert not taken_apart.keeps_level(right.assign(hit=right["text"] % 2), 0.05)
    silent = taken_apart.alarms_less_level(right.assign(hit=0.0), 0.05)
    assert silent.low == -0.05 < silent.high - 0.01  # no hit still leaves an interval
    rates = taken_apart.rates(right)
    assert rates["value"].tolist() == [right[right["prompt"] == KNOWN]["hit"].mean()] * 2
    assert rates["texts"].tolist() == [400, 400]


def test_the_table_of_claims_has_the_two_steps_of_the_record():
    [record] = runs.references("19_taken_apart")
    steps = taken_apart.steps(record.table("scores"), record.params["text"], 0.01)
    page = (files.RUNS / "README.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("| A comparison by")]
    for step in (taken_apart.TO_THETA, taken_apart.TO_RATIO, taken_apart.TO_BOTH):
        [row] = steps[steps["step"] == step].to_dict("records")
        value, low, high = (words.number(row[name], 3) for name in ("value", "low", "high"))
        assert f"{value} ({low} to {high})".replace("0.", ".") in line
