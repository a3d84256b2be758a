"""The experiments of 13 on a tiny model: what they hand to the notebook is what the library says,
one by one.
"""

import pandas as pd
import pytest
import tiny_lm

from gaussmark_experiments import whose_text
from gaussmark_lib.beyond import tracing
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
    texts = whose_text.texts_of_users(LM, PROMPTS * 2, USERS, WM, BOOK, 12, seed=1)
    assert LM.model.get_parameter(WM.weight).equal(before)
    return texts


@pytest.fixture(scope="module")
def human():
    return whose_text.gradients(LM, *zip(*HUMAN, strict=True), WM)


def test_texts_that_nobody_wrote_meet_a_codebook_each(human):
    table = whose_text.nobodys(human, 20, 3, 5, first_seed=50)
    book = tracing.Codebook(Key.from_seed(54), 20, 3)
    expected = tracing.attribute(LM.model, [HUMAN[1][0]], [HUMAN[1][1]], WM, book)
    assert table["exact"][4] == pytest.approx(expected["p_family"][0], rel=1e-3)
    assert (table["exact"] <= table["Bonferroni"] + 1e-9).all()
    rates = whose_text.at_levels(table, [0.5, 1.0])
    assert rates["value"].tolist()[0] == (table["exact"] <= 0.5).mean()
    assert rates["value"].tolist()[2:] == [1, 1]


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


def test_a_span_is_replaced_by_marked_tokens_and_scanned_under_its_own_keys():
    keys = [Key.from_seed(i) for i in range(3)]
    mixed = whose_text.spliced(LM, HUMAN, WM, keys, (8, 14), seed=1)
    for (_, before), after in zip(HUMAN, mixed, strict=True):
        assert (after[:8], after[14:]) == (before[:8], before[14:])
        assert after != before
    table = whose_text.scanned(LM, HUMAN[:2], WM, [keys[:1], keys[1:]], block=4)
    alone = tracing.scan(LM.model, [HUMAN[1][0]], [HUMAN[1][1]], WM, keys[1:], block=4)
    assert table["psi"].tolist()[1:] == pytest.approx(alone["psi"].tolist(), rel=1e-4)


def test_the_forecast_is_compared_text_by_text_over_users():
    named = pd.DataFrame({"text": range(4), "n_tokens": 9, "user": [1, 1, 7, 2]})
    named["author"] = [1, 1, 2, 2]
    forecast = pd.DataFrame({"text": range(4), "n_tokens": 9, "value": [0.5, 0.5, 0.25, 0.75]})
    off = whose_text.off_forecast(named, forecast)[9]
    assert (off.value, off.n) == (0.25, 2)
    assert (0.25 - off.low) / (off.high - 0.25) == pytest.approx(1)


def test_each_authors_texts_meet_the_authors_key_and_the_one_before(written, human):
    table = whose_text.of_authors(LM, PROMPTS * 2, written, USERS, human, WM, BOOK, [1, 3])
    own = whose_text.gradients(LM, PROMPTS, written[1], WM)
    keys = [BOOK.key(USERS[1]), BOOK.key(USERS[0])]
    expected = whose_text.together(own, human, WM.on(LM.model), keys, [1, 3])
    rows = table[table["author"] == USERS[1]].drop(columns="author").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, expected, rtol=1e-4)


def test_marked_spans_and_human_texts_are_scanned_under_keys_of_their_own():
    own, fresh = ([Key.from_seed(i + j) for i in range(n)] for j, n in ((0, 3), (10, 6)))
    ask = (LM, HUMAN, WM, own, fresh, (4, 16))
    marked, null = whose_text.scans(*ask, block=4, seed=1)
    mixed = whose_text.spliced(LM, HUMAN, WM, own, (4, 16), 1)
    alone = whose_text.scanned(LM, [(HUMAN[2][0], mixed[2])], WM, [own[2:]], block=4, seed=1)
    assert marked["psi"].iloc[2] == pytest.approx(alone["psi"].item(), rel=1e-3)
    alone = whose_text.scanned(LM, HUMAN[1:2], WM, [[fresh[1], fresh[4]]], block=4, seed=1)
    assert null["psi"].iloc[2:4].tolist() == pytest.approx(alone["psi"].tolist(), rel=1e-3)


def test_copied_tokens_are_the_first_of_a_text_and_fill_their_share():
    texts = [list(range(50 + i, 74 + i)) for i in range(5)]
    mixed = whose_text.pasted(HUMAN, texts, 0.25, seed=2)
    for i, (prompt, ids) in enumerate(mixed):
        host_prompt, host = HUMAN[i % 3]
        assert (prompt, len(ids)) == (host_prompt, 24)
        starts = [j for j in range(19) if ids[j : j + 6] == texts[i][:6]]
        assert any(ids[:j] + ids[j + 6 :] == host[:18] for j in starts)
    assert whose_text.pasted(HUMAN, texts[:3], 0.0) == HUMAN


def test_pasted_texts_are_scanned_under_their_key_and_named_by_the_codebook(written):
    keys = [Key.from_seed(i) for i in range(3)]
    ask = (LM, HUMAN, PROMPTS, WM, keys, [0.5])
    scans = whose_text.scans_of_pasted(*ask, block=5, seed=1)
    assert scans["share"].tolist() == [0.0] * 3 + [0.5] * 3
    control = whose_text.scanned(LM, HUMAN[2:], WM, [keys[2:]], block=5, seed=1)
    assert scans["psi"][2] == pytest.approx(control["psi"][0], rel=1e-3)
    named = whose_text.named_when_pasted(LM, HUMAN, written, USERS, WM, BOOK, [0.5], seed=1)
    assert named["author"].tolist() == [0, 0, 0, 49, 49, 49]
    texts = [ids for responses in written for ids in responses]
    prompt, ids = whose_text.pasted(HUMAN, texts, 0.5, seed=1)[4]
    alone = tracing.attribute(LM.model, [prompt], [ids], WM, BOOK)
    assert named["psi"][4] == pytest.approx(alone["psi"][0], rel=1e-3)
    table = whose_text.of_pasted(scans, named).set_index(["copied", "test"])["value"]
    assert table["human text alone", "best span"] == (scans["p_value"][:3] <= 0.05).mean()
    assert table["copy-paste, 50%", "whole text"] == (scans["whole_p"][3:] <= 0.05).mean()
    is_right = named["user"] == named["author"]
    assert table["copy-paste, 50%", "user named"] == is_right.mean()
    more = whose_text.more_by_scan(scans[scans["share"] == 0.5]).value
    both = table["copy-paste, 50%"]
    assert more == pytest.approx(both["best span"] - both["whole text"])
