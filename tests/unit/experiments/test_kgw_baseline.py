"""Schemes side by side: tokens needed against a loop, changes of text against measuring each by
itself, and the cross-entropy in parts.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import norm

from gaussmark_lib import corrupt, likelihood, schemes
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.experiments import kgw_baseline, written_and_scored
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key, Watermark, watermarked
from gaussmark_lib.quality import diversity

LM = tiny_lm.build()
KEY = Key.from_seed(0)
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 4)
PLAIN = tiny_models.random_ids(np.random.default_rng(1), *[20] * 4)
NAMES = [
    KGW(2.0, KEY).name,
    KGW(2.0, KEY).name,
    schemes.GaussMark(Watermark(tiny_lm.WEIGHT, 0.1), KEY).name,
]


def test_a_change_is_the_mean_over_texts_of_its_measure_less_that_of_the_plain_text():
    texts = [tiny_models.random_ids(np.random.default_rng(seed), *[20] * 4) for seed in (2, 3)] + [
        PLAIN
    ]
    found, of_cross_entropy = kgw_baseline.against_plain(
        LM,
        PROMPTS,
        [(name, own, PLAIN) for name, own in zip(NAMES, texts, strict=True)],
        n_resamples=20,
    )
    found = found.set_index(["scheme", "measure"])
    assert len(found) == 2 * 3
    pairs = [(x, y, z) for own in texts[:2] for x, y, z in zip(PROMPTS, own, PLAIN, strict=True)]
    nats = [
        np.subtract(
            *(likelihood.cross_entropy(LM.model, [text], prompts=[x])[0] for text in (y, z))
        )
        for x, y, z in pairs
    ]
    assert found.loc[("KGW-2", "cross-entropy"), "value"] == pytest.approx(np.mean(nats), rel=1e-5)
    distinct = [diversity.distinct(y, 2) - diversity.distinct(z, 2) for _, y, z in pairs]
    assert found.loc[("KGW-2", "distinct-2"), "value"] == pytest.approx(np.mean(distinct))
    assert found.loc[("KGW-2", "cross-entropy"), "plain"] == pytest.approx(
        likelihood.cross_entropy(LM.model, PLAIN, prompts=PROMPTS).mean()
    )
    known = found.dropna(subset="low")  # texts that all agree bound nothing
    assert ("KGW-2", "cross-entropy") in known.index
    assert (known["low"] <= known["value"]).all()
    assert (known["value"] <= known["high"]).all()
    assert (found.loc["KGW-2", "n"] == len(PROMPTS) * 2).all()
    assert (found.loc["GaussMark", "value"] == 0).all()
    assert found.loc["GaussMark", ["low", "high"]].isna().all(axis=None)
    assert of_cross_entropy["KGW-2"].shape == (len(PROMPTS), 2)
    np.testing.assert_allclose(of_cross_entropy["KGW-2"].T.ravel(), nats, rtol=1e-4, atol=1e-6)


def test_repetition_is_seen():
    [row] = kgw_baseline.measures(LM, [[5]], [[7, 8, 9, 10] * 5]).itertuples(index=False)
    assert row[1] == pytest.approx(4 / 19)
    assert row[2] == pytest.approx(1 - 4 / 17)


def prefixes(log10_p):
    """A scheme's table of log₁₀ p, an array prompts × keys × lengths 10, 20, 40."""
    rows = [
        (f"k{j}", i, n, value)
        for (i, j, at), value in np.ndenumerate(log10_p)
        for n in [(10, 20, 40)[at]]
    ]
    return pd.DataFrame(rows, columns=["key_id", "prompt", "n_tokens", "log10_p"]).assign(
        scheme="a"
    )


def test_tokens_are_needed_until_half_of_the_texts_are_detected():
    log10_p = np.random.default_rng(0).normal([-1.0, -3.0, -7.0], 0.3, size=(9, 3, 3))
    found = kgw_baseline.tokens_needed(
        prefixes(log10_p), levels=(1e-2, 1e-6, 1e-12), n_resamples=200
    ).set_index("level")
    medians = np.median(log10_p.reshape(-1, 3), axis=0)
    assert found.loc[1e-2, "value"] == pytest.approx(np.interp(2, -medians, [10, 20, 40]))
    assert found.loc[1e-6, "value"] == pytest.approx(np.interp(6, -medians, [10, 20, 40]))
    assert (found.loc[[1e-2, 1e-6], "low"] < found.loc[[1e-2, 1e-6], "value"]).all()
    assert np.isfinite(found.loc[[1e-2, 1e-6], "high"]).all()
    never = found.loc[1e-12]
    assert (never["value"], np.isnan(never["low"]), np.isnan(never["high"])) == (
        np.inf,
        True,
        True,
    ), "all resamples agree: not within 40, and no interval"
    assert (found["n"] == 27).all()
    within = log10_p[:, :, 1] <= -2
    assert within.mean() >= 0.5, (
        "at 20 tokens more than half are detected at 0.01: fewer than 20 are needed"
    )
    assert found.loc[1e-2, "value"] < 20


def test_an_end_that_is_not_known_is_not_infinite():
    """All texts alike: resamples agree, and know nothing. That is no reason to say that the ends
    lie beyond the longest text.
    """
    log10_p = np.broadcast_to([-1.0, -3.0, -7.0], (4, 2, 3))
    [row] = kgw_baseline.tokens_needed(prefixes(log10_p), levels=(1e-2,), n_resamples=20).to_dict(
        "records"
    )
    assert row["value"] == 15
    assert np.isnan([row["low"], row["high"]]).all()


def test_the_shortest_length_stands_for_that_or_fewer():
    assert kgw_baseline.first_below([-9.0, -1.0], [10, 20], 1e-3) == 10
    assert kgw_baseline.in_words(10.0, [10, 20]) == "at most 10"


def test_by_prefix_tests_the_beginnings():
    scheme, other = KGW(2.0, KEY), KGW(2.0, Key.from_seed(1))
    texts = [tiny_models.random_ids(np.random.default_rng(seed), *[20] * 4) for seed in (2, 3)]
    found = kgw_baseline.by_prefix(LM, [scheme, other], PROMPTS, texts, [5, 12, 30])
    assert len(found) == 2 * 3 * 4
    row = found[
        (found["key_id"] == other.key.key_id) & (found["n_tokens"] == 12) & (found["prompt"] == 2)
    ].iloc[0]
    assert row["p_value"] == other.score(LM.model, [[]], [texts[1][2][:12]])["p_value"][0]
    whole = found[(found["key_id"] == KEY.key_id) & (found["n_tokens"] == 30)]["log10_p"].tolist()
    assert whole == scheme.score(LM.model, PROMPTS, texts[0])["log10_p"].tolist(), (
        "a shorter text is tested whole"
    )


def test_evidence_is_half_the_square_of_psi_whatever_the_scheme():
    for psi in (-1.0, 0.5, 3.0, 40.0):
        assert kgw_baseline.evidence(norm.logsf(psi) / np.log(10)) == pytest.approx(
            max(psi, 0) ** 2 / 2, rel=1e-9
        )


def test_evidence_per_nat_of_a_normal_psi_is_1_where_the_price_is_the_law():
    psi, n_tokens = np.random.default_rng(0).normal(3.0, 1e-6, size=(6, 2)), 50
    rows = [
        ("GaussMark", f"k{j}", i, norm.logsf(value) / np.log(10))
        for (i, j), value in np.ndenumerate(psi)
    ]
    table = pd.DataFrame(rows, columns=["scheme", "key_id", "prompt", "log10_p"])
    prices = table[["scheme", "key_id", "prompt"]].assign(
        n_tokens=n_tokens, price=3.0**2 / 2 / n_tokens
    )
    [row] = kgw_baseline.evidence_per_nat(
        table, prices[prices["prompt"] < 4], n_resamples=20
    ).to_dict("records")
    assert (row["value"], row["evidence"], row["nats"]) == pytest.approx((1, 4.5, 4.5), rel=1e-4)
    assert row["n"] == 4 * 2


@pytest.mark.parametrize("same", ["log10_p", "price"])
def test_a_ratio_of_a_part_without_an_interval_has_none(same):
    cells = [("a", f"k{j}", i) for i in range(4) for j in range(2)]
    table = pd.DataFrame(cells, columns=["scheme", "key_id", "prompt"])
    varied = np.random.default_rng(0).uniform(1, 2, len(table))
    table["log10_p"], table["price"] = (-3.0, varied) if same == "log10_p" else (-varied, 0.1)
    [row] = kgw_baseline.evidence_per_nat(
        table.drop(columns="price"),
        table.drop(columns="log10_p").assign(n_tokens=9),
        n_resamples=50,
    ).to_dict("records")
    assert np.isfinite(row["value"])
    assert np.isnan([row["low"], row["high"]]).all()


@pytest.mark.parametrize("edit", ["substitute at random", "delete at random"])
def test_the_share_of_runs_that_an_edit_leaves_whole(edit):
    """Of 90 different tokens: neighbours after the edit that were neighbours before."""
    text = list(range(1, 91))
    tokens_left = corrupt.named(LM, [edit])[edit]([[1]] * 250, [text] * 250, 0.3, 0)[1]
    pairs = set(pairwise(text))
    kept = np.mean([len(pairs & set(pairwise(ids))) / len(pairs) for ids in tokens_left])
    assert kept == pytest.approx(kgw_baseline.left_whole(edit, 0.3, 2), abs=0.02)
    assert np.isnan(kgw_baseline.left_whole("no prompt", 0.3, 2))


def test_cross_entropy_is_price_plus_entropy_on_texts_of_a_watermarked_model():
    """Sampled −log p is its own mean within a Monte Carlo error; KL and entropy are exact at each
    position.
    """
    wm, prompts = Watermark(tiny_lm.WEIGHT, 0.3), [[5, 6, 7]] * 300
    scheme = schemes.GaussMark(wm, KEY)
    own = scheme.generate(LM.model, prompts, 4, seed=1)
    price = written_and_scored.prices(LM, [scheme], prompts, [own])["price"].to_numpy()
    with watermarked(LM.model, wm, KEY):
        entropy = np.array(
            [values.mean() for values in likelihood.entropies(LM.model, prompts, own)]
        )
    gap = likelihood.cross_entropy(LM.model, own, prompts=prompts) - price - entropy
    assert abs(gap.mean()) < 4 * gap.std() / len(gap) ** 0.5
    assert price.mean() > 8 * gap.std() / len(gap) ** 0.5, "and the test could see it missing"


def test_the_parts_add_up():
    change = {"a": np.array([[0.3, 0.1], [0.2, 0.4], [9.0, 9.0]])}
    prices = pd.DataFrame(
        {
            "scheme": "a",
            "key_id": list("xyxy"),
            "prompt": [0, 0, 1, 1],
            "price": [0.1, 0.2, 0.3, 0.4],
            "n_tokens": 9,
        }
    )
    found = kgw_baseline.in_parts(change, prices, n_resamples=20).set_index("part")["value"]
    assert found.to_dict() == pytest.approx(
        {"price": 0.25, "change of entropy": 0.0, "Δ cross-entropy": 0.25}
    )


def test_the_entropy_of_the_same_contexts_changes_by_nothing_without_noise():
    found = kgw_baseline.entropy_changes(LM, PROMPTS, PLAIN, Watermark(tiny_lm.WEIGHT, 1e-5), [KEY])
    assert found == pytest.approx([0], abs=1e-4)
    strong = kgw_baseline.entropy_changes(
        LM, PROMPTS, PLAIN, Watermark(tiny_lm.WEIGHT, 0.5), [KEY, Key.from_seed(1)]
    )
    assert (np.abs(strong) > 1e-3).all()
    assert strong[0] != strong[1]


def test_texts_that_are_too_short_are_left_out_with_their_prompts():
    texts = [[[1] * n for n in lengths] for lengths in ((9, 3, 8), (9, 9, 8))]
    assert kgw_baseline.long_enough(texts, 8) == [0, 2]
    with pytest.raises(InvalidTextError, match="got 1; set until_end to false"):
        kgw_baseline.long_enough(texts, 9)
