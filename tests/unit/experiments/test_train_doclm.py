"""What 20 measures of a trained model, page by page."""

import lzma

import pandas as pd
import tiny_lm

from gaussmark_lib.doclm import train
from gaussmark_lib.experiments import train_doclm

LM = tiny_lm.build()
PAGES = ["One page of text.", "Another page, somewhat longer than the first."]


def test_each_page_is_measured_under_each_model():
    table = train_doclm.by_page({"a": (LM.model, LM.tokenizer)}, PAGES)
    expected = [train.bits_per_character(LM.model, LM.tokenizer, [page]) for page in PAGES]
    assert table.drop(columns=["model", "page"]).to_dict("records") == expected


def test_xz_compresses_the_pages_together_and_a_spread_is_even():
    text = "\n\n".join(PAGES)
    assert train_doclm.xz(PAGES) == 8 * len(lzma.compress(text.encode(), preset=9)) / len(text)
    assert train_doclm.spread(list("abcdefgh"), 3) == ["a", "c", "e"]
    assert train_doclm.spread(list("ab"), 3) == ["a", "b"]


def test_figures_name_what_they_draw():
    corpus = pd.DataFrame({"source": ["x/a.py", "y.py"], "text": ["words", "more words"]})
    [axes] = train_doclm.sources(corpus, "two files").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["y", "x"]
    curve = pd.DataFrame({"tokens": [1, 10], "loss": [5.0, 4.0], "held_out": [5.5, 4.5]})
    [axes] = train_doclm.curves({"this run": curve}, 4.2, "a caption").axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["this run, training", "this run, held out", "frequencies alone"]
