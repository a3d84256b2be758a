"""The presets of notebook 05 fit its parameters, and ask for as much as they promise."""

import pytest

from gaussmark_experiments.measures import tasks
from gaussmark_lib import texts
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs import presets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quality_reference", "quality_large"])
def test_a_preset_asks_for_sizes_that_decide_and_no_more_than_the_corpus_yields(name):
    values = notebooks.load("05_quality").check(presets.read(name))
    assert values["n_keys"] >= 16
    assert min(values["n_items"], values["n_passages"]) >= 400
    assert min(values["n_texts"], values["n_judged"]) >= 800
    assert len(texts.load("docs", min_chars=6 * values["prompt_tokens"])) >= values["n_texts"]
    made = tasks.build(texts.load("docs", min_chars=400), values["n_items"], least=400)
    assert len(made) == 3
