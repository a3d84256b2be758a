"""Streams with marked texts against the library's stream and against simulation, and what an asker
gains, on a tiny model.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch
from scipy.stats import norm

from gaussmark_experiments import one_key_in_production as production
from gaussmark_experiments import streams
from gaussmark_lib import generate, perturb
from gaussmark_lib.beyond import joint
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
RNG = np.random.default_rng(0)
PROMPTS, RESPONSES = (tiny_models.random_ids(RNG, *[n] * 8) for n in (4, 20))
HUMAN = production.Human(PROMPTS, RESPONSES, list("abcdefgh"))
KEYS = [Key.from_seed(i) for i in range(2)]


def test_marked_texts_stand_where_they_should_and_the_library_agrees():
    rows = streams.mixed(LM, HUMAN, WM, KEYS, [4, 3], seed=1)
    assert rows[rows["marked"] & (rows["every"] == 3)]["place"].tolist() == [2, 5] * 2
    assert rows[rows["marked"] & (rows["every"] == 4)]["place"].tolist() == [3, 7] * 2
    prompts, responses = list(PROMPTS), list(RESPONSES)
    with perturb.watermarked(LM.model, WM, KEYS[1]):
        written = generate.sample(LM.model, PROMPTS[1:3], 20, seed=2)
    for place, prompt, text in zip((2, 5), PROMPTS[1:3], written, strict=True):
        prompts[place], responses[place] = prompt, text
    own = rows[(rows["key_id"] == KEYS[1].key_id) & (rows["every"] == 3)]
    for share, log_e in ((streams.SHARE, "log_e"), (None, "log_mixture")):
        table = joint.sequence(LM.model, prompts, responses, WM, [KEYS[1]], share=share)
        np.testing.assert_allclose(own[log_e], table["log_e"], atol=2e-3)
    for name in ("psi", "innovation"):
        np.testing.assert_allclose(own[name], table[name], atol=2e-3)
    promised = WM.sigma * table["grad_norm"] * table["residual"]
    np.testing.assert_allclose(own["promised"], promised, rtol=2e-3)


def of_two_keys(innovation):
    """Streams as ``mixed`` gives them: each key wrote every second of four texts."""
    rows = [
        {"key_id": key, "every": 2, "place": place, "marked": place % 2 == 1, "promised": 4.0}
        for key in "ab"
        for place in range(4)
    ]
    return pd.DataFrame(rows).assign(innovation=innovation)


def test_the_mixture_finds_rare_keys_earlier_and_frequent_ones_hardly_later():
    found = streams.until_found(of_two_keys(4.0), n_paths=40)
    shares = streams.medians(found).set_index(["every", "bet"])
    assert shares.loc[("1 in 5", streams.SINGLE), "value"] == 5, "one text with r = λ = 4"
    assert shares.loc[("1 in 100", streams.EIGHT), "share"] == 1
    assert shares.loc[("1 in 100", streams.SINGLE), "share"] < 0.5
    assert 0.5 < streams.relative(found, 5).value < 1.5
    assert streams.relative(found, 100).value < 0.5


def test_texts_without_the_key_are_not_found_and_texts_of_all_keys_are():
    found = streams.until_found(of_two_keys(0.0), [5], n_paths=400)
    never = found.groupby("bet")["texts"].apply(lambda texts: np.isinf(texts).mean())
    assert (never > 0.95 - 3.3 * np.sqrt(0.05 * 0.95 / 800)).all()
    assert (streams.medians(found)["value"] == streams.HORIZON).all()
    assert streams.relative(found, 5).value > 0.9
    one_is_weak = of_two_keys([4.0] * 4 + [0.0] * 4)
    ratio = streams.relative_of_all_keys(one_is_weak, 100, n_paths=20, n_draws=9)
    assert 0 < ratio.low < ratio.value < 0.8


def test_peeking_is_at_every_text_with_the_exact_deviation():
    K = np.full((30, 30), 0.5) + 0.5 * np.eye(30)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(30), K, size=2000)
    tau = norm.isf(0.05)
    exact = [
        any(row[:i].sum() / np.sqrt(K[:i, :i].sum()) >= tau for i in range(1, 31)) for row in psi
    ]
    assert streams.peeked(psi, K).tolist() == exact
    assert 0.05 < np.mean(exact) < streams.peeked(psi, np.eye(30)).mean()


def test_what_marked_texts_keep_is_what_the_stream_says():
    marked = streams.marked_gradients(LM, PROMPTS, WM, KEYS[0], 20, seed=1)
    table = streams.kept(marked, KEYS[0], WM.on(LM.model), [4, 8])
    with perturb.watermarked(LM.model, WM, KEYS[0]):
        written = generate.sample(LM.model, PROMPTS, 20, seed=1)
    expected = joint.sequence(LM.model, PROMPTS, written, WM, KEYS[:1])
    for row, part in zip(table.itertuples(), (expected[:4], expected[4:]), strict=True):
        assert row.measured == pytest.approx(part["innovation"].sum() / part["psi"].sum(), abs=1e-3)
    assert table["texts"].tolist() == [2, 6]


def test_flat_information_is_that_of_isotropic_gradients():
    """G ~ N(0, f·I_d) has F = f·I, so c = σ²f."""
    rng, d, f = np.random.default_rng(0), 50, 0.3
    gradients = [
        TextGradient(i, [torch.from_numpy(row).float()[None]], [1.0], 1.0, 0.0, 1)
        for i, row in enumerate(rng.normal(0, f**0.5, (300, d)))
    ]
    assert streams.flat_information(gradients, 2.0) == pytest.approx(4 * f, rel=0.05)


def test_asking_raises_psi_and_leaves_the_rest_to_chance():
    forged = [
        streams.forged(LM, PROMPTS[i], RESPONSES[i], WM, Key.from_seed(i), n_steps=4, seed=i)
        for i in range(6)
    ]
    assert np.mean([one["psi"] for one in forged]) > 1
    assert abs(np.mean([one["innovation"] for one in forged])) < 3.5 / np.sqrt(6)
    climbs = np.array([one["climb"] for one in forged])
    assert climbs.shape == (6, 4)
    assert all(one["log_e"] >= 0 for one in forged)
    assert np.mean([one["log_e"] >= np.log(20) for one in forged]) < 0.5
    assert climbs[:, -1].mean() > climbs[:, 0].mean()


def test_innocent_keys_are_accused_by_each_watchers_rule():
    K, psi = np.ones((4, 4)), np.full((2, 4), 1.0)
    log_e = np.array([[0.0, 3.1, 0.0, 0.0], [0.0] * 4])
    wealths = {streams.BET: log_e, streams.MIXTURE: log_e + 3.0}
    table = streams.accused({"docs": (psi, K, wealths)}).set_index("who stops")["value"]
    assert table[streams.BET] == 0.5, "log 20 is 3.0, and one key was above it"
    assert table[streams.MIXTURE] == 1.0
    assert table[streams.KNOWN] == 0.0, "the mean of alike ψ is 1"
    assert table[streams.NAIVE] == 1.0, "√3 > 1.645"


def test_what_is_kept_is_drawn_beside_two_theories():
    long = pd.DataFrame({"texts": [8.0, 8.0, 24.0, 24.0], "measured": [0.9, 1.0, 0.8, 0.7]})
    axes = streams.draw_kept(long.assign(**{"first order": 0.95}), 0.01, "two keys").axes[0]
    second = next(line for line in axes.containers if "second" in line.get_label()).lines[0]
    assert second.get_ydata().tolist() == pytest.approx([1 / 1.08, 1 / 1.24])


def test_the_watermarked_texts_until_a_stream_is_found_are_counted():
    rows = of_two_keys(4.0).assign(log_e=[0, 0, 0, 3.1, 0, 0, 0, 0])
    assert streams.marked_until_found(rows).value == 2.5, "found at the second; not found: 3"
