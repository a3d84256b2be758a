"""What 20 measures of a trained model, page by page."""

import lzma

import tiny_lm

from gaussmark_experiments import train_doclm
from gaussmark_lib.workbench.doclm import train

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
