"""The experiments of 13 on a tiny model: what they hand to the notebook is what the library says,
one by one.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm

from gaussmark_lib import tracing
from gaussmark_lib.experiments import whose_text
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
BOOK = tracing.Codebook(Key.from_seed(3), 50, 4)
USERS = [0, 49]
PROMPTS = [LM.prompt(text) for text in tiny_lm.PROMPTS[:3]]
HUMAN = [([5 + i], list(range(10 + i, 34 + i))) for i in range(3)]


@pytest.fixture(scope="module")
def written():
    before = LM.model.get_parameter(WM.weight).clone()
    texts = whose_text.written(LM, PROMPTS, USERS, WM, BOOK, 12, seed=1)
    assert LM.model.get_parameter(WM.weight).equal(before)
    return texts


@pytest.fixture(scope="module")
def human():
    return whose_text.gradients(LM, *zip(*HUMAN, strict=True), WM)


def test_the_forecast_is_theorys_at_the_norms_of_plain_text(human):
    table = whose_text.forecast(human, WM.sigma, BOOK)
    psi = [WM.sigma * gradient.norm for gradient in human]
    assert table["psi"][0] == pytest.approx(np.mean(psi))
    shares = [tracing.share_right(one, 50, 4) for one in psi]
    assert table["value"][0] == pytest.approx(np.mean(shares))


def test_shares_count_users():
    named = pd.DataFrame({"author": [1, 1, 2, 2], "user": [1, 1, 2, 3], "n_tokens": 9})
    table = whose_text.shares(named)
    assert table[["n_tokens", "value", "n"]].to_numpy().tolist() == [[9, 0.75, 2]]


def test_texts_that_nobody_wrote_meet_a_codebook_each(human):
    table = whose_text.nobodys(human, 20, 3, 5, first_seed=50)
    book = tracing.Codebook(Key.from_seed(54), 20, 3)
    expected = tracing.attribute(LM.model, [HUMAN[1][0]], [HUMAN[1][1]], WM, book)
    assert table["exact"][4] == pytest.approx(expected["p_family"][0], rel=1e-3)
    assert (table["exact"] <= table["Bonferroni"] + 1e-9).all()
    rates = whose_text.at_levels(table, [0.5, 1.0])
    assert rates["value"].tolist()[0] == (table["exact"] <= 0.5).mean()
    assert rates["value"].tolist()[2:] == [1, 1]


def test_costs_are_times(human):
    table = whose_text.costs(human[0], WM.on(LM.model), BOOK, [10, 50], 2)
    assert table["n_users"].tolist() == [10, 10, 50, 50]
    assert (table["value"] > 0).all()


def test_texts_together_are_the_librarys_author(written, human):
    keys = [BOOK.key(user) for user in USERS]
    marked = whose_text.gradients(LM, PROMPTS, written[0], WM)
    table = whose_text.together(marked, human, WM.on(LM.model), keys, [1, 3])
    expected = tracing.author(LM.model, PROMPTS, written[0], WM, keys)
    whole = table[table["n_texts"] == 3].set_index("kind")
    assert whole.loc["author's key", "psi"] == pytest.approx(expected["psi"][0], rel=1e-3)
    assert whole.loc["another user's key", "psi"] == pytest.approx(expected["psi"][1], rel=1e-3)
    norm = expected["grad_norm"][0]
    assert whole["predicted"].tolist() == pytest.approx([WM.sigma * norm] * 3, rel=1e-3)
    plain = tracing.author(LM.model, *zip(*HUMAN, strict=True), WM, keys[:1])
    assert whole.loc["human texts", "psi"] == pytest.approx(plain["psi"][0], rel=1e-3)


@pytest.mark.parametrize(
    ("n_tokens", "share", "block"), [(180, 0.33, 20), (30, 0.1, 2), (900, 0.9, 50)]
)
def test_a_marked_span_begins_off_the_grid(n_tokens, share, block):
    start, end = whose_text.marked_span(n_tokens, share, block)
    assert start % block == block // 2
    assert end - start == max(block, round(share * n_tokens))
    assert abs((start + end) / 2 - n_tokens / 2) <= block
    assert whose_text.marked_span(30, 0.9, 200) == (0, 30)


def test_a_span_is_replaced_by_marked_tokens_and_scanned_under_its_own_keys():
    keys = [Key.from_seed(i) for i in range(3)]
    mixed = whose_text.spliced(LM, HUMAN, WM, keys, (8, 14), seed=1)
    for (_, before), after in zip(HUMAN, mixed, strict=True):
        assert (after[:8], after[14:]) == (before[:8], before[14:])
        assert after != before
    table = whose_text.scanned(LM, HUMAN[:2], WM, [keys[:1], keys[1:]], block=4)
    alone = tracing.scan(LM.model, [HUMAN[1][0]], [HUMAN[1][1]], WM, keys[1:], block=4)
    assert table["psi"].tolist()[1:] == pytest.approx(alone["psi"].tolist(), rel=1e-4)


def test_overlap_is_the_shared_part_of_both_spans():
    found = pd.DataFrame({"start": [0, 10, 4, 20], "end": [10, 20, 6, 30]})
    shares = [5 / 15, 5 / 15, 1 / 11, 0]
    assert whose_text.overlap(found, 5, 15).tolist() == pytest.approx(shares)
