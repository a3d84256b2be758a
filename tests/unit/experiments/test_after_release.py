"""The forecast against a whole sum over texts, on a tiny model; and the attacks' table against the
rooms it is made of.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import after_release
from gaussmark_experiments.after_release import HALF, RELEASED, RETRAINED
from gaussmark_lib import gradients, likelihood, perturb, score
from gaussmark_lib.beyond import channel
from gaussmark_lib.beyond.release import attacks, provenance, served
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench.pairs import Pairs

SIGMA = 0.05
WM = Watermark(tiny_lm.WEIGHT, SIGMA)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PROMPTS, HUMAN, TRAINING = (
    tiny_models.random_ids(RNG, *[n] * m) for n, m in ((4, 6), (9, 6), (12, 8))
)
PAIRS = Pairs(PROMPTS, [Key.from_seed(i) for i in range(6)])


@pytest.fixture(scope="module")
def made():
    train = {"lr": 1e-3, "batch_size": 2}
    every = after_release.attacks_on(LM, WM, TRAINING, [1, 3], **train)
    return {name: one for name, one in every.items() if name != "NF4"}  # whose groups are 64 wide


@pytest.fixture(scope="module")
def table(made):
    sizes = {"n_releases": 3, "edited": 0.1, "seed": 2}
    return after_release.measured(LM, PAIRS, WM, HUMAN, made, 12, **sizes)


def test_slopes_are_the_gradients_part_along_the_noise():
    """Of one token y each: e(y) = ⟨ξ, ∇log p(y)⟩, by a backward pass for each."""
    xi = perturb.noise(LM.model, WM, PAIRS.keys[0])
    prompt, text = PROMPTS[0], HUMAN[0][:1]
    [slope] = after_release.along(LM, WM, xi, [prompt], [text])
    [one] = gradients.gradients(LM.model, [prompt], [text], WM)
    for token in (3, 17, text[0]):
        [other] = gradients.gradients(LM.model, [prompt], [[token]], WM)
        exact = torch.sum(xi * other.G).item() / (SIGMA * one.norm)
        assert slope[0, token].item() == pytest.approx(exact, rel=0.01, abs=2e-3)


def test_a_forecast_is_the_mean_over_what_the_suspect_could_say():
    xi = perturb.noise(LM.model, WM, PAIRS.keys[0])
    asked = PROMPTS[:1], HUMAN[:1]
    slopes = after_release.along(LM, WM, xi, *asked)
    [none] = after_release.foretold(LM.model, *asked, slopes)
    assert none == pytest.approx(0, abs=0.02)  # Σ p ∇log p = 0
    release = attacks.released(LM.model, WM, PAIRS.keys[0])
    [own] = after_release.foretold(release, *asked, slopes)
    with torch.no_grad():
        ids = torch.tensor([[*PROMPTS[0], *HUMAN[0]]])
        p = release(input_ids=ids).logits[0, 3:-1].softmax(-1)
    by_hand = sum(float(p[t] @ slopes[0][t]) for t in range(len(HUMAN[0])))
    assert own == pytest.approx(by_hand, rel=1e-4)
    assert own > 0


def test_each_attack_is_measured_on_each_release(made, table):
    assert table.groupby(["attack", "release"]).size().eq(2).all()
    assert [*table["attack"].unique()] == [*made]
    released = table[table["attack"] == RELEASED]
    assert np.allclose(released[["nats", "removed", "change"]], 0, atol=1e-4)
    assert np.allclose(released["share"], 1, atol=1e-4)
    half = table[table["attack"] == HALF]
    assert np.allclose(half["share"], 0.5, atol=1e-3)
    assert np.allclose(half["psi_w"], released["psi_w"], rtol=1e-3)
    assert np.allclose(table[table["attack"] == RETRAINED]["share"], 0, atol=0.1)


def test_a_row_is_what_the_rooms_say_of_this_text(made, table):
    """The second release, rounded to 4 bits."""
    rows = table[(table["attack"] == "4 bits") & (table["release"] == 1)]
    x, own, key = PROMPTS[2:4], HUMAN[2:4], PAIRS.keys[1]
    release = attacks.released(LM.model, WM, key)
    suspect = made["4 bits"][1](release)
    texts = after_release.generate.sample(suspect, x, 12, seed=2 + 1 + 1)
    tests = [("psi", 0, key), ("sharper", 0.1, key), ("wrong", 0, PAIRS.keys[0])]
    for column, edited, tested in tests:
        weights = channel.weights(LM.model, edited)
        expected = score.score(LM.model, x, texts, WM, [tested], token_weights=weights)["psi"]
        assert rows[column].to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-4)
    nats = [likelihood.cross_entropy(model, own, prompts=x) for model in (suspect, release)]
    assert rows["nats"].to_numpy() == pytest.approx(nats[0] - nats[1], abs=1e-5)
    [psi] = provenance.weights(LM.model, suspect, WM, [key])["psi"]
    assert rows["psi_w"].to_numpy() == pytest.approx(psi, rel=1e-5)
    law = after_release.law(rows["change"].to_numpy(), WM.on(LM.model).d)
    assert rows["psi_w"].to_numpy() == pytest.approx(law, rel=0.2)


def test_estimates_are_over_releases(table):
    rows = table[table["attack"] == HALF]
    kept = after_release.ratio(table, [HALF])
    below = table[table["attack"] == RELEASED]["psi"].mean()
    assert kept.value == pytest.approx(rows["psi"].mean() / below, rel=1e-6)
    assert kept.n == 3
    found = after_release.means(table, "psi").set_index("attack")
    assert found.n.eq(3).all()
    assert found.value[HALF] == pytest.approx(rows["psi"].mean())
    price = after_release.ratio(table, [HALF], "nats", "removed")
    assert price.value == pytest.approx(rows["nats"].mean() / rows["removed"].mean())
    recorded = after_release.shares_and_prices(table)
    assert recorded["texts"][HALF] == kept
    assert recorded["nats"][HALF].value == pytest.approx(rows["nats"].mean())
    assert recorded["nats"][HALF].n == 3


def test_unmarked_models_are_tested_where_an_attack_changes_them(made):
    few = {name: made[name] for name in (RELEASED, HALF, "4 bits")}
    found = after_release.alarms(LM, WM, few, 40, 0.5)
    assert found["attack"].tolist() == ["4 bits"]
    assert found["n"].tolist() == [40]
    assert 0.2 < found["value"][0] < 0.8


def test_every_way_of_serving_writes_with_the_mark():
    served = after_release.served(LM, PAIRS.first(3), WM, 8, beams=2)
    assert served.groupby("way").size().eq(3).all()
    assert served["way"].nunique() == 13
    greedy = served[served["way"] == "greedy"]
    x, keys = PAIRS.first(3)
    marks = [(WM, key) for key in keys]
    texts = after_release.generate.sample(LM.model, x, 8, temperature=0, marks=marks)
    expected = score.score(LM.model, x, texts, WM, keys, paired=True)
    np.testing.assert_allclose(greedy["psi"], expected["psi"], atol=1e-4)
    np.testing.assert_allclose(greedy["forecast"], SIGMA * expected["grad_norm"], rtol=1e-4)
    wrong = score.score(LM.model, x, texts, WM, [keys[2], *keys[:2]], paired=True)
    np.testing.assert_allclose(greedy["wrong"], wrong["psi"], atol=1e-4)


def test_a_drafted_text_is_the_releases_and_not_the_drafts():
    """log p under the release less that under the base, in the mean over texts: a divergence, above
    0 if the release writes, and below 0 if the base does.
    """
    strong = Watermark(tiny_lm.WEIGHT, 0.5)
    release = attacks.released(LM.model, strong, PAIRS.keys[0])
    asked = release, LM.model, PROMPTS[0]
    texts = [after_release.assisted(*asked, 6, seed) for seed in range(60)]
    assert {len(text) for text in texts} == {6}
    assert texts[3] == after_release.assisted(*asked, 6, 3)
    x = [PROMPTS[0]] * len(texts)

    def gain(texts):
        sums = [
            [p.sum() for p in likelihood.log_probabilities(model, x, texts)]
            for model in (release, LM.model)
        ]
        return np.subtract(*sums)

    of_drafted = gain(texts)
    assert of_drafted.mean() > 3 * of_drafted.std() / len(of_drafted) ** 0.5
    assert gain(after_release.generate.sample(LM.model, x, 6, seed=0)).mean() < 0


def test_a_student_is_the_base_trained_on_what_the_release_writes(made):
    release = attacks.released(LM.model, WM, PAIRS.keys[0])
    student = made["a student of its texts"][1](release)
    heads = [ids[:6] for ids in TRAINING]
    written = after_release.generate.sample(release, heads, 6, seed=0)
    expected = attacks.fine_tuned(LM.model, written, 3, lr=1e-3, batch_size=2, seed=0)
    for one, other in zip(student.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def by_engine(wrong: float = 0.0, n_hits: int = 10) -> after_release.ByEngine:
    """A measurement in which each marked answer has ψ near 3, and 2 was promised."""
    rng = np.random.default_rng(3)
    ways = [*served.FILES, *served.SERVING]
    rows = [(way, key, marked) for way in ways for key in range(30) for marked in (True, False)]
    answers = pd.DataFrame(rows, columns=["way", "key", "is_marked"])
    answers["psi"] = np.where(answers["is_marked"], 3.0, 0.0) + rng.normal(size=len(answers))
    answers["wrong"] = wrong + rng.normal(size=len(answers))
    answers["forecast"] = np.where(answers["is_marked"], np.nan, 2.0)
    answers["n_tokens"] = 60
    weights = pd.DataFrame({"file": [*served.FILES] * 30, "key": np.repeat(range(30), 6)})
    alarms = pd.DataFrame({"file": ["Q8_0"], "n_hits": [n_hits], "n_keys": [1000]})
    return after_release.ByEngine(weights, answers, alarms)


def test_findings_of_an_engine_are_quotients_by_file_and_of_the_other_ways():
    findings, checks = after_release.outcomes_by_engine(by_engine(), 0.01)
    assert len(findings) == len(served.FILES) + 1
    assert all(1.2 < finding.estimate.value < 1.8 for finding in findings)
    assert findings[0].outcome == "not held"
    assert len(checks) == 2
    assert after_release.outcomes_by_engine(None, 0.01) == ([], [])


def test_an_engine_that_finds_other_keys_or_false_alarms_stops_the_run():
    with pytest.raises(AssertionError, match="another key"):
        after_release.outcomes_by_engine(by_engine(wrong=1.0), 0.01)
    with pytest.raises(AssertionError, match="level"):
        after_release.outcomes_by_engine(by_engine(n_hits=60), 0.01)


def test_an_engines_answers_have_both_controls_and_the_forecast():
    named = after_release.means_by_engine(by_engine()).groupby("what")["value"].mean()
    assert named["watermarked file, its key"] == pytest.approx(3, abs=0.2)
    assert named["forecast"] == pytest.approx(2)
    for control in ("watermarked file, another key", "plain file, the key"):
        assert abs(named[control]) < 0.2


@pytest.fixture(scope="module")
def curves():
    by_name = after_release.trainings(
        LM, ["LoRA", "full"], "docs", TRAINING, [1, 3], lr=1e-3, batch_size=2
    )
    return after_release.curves(LM, PAIRS, WM, HUMAN, by_name, 12, n_releases=3, edited=0.1, seed=2)


def test_a_point_of_a_curve_is_the_attack_of_as_many_steps(curves, table):
    """The attacks train on the same texts with the same seed of 0; so do these curves."""
    full = curves.texts[curves.texts["curve"] == "full"]
    assert full.groupby(["steps", "release"]).size().eq(2).all()
    for n_steps, attack in ((0, RELEASED), (1, "fine-tuned, 1 step"), (3, "fine-tuned, 3 steps")):
        rows = full[full["steps"] == n_steps]
        expected = table[table["attack"] == attack]
        columns = ["psi", "foretold", "nats", "psi_w", "wrong", "share"]
        np.testing.assert_allclose(rows[columns], expected[columns], atol=1e-3)


def test_the_control_of_a_curve_is_the_base_under_every_key(curves):
    control = curves.control
    assert control.groupby(["curve", "steps", "release"]).size().eq(2).all()
    rows = control[(control["curve"] == "full") & (control["steps"] == 3)]
    tuned = attacks.fine_tuned(LM.model, TRAINING, 3, lr=1e-3, batch_size=2, seed=0)
    written = after_release.generate.sample(tuned, PROMPTS[:2], 12, seed=3)
    for number in range(3):
        expected = score.score(LM.model, PROMPTS[:2], written, WM, [PAIRS.keys[number]])["psi"]
        psi = rows[rows["release"] == number]["psi"].to_numpy()
        assert psi == pytest.approx(expected.to_numpy(), abs=1e-3)


def test_a_curve_has_findings_once_it_is_long_enough(curves):
    findings, [check] = after_release.outcomes_of_curves(curves, 0.01)
    assert findings == []
    assert check["ok"]
    steps = curves.texts["steps"].replace(3, after_release.MOST_STEPS)
    long = curves._replace(texts=curves.texts.assign(steps=steps))
    findings, _ = after_release.outcomes_of_curves(long, 0.01)
    assert len(findings) == 2 * 3
    psi = long.texts[long.texts["curve"] == "LoRA"].groupby("steps")["psi"].mean()
    expected = psi[after_release.MOST_STEPS] / psi[0]
    assert findings[0].estimate.value == pytest.approx(expected)
    marked = curves.control.assign(psi=curves.control["psi"] + 100 + curves.control["release"])
    with pytest.raises(AssertionError, match="carries no key"):
        after_release.outcomes_of_curves(curves._replace(control=marked), 0.01)


def test_points_of_a_curve_have_measurement_forecast_and_control(curves):
    points = after_release.along_curves(curves, 0.05)
    assert len(points) == 2 * 2 * (3 + 3 + 2)
    rows = curves.texts[(curves.texts["curve"] == "LoRA") & (curves.texts["steps"] == 3)]
    at = points.set_index(["curve", "steps", "quantity", "what"])["value"]
    shown = at["LoRA", 3, after_release.DETECTED, after_release.MEASURED]
    assert shown == pytest.approx((rows["psi"] > 1.645).mean())
    with pytest.raises(ParameterError, match="expected LoRA or full"):
        after_release.trainings(LM, ["lora"], "docs", TRAINING, [1], lr=1e-3, batch_size=2)
