"""``on_error="record"``: a bad text keeps its rows, with NaN and its reason; the others are what
they are without it.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_models

from gaussmark_lib import score
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key, Watermark

pytestmark = pytest.mark.usefixtures("wrong_types")
KEYS = [Key.from_seed(0), Key.from_seed(1)]
VALUES = ["psi", "p_value", "log10_p", "grad_norm", "log_lik"]
GOOD = {0: ([1, 2], [3, 4, 5]), 4: ([], [6]), 7: ([7], [8] * 20), 10: ([1], [2])}
BAD = {
    1: ([1], [], "at least one token"),
    2: ([1], [97], "0 to 96, got 97"),
    3: ([-1], [2], "prompt 3: .*0 to 96, got -1"),
    5: ([1] * 60, [2] * 5, "at most 64 tokens"),
    6: ([1], "text", "got text"),
    8: ([1], None, "expected a list of token ids, got None"),
    9: ("text", [1, 2], "prompt 9: .*got text"),
}
ROWS = GOOD | BAD
PROMPTS, RESPONSES = [ROWS[i][0] for i in sorted(ROWS)], [ROWS[i][1] for i in sorted(ROWS)]


@pytest.fixture
def table(model, wm) -> pd.DataFrame:
    return score.score(model, PROMPTS, RESPONSES, wm, KEYS, on_error="record", batch_size=2)


def test_every_text_keeps_its_place_with_a_row_a_key(table):
    assert table["text"].tolist() == [i for i in range(len(ROWS)) for _ in KEYS]
    assert table["key_id"].tolist() == [key.key_id for key in KEYS] * len(ROWS)
    assert list(table.columns) == [*score.COLUMNS, "error"]


@pytest.mark.parametrize("text", BAD)
def test_bad_texts_have_no_psi_and_a_reason(table, text):
    rows = table[table["text"] == text]
    assert rows[VALUES].isna().all(axis=None)
    assert rows["error"].str.contains(BAD[text][2]).all()


def test_good_texts_are_unaffected(model, wm, table):
    alone = score.score(
        model, [x for x, _ in GOOD.values()], [y for _, y in GOOD.values()], wm, KEYS
    )
    good = table[table["text"].isin(GOOD)]
    assert good["error"].isna().all()
    np.testing.assert_allclose(good[VALUES], alone[VALUES], rtol=1e-4, atol=2e-5)
    assert good["n_tokens"].tolist() == alone["n_tokens"].tolist()


def test_lengths_are_counted_where_there_are_tokens(table):
    lengths = table.groupby("text")["n_tokens"].first()
    assert lengths[[1, 2, 5, 6, 8]].tolist() == [0, 1, 5, 0, 0]


def test_types_are_those_of_a_table_without_errors(model, wm, table):
    clean = score.score(model, [[1]], [[2, 3]], wm, KEYS)
    assert table[score.COLUMNS].dtypes.equals(clean.dtypes)


def test_where_nothing_fails_the_column_is_there_and_empty(model, wm):
    table = score.score(model, [[1]], [[2, 3]], wm, KEYS, on_error="record")
    assert list(table.columns) == [*score.COLUMNS, "error"]
    assert table["error"].isna().all()


def test_where_everything_fails_there_is_still_a_table(model, wm):
    table = score.score(model, [[1], [1]], [[], [99]], wm, KEYS, on_error="record")
    assert table["psi"].isna().all()
    assert table["text"].tolist() == [0, 0, 1, 1]


def test_a_zero_gradient_is_recorded_and_the_rest_goes_on(model):
    wm = Watermark("model.layers.1.self_attn.q_proj.weight", 0.05)
    table = score.score(model, [[], [1, 2]], [[3], [4, 5]], wm, KEYS, on_error="record")
    assert table["psi"].isna().tolist() == [True, True, False, False]
    assert table["error"][0].startswith("text 0: expected a finite, non-zero gradient")


def test_the_default_is_to_raise(model, wm):
    with pytest.raises(InvalidTextError):
        score.score(model, PROMPTS, RESPONSES, wm, KEYS)


def test_mistakes_in_the_call_are_raised_all_the_same(model, wm):
    with pytest.raises(InvalidTextError, match="one prompt a response"):
        score.score(model, PROMPTS, RESPONSES[1:], wm, KEYS, on_error="record")


def test_a_nan_model_is_no_p_of_one(wm):
    """A crash must never read as "not watermarked"."""
    model = tiny_models.build("llama")
    model.model.embed_tokens.weight.data[5] = float("nan")
    table = score.score(model, [[1], [1]], [[5, 3], [2, 3]], wm, KEYS, on_error="record")
    assert table["p_value"].isna().tolist() == [True, True, False, False]
    assert table["error"][0] != ""
