"""The experiments of 13 on a tiny model: what they hand to the notebook is what the library says,
one by one.
"""

import json
import time

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import torch

from gaussmark_lib import perturb, score, tracing
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.experiments import peak_memory, whose_text
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture(scope="module")
def work(lm):
    """Two users of a small codebook, their texts, and human ones."""
    book = tracing.Codebook(Key.from_seed(3), 50, 4)
    names = whose_text.users(book, 2)
    noises = whose_text.noises(lm, WM, book, names)
    assert torch.equal(noises, perturb.noises(lm.model, WM, [book.key(user) for user in names]))
    prompts = [lm.prompt(text) for text in tiny_lm.PROMPTS[:3]]
    texts = whose_text.written(lm, prompts, WM, noises, 12, seed=1)
    human = ([[5], [6], [7]], [list(range(10 + i, 34 + i)) for i in range(3)])
    return book, names, noises, prompts, texts, human


def test_the_users_are_spread_over_the_codebook():
    assert whose_text.users(tracing.Codebook(Key.from_seed(0), 1000, 2), 3) == [0, 499, 999]
    assert whose_text.users(tracing.Codebook(Key.from_seed(0), 2, 2), 5) == [0, 1]


def test_texts_are_named_beside_human_ones(lm, work):
    book, names, noises, prompts, texts, human = work
    table, plain = whose_text.attributed(
        lm, prompts, texts, human, WM, book, names, noises, lengths=[6, 12]
    )
    assert table["author"].tolist() == np.repeat(names, 6).tolist()
    assert table["n_tokens"].tolist() == [6, 12] * 6
    own = [
        score.score(lm.model, prompts, texts[i], WM, [book.key(user)], lengths=[6, 12])["psi"]
        for i, user in enumerate(names)
    ]
    assert table["own_psi"].tolist() == pytest.approx(np.concatenate(own).tolist(), rel=1e-4)
    assert (table["psi"] >= table["own_psi"] - 1e-4).all(), "the named user's ψ is the largest"
    assert (table["right"] == (table["user"] == table["author"])).all()
    assert len(plain) == 6
    expected = tracing.attribute(lm.model, *human, WM, book, lengths=[6, 12])
    assert plain["user"].tolist() == expected["user"].tolist()
    rows = whose_text.by_length(table, 50, 4)
    assert rows["n"].tolist() == [6, 6]
    assert (
        rows[["given_psi", "predicted", "value"]]
        .apply(lambda column: column.between(0, 1).all())
        .all()
    )


def test_the_share_given_the_own_psi_is_theorys_in_the_mean():
    own = 4.0 + np.random.default_rng(0).standard_normal(300)
    given = np.mean([whose_text.share_given(psi, 1000, 32) for psi in own])
    assert given == pytest.approx(tracing.share_right(4.0, 1000, 32), abs=4 * 0.4 / 300**0.5)
    curve = whose_text.curve([2.0, 6.0], 1000, [4, 64])
    assert curve.groupby("n_base")["share"].apply(lambda share: share.is_monotonic_increasing).all()
    assert curve["nats"].tolist() == pytest.approx(
        [tracing.capacity(p, m) for m in (4, 64) for p in (2.0, 6.0)]
    )


def test_texts_that_nobody_wrote_meet_each_codebook_once(lm, work):
    *_, human = work
    table = whose_text.nobodys(lm, human, WM, n_users=20, n_base=3, books_per_text=4, first_seed=50)
    assert table["text"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    book = tracing.Codebook(Key.from_seed(50 + 4 + 2), 20, 3)
    expected = tracing.attribute(lm.model, human[0][1:2], human[1][1:2], WM, book)
    assert table.loc[6, ["psi", "p_family"]].tolist() == pytest.approx(
        expected.loc[0, ["psi", "p_family"]].tolist(), rel=1e-4
    )
    assert (table["p_family"] <= table["bonferroni"] + 1e-9).all()


def test_costs_are_times(lm, work):
    book, *_, human = work
    table, per_key = whose_text.costs(lm, (human[0][:1], human[1][:1]), WM, book, [10, 50], 2)
    assert table["n_users"].tolist() == [10, 50]
    assert (table["seconds"] > 0).all()
    assert per_key > 0


def test_the_codebook_is_faster_from_where_both_take_as_long():
    seconds = pd.DataFrame(
        {"n_users": [10, 1000, 100_000], "seconds": [2.0001, 2.01, 3.0]}
    )  # 2 + N/100,000
    assert whose_text.break_even(seconds, 0.01) == pytest.approx(2 / (0.01 - 1e-5), rel=1e-6)
    assert whose_text.break_even(seconds, 1e-5 / 2) == np.inf


def test_near_a_psi_each_text_counts_once_at_its_whole_length():
    rows = {
        "text": [0, 0, 1, 1, 2, 2],
        "n_tokens": [50, 200] * 3,
        "own_psi": [3.0, 6.5, 6.4, 9.0, 6.6, 7.0],
    }
    table = pd.DataFrame(rows | {"right": [False, True, False, True, False, False]})
    found = whose_text.right_between(table, 6.3, 7.3)
    assert (found.value, found.n) == (0.5, 2)
    nobody = whose_text.right_between(table, 20, 30)
    assert nobody.n == 0
    assert np.isnan(nobody.value)


def test_texts_together(lm, work):
    book, names, noises, prompts, texts, human = work
    table = whose_text.authors(lm, prompts, texts, human, WM, noises, [1, 3])
    assert len(table) == 2 * 2 * 3
    own = table[(table["kind"] == "own key") & (table["n_texts"] == 3)]["psi"].tolist()
    other = table[(table["kind"] == "another user's key") & (table["n_texts"] == 3)]["psi"].tolist()
    keys = [book.key(user) for user in names]
    expected = [
        tracing.author(lm.model, prompts, of_user, WM, keys)["psi"].tolist() for of_user in texts
    ]
    assert own == pytest.approx([expected[0][0], expected[1][1]], rel=1e-4)
    assert other == pytest.approx([expected[0][1], expected[1][0]], rel=1e-4)


def test_the_weights_are_as_before(lm, work):
    _, _, noises, prompts, *_ = work
    before = lm.model.get_parameter(WM.weight).clone()
    whose_text.written(lm, prompts, WM, noises, 3)
    assert torch.equal(lm.model.get_parameter(WM.weight), before)


def test_human_texts_are_different_and_of_one_length(lm, tmp_path):
    found = whose_text.human(lm, "docs", 40, 30)
    assert {len(ids) for ids in found} == {30}
    assert len(set(map(tuple, found))) == 40
    file = tmp_path / "own.jsonl"
    file.write_text(
        "\n".join(
            json.dumps({"text": f"{i} is a text of enough characters for these tokens"})
            for i in range(6)
        )
    )
    assert len(whose_text.human(lm, str(file), 40, 10)) == 6
    with pytest.raises(CorpusError, match="at least 4 texts of 5000 tokens"):
        whose_text.human(lm, str(file), 40, 5000)


def test_the_memory_of_a_call_is_what_it_holds_at_most():
    def call(mebibytes):
        held = torch.ones(mebibytes << 18)
        time.sleep(0.05)
        return float(held.sum())

    small, large = (peak_memory.measured(lambda n=n: call(n)) for n in (4, 400))
    assert large[0] == 400 << 18
    assert 350 < large[1] < 500
    assert small[1] < 100


def test_another_users_expected_psi_is_the_share_of_the_own_that_both_keys_have_in_common(lm, work):
    book, names, noises, prompts, texts, human = work
    table = whose_text.authors(lm, prompts, texts, human, WM, noises, [3]).set_index("kind")
    cosine = float(book.code(names[0]) @ book.code(names[1]))
    expected = cosine * table.loc["own key", "psi"].to_numpy()
    assert table.loc["another user's key", "predicted"].to_numpy() == pytest.approx(
        expected, rel=0.1
    ), "but for so few weights"
    assert np.abs(expected).max() > 0.2, "which is not 0"
    assert (table.loc["human texts", "predicted"] == 0).all()


def test_what_is_expected_of_names_is_theorys():
    assert whose_text.expected_right(6.8, 100_000, 256) == 0.95, "of the default parameters"
    hard = whose_text.expected_right(5.0, 5000, 16)
    assert 0 < hard <= tracing.share_right(4.5, 5000, 16) < 0.6
    assert whose_text.expected_right(0.3, 5000, 16) == 0
