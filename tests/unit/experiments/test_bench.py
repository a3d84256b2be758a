"""The cells of ``gaussmark bench`` on a tiny model: each against a direct computation."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_lm

from gaussmark_experiments import bench, kgw_baseline
from gaussmark_lib import corrupt, models, stats, texts
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.workbench import pairs as several
from gaussmark_lib.workbench.pairs import Pairs

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
NAMES = ["GaussMark", "GaussMark, sharper", "KGW-1"]
SETTING = bench.Setting("tiny", "licences", n_pairs=4, n_tokens=20)
FAMILIES = [NAMES[:2], NAMES[2:]]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """All cells of a table without the columns that need other programs."""
    lm = tiny_lm.build()
    lm.model.config.max_position_embeddings = 512
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "load", lambda name: lm)
        work = bench.Bench(SETTING, NAMES, bench.QUICK, tmp_path_factory.mktemp("cells"))
        for _, complete in work.cells():
            complete()
        yield work


def test_two_tests_of_one_noise_share_its_texts(work):
    assert work.families() == FAMILIES
    rows = work.tests(FAMILIES[0], bench.CLEAN)["rows"]
    assert [*dict.fromkeys(row["scheme"] for row in rows)] == FAMILIES[0]


def test_a_copy_paste_text_is_the_marked_text_whole_inside_a_human_text(work):
    prompts, pasted = work._changed(["KGW-1"], bench.PASTED)
    assert prompts == [work.lm.unknown_prompt()] * 4
    human = texts.human(work.lm, "licences", 8, bench.PROMPT_TOKENS + 61)[4:]
    for text, inner, whole in zip(pasted, work.texts(["KGW-1"])["ids"], human, strict=True):
        assert len(inner) / len(text) == bench.MARKED
        host = whole[bench.PROMPT_TOKENS :][:60]
        assert text in [host[:gap] + inner + host[gap:] for gap in range(61)]


def test_the_price_of_gaussmark_is_that_of_kgw_1_on_the_pilot(work):
    price = work.price()
    for n_pairs, n in ((4, 8), (40, 20), (200, 48)):
        larger = bench.Bench(replace(SETTING, n_pairs=n_pairs), NAMES, [], work.folder)
        prompts = texts.prompts(work.lm, "licences", n, bench.PROMPT_TOKENS, split="pilot")
        assert larger.pilot_prompts == prompts
    pilot = Pairs(prompts[:8], several.pilot_keys(8))
    plain = texts.human(work.lm, "licences", 8, 20, split="pilot")  # other texts than σ saw
    wm = Watermark(price["weight"], price["sigma"])
    of_noise = kgw_baseline.prices_along(work.lm, GaussMark(wm, pilot.keys[0]), pilot, plain)
    of_rival = kgw_baseline.prices_along(work.lm, work.tried["KGW-1"], pilot, plain)
    assert 0.6 < of_noise["kl"].mean() / of_rival["kl"].mean() < 1.6
    assert price["nats"] == pytest.approx(of_rival["kl"].mean(), rel=0.3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0])
def test_each_column_is_what_the_scheme_says_of_the_changed_texts(work, family):
    scheme = work.tried[family[-1]]
    ids = work.texts(family)["ids"]
    prompts, keys = work.pairs
    edited = corrupt.named(work.lm, ["substitute at random"])["substitute at random"]
    changed = edited(prompts, ids, 0.3, 0)[1]
    expected = {
        "30% substituted": scheme.score(work.lm.model, prompts, changed, keys),
        bench.PLAIN: scheme.score(work.lm.model, prompts, work.plain()["ids"], keys),
        bench.WRONG: scheme.score(work.lm.model, prompts, ids, keys[1:] + keys[:1]),
    }
    for column, table in expected.items():
        rows = pd.DataFrame(work.tests(family, column)["rows"])
        log10_p = rows.loc[rows["scheme"] == family[-1], "log10_p"]
        np.testing.assert_allclose(log10_p, table["log10_p"], rtol=1e-3, atol=1e-5)
    with_short = work._by_own_keys(family, prompts, [ids[0], [7], *ids[2:]], range(4))
    assert sorted(with_short["text"]) == sorted([*range(4)] * len(family))
    assert with_short.query("text == 1")["log10_p"].eq(0).all()


def test_costs_are_those_of_each_text(work):
    costs = work.costs(["KGW-1"])
    scheme = work.tried["KGW-1"]
    ids = work.texts(["KGW-1"])["ids"]
    kl = scheme.divergences(work.lm.model, work.pairs.prompts, ids, work.pairs.keys) / 20
    np.testing.assert_allclose(costs["kl"], kl)
    mean = stats.mean(work.costs(["GaussMark"])["kl"]).row()
    assert work.results()["prices"][0] == {"scheme": "GaussMark", "price": "kl"} | mean


def test_a_fine_tuned_release_is_read_by_its_own_key(work, monkeypatch):
    monkeypatch.setattr(bench, "STEPS", 0)
    monkeypatch.setattr(bench, "N_RELEASES", 2)
    monkeypatch.setattr(bench, "TRAINING_TOKENS", 16)
    rows = pd.DataFrame(work.tests(FAMILIES[0], bench.TUNED)["rows"])
    rows = rows[rows["scheme"] == "GaussMark"].sort_values("text")
    assert rows["release"].tolist() == [0, 0, 1, 1]
    first_of_release = rows["log10_p"].to_numpy()[[0, 2]]
    clean = pd.DataFrame(work.tests(FAMILIES[0], bench.CLEAN)["rows"])
    clean = clean[(clean["scheme"] == "GaussMark") & (clean["n_tokens"] == 20)]
    # without training, the first text of a release is the pair's own
    np.testing.assert_allclose(first_of_release, clean["log10_p"].to_numpy()[[0, 2]], rtol=1e-2)
    reason = work.tests(["KGW-1"], bench.TUNED)["missing"]
    assert reason == "LoRA: only a mark in the weights can survive training"


def test_a_base_model_does_not_rewrite(work):
    missing = {"missing": "rewritten: tiny is not a chat model"}
    assert work.tests(["KGW-1"], bench.REWRITTEN) == missing


def test_rates_have_exact_intervals_and_releases_are_clusters():
    log10_p = [-4.0, -2.5, -1.0, -0.1, -2.5, -2.5]
    tests = pd.DataFrame({"log10_p": log10_p, "text": range(6), "n_tokens": 9, "scheme": "a"})
    clean = tests.assign(column=bench.CLEAN, release=range(6))
    # a shorter beginning counts for the number of tokens only
    shorter = clean.assign(n_tokens=5, log10_p=-9.0)
    tuned = tests.assign(column=bench.TUNED, release=[0, 0, 1, 1, 2, 2])
    rows = bench.rates(pd.concat([clean, shorter, tuned], ignore_index=True))
    at = {(row["column"], row["level"]): row for row in rows}
    assert at[bench.CLEAN, 0.01] | stats.share([1, 1, 0, 0, 1, 1]).row() == at[bench.CLEAN, 0.01]
    assert at[bench.CLEAN, 0.001]["value"] == pytest.approx(1 / 6)
    clustered = stats.share([1, 1, 0, 0, 1, 1], cluster=[0, 0, 1, 1, 2, 2]).row()
    assert at[bench.TUNED, 0.01] | clustered == at[bench.TUNED, 0.01]
    assert at[bench.TUNED, 0.01]["n"] == 3


def test_a_finished_cell_is_read_and_not_measured_again(work, monkeypatch):
    again = bench.Bench(SETTING, NAMES, bench.QUICK, work.folder)
    monkeypatch.setattr(models, "load", lambda name: pytest.fail("the model is not needed"))
    monkeypatch.setattr(again, "reason", lambda family, column: "")
    for _, complete in again.cells():
        complete()
    assert again.tables()["tests"].equals(work.tables()["tests"])
    other = bench.Setting("tiny", "licences", n_pairs=4, n_tokens=21)
    assert bench.id_of(other) != bench.id_of(SETTING)
    assert bench.Bench(SETTING, NAMES[:1], bench.QUICK, work.folder).id != again.id


def test_results_are_json_and_unknown_schemes_are_refused(work):
    json.dumps(work.results(), allow_nan=False)
    with pytest.raises(InvalidWatermarkError, match="no scheme is called 'KGW-3'"):
        bench.Bench(SETTING, ["KGW-3"], bench.QUICK, work.folder)
