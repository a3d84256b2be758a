"""The presets of notebook 05 fit its parameters, and ask for as much as they promise."""

import pytest

from gaussmark_lib import docs, texts
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.quality import tasks
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs import presets


@pytest.fixture(scope="module")
def quality():
    return notebooks.load("05_quality")


def test_the_large_preset_asks_for_hundreds_and_no_more_than_the_corpus_yields(quality):
    values = quality.check(presets.read("quality_large"))
    assert min(values["n_items"], values["n_texts"], values["n_judged"]) >= 800
    if not (docs.CACHE / f"docs-{docs.fingerprint()}.parquet").exists():
        pytest.skip("the corpus has not been built yet, which takes most of a minute")
    short = texts.load("docs", min_chars=400)
    assert len(short) >= values["n_texts"] >= values["n_judged"]
    assert len(texts.load("docs")) >= max(values["n_passages"], 2 * values["n_exchange"])
    assert set(tasks.build(short, values["n_items"])) == set(tasks.CHANCE)


def test_the_exchange_preset_goes_up_to_a_psi_of_4_on_four_weights_and_more(quality):
    values = quality.check(presets.read("quality_exchange"))
    assert values["n_exchange"] * values["n_exchange_keys"] >= 100
    assert max(values["exchange_psi"]) == 4.0
    assert len(values["exchange_weights"]) >= 4


def test_the_hub_preset_asks_the_papers_tasks_of_a_model_of_the_paper(quality):
    values = quality.check(presets.read("quality_hub"))
    assert set(values["harness_tasks"]) == {
        "boolq",
        "cb",
        "copa",
        "multirc",
        "record",
        "rte",
        "wic",
        "wsc",
        "gsm8k_cot",
    }
    assert Watermark(values["weight"], values["sigma"]).sigma ** 2 == pytest.approx(1e-5)
    assert (values["text"], values["judge"]) == ("c4", "endpoint")
