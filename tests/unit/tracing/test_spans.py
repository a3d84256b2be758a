"""The scan's arguments, and its table."""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import tracing
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError
from gaussmark_lib.perturb import Key
from gaussmark_lib.tracing import spans as scan

PROMPTS, RESPONSES = (
    [*tiny_models.random_ids(np.random.default_rng(0), *lengths)] for lengths in ((3, 1), (12, 20))
)


def test_a_row_for_each_text_and_key(model, wm, key):
    keys = [key, type(key).from_seed(1)]
    table = tracing.scan(model, PROMPTS, RESPONSES, wm, keys, block=4)
    assert table.columns.tolist() == scan.COLUMNS
    assert table["text"].tolist() == [0, 0, 1, 1]
    assert table["key_id"].tolist() == [key.key_id for key in keys] * 2
    assert table["n_tokens"].tolist() == [12, 12, 20, 20]
    assert ((table["start"] < table["end"]) & (table["end"] <= table["n_tokens"])).all()
    assert (table[["start", "end"]] % 4 == 0).all(axis=None)
    assert table["psi"].ge(table["whole_psi"] - 1e-5).all(), "the whole text is one of the spans"
    assert table.equals(tracing.scan(model, PROMPTS, RESPONSES, wm, keys, block=4)), (
        "the same draws each time"
    )


def test_a_fixed_window_has_one_size(model, wm, key):
    table = tracing.scan(model, PROMPTS, RESPONSES, wm, [key], block=4, shortest=8, longest=8)
    assert (table["end"] - table["start"] == 8).all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"block": 10, "shortest": 9}, "expected at least one block, 10 tokens, got 9"),
        ({"block": 4, "shortest": 8, "longest": 7}, "longest: expected a whole number ≥ 8, got 7"),
        ({"block": 13}, "response 0: expected at least 13 tokens"),
        ({"block": 0}, "block: expected a whole number"),
        ({"keys": []}, "expected at least one key"),
    ],
)
def test_what_cannot_be_scanned(model, wm, key, options, complaint):
    with pytest.raises(InvalidTextError, match=complaint):
        tracing.scan(model, PROMPTS, RESPONSES, wm, **{"keys": [key]} | options)


def test_a_gradient_that_is_not_finite_is_named(model, wm, key):
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    with pytest.raises(DegenerateScoreError, match="text 0: expected a gradient that is finite"):
        tracing.scan(model, [[1, 2]], [[7] * 20], wm, [key], block=5)


def test_a_keys_p_does_not_depend_on_the_keys_beside_it(model, wm, key):
    other = Key.from_seed(8)
    both, alone = (
        tracing.scan(model, [[1, 2]], [list(range(3, 33))], wm, keys, block=5)
        for keys in ([key, other], [other])
    )
    assert both.iloc[1].drop("text").tolist() == alone.iloc[0].drop("text").tolist()


def test_sums_over_many_numbers_are_in_float64():
    G = torch.full((2, 1 << 24), 1e-3) * torch.tensor([[1.0], [2.0]])
    np.testing.assert_allclose(
        scan._inner(G, G), (1 << 24) * 1e-6 * np.array([[1, 2], [2, 4]]), rtol=1e-6
    )


def test_blocks_without_a_gradient_have_no_psi(model, wm, key):
    """Of three blocks the middle one says nothing: every span but that one alone is left."""
    G = np.array([[1.0, 0, 0], [0, 0, 0], [0, 2, 0]])
    A, kept = scan.loadings(G @ G.T, scan.intervals(3))
    assert [1, 2] not in kept.tolist()
    assert len(kept) == 5
    assert np.linalg.norm(A, axis=1) == pytest.approx(1)
    with pytest.raises(DegenerateScoreError, match="not zero in some span"):
        list(scan._rows(0, torch.zeros(2, 3), scan.intervals(2), [1, 2], wm.on(model), [key], 0, 1))
