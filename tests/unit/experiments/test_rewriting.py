"""Rewriting: each sentence is answered once, and the judge's numbers against direct ones."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm

from gaussmark_experiments import bench, rewriting
from gaussmark_lib import generate, likelihood, models
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.workbench import rewrite
from gaussmark_lib.workbench.rewrite import apertium

LM = tiny_lm.build()
LM.model.config.max_position_embeddings = 1024
TEXTS = ["The sea is calm. It shines!", "No end " + "x " * 60, "Who asks? I do."]


def test_a_text_goes_through_every_language_and_back(monkeypatch):
    class Direction:
        def __init__(self, source, target):
            self.name = f"{source}-{target}"

        def batch(self, texts):
            return [f"{text} {self.name}" for text in texts]

    monkeypatch.setattr(rewrite, "translator", Direction)
    assert rewriting.round_trips(["a", "b"], ["es", "eo"]) == [
        "a en-es es-en en-eo eo-en",
        "b en-es es-en en-eo eo-en",
    ]


def test_every_sentence_is_rewritten_in_its_place(monkeypatch):
    lm = models.load("doclm")
    asked = {}

    def answered(model, prompts, n_tokens, *, rows, **options):
        asked.update(zip(rows, map(lm.decode, prompts), strict=True))
        return [lm.encode("" if row == 1 else f"{row}.\nmore") for row in rows]

    monkeypatch.setattr(generate, "sample", answered)
    monkeypatch.setattr(rewriting, "SENTENCES", 2)
    assert rewriting.in_other_words(lm, TEXTS) == ["0. It shines!", "2. 3.", "4. 5."]
    assert asked[4].endswith("Sentence: Who asks?\nIn other words:")
    assert all(example in asked[0] for example in rewriting.EXAMPLES[0])
    assert len(asked[3].rpartition("Sentence: ")[2].split()) == 2 + 3, "62 words: 60 and 2"


def test_the_meaning_of_a_text_is_one_and_of_another_text_zero():
    judge = rewriting.Judge(LM, TEXTS)
    itself, another = judge.likeness(TEXTS), judge.likeness(TEXTS[1:] + TEXTS[:1])
    np.testing.assert_allclose(itself["gained"], itself["most"])
    np.testing.assert_allclose(another["gained"], 0, atol=1e-9)
    assert (itself[["copied", "length"]] == 1).all(axis=None)
    read = LM.prompt("copy" + rewriting.LINK)
    nats = -likelihood.log_probabilities(LM.model, [read], [LM.encode(TEXTS[2])])[0].mean()
    gained = judge.of_another[2] - nats
    assert judge.likeness(["", "", "copy"])["gained"][2] == pytest.approx(gained)
    with pytest.raises(InvalidTextError, match="at least two texts, got 1"):
        rewriting.Judge(LM, TEXTS[:1])


def test_a_table_of_rewriting_tests_the_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load", lambda name: LM)
    monkeypatch.setattr(bench, "_has_model", lambda name: name == rewriting.JUDGE)
    monkeypatch.setattr(apertium, "is_installed", lambda: False)
    setting = bench.Setting("tiny", "licences", n_pairs=4, n_tokens=16)
    work = bench.Bench(setting, ["KGW-1"], bench.REWRITING, tmp_path)
    for _, complete in work.cells():
        complete()
    copies = rewriting.shuffled([LM.decode(ids) for ids in work.texts(["KGW-1"])["ids"]], 1)
    ids = [LM.encode(copy) for copy in copies]
    table = work.tried["KGW-1"].score(LM.model, work.pairs.prompts, ids, work.pairs.keys)
    tests = pd.DataFrame(work.tests(["KGW-1"], rewriting.SHUFFLED)["rows"])
    np.testing.assert_allclose(tests["log10_p"], table["log10_p"])
    missing = {row["column"]: row["why"] for row in work.missing()}
    assert missing["by Catalan"] == "by Catalan: the program apertium is not installed"
    assert set(missing) == {*rewriting.LANGUAGES, "by SmolLM2", bench.UNMARKED}
    likeness = work.tables()["likeness"]
    of_gemma = likeness[likeness["way"] == "by Gemma"]
    above = (
        of_gemma["gained"].to_numpy() - likeness["gained"][likeness["way"] == rewriting.SHUFFLED]
    )
    rows = {(row["way"], row["quantity"]): row for row in work.results()["likeness"]}
    expected = above.mean() / of_gemma["most"].mean()
    assert rows["by Gemma", bench.ABOVE]["value"] == pytest.approx(expected)
